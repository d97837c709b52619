#include "runtime/kv_cache.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

namespace volvelle {
namespace {

constexpr size_t kAlignment = 64;

size_t row_bytes(const Attention& attention, CacheType type) {
  return cache_row_elements(attention.head_dim) * cache_element_bytes(type);
}

size_t scale_bytes(CacheType type) { return type == CacheType::kQ8 ? sizeof(float) : 0; }

size_t slots(const Attention& attention, size_t context, size_t chunk) {
  if (attention.window == 0) return context;
  return std::min(context, attention.window + std::min(chunk, context) - 1);
}

// Hands out consecutive aligned parts of one buffer.
class Layout {
 public:
  // False when the sum no longer fits in size_t.
  bool add(size_t rows, size_t bytes_per_row, size_t& offset) {
    size_t bytes;
    offset = end_;
    return !__builtin_mul_overflow(rows, bytes_per_row, &bytes) &&
           !__builtin_add_overflow(bytes, kAlignment - 1, &bytes) &&
           !__builtin_add_overflow(end_, bytes / kAlignment * kAlignment, &end_);
  }
  size_t end() const { return end_; }

 private:
  size_t end_ = 0;
};

// Where the parts of one layer's cache begin.
struct Offsets {
  size_t keys, values, key_scales, value_scales;
};

// Every layer's and lane's, [layers, lanes], and the size of all; nothing where that fits no
// number.
std::optional<size_t> lay_out(const Stack& stack, CacheType type, size_t context, size_t chunk,
                              std::span<Offsets> offsets) {
  Layout layout;
  const size_t lanes = offsets.size() / std::max<size_t>(stack.blocks.size(), 1);
  for (size_t i = 0; i < offsets.size(); ++i) {
    const Attention& attention = stack.blocks[i / lanes].attention;
    const size_t rows = attention.kv_heads * cache_slots(type, slots(attention, context, chunk));
    if (!layout.add(rows, row_bytes(attention, type), offsets[i].keys) ||
        !layout.add(rows, row_bytes(attention, type), offsets[i].values) ||
        !layout.add(rows, scale_bytes(type), offsets[i].key_scales) ||
        !layout.add(rows, scale_bytes(type), offsets[i].value_scales)) {
      return std::nullopt;
    }
  }
  return layout.end();
}

}  // namespace

size_t KvCache::bytes_for(const Stack& stack, CacheType type, size_t context, size_t chunk,
                          size_t lanes) {
  std::vector<Offsets> offsets(stack.blocks.size() * lanes);
  return lay_out(stack, type, context, chunk, offsets).value_or(SIZE_MAX);
}

Result<KvCache> KvCache::make(const Stack& stack, CacheType type, size_t context, size_t chunk,
                              size_t first_position, size_t lanes) {
  KvCache cache;
  cache.lanes_ = lanes;
  std::vector<Offsets> offsets(stack.blocks.size() * lanes);
  Result<AlignedBuffer> buffer = std::unexpected(Error{});
  if (const auto bytes = lay_out(stack, type, context, chunk, offsets)) {
    // Reading a long context takes a quarter longer from ordinary pages; a short one is to take the
    // memory it fills.
    constexpr size_t kLongBytes = size_t{32} << 20;
    using enum AlignedBuffer::Pages;
    buffer = AlignedBuffer::make(*bytes, *bytes < kLongBytes ? kOrdinary : kHuge);
  }
  if (!buffer) {
    return fail(
        "a cache of {} tokens does not fit in memory; ask for fewer with --context, or for a "
        "smaller --kv",
        context);
  }
  cache.buffer_ = *std::move(buffer);
  std::byte* base = cache.buffer_.bytes().data();
  for (const Block& block : stack.blocks) {
    cache.row_bytes_.push_back(row_bytes(block.attention, type));
    cache.heads_.push_back(block.attention.kv_heads);
  }
  for (size_t i = 0; i < offsets.size(); ++i) {
    CacheView view{type, base + offsets[i].keys, base + offsets[i].values};
    if (type == CacheType::kQ8) {
      view.key_scales = reinterpret_cast<float*>(base + offsets[i].key_scales);
      view.value_scales = reinterpret_cast<float*>(base + offsets[i].value_scales);
    }
    view.slots = slots(stack.blocks[i / lanes].attention, context, chunk);
    view.first_position = first_position;
    cache.layers_.push_back(view);
  }
  return cache;
}

void KvCache::copy_lane(size_t from, size_t to, size_t tokens) {
  for (size_t i = 0; i < row_bytes_.size(); ++i) {
    const CacheView &source = layer(i, from), &target = layer(i, to);
    const size_t rows = cache_slots(source.type, std::min(tokens, source.slots));
    for (size_t head = 0; head < heads_[i]; ++head) {
      const size_t at = head * cache_slots(source.type, source.slots);
      for (const auto& [bytes_from, bytes_to] :
           {std::pair{source.keys, target.keys}, std::pair{source.values, target.values}}) {
        std::memcpy(static_cast<std::byte*>(bytes_to) + at * row_bytes_[i],
                    static_cast<const std::byte*>(bytes_from) + at * row_bytes_[i],
                    rows * row_bytes_[i]);
      }
      if (source.key_scales == nullptr) continue;
      std::copy_n(source.key_scales + at, rows, target.key_scales + at);
      std::copy_n(source.value_scales + at, rows, target.value_scales + at);
    }
  }
}

size_t KvCache::bytes_read(const Stack& stack, size_t tokens) const {
  size_t bytes = 0;
  for (size_t i = 0; i < stack.blocks.size(); ++i) {
    const Attention& attention = stack.blocks[i].attention;
    const size_t seen = attention.window == 0 ? tokens : std::min(tokens, attention.window);
    bytes += 2 * attention.kv_heads * seen *
             (row_bytes(attention, layer(i).type) + scale_bytes(layer(i).type));
  }
  return bytes;
}

}  // namespace volvelle
