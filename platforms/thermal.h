// How warm and how fast the machine runs just now. A board without cooling slows down within a
// minute of hard work, so a measured speed means little without these two beside it.

#ifndef VOLVELLE_PLATFORMS_THERMAL_H_
#define VOLVELLE_PLATFORMS_THERMAL_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace volvelle {

// Each is null where the machine does not tell. `root`: see system_file.h.

// Degrees Celsius at the hottest sensor that belongs to the processor.
std::optional<double> processor_temperature(const std::string& root = "");

// Hertz: the highest clock among `cpus` at this moment.
std::optional<double> processor_clock(std::span<const int> cpus, const std::string& root = "");

// Why the processor is held back at this moment, in a few words: "too hot", "under-voltage". Null:
// it is not, or the machine does not tell. Raspberry Pi's firmware tells, and so do the kernel's
// cooling devices.
std::optional<std::string> throttle_reason(const std::string& root = "");

// How often x86 processors were held back by heat since they were started; 0 where they do not say.
uint64_t throttle_count(const std::string& root = "");

}  // namespace volvelle

#endif  // VOLVELLE_PLATFORMS_THERMAL_H_
