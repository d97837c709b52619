#include "platforms/thread_pool.h"

#include <sched.h>

#include <atomic>
#include <barrier>
#include <cerrno>
#include <cstring>

namespace volvelle {
namespace {

// Binds the calling thread to one core; returns the system's error number, 0 for none.
int stay_on(int cpu) {
  if (cpu < 0 || cpu >= CPU_SETSIZE) return EINVAL;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  return ::sched_setaffinity(0, sizeof(set), &set) == 0 ? 0 : errno;
}

}  // namespace

Result<ThreadPool> ThreadPool::make(size_t threads, std::span<const int> cpus) {
  if (threads == 0 || threads > kMaxThreads) {
    return fail("{} threads: the count must lie between 1 and {}", threads, kMaxThreads);
  }
  Pool pool;
  if (threads > 1) {
    pool.reset(pthreadpool_create(threads));
    if (pool == nullptr || pthreadpool_get_threads_count(pool.get()) != threads) {
      return fail("{} threads cannot be started; ask for fewer", threads);
    }
  }
  ThreadPool made(std::move(pool), threads);
  if (cpus.empty()) return made;

  // The barrier holds each thread in its item until all have one, so that none takes two.
  std::barrier all_here(static_cast<std::ptrdiff_t>(threads));
  std::atomic<int> error = 0, refused_cpu = 0;
  made.parallel_for(threads, [&](size_t, size_t thread) {
    all_here.arrive_and_wait();
    const int cpu = cpus[thread % cpus.size()];
    if (const int code = stay_on(cpu); code != 0) {
      refused_cpu = cpu;
      error = code;
    }
  });
  if (error != 0) {
    return fail("core {}: threads cannot be kept on it: {}; name cores that this process may use",
                refused_cpu.load(), std::strerror(error));
  }
  return made;
}

}  // namespace volvelle
