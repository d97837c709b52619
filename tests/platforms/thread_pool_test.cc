#include "platforms/thread_pool.h"

#include <doctest/doctest.h>
#include <sched.h>

#include <atomic>
#include <memory>
#include <vector>

#include "platforms/cpu.h"

namespace volvelle {
namespace {

TEST_CASE("each index is computed once and no thread is used twice at the same time") {
  for (const size_t threads : {1, 2, 3, 8}) {
    const auto pool = ThreadPool::make(threads);
    REQUIRE(pool.has_value());
    CHECK(pool->threads() == threads);
    for (const size_t count : {0, 1, 2, 7, 1000}) {
      CAPTURE(threads);
      CAPTURE(count);
      std::vector<std::atomic<int>> calls(count);
      std::vector<std::atomic<int>> busy(threads);
      std::atomic<int> clashes = 0;
      pool->parallel_for(count, [&](size_t index, size_t thread) {
        if (thread >= threads || busy[thread].fetch_add(1) != 0) ++clashes;
        ++calls[index];
        if (thread < threads) --busy[thread];
      });
      CHECK(clashes == 0);
      for (const auto& times : calls) REQUIRE(times == 1);
    }
  }
}

TEST_CASE("one thread needs no pool and runs in order on the caller") {
  const auto pool = ThreadPool::make(1);
  REQUIRE(pool.has_value());
  CHECK(pool->native() == nullptr);
  std::vector<size_t> order;
  pool->parallel_for(3, [&](size_t index, size_t) { order.push_back(index); });
  CHECK(order == std::vector<size_t>{0, 1, 2});
}

TEST_CASE("thread counts that cannot be meant are refused") {
  CHECK_FALSE(ThreadPool::make(0).has_value());
  CHECK_FALSE(ThreadPool::make(kMaxThreads + 1).has_value());
}

TEST_CASE("threads stay on the cores they are given") {
  cpu_set_t before;
  REQUIRE(::sched_getaffinity(0, sizeof(before), &before) == 0);
  const std::vector<int> cpus = usable_cpus();
  for (const size_t threads : {1, 2, 5}) {
    const auto pool = ThreadPool::make(threads, cpus);
    REQUIRE(pool.has_value());
    std::atomic<int> strays = 0;
    pool->parallel_for(200, [&](size_t, size_t thread) {
      if (::sched_getcpu() != cpus[thread % cpus.size()]) ++strays;
    });
    CHECK(strays == 0);
    REQUIRE(::sched_setaffinity(0, sizeof(before), &before) == 0);
  }
}

TEST_CASE("a core that does not exist is refused by number") {
  cpu_set_t before;
  REQUIRE(::sched_getaffinity(0, sizeof(before), &before) == 0);
  for (const int cpu : {-1, 1023, 5000}) {
    const auto pool = ThreadPool::make(2, std::vector<int>{usable_cpus()[0], cpu});
    REQUIRE_FALSE(pool.has_value());
    CHECK(pool.error().message.contains(std::format("core {}:", cpu)));
    REQUIRE(::sched_setaffinity(0, sizeof(before), &before) == 0);
  }
}

}  // namespace
}  // namespace volvelle
