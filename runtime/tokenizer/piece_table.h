// Finds a piece's id by its text: open addressing over ids alone, comparing with the vocabulary
// where it lies, so that a vocabulary of 150 000 pieces costs 2 MB and a few milliseconds.

#ifndef VOLVELLE_RUNTIME_TOKENIZER_PIECE_TABLE_H_
#define VOLVELLE_RUNTIME_TOKENIZER_PIECE_TABLE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "platforms/error.h"
#include "runtime/tokenizer/spec.h"

namespace volvelle {

// Hash slots are numbers of entries (pieces, merges) of 24 bits under 8 bits of their hash, which
// spare most comparisons with entries that only share a slot.
inline constexpr uint32_t kNoSlot = UINT32_MAX;
inline constexpr uint32_t kSlotBits = 24;
inline constexpr size_t kMaxSlotEntries = (1 << kSlotBits) - 1;
inline uint32_t make_slot(uint64_t hash, uint32_t entry) {
  return static_cast<uint32_t>(hash >> 56) << kSlotBits | entry;
}
inline uint32_t slot_entry(uint32_t slot) { return slot & kMaxSlotEntries; }
inline bool may_match(uint32_t slot, uint64_t hash) { return slot >> kSlotBits == hash >> 56; }

// Slots for `entries` entries: a power of two, at most half full.
size_t slot_count(size_t entries);

// Enters `count` entries, given their hashes and when two of them are equal (the later one then
// replaces the earlier). False: so many share a slot that they must have been made to.
template <typename Hash, typename Equal>
bool fill_slots(size_t count, std::vector<uint32_t>& slots, Hash hash, Equal equal) {
  constexpr size_t kMaxProbes = 4096;
  constexpr size_t kAhead = 16;  // slots are fetched this many entries before they are needed
  slots.assign(slot_count(count), kNoSlot);
  const size_t mask = slots.size() - 1;
  std::array<uint64_t, kAhead> hashes;
  for (size_t i = 0; i < count + kAhead; ++i) {
    if (i >= kAhead) {
      const auto entry = static_cast<uint32_t>(i - kAhead);
      const uint64_t bits = hashes[i % kAhead];
      size_t slot = bits & mask, probes = 0;
      while (slots[slot] != kNoSlot &&
             !(may_match(slots[slot], bits) && equal(slot_entry(slots[slot]), entry))) {
        slot = (slot + 1) & mask;
        if (++probes > kMaxProbes) return false;
      }
      slots[slot] = make_slot(bits, entry);
    }
    if (i < count) {
      hashes[i % kAhead] = hash(static_cast<uint32_t>(i));
      __builtin_prefetch(&slots[hashes[i % kAhead] & mask], 1);
    }
  }
  return true;
}

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

  // Ids of the pieces "<0xHH>" that stand for bytes; -1: there is none.
  std::array<int32_t, 256> byte_pieces() const;

 private:
  const TokenizerSpec* spec_ = nullptr;
  std::vector<uint32_t> slots_;
};

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_TOKENIZER_PIECE_TABLE_H_
