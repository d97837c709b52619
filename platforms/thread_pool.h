// The threads that a model computes on. One pool serves XNNPACK (through `native`) and our own
// kernels (through `parallel_for`), so that they never compete for cores. The thread that calls
// `parallel_for` takes part as one of the pool's threads; calls from two threads at once must not
// overlap.

#ifndef VOLVELLE_PLATFORMS_THREAD_POOL_H_
#define VOLVELLE_PLATFORMS_THREAD_POOL_H_

#include <pthreadpool.h>

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "platforms/error.h"

namespace volvelle {

inline constexpr size_t kMaxThreads = 1024;

class ThreadPool {
 public:
  // `threads` counts the caller; 1 starts no thread. With `cpus`, thread i stays on core cpus[i mod
  // size], and the calling thread, which is thread 0, stays on cpus[0] also after the pool has
  // gone. Fails on 0 or more than kMaxThreads threads and on a core that this process may not use.
  static Result<ThreadPool> make(size_t threads, std::span<const int> cpus = {});

  // For XNNPACK, which takes null to mean the calling thread alone.
  pthreadpool_t native() const { return pool_.get(); }
  size_t threads() const { return threads_; }

  // Calls function(index, thread) once for each index below `count`, in any order; `thread` is
  // below threads() and no two calls with the same `thread` overlap. Returns when all are done.
  // `function` must not throw.
  template <typename Function>
  void parallel_for(size_t count, const Function& function) const {
    if (pool_ == nullptr || count <= 1) {
      for (size_t index = 0; index < count; ++index) function(index, size_t{0});
      return;
    }
    pthreadpool_parallelize_1d_with_thread(
        pool_.get(),
        [](void* context, size_t thread, size_t index) {
          (*static_cast<const Function*>(context))(index, thread);
        },
        const_cast<Function*>(&function), count, /*flags=*/0);
  }

 private:
  struct Destroy {
    void operator()(pthreadpool_t pool) const { pthreadpool_destroy(pool); }
  };
  using Pool = std::unique_ptr<pthreadpool, Destroy>;

  ThreadPool(Pool pool, size_t threads) : pool_(std::move(pool)), threads_(threads) {}

  Pool pool_;  // null for one thread
  size_t threads_;
};

}  // namespace volvelle

#endif  // VOLVELLE_PLATFORMS_THREAD_POOL_H_
