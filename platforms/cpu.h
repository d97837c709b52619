// Which cores a model should run on. Four facts decide: the cores this process may use at all, the
// share of them that a container leaves it, which of them are fast (phones and many boards mix
// kinds), and which are two threads of one core (they share its multipliers, so a second one gains
// nothing).

#ifndef VOLVELLE_PLATFORMS_CPU_H_
#define VOLVELLE_PLATFORMS_CPU_H_

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "platforms/error.h"

namespace volvelle {

// `root` stands before /sys and /proc (see system_file.h); lists of cores are ascending without
// repeats.

// "0-3,6": the numbers 0 to 3 and 6, each below 1024. Anything else is refused.
Result<std::vector<int>> parse_cpu_list(std::string_view text);

// The cores in this thread's affinity mask; never empty.
std::vector<int> usable_cpus();

// How many cores' worth of time the control groups (v2 or v1) around this process allow, for
// example 1.5.
std::optional<double> cpu_quota(const std::string& root = "");

// Those of `cpus` that are about as fast as the fastest. A core that the kernel rates
// (cpu_capacity, or else its highest clock) much below is one of the efficient kind; a core with no
// rating counts as fast.
std::vector<int> fast_cpus(std::span<const int> cpus, const std::string& root = "");

// One of each group of `cpus` that are threads of the same core.
std::vector<int> separate_cores(std::span<const int> cpus, const std::string& root = "");

// Cores of the machine that nothing but this thread runs on at this moment.
std::optional<int> idle_cores(const std::string& root = "");

// One thread for each fast, separate core among `cpus`, no more than the quota and than cores are
// idle; at least 1. Threads work in step: one that must share its core keeps all others waiting,
// so that two on a busy machine are slower than one alone.
size_t default_threads(std::span<const int> cpus, const std::string& root = "");

// Keeps this thread, and those it starts from now on, on `cpus`; the system chooses among them.
// Where it may not, nothing changes.
void stay_among(std::span<const int> cpus);

struct CpuDescription {
  std::string model;  // "AMD Ryzen 7 7840U", "Raspberry Pi 5 Model B Rev 1.0 (Cortex-A76)"
  std::vector<std::string> features;  // those that matter to arithmetic, in the kernel's spelling
};
CpuDescription describe_cpu(const std::string& root = "");

}  // namespace volvelle

#endif  // VOLVELLE_PLATFORMS_CPU_H_
