#include "platforms/cpu.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <set>
#include <thread>
#include <utility>

#include "platforms/control_groups.h"
#include "platforms/system_file.h"

namespace volvelle {
namespace {

constexpr int kMaxCpus = 1024;  // as many as a cpu_set_t holds

// A core counts as fast from these parts of the fastest on. Capacity is measured work (1024 for the
// fastest): middle cores of phones have 0.65 to 0.9, efficient ones 0.15 to 0.55. A clock alone
// hides what a core does per cycle, so it must be closer; cores of one kind differ by a few per
// cent.
constexpr double kFastCapacity = 0.6;
constexpr double kFastClock = 0.8;

std::string cpu_folder(const std::string& root, int cpu) {
  return std::format("{}/sys/devices/system/cpu/cpu{}", root, cpu);
}

// The quota that one group states, in cores.
std::optional<double> quota_v2(const std::string& folder) {
  const auto text = read_system_text(folder + "/cpu.max");  // "QUOTA PERIOD" or "max PERIOD"
  if (!text) return std::nullopt;
  const size_t space = text->find(' ');
  if (space == std::string::npos) return std::nullopt;
  const auto quota = parse_number(std::string_view(*text).substr(0, space));
  const auto period = parse_number(std::string_view(*text).substr(space + 1));
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

std::optional<double> quota_v1(const std::string& folder) {
  const auto quota = read_system_number(folder + "/cpu.cfs_quota_us");  // -1: none
  const auto period = read_system_number(folder + "/cpu.cfs_period_us");
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

// The names that `text` of /proc/cpuinfo gives the kinds of Arm cores in it, by implementer and
// part.
std::string arm_cores(std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 22> kParts = {{
      {"0xd03", "Cortex-A53"},  {"0xd04", "Cortex-A35"},  {"0xd05", "Cortex-A55"},
      {"0xd07", "Cortex-A57"},  {"0xd08", "Cortex-A72"},  {"0xd09", "Cortex-A73"},
      {"0xd0a", "Cortex-A75"},  {"0xd0b", "Cortex-A76"},  {"0xd0c", "Neoverse-N1"},
      {"0xd0d", "Cortex-A77"},  {"0xd40", "Neoverse-V1"}, {"0xd41", "Cortex-A78"},
      {"0xd44", "Cortex-X1"},   {"0xd46", "Cortex-A510"}, {"0xd47", "Cortex-A710"},
      {"0xd48", "Cortex-X2"},   {"0xd49", "Neoverse-N2"}, {"0xd4d", "Cortex-A715"},
      {"0xd4e", "Cortex-X3"},   {"0xd4f", "Neoverse-V2"}, {"0xd80", "Cortex-A520"},
      {"0xd81", "Cortex-A720"},
  }};
  std::string names;
  std::set<std::string_view> seen;
  std::string_view implementer;
  for_each_piece(text, '\n', [&](std::string_view line) {
    if (const auto value = find_field(line, "CPU implementer")) implementer = *value;
    const auto part = find_field(line, "CPU part");
    if (!part || implementer != "0x41" || !seen.insert(*part).second) return;  // 0x41: Arm itself
    for (const auto& [number, name] : kParts) {
      if (number == *part) names += std::format("{}{}", names.empty() ? "" : ", ", name);
    }
  });
  return names;
}

}  // namespace

Result<std::vector<int>> parse_cpu_list(std::string_view text) {
  std::set<int> cpus;
  bool good = true;
  for_each_piece(text, ',', [&](std::string_view piece) {
    const size_t dash = piece.find('-', 1);
    const auto first = parse_number(piece.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : parse_number(piece.substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first || *last >= kMaxCpus) {
      good = false;
      return;
    }
    for (int64_t cpu = *first; cpu <= *last; ++cpu) cpus.insert(static_cast<int>(cpu));
  });
  if (!good) {
    return fail("\"{}\" is not a list of cores; write numbers below {} like 0-3,6", text, kMaxCpus);
  }
  return std::vector<int>(cpus.begin(), cpus.end());
}

std::vector<int> usable_cpus() {
  std::vector<int> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
    }
  }
  if (cpus.empty()) cpus.push_back(0);
  return cpus;
}

std::optional<double> cpu_quota(const std::string& root) {
  std::optional<double> least;
  for_each_control_group("cpu", root, [&](const std::string& folder, bool second_version) {
    const auto quota = second_version ? quota_v2(folder) : quota_v1(folder);
    if (quota && (!least || *quota < *least)) least = quota;
  });
  return least;
}

std::vector<int> fast_cpus(std::span<const int> cpus, const std::string& root) {
  const auto rated_fast = [&](const char* file, double part) -> std::optional<std::vector<int>> {
    std::vector<std::optional<int64_t>> ratings;
    int64_t highest = 0;
    for (const int cpu : cpus) {
      ratings.push_back(read_system_number(cpu_folder(root, cpu) + file));
      highest = std::max(highest, ratings.back().value_or(0));
    }
    if (highest <= 0) return std::nullopt;
    std::vector<int> fast;
    for (size_t i = 0; i < cpus.size(); ++i) {
      const double rating = static_cast<double>(ratings[i].value_or(highest));
      if (rating >= part * static_cast<double>(highest)) fast.push_back(cpus[i]);
    }
    return fast;
  };
  if (auto fast = rated_fast("/cpu_capacity", kFastCapacity)) return *std::move(fast);
  if (auto fast = rated_fast("/cpufreq/cpuinfo_max_freq", kFastClock)) return *std::move(fast);
  return {cpus.begin(), cpus.end()};
}

std::vector<int> separate_cores(std::span<const int> cpus, const std::string& root) {
  std::vector<int> separate;
  std::set<int> taken;
  for (const int cpu : cpus) {
    if (taken.contains(cpu)) continue;
    separate.push_back(cpu);
    const auto text = read_system_text(cpu_folder(root, cpu) + "/topology/thread_siblings_list");
    if (!text) continue;
    if (const auto siblings = parse_cpu_list(*text)) {
      taken.insert(siblings->begin(), siblings->end());
    }
  }
  return separate;
}

std::optional<int> idle_cores(const std::string& root) {
  const auto online = read_system_text(root + "/sys/devices/system/cpu/online");
  const auto load = read_system_text(root + "/proc/loadavg");  // "0.20 0.18 0.12 RUNNING/ALL PID"
  if (!online || !load) return std::nullopt;
  const auto cores = parse_cpu_list(*online);
  const size_t slash = load->find('/');
  if (!cores || slash == std::string::npos) return std::nullopt;
  const size_t space = load->rfind(' ', slash);
  if (space == std::string::npos) return std::nullopt;
  const auto running = parse_number(std::string_view(*load).substr(space + 1, slash - space - 1));
  if (!running || *running < 1) return std::nullopt;
  const auto count = static_cast<int64_t>(cores->size());
  return static_cast<int>(std::max<int64_t>(count - (*running - 1), 0));
}

size_t default_threads(std::span<const int> cpus, const std::string& root) {
  const std::vector<int> fast = fast_cpus(cpus, root);
  size_t threads = separate_cores(fast, root).size();
  if (const auto quota = cpu_quota(root); quota && *quota < static_cast<double>(threads)) {
    // Rounded down: one thread too many spends the quota waiting for the others.
    threads = static_cast<size_t>(*quota);
  }
  // What runs for a moment only does not count.
  constexpr int kLooks = 5;
  std::optional<int> idle = idle_cores(root);
  for (int look = 1; look < kLooks && idle && static_cast<size_t>(*idle) < threads; ++look) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    idle = std::max(idle, idle_cores(root));
  }
  if (idle) threads = std::min(threads, static_cast<size_t>(*idle));
  return std::max<size_t>(threads, 1);
}

void stay_among(std::span<const int> cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  if (!cpus.empty()) ::sched_setaffinity(0, sizeof(set), &set);
}

CpuDescription describe_cpu(const std::string& root) {
  static constexpr std::array<std::string_view, 21> kFeatures = {
      "sse4_2",   "avx",         "f16c",        "fma",      "avx2",    "avx_vnni", "avx512f",
      "avx512bw", "avx512_vnni", "avx512_bf16", "amx_int8", "asimd",   "asimdhp",  "asimddp",
      "i8mm",     "bf16",        "sve",         "sve2",     "svei8mm", "sme",      "sme2"};
  CpuDescription description;
  const auto text = read_system_text(root + "/proc/cpuinfo");
  if (!text) return description;

  if (const auto name = find_field(*text, "model name")) description.model = *name;
  // A board's name says more than the part that Arm kernels give as a model name, if any.
  const std::string cores = arm_cores(*text);
  if (const auto board = read_system_text(root + "/proc/device-tree/model");
      board && !board->empty()) {
    description.model = cores.empty() ? *board : std::format("{} ({})", *board, cores);
  } else if (description.model.empty()) {
    description.model = cores;
  }

  auto flags = find_field(*text, "flags");
  if (!flags) flags = find_field(*text, "Features");
  std::set<std::string_view> present;
  for_each_piece(flags.value_or(""), ' ', [&](std::string_view flag) { present.insert(flag); });
  for (const std::string_view feature : kFeatures) {
    if (present.contains(feature)) description.features.emplace_back(feature);
  }
  return description;
}

}  // namespace volvelle
