// Time for measuring: never jumps, unrelated to the calendar.

#ifndef VOLVELLE_PLATFORMS_CLOCK_H_
#define VOLVELLE_PLATFORMS_CLOCK_H_

#include <chrono>

namespace volvelle {

// Seconds since some fixed moment; only differences mean anything.
inline double monotonic_seconds() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since).count();
}

}  // namespace volvelle

#endif  // VOLVELLE_PLATFORMS_CLOCK_H_
