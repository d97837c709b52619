#include "platforms/thermal.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <format>
#include <string_view>
#include <system_error>
#include <utility>

#include "platforms/system_file.h"

namespace volvelle {
namespace {

constexpr int kMaxSensors = 256;  // phones have about 100

// Sensors report thousandths of a degree; broken ones report 0, -274000 or the like.
std::optional<double> read_sensor(const std::string& path) {
  const auto reading = read_system_number(path);
  if (!reading || *reading <= 0 || *reading > 150'000) return std::nullopt;
  return static_cast<double>(*reading) / 1000;
}

bool belongs_to_processor(std::string_view name) {
  static constexpr std::array<std::string_view, 6> kNames = {"cpu",     "soc",      "x86_pkg",
                                                             "bigcore", "coretemp", "k10temp"};
  return std::ranges::any_of(kNames, [&](std::string_view part) { return name.contains(part); });
}

// The hottest of NAME_FILE's folders whose sensors belong to the processor; numbers may have gaps.
std::optional<double> hottest(const std::string& folders, std::string_view name_file,
                              std::string_view sensor_file) {
  std::optional<double> highest;
  for (int i = 0; i < kMaxSensors; ++i) {
    const auto name = read_system_text(std::format("{}{}/{}", folders, i, name_file));
    if (!name || !belongs_to_processor(*name)) continue;
    const auto degrees = read_sensor(std::format("{}{}/{}", folders, i, sensor_file));
    if (degrees && (!highest || *degrees > *highest)) highest = degrees;
  }
  return highest;
}

// What Raspberry Pi's firmware says: below "soc", or on a Pi 5 "soc@107c000000".
std::optional<std::string> firmware_bits(const std::string& root) {
  std::error_code error;
  const std::filesystem::directory_iterator end;
  for (std::filesystem::directory_iterator entry(root + "/sys/devices/platform", error);
       !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (!name.starts_with("soc")) continue;
    if (auto text = read_system_text(entry->path() / (name + ":firmware") / "get_throttled")) {
      return text;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<double> processor_temperature(const std::string& root) {
  if (const auto zone = hottest(root + "/sys/class/thermal/thermal_zone", "type", "temp"))
    return zone;
  return hottest(root + "/sys/class/hwmon/hwmon", "name", "temp1_input");
}

std::optional<double> processor_clock(std::span<const int> cpus, const std::string& root) {
  std::optional<double> highest;
  for (const int cpu : cpus) {
    const auto kilohertz = read_system_number(
        std::format("{}/sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq", root, cpu));
    if (!kilohertz || *kilohertz <= 0) continue;
    highest = std::max(highest.value_or(0), static_cast<double>(*kilohertz) * 1e3);
  }
  return highest;
}

std::optional<std::string> throttle_reason(const std::string& root) {
  // What `vcgencmd get_throttled` prints, in hexadecimal; the lowest four bits speak of now.
  // https://www.raspberrypi.com/documentation/computers/os.html#get_throttled
  static constexpr std::array<std::pair<unsigned, std::string_view>, 4> kBits = {
      {{1, "under-voltage"}, {4, "too hot"}, {8, "near its limit of heat"}, {2, "clock capped"}}};
  if (const auto text = firmware_bits(root)) {
    unsigned bits = 0;
    std::from_chars(text->data(), text->data() + text->size(), bits, 16);
    for (const auto& [bit, reason] : kBits) {
      if ((bits & bit) != 0) return std::string(reason);
    }
  }
  for (int i = 0; i < kMaxSensors; ++i) {
    const std::string folder = std::format("{}/sys/class/thermal/cooling_device{}", root, i);
    const auto type = read_system_text(folder + "/type");
    if (!type) break;
    if (!type->contains("cpufreq") && *type != "Processor") continue;  // fans cool without loss
    if (read_system_number(folder + "/cur_state").value_or(0) > 0) return "too hot";
  }
  return std::nullopt;
}

uint64_t throttle_count(const std::string& root) {
  const auto count = read_system_number(
      root + "/sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count");
  return static_cast<uint64_t>(std::max<int64_t>(0, count.value_or(0)));
}

}  // namespace volvelle
