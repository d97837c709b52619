#include "runtime/tokenizer/bpe.h"

#include <algorithm>
#include <string>

#include "runtime/tokenizer/utf8.h"

namespace volvelle {
namespace {

constexpr size_t kShortWord =
    48;  // characters up to which looking everywhere is faster than a heap

uint64_t hash(uint32_t left, uint32_t right) {
  return mix(static_cast<uint64_t>(left) << 32 | right);
}

}  // namespace

Result<Bpe> Bpe::make(const TokenizerSpec& spec, const PieceTable& pieces) {
  Bpe bpe;
  bpe.spec_ = &spec;
  bpe.pieces_ = &pieces;
  const auto hash_of = [&](uint32_t i) { return hash(spec.merges[i].left, spec.merges[i].right); };
  const auto equal = [&](uint32_t a, uint32_t b) {
    return spec.merges[a].left == spec.merges[b].left &&
           spec.merges[a].right == spec.merges[b].right;
  };
  if (!fill_slots(spec.merges.size(), bpe.slots_, hash_of, equal)) {
    return fail("the merges are made to collide; they are not real ones");
  }
  for (uint32_t c = 0; c < kDirectCharacters; ++c) {
    std::string text;
    append_character(c, text);
    bpe.direct_[c] = pieces.find(text);
  }
  bpe.byte_pieces_ = pieces.byte_pieces();
  return bpe;
}

uint32_t Bpe::rank(int32_t left, int32_t right) const {
  const size_t mask = slots_.size() - 1;
  const auto l = static_cast<uint32_t>(left), r = static_cast<uint32_t>(right);
  const uint64_t bits = hash(l, r);
  for (size_t slot = bits & mask; slots_[slot] != kNoSlot; slot = (slot + 1) & mask) {
    if (!may_match(slots_[slot], bits)) continue;
    const Merge& merge = spec_->merges[slot_entry(slots_[slot])];
    if (merge.left == l && merge.right == r) return slot_entry(slots_[slot]);
  }
  return kNoSlot;
}

int32_t Bpe::character_id(std::string_view character) const {
  if (character.size() <= 2) {
    const char32_t c = next_character(character).character;
    if (c < kDirectCharacters) return direct_[c];
  }
  return pieces_->find(character);
}

void Bpe::append_unknown(size_t count, std::vector<int32_t>& ids) const {
  ids.insert(ids.end(), spec_->fuse_unknown ? std::min<size_t>(count, 1) : count, spec_->unknown);
}

void Bpe::append_characters(std::string_view word, std::vector<int32_t>& ids) const {
  // Unknown characters wait for the next known one: those that become bytes do not end their run,
  // and so come before them, as in the reference (Hugging Face tokenizers, models/bpe/model.rs).
  size_t unknown = 0;
  while (!word.empty()) {
    const std::string_view character = word.substr(0, character_bytes(word[0]));
    word.remove_prefix(character.size());
    if (const int32_t id = character_id(character); id >= 0) {
      append_unknown(unknown, ids);
      unknown = 0;
      ids.push_back(id);
      continue;
    }
    const auto piece_of = [&](char byte) { return byte_pieces_[static_cast<unsigned char>(byte)]; };
    if (spec_->byte_fallback &&
        std::ranges::all_of(character, [&](char byte) { return piece_of(byte) >= 0; })) {
      for (const char byte : character) ids.push_back(piece_of(byte));
    } else if (spec_->unknown >= 0) {
      if (unknown > 0 && !spec_->fuse_unknown) append_unknown(std::exchange(unknown, 0), ids);
      ++unknown;
    }
  }
  append_unknown(unknown, ids);
}

void Bpe::encode(std::string_view word, std::vector<int32_t>& ids) const {
  if (spec_->ignore_merges) {
    if (const int32_t id = pieces_->find(word); id >= 0) {
      ids.push_back(id);
      return;
    }
  }
  const size_t first = ids.size();
  append_characters(word, ids);
  if (ids.size() - first <= kShortWord) {
    merge_short(ids, first);
  } else {
    merge_long(ids, first);
  }
}

void Bpe::merge_short(std::vector<int32_t>& ids, size_t first) const {
  size_t count = ids.size() - first;
  if (count < 2) return;
  int32_t* const symbols = ids.data() + first;
  std::array<uint32_t, kShortWord> fixed;
  std::vector<uint32_t> more;
  if (count > kShortWord) more.resize(count);
  uint32_t* const ranks =
      count > kShortWord ? more.data() : fixed.data();  // of symbol i with i + 1
  for (size_t i = 0; i + 1 < count; ++i) ranks[i] = rank(symbols[i], symbols[i + 1]);
  while (count >= 2) {
    const size_t best = static_cast<size_t>(std::min_element(ranks, ranks + count - 1) - ranks);
    if (ranks[best] == kNoSlot) break;
    symbols[best] = static_cast<int32_t>(spec_->merges[ranks[best]].result);
    std::copy(symbols + best + 2, symbols + count, symbols + best + 1);
    std::copy(ranks + best + 1, ranks + count - 1, ranks + best);
    --count;
    if (best + 1 < count) ranks[best] = rank(symbols[best], symbols[best + 1]);
    if (best > 0) ranks[best - 1] = rank(symbols[best - 1], symbols[best]);
  }
  ids.resize(first + count);
}

void Bpe::merge_long(std::vector<int32_t>& ids, size_t first) const {
  struct Symbol {
    int32_t id;  // -1: merged into its left neighbour
    uint32_t previous;
    uint32_t next;
  };
  struct Candidate {
    uint32_t rank;
    uint32_t left;
    bool operator<(const Candidate& other) const {  // the best is a heap's greatest
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };
  const auto count = static_cast<uint32_t>(ids.size() - first);
  std::vector<Symbol> symbols(count);
  for (uint32_t i = 0; i < count; ++i) symbols[i] = {ids[first + i], i - 1, i + 1};
  std::vector<Candidate> heap;
  const auto add = [&](uint32_t left) {
    const uint32_t right = symbols[left].next;
    if (right >= count) return;
    if (const uint32_t best = rank(symbols[left].id, symbols[right].id); best != kNoSlot)
      heap.push_back({best, left});
  };
  for (uint32_t i = 0; i < count; ++i) add(i);
  std::make_heap(heap.begin(), heap.end());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    const Candidate best = heap.back();
    heap.pop_back();
    const Merge& merge = spec_->merges[best.rank];
    Symbol& left = symbols[best.left];
    if (left.id != static_cast<int32_t>(merge.left) || left.next >= count) continue;
    Symbol& right = symbols[left.next];
    if (right.id != static_cast<int32_t>(merge.right)) continue;
    left.id = static_cast<int32_t>(merge.result);
    right.id = -1;
    left.next = right.next;
    if (left.next < count) symbols[left.next].previous = best.left;
    for (const uint32_t at : {best.left, left.previous}) {
      if (at >= count) continue;
      const size_t before = heap.size();
      add(at);
      if (heap.size() > before) std::push_heap(heap.begin(), heap.end());
    }
  }
  size_t kept = first;
  for (uint32_t i = 0; i < count; i = symbols[i].next) ids[kept++] = symbols[i].id;
  ids.resize(kept);
}

}  // namespace volvelle
