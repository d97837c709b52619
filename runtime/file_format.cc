#include "runtime/file_format.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace volvelle {

uint64_t checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

uint64_t header_checksum(const HeaderSlot& slot) {
  return XXH3_64bits(&slot, offsetof(HeaderSlot, checksum));
}

}  // namespace volvelle
