#include "platforms/cpu.h"

#include <doctest/doctest.h>

#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "platforms/system_file.h"
#include "platforms/thermal.h"
#include "tests/platforms/machines.h"
#include "tests/scratch_folder.h"

namespace volvelle {
namespace {

using Cpus = std::vector<int>;

Cpus first_cpus(int count) {
  Cpus cpus(count);
  std::iota(cpus.begin(), cpus.end(), 0);
  return cpus;
}

struct Machine : ScratchFolder {
  explicit Machine(std::string_view name) { lay_out_machine(*this, name); }
};

TEST_CASE("a list of cores is numbers and ranges, in any order, sorted on return") {
  CHECK(parse_cpu_list("0").value() == Cpus{0});
  CHECK(parse_cpu_list("0-3,6").value() == Cpus{0, 1, 2, 3, 6});
  CHECK(parse_cpu_list("6,2-3,3,0").value() == Cpus{0, 2, 3, 6});
  CHECK(parse_cpu_list("1023").value() == Cpus{1023});
}

TEST_CASE("what is not a list of cores is refused") {
  for (const std::string text : {"", ",", "0,", "a", "0-", "-1", "-", "3-1", "1024", "0-4000000000",
                                 "1.5", "0 1", "0x1", "+1", "99999999999999999999", "1--2"}) {
    CAPTURE(text);
    const auto cpus = parse_cpu_list(text);
    REQUIRE_FALSE(cpus.has_value());
    CHECK(cpus.error().message.contains("is not a list of cores"));
  }
}

TEST_CASE("a Raspberry Pi 5 has four equal cores and tells its temperature") {
  const Machine machine("raspberry_pi_5");
  const std::string& root = machine.path();
  CHECK(fast_cpus(first_cpus(4), root) == first_cpus(4));
  CHECK(separate_cores(first_cpus(4), root) == first_cpus(4));
  CHECK_FALSE(cpu_quota(root).has_value());
  CHECK(default_threads(first_cpus(4), root) == 4);
  CHECK(default_threads(Cpus{2, 3}, root) == 2);
  CHECK(processor_temperature(root) == 61.45);
  CHECK(processor_clock(first_cpus(4), root) == 2.4e9);
  CHECK(processor_clock(Cpus{1, 2}, root) == 1.5e9);
  const CpuDescription description = describe_cpu(root);
  CHECK(description.model == "Raspberry Pi 5 Model B Rev 1.0 (Cortex-A76)");
  CHECK(description.features == std::vector<std::string>{"asimd", "asimdhp", "asimddp"});
}

TEST_CASE("a Raspberry Pi 4 has four equal cores and no dot product") {
  const Machine machine("raspberry_pi_4");
  const std::string& root = machine.path();
  CHECK(fast_cpus(first_cpus(4), root) == first_cpus(4));
  CHECK(default_threads(first_cpus(4), root) == 4);
  CHECK(processor_temperature(root) == 81.791);
  CHECK(processor_clock(first_cpus(4), root) == 1e9);
  const CpuDescription description = describe_cpu(root);
  CHECK(description.model == "Raspberry Pi 4 Model B Rev 1.4 (Cortex-A72)");
  CHECK(description.features == std::vector<std::string>{"asimd"});
}

TEST_CASE("of four fast cores and four efficient ones, told by clock, the fast are taken") {
  const Machine machine("phone_4_4");
  const std::string& root = machine.path();
  CHECK(fast_cpus(first_cpus(8), root) == Cpus{4, 5, 6, 7});
  CHECK(default_threads(first_cpus(8), root) == 4);
  CHECK(default_threads(Cpus{0, 1, 2, 3}, root) == 4);  // kept off the others by taskset
  CHECK(default_threads(Cpus{3, 4}, root) == 1);
  CHECK_FALSE(cpu_quota(root).has_value());
}

TEST_CASE(
    "of one large core, three middle and four efficient ones, the first two kinds are taken") {
  const Machine machine("phone_1_3_4");
  CHECK(fast_cpus(first_cpus(8), machine.path()) == Cpus{4, 5, 6, 7});
  CHECK(default_threads(first_cpus(8), machine.path()) == 4);
  CHECK(describe_cpu(machine.path()).model == "Cortex-A510, Cortex-A715, Cortex-X3");
}

TEST_CASE("a phone's efficient cores are left out and its other sensors do not count") {
  const Machine machine("phone");
  const std::string& root = machine.path();
  CHECK(fast_cpus(first_cpus(8), root) == Cpus{3, 4, 5, 6, 7});
  CHECK(fast_cpus(Cpus{0, 1}, root) == Cpus{0, 1});  // when it may use no others
  CHECK(default_threads(first_cpus(8), root) == 5);
  CHECK(processor_temperature(root) == 71.9);
  CHECK_FALSE(processor_clock(first_cpus(8), root).has_value());
  CHECK(describe_cpu(root).model == "Cortex-A510, Cortex-A715, Cortex-A710, Cortex-X3");
}

TEST_CASE("a laptop's efficient cores and second threads are left out") {
  const Machine machine("laptop");
  const std::string& root = machine.path();
  CHECK(fast_cpus(first_cpus(16), root) == first_cpus(8));
  CHECK(separate_cores(first_cpus(16), root) == Cpus{0, 2, 4, 6, 8, 9, 10, 11, 12, 13, 14, 15});
  CHECK(separate_cores(Cpus{1, 3}, root) == Cpus{1, 3});
  CHECK(default_threads(first_cpus(16), root) == 4);
  CHECK(processor_temperature(root) == 55.0);
  const CpuDescription description = describe_cpu(root);
  CHECK(description.model == "12th Gen Intel(R) Core(TM) i5-1240P");
  CHECK(description.features ==
        std::vector<std::string>{"sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni"});
}

TEST_CASE("a container's quota limits the threads, the least of the groups around it") {
  const Machine newer("container_v2");
  CHECK(cpu_quota(newer.path()) == 2.5);
  CHECK(default_threads(first_cpus(8), newer.path()) == 2);
  CHECK(default_threads(first_cpus(1), newer.path()) == 1);
  const Machine half("container_1_5");
  CHECK(cpu_quota(half.path()) == 1.5);
  CHECK(default_threads(first_cpus(8), half.path()) == 1);
  const Machine older("container_v1");
  CHECK(cpu_quota(older.path()) == 0.5);
  CHECK(default_threads(first_cpus(8), older.path()) == 1);
}

TEST_CASE("no more threads are started than cores are idle") {
  const Machine machine("raspberry_pi_5");
  const std::string& root = machine.path();
  CHECK_FALSE(idle_cores(root).has_value());
  machine.write("sys/devices/system/cpu/online", "0-3");
  for (const auto& [load, idle, threads] :
       {std::tuple("0.00 0.01 0.05 1/213 977", 4, 4), std::tuple("3.90 1.01 0.05 1/213 977", 4, 4),
        std::tuple("0.00 0.01 0.05 3/213 977", 2, 2),
        std::tuple("9.00 9.01 9.05 12/213 977", 0, 1)}) {
    CAPTURE(load);
    machine.write("proc/loadavg", load);
    CHECK(idle_cores(root) == idle);
    CHECK(default_threads(first_cpus(4), root) == threads);
  }
  for (const char* load : {"", "0.00", "1/2", "0 0 0 /5 1", "0 0 0 0/5 1", "0 0 0 x/5 1"}) {
    CAPTURE(load);
    machine.write("proc/loadavg", load);
    CHECK_FALSE(idle_cores(root).has_value());
  }
}

TEST_CASE("a machine that tells nothing counts every core as fast and separate") {
  const ScratchFolder machine;
  const std::string& root = machine.path();
  CHECK(fast_cpus(first_cpus(3), root) == first_cpus(3));
  CHECK(separate_cores(first_cpus(3), root) == first_cpus(3));
  CHECK(default_threads(first_cpus(3), root) == 3);
  CHECK(default_threads({}, root) == 1);
  CHECK_FALSE(cpu_quota(root).has_value());
  CHECK_FALSE(processor_temperature(root).has_value());
  CHECK(describe_cpu(root).model.empty());
}

TEST_CASE("files of another form than expected are not believed") {
  const ScratchFolder machine;
  machine.write("proc/self/cgroup", "0::/a\nnonsense\n:\n2:cpu\n3:cpu:/../b");
  machine.write("sys/fs/cgroup/a/cpu.max", "100000");
  machine.write("sys/fs/cgroup/cpu.max", "-5 0");
  machine.write("sys/devices/system/cpu/cpu0/cpu_capacity", "much");
  machine.write("sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0-99999999999");
  CHECK_FALSE(cpu_quota(machine.path()).has_value());
  CHECK(default_threads(first_cpus(2), machine.path()) == 2);
}

TEST_CASE("this machine has at least one usable core") {
  const Cpus cpus = usable_cpus();
  REQUIRE_FALSE(cpus.empty());
  CHECK(default_threads(cpus) >= 1);
  CHECK(default_threads(cpus) <= cpus.size());
}

TEST_CASE("a field is found by its whole name") {
  const std::string text = "VmHWM:\t 12 kB\nRssAnon :  3 kB\nno colon\nRss: 4";
  CHECK(find_field(text, "VmHWM") == "12 kB");
  CHECK(find_field(text, "RssAnon") == "3 kB");
  CHECK(find_field(text, "Rss") == "4");
  CHECK_FALSE(find_field(text, "Vm").has_value());
  CHECK_FALSE(find_field("", "Vm").has_value());
}

}  // namespace
}  // namespace volvelle
