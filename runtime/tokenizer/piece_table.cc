#include "runtime/tokenizer/piece_table.h"

#include <bit>
#include <cstring>
#include <format>

namespace volvelle {
namespace {

uint64_t hash(std::string_view text) {
  uint64_t state = text.size();
  for (; text.size() > 8; text.remove_prefix(8)) {
    uint64_t eight;
    std::memcpy(&eight, text.data(), 8);
    state = mix(state ^ eight);
  }
  uint64_t rest = 0;
  std::memcpy(&rest, text.data(), text.size());
  return mix(state * 0x9E3779B97F4A7C15u ^ rest);
}

}  // namespace

size_t slot_count(size_t entries) { return std::bit_ceil(2 * entries + 2); }

Result<PieceTable> PieceTable::make(const TokenizerSpec& spec) {
  PieceTable table;
  table.spec_ = &spec;
  // An empty piece is an unused id: it is entered like the others, but never asked for.
  const auto hash_of = [&](uint32_t id) { return hash(spec.piece(id)); };
  const auto equal = [&](uint32_t a, uint32_t b) { return spec.piece(a) == spec.piece(b); };
  if (!fill_slots(spec.vocabulary(), table.slots_, hash_of, equal)) {
    return fail("the vocabulary's pieces are made to collide; it is not a real one");
  }
  return table;
}

int32_t PieceTable::find(std::string_view piece) const {
  if (piece.empty()) return -1;
  const size_t mask = slots_.size() - 1;
  const uint64_t bits = hash(piece);
  for (size_t slot = bits & mask; slots_[slot] != kNoSlot; slot = (slot + 1) & mask) {
    const uint32_t id = slot_entry(slots_[slot]);
    if (may_match(slots_[slot], bits) && spec_->piece(id) == piece) return static_cast<int32_t>(id);
  }
  return -1;
}

std::array<int32_t, 256> PieceTable::byte_pieces() const {
  std::array<int32_t, 256> ids;
  for (int byte = 0; byte < 256; ++byte) ids[byte] = find(std::format("<0x{:02X}>", byte));
  return ids;
}

}  // namespace volvelle
