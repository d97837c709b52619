#include "platforms/memory.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "platforms/clock.h"
#include "tests/platforms/machines.h"
#include "tests/scratch_folder.h"

namespace volvelle {
namespace {

using Pages = AlignedBuffer::Pages;

TEST_CASE("a buffer is aligned, zeroed and keeps its bytes when it moves") {
  for (const auto& [pages, alignment] :
       {std::pair(Pages::kOrdinary, 64), std::pair(Pages::kHuge, 2 << 20)}) {
    for (const size_t bytes : {1, 64, 4097, 3'000'000}) {
      CAPTURE(bytes);
      auto made = AlignedBuffer::make(bytes, pages);
      REQUIRE(made.has_value());
      CHECK(made->bytes().size() == bytes);
      CHECK(reinterpret_cast<uintptr_t>(made->bytes().data()) % alignment == 0);
      CHECK(std::ranges::all_of(made->bytes(), [](std::byte b) { return b == std::byte{0}; }));
      made->bytes().back() = std::byte{7};
      AlignedBuffer moved;
      moved = *std::move(made);
      CHECK(moved.bytes().size() == bytes);
      CHECK(moved.bytes().back() == std::byte{7});
      CHECK(moved.as<float>().size() == bytes / 4);
    }
  }
}

TEST_CASE("a buffer of no bytes is empty and one beyond the machine is refused") {
  const auto none = AlignedBuffer::make(0);
  REQUIRE(none.has_value());
  CHECK(none->bytes().empty());
  for (const auto pages : {Pages::kOrdinary, Pages::kHuge}) {
    for (const size_t bytes : {SIZE_MAX, SIZE_MAX - 4096, SIZE_MAX / 2, SIZE_MAX / 4}) {
      const auto refused = AlignedBuffer::make(bytes, pages);
      REQUIRE_FALSE(refused.has_value());
      CHECK(refused.error().message.contains("MB of memory cannot be had"));
    }
  }
}

TEST_CASE("a buffer takes physical memory when touched, not when made") {
  constexpr size_t kBytes = 64 << 20;
  const auto before = memory_use();
  REQUIRE(before.has_value());
  const auto buffer = AlignedBuffer::make(kBytes);
  REQUIRE(buffer.has_value());
  const auto made = memory_use();
  std::ranges::fill(buffer->bytes(), std::byte{1});
  const auto touched = memory_use();
  REQUIRE(made.has_value());
  REQUIRE(touched.has_value());
  // A quarter of the buffer allows for what else the process does meanwhile.
  CHECK(made->anonymous < before->anonymous + kBytes / 4);
  CHECK(touched->anonymous > before->anonymous + kBytes / 4 * 3);
  CHECK(touched->peak >= touched->anonymous);
}

TEST_CASE("memory is read from the kernel's lines and unknown where one is missing") {
  ScratchFolder machine;
  CHECK_FALSE(memory_use(machine.path()).has_value());
  machine.write("proc/self/status",
                "VmPeak:\t  99 kB\nVmHWM:\t  40 kB\nRssAnon:\t  30 kB\nRssFile:\t 8 kB\n");
  CHECK_FALSE(memory_use(machine.path()).has_value());
  machine.write("proc/self/status",
                "VmHWM:\t  40 kB\nRssAnon:\t  30 kB\nRssFile:\t 8 kB\nRssShmem:\t 2 kB\n");
  const auto use = memory_use(machine.path());
  REQUIRE(use.has_value());
  CHECK(use->peak == 40 * 1024);
  CHECK(use->anonymous == 30 * 1024);
  CHECK(use->files == 8 * 1024);
  CHECK(use->shared == 2 * 1024);
}

TEST_CASE("what is left is the least of the machine's and of each group's, files not counted") {
  ScratchFolder machine;
  lay_out_machine(machine, "container_1_5");
  const auto left = memory_left(machine.path());
  REQUIRE(left.has_value());
  CHECK(left->bytes == 536870912 - (134217728 - 29360128 - 4194304));
  CHECK(left->limit == "its container");
  machine.write("sys/fs/cgroup/memory.max", "max");
  const auto more = memory_left(machine.path());
  REQUIRE(more.has_value());
  CHECK(more->bytes == uint64_t{12000000} * 1024);
  CHECK(more->limit == "this machine");
  machine.write("proc/self/cgroup", "7:cpu,memory:/box");
  machine.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  machine.write("sys/fs/cgroup/memory/memory.usage_in_bytes", "1000");
  machine.write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "5000");
  machine.write("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "6000");
  CHECK(memory_left(machine.path())->bytes == 0);
}

TEST_CASE("the clock never goes back") {
  double last = monotonic_seconds();
  for (int i = 0; i < 1000; ++i) {
    const double now = monotonic_seconds();
    REQUIRE(now >= last);
    last = now;
  }
}

}  // namespace
}  // namespace volvelle
