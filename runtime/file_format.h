// The container of a model file: two header slots of which the newer valid one counts, a
// FlatBuffers table (schema/volvelle.fbs), and the segments it points to. schema/README.md says
// what a verified file promises.

#ifndef VOLVELLE_RUNTIME_FILE_FORMAT_H_
#define VOLVELLE_RUNTIME_FILE_FORMAT_H_

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "platforms/error.h"
#include "schema/volvelle_generated.h"

namespace volvelle {

static_assert(std::endian::native == std::endian::little,
              "model files are little-endian and mapped as they are");

inline constexpr std::array<char, 8> kFileMagic = {'V', 'O', 'L', 'V', 'E', 'L', 'L', 'E'};
// What a program that knows former ones would misread: 2: tensors may be rotated and q4 may have
// minima. 3: tensors may have side columns.
inline constexpr uint32_t kFileVersion = 3;

// One header slot. All fields little-endian; `checksum` is XXH3-64 of the bytes before it.
struct HeaderSlot {
  std::array<char, 8> magic = kFileMagic;
  uint32_t version = kFileVersion;
  uint32_t reserved = 0;
  uint64_t generation = 0;  // of two valid slots, the one with the larger generation counts
  uint64_t table_offset = 0;
  uint64_t table_bytes = 0;
  uint64_t table_checksum = 0;  // XXH3-64 of the table
  uint64_t file_bytes = 0;      // length that the file must have at least
  uint64_t checksum = 0;
};
static_assert(sizeof(HeaderSlot) == 64);

// A page each, so that writing one cannot tear the other.
inline constexpr std::array<uint64_t, 2> kSlotOffsets = {0, 4096};

inline constexpr uint64_t kSegmentAlignment = 64;  // of every segment
inline constexpr uint64_t kLargeSegmentBytes =
    64 * 1024;  // from this size on, a segment starts a page
inline constexpr uint64_t kLargeSegmentAlignment =
    16 * 1024;  // the largest page in use (Pi 5, Android)
inline constexpr uint64_t kFirstSegmentOffset = 64 * 1024;
inline constexpr uint64_t kSegmentTail =
    64;  // bytes of the file after any segment: vector loads may pass its end
inline constexpr uint64_t kMaxTableBytes = 64 * 1024 * 1024;

uint64_t checksum(std::span<const std::byte> bytes);  // XXH3-64
uint64_t header_checksum(const HeaderSlot& slot);

// The table that counts: the newest whole one.
struct FileTable {
  const file::Model* model = nullptr;  // in the file's bytes, its structure verified
  HeaderSlot slot;
  size_t slot_index = 0;
  std::string damage;  // why a newer generation than this is passed over; empty: there is none
};

// The newest table of a file of these bytes. A generation that is cut short, or whose header's or
// table's checksum does not hold, gives way to the one before it, which a file that was never
// extended does not have. Fails with a sentence that opens with `name`.
Result<FileTable> open_table(std::span<const std::byte> file, const std::string& name);

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_FILE_FORMAT_H_
