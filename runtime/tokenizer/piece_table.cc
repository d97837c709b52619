#include "runtime/tokenizer/piece_table.h"

#include <bit>
#include <cstring>

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
  table.slots_.assign(slot_count(spec.vocabulary()), kNoSlot);
  const size_t mask = table.slots_.size() - 1;
  for (uint32_t id = 0; id < spec.vocabulary(); ++id) {
    const std::string_view piece = spec.piece(id);
    if (piece.empty()) continue;
    size_t slot = hash(piece) & mask;
    size_t probes = 0;
    while (table.slots_[slot] != kNoSlot && spec.piece(table.slots_[slot]) != piece) {
      slot = (slot + 1) & mask;
      if (++probes > kMaxProbes)
        return fail("the vocabulary's pieces are made to collide; it is not a real one");
    }
    table.slots_[slot] = id;
  }
  return table;
}

int32_t PieceTable::find(std::string_view piece) const {
  if (piece.empty()) return -1;
  const size_t mask = slots_.size() - 1;
  for (size_t slot = hash(piece) & mask; slots_[slot] != kNoSlot; slot = (slot + 1) & mask) {
    if (spec_->piece(slots_[slot]) == piece) return static_cast<int32_t>(slots_[slot]);
  }
  return -1;
}

}  // namespace volvelle
