#include "platforms/format_bytes.h"

#include <format>

namespace volvelle {

std::string format_bytes(uint64_t bytes) {
  if (bytes < 1000) return std::format("{} B", bytes);
  double value = static_cast<double>(bytes);
  const char* unit = "";
  for (const char* next : {"kB", "MB", "GB", "TB"}) {
    if (value < 999.5) break;
    value /= 1000;
    unit = next;
  }
  return value < 99.95 ? std::format("{:.1f} {}", value, unit)
                       : std::format("{:.0f} {}", value, unit);
}

}  // namespace volvelle
