#include "converter/tokenizers/double_array_builder.h"

#include <algorithm>
#include <cstddef>

#include "runtime/tokenizer/double_array.h"

namespace volvelle {
namespace {

using Key = std::pair<std::string_view, uint32_t>;

constexpr uint32_t kBlock = 256;            // children of a node share one
constexpr uint32_t kNearOffsets = 1 << 21;  // offsets above are multiples of 256
constexpr uint32_t kMaxRefusals = 16;

class Builder {
 public:
  explicit Builder(std::vector<Key> keys) : keys_(std::move(keys)) {}

  std::vector<uint32_t> build() {
    add_block();
    used_[0] = 1;
    --open_[0].free;
    // Keys [begin, end) share their first `depth` bytes; their node's unit is `unit`.
    struct Span {
      size_t begin, end, depth;
      uint32_t unit;
    };
    std::vector<Span> spans = {{0, keys_.size(), 0, 0}};
    std::vector<unsigned char> labels;
    while (!spans.empty()) {
      const Span span = spans.back();
      spans.pop_back();
      if (span.begin == span.end) continue;
      const auto label = [&](size_t key) {
        const std::string_view text = keys_[key].first;
        return text.size() == span.depth ? 0 : static_cast<unsigned char>(text[span.depth]);
      };
      labels.clear();
      for (size_t key = span.begin; key < span.end; ++key) {
        if (labels.empty() || labels.back() != label(key)) labels.push_back(label(key));
      }
      const uint32_t base = place(span.unit, labels);
      const uint32_t offset = base ^ span.unit;
      units_[span.unit] |= offset < kNearOffsets ? offset << DoubleArray::kOffsetShift
                                                 : (offset >> 8) << DoubleArray::kOffsetShift |
                                                       DoubleArray::kFarOffset;
      size_t key = span.begin;
      for (const unsigned char byte : labels) {
        const size_t first = key;
        while (key < span.end && label(key) == byte) ++key;
        const uint32_t child = base ^ byte;
        if (byte == 0) {
          units_[span.unit] |= DoubleArray::kEndsHere;
          units_[child] = keys_[first].second | ~DoubleArray::kValueBits;
        } else {
          units_[child] = byte;
          spans.push_back({first, key, span.depth + 1, child});
        }
      }
    }
    return std::move(units_);
  }

 private:
  struct Block {
    uint32_t begin;
    uint32_t free;      // units
    uint32_t refusals;  // nodes that found no room
  };

  void add_block() {
    open_.push_back({static_cast<uint32_t>(units_.size()), kBlock, 0});
    units_.resize(units_.size() + kBlock);
    used_.resize(units_.size());
    is_base_.resize(units_.size());
  }

  // Finds a base of no other node whose children `labels` are free, and takes both. Bases are tried
  // that put the first child into a free unit; a block that refuses often is given up.
  uint32_t place(uint32_t unit, const std::vector<unsigned char>& labels) {
    for (;;) {
      for (Block& block : open_) {
        if (block.free < labels.size()) continue;
        for (uint32_t child = block.begin; child < block.begin + kBlock; ++child) {
          const uint32_t base = child ^ labels[0];
          const uint32_t offset = base ^ unit;
          // A base is one node's alone: units know their labels, not their parents.
          if (used_[child] != 0 || is_base_[base] != 0) continue;
          if (offset >= kNearOffsets && offset % kBlock != 0) continue;
          if (std::ranges::any_of(labels, [&](unsigned char b) { return used_[base ^ b] != 0; })) {
            continue;
          }
          is_base_[base] = 1;
          for (const unsigned char byte : labels) used_[base ^ byte] = 1;
          block.free -= static_cast<uint32_t>(labels.size());
          return base;
        }
        ++block.refusals;
      }
      std::erase_if(open_, [](const Block& block) {
        return block.free == 0 || block.refusals > kMaxRefusals;
      });
      add_block();
    }
  }

  std::vector<Key> keys_;
  std::vector<uint32_t> units_;
  std::vector<uint8_t> used_;
  std::vector<uint8_t> is_base_;
  std::vector<Block> open_;
};

}  // namespace

Result<std::vector<uint32_t>> build_double_array(std::vector<Key> keys) {
  for (const auto& [key, value] : keys) {
    if (key.contains('\0') || key.size() > DoubleArray::kMaxKeyBytes ||
        value > DoubleArray::kValueBits) {
      return fail("piece {} cannot be in a trie: it holds a zero byte or more than {} bytes", value,
                  DoubleArray::kMaxKeyBytes);
    }
  }
  std::ranges::stable_sort(keys, {}, &Key::first);
  std::vector<Key> distinct;
  distinct.reserve(keys.size());
  for (const Key& key : keys) {
    if (key.first.empty()) continue;
    if (!distinct.empty() && distinct.back().first == key.first) {
      distinct.back() = key;
    } else {
      distinct.push_back(key);
    }
  }
  return Builder(std::move(distinct)).build();
}

}  // namespace volvelle
