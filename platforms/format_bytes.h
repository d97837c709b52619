// Counts of bytes as people read them.

#ifndef VOLVELLE_PLATFORMS_FORMAT_BYTES_H_
#define VOLVELLE_PLATFORMS_FORMAT_BYTES_H_

#include <cstdint>
#include <string>

namespace volvelle {

std::string format_bytes(uint64_t bytes);  // "1.5 GB", powers of 1000

}  // namespace volvelle

#endif  // VOLVELLE_PLATFORMS_FORMAT_BYTES_H_
