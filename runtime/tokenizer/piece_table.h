// Finds a piece's id by its text: open addressing over ids alone, comparing with the vocabulary
// where it lies, so that a vocabulary of 150 000 pieces costs 2 MB and a few milliseconds.

#ifndef VOLVELLE_RUNTIME_TOKENIZER_PIECE_TABLE_H_
#define VOLVELLE_RUNTIME_TOKENIZER_PIECE_TABLE_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "platforms/error.h"
#include "runtime/tokenizer/spec.h"

namespace volvelle {

inline constexpr uint32_t kNoSlot = UINT32_MAX;  // an empty slot of a hash table

// A table that takes longer to search than this was made to be slow.
inline constexpr size_t kMaxProbes = 4096;

// Slots for `entries` entries: a power of two, at most half full.
size_t slot_count(size_t entries);

inline uint64_t mix(uint64_t x) {  // the finalizer of MurmurHash3 (Appleby 2011)
  x = (x ^ x >> 33) * 0xFF51AFD7ED558CCDu;
  x = (x ^ x >> 33) * 0xC4CEB9FE1A85EC53u;
  return x ^ x >> 33;
}

class PieceTable {
 public:
  // `spec`'s pieces have been checked and outlive the table. Of equal pieces the last counts.
  static Result<PieceTable> make(const TokenizerSpec& spec);

  int32_t find(std::string_view piece) const;  // -1: none

 private:
  const TokenizerSpec* spec_ = nullptr;
  std::vector<uint32_t> slots_;
};

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_TOKENIZER_PIECE_TABLE_H_
