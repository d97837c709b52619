#include "platforms/heat_monitor.h"

#include <doctest/doctest.h>

#include <string>

#include "platforms/thermal.h"
#include "tests/platforms/machines.h"
#include "tests/scratch_folder.h"

namespace volvelle {
namespace {

const std::string kZone = "sys/class/thermal/thermal_zone0/";
const std::string kClock = "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq";

TEST_CASE("a Raspberry Pi's firmware says why it slows down now, and what is past does not count") {
  for (const std::string told :
       {"sys/devices/platform/soc/soc:firmware/get_throttled",
        "sys/devices/platform/soc@107c000000/soc@107c000000:firmware/get_throttled"}) {
    const ScratchFolder machine;
    machine.write("sys/devices/platform/uart/uart:firmware/get_throttled", "4");
    CHECK_FALSE(throttle_reason(machine.path()).has_value());
    for (const auto& [bits, reason] :
         {std::pair("0", ""), std::pair("50000", ""), std::pair("50005", "under-voltage"),
          std::pair("e0006", "too hot"), std::pair("80008", "near its limit of heat"),
          std::pair("20002", "clock capped"), std::pair("?", "")}) {
      CAPTURE(bits);
      machine.write(told, bits);
      CHECK(throttle_reason(machine.path()).value_or("") == reason);
    }
  }
}

TEST_CASE("a cooling device that slows the processor counts, a fan does not") {
  const ScratchFolder machine;
  machine.write("sys/class/thermal/cooling_device0/type", "pwm-fan");
  machine.write("sys/class/thermal/cooling_device0/cur_state", "3");
  machine.write("sys/class/thermal/cooling_device1/type", "cpufreq-cpu0");
  machine.write("sys/class/thermal/cooling_device1/cur_state", "0");
  CHECK_FALSE(throttle_reason(machine.path()).has_value());
  machine.write("sys/class/thermal/cooling_device1/cur_state", "2");
  CHECK(throttle_reason(machine.path()) == "too hot");
}

TEST_CASE(
    "a watch tells the first, last and worst of what it saw, and throttling that has passed") {
  const ScratchFolder machine;
  machine.write(kZone + "type", "cpu-thermal");
  machine.write(kZone + "temp", "50000");
  machine.write(kClock, "2400000");
  HeatMonitor monitor({0}, machine.path());
  machine.write(kZone + "temp", "85000");
  machine.write(kClock, "1500000");
  machine.write("sys/devices/platform/soc/soc:firmware/get_throttled", "4");
  monitor.heat();
  machine.write(kZone + "temp", "70000");
  machine.write(kClock, "2000000");
  machine.write("sys/devices/platform/soc/soc:firmware/get_throttled", "40000");
  const Heat heat = monitor.heat();
  CHECK(heat.temperature_start == 50.0);
  CHECK(heat.temperature_most == 85.0);
  CHECK(heat.temperature_end == 70.0);
  CHECK(heat.clock_start == 2.4e9);
  CHECK(heat.clock_least == 1.5e9);
  CHECK(heat.clock_end == 2e9);
  CHECK(heat.throttled == "too hot");
}

TEST_CASE("a watch of a machine that tells nothing knows nothing") {
  const ScratchFolder machine;
  const Heat heat = HeatMonitor({0}, machine.path()).heat();
  CHECK_FALSE(heat.temperature_most.has_value());
  CHECK_FALSE(heat.clock_least.has_value());
  CHECK_FALSE(heat.throttled.has_value());
}

TEST_CASE("a processor that counts how often it was too hot tells when that goes up") {
  const std::string count = "sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count";
  const ScratchFolder machine;
  machine.write(count, "7");
  HeatMonitor monitor({0}, machine.path());
  CHECK_FALSE(monitor.heat().throttled.has_value());
  machine.write(count, "8");
  CHECK(monitor.heat().throttled == "too hot");
}

}  // namespace
}  // namespace volvelle
