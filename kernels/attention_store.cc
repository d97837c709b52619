// How keys and values come into the cache.

#include <algorithm>

#include "kernels/attention.h"
#include "kernels/quantize.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention_store.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"
#include "kernels/quantize-inl.h"
#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace volvelle::HWY_NAMESPACE {

// Four vectors of four become the four of their first elements, of their second ones ..., which are
// stored `stride` apart.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void transpose_four(D d, V a, V b, V c, V e, size_t stride, hn::TFromD<D>* to) {
  const auto ab = hn::InterleaveLower(d, a, b), ab2 = hn::InterleaveUpper(d, a, b);
  const auto ce = hn::InterleaveLower(d, c, e), ce2 = hn::InterleaveUpper(d, c, e);
  hn::StoreU(hn::ConcatLowerLower(d, ce, ab), d, to);
  hn::StoreU(hn::ConcatUpperUpper(d, ce, ab), d, to + stride);
  hn::StoreU(hn::ConcatLowerLower(d, ce2, ab2), d, to + 2 * stride);
  hn::StoreU(hn::ConcatUpperUpper(d, ce2, ab2), d, to + 3 * stride);
}

// Four tokens' keys, of a multiple of 4 elements, into a float cache at key_index(slot, 0, ...) of
// a slot that is one: four elements of the four become four elements' lanes.
void store_four_keys(size_t head_dim, const float* rows, size_t stride, float* keys) {
  const hn::CappedTag<float, 4> d;
  for (size_t e = 0; e < head_dim; e += 4) {
    const auto row = [&](size_t r) HWY_ATTR { return hn::LoadU(d, rows + r * stride + e); };
    transpose_four(d, row(0), row(1), row(2), row(3), kKeyLanes, keys + e * kKeyLanes);
  }
}

// What four slots of an int8 cache get: their codes [4, elements], in which a slot's follow each
// other.
HWY_INLINE void place_four_keys(const int8_t* codes, size_t elements, uint8_t* keys) {
  const hn::CappedTag<uint32_t, 4> d;
  const hn::Repartition<uint8_t, decltype(d)> d8;
  const auto offset = hn::BitCast(d, hn::Set(d8, kKeyOffset));
  const auto row = [&](size_t r, size_t e) HWY_ATTR {
    const auto* const from = reinterpret_cast<const uint8_t*>(codes) + r * elements + e;
    return hn::Xor(hn::BitCast(d, hn::LoadU(d8, from)), offset);
  };
  for (size_t e = 0; e < elements; e += 16) {
    transpose_four(d, row(0, e), row(1, e), row(2, e), row(3, e), kKeyLanes,
                   reinterpret_cast<uint32_t*>(keys + e * kKeyLanes));
  }
}

HWY_INLINE void place_four_values(const int8_t* codes, size_t elements, int8_t* values) {
  const hn::CappedTag<int8_t, 16> d;
  const hn::Repartition<int16_t, decltype(d)> d2;
  for (size_t e = 0; e < elements; e += 16) {
    const int8_t* const row = codes + e;
    const auto a = hn::LoadU(d, row), b = hn::LoadU(d, row + elements);
    const auto c = hn::LoadU(d, row + 2 * elements), f = hn::LoadU(d, row + 3 * elements);
    const auto ab = hn::BitCast(d2, hn::InterleaveLower(d, a, b));
    const auto cf = hn::BitCast(d2, hn::InterleaveLower(d, c, f));
    const auto ab2 = hn::BitCast(d2, hn::InterleaveUpper(d, a, b));
    const auto cf2 = hn::BitCast(d2, hn::InterleaveUpper(d, c, f));
    auto* const to =
        reinterpret_cast<int16_t*>(values + e / kValueLanes * kValueLanes * kCacheTile);
    hn::StoreU(hn::InterleaveLower(d2, ab, cf), d2, to);
    hn::StoreU(hn::InterleaveUpper(d2, ab, cf), d2, to + 8);
    hn::StoreU(hn::InterleaveLower(d2, ab2, cf2), d2, to + 16);
    hn::StoreU(hn::InterleaveUpper(d2, ab2, cf2), d2, to + 24);
  }
}

// `count` rows into slots [slot, slot + count) of one head of an int8 cache, keys or values.
template <bool are_keys>
HWY_INLINE void store_coded(size_t head_dim, size_t block, size_t slot, size_t count,
                            const float* rows, size_t stride, void* head, float* scales) {
  const size_t elements = cache_row_elements(head_dim);
  alignas(64) float some_rows[kMaxHeadDim];
  alignas(64) int8_t codes[kMaxHeadDim];
  const bool fours = 4 * elements <= kMaxHeadDim;
  for (size_t end = slot + count, some = 0; slot < end; slot += some) {
    some = fours && slot % 4 == 0 && end - slot >= 4 ? 4 : 1;
    for (size_t r = 0; r < some; ++r, rows += stride) {
      float* const row = some_rows + r * elements;
      std::copy(rows, rows + head_dim, row);
      std::fill(row + head_dim, row + elements, 0.0f);
    }
    quantize_transformed(block, some_rows, some, elements, codes, scales + slot);
    if constexpr (are_keys) {
      auto* const keys = static_cast<uint8_t*>(head);
      if (some == 4) {
        place_four_keys(codes, elements, keys + q8_key_index(slot, 0, elements));
      } else {
        for (size_t e = 0; e < elements; ++e) {
          keys[q8_key_index(slot, e, elements)] = static_cast<uint8_t>(codes[e] + kKeyOffset);
        }
      }
    } else {
      auto* const values = static_cast<int8_t*>(head);
      if (some == 4) {
        place_four_values(codes, elements, values + q8_value_index(slot, 0, elements));
      } else {
        for (size_t e = 0; e < elements; ++e) values[q8_value_index(slot, e, elements)] = codes[e];
      }
    }
  }
}

void store_coded_keys(size_t head_dim, size_t block, size_t slot, size_t count, const float* rows,
                      size_t stride, void* head, float* scales) {
  store_coded<true>(head_dim, block, slot, count, rows, stride, head, scales);
}

void store_coded_values(size_t head_dim, size_t block, size_t slot, size_t count, const float* rows,
                        size_t stride, void* head, float* scales) {
  store_coded<false>(head_dim, block, slot, count, rows, stride, head, scales);
}

}  // namespace volvelle::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace volvelle {
namespace {

// A row of floats or halves, element e at rows[start + e * stride], padded with zeros.
void store_row(CacheType type, size_t head_dim, const float* from, size_t start, size_t stride,
               void* rows) {
  const size_t elements = cache_row_elements(head_dim);
  if (type == CacheType::kF32) {
    float* const to = static_cast<float*>(rows) + start;
    for (size_t e = 0; e < head_dim; ++e) to[e * stride] = from[e];
    for (size_t e = head_dim; e < elements; ++e) to[e * stride] = 0;
    return;
  }
  uint16_t* to = static_cast<uint16_t*>(rows) + start;
  for (size_t first = 0; first < elements; first += kCacheRowElements) {
    uint16_t halves[kCacheRowElements] = {};
    if (first < head_dim) {
      to_f16(from + first, std::min(kCacheRowElements, head_dim - first), halves);
    }
    for (const uint16_t half : halves) {
      *to = half;
      to += stride;
    }
  }
}

}  // namespace

HWY_EXPORT(store_four_keys);
HWY_EXPORT(store_coded_keys);
HWY_EXPORT(store_coded_values);

void store_keys(const CacheView& cache, const AttentionShape& shape, size_t kv_head, size_t slot,
                size_t count, const float* rows, size_t stride) {
  const size_t head_dim = shape.head_dim, elements = cache_row_elements(head_dim);
  const size_t before = kv_head * cache_slots(cache.type, cache.slots);
  if (cache.type == CacheType::kQ8) {
    HWY_DYNAMIC_DISPATCH(store_coded_keys)
    (head_dim, q8_transforms_keys(shape) ? q8_block(elements) : 1, slot, count, rows, stride,
     static_cast<uint8_t*>(cache.keys) + before * elements, cache.key_scales + before);
    return;
  }
  const bool fours = cache.type == CacheType::kF32 && head_dim == elements;
  for (const size_t end = slot + count; slot < end; ++slot, rows += stride) {
    const size_t start = before * elements + key_index(slot, 0, elements);
    if (fours && slot % 4 == 0 && end - slot >= 4) {
      HWY_DYNAMIC_DISPATCH(store_four_keys)
      (head_dim, rows, stride, static_cast<float*>(cache.keys) + start);
      slot += 3, rows += 3 * stride;
      continue;
    }
    store_row(cache.type, head_dim, rows, start, kKeyLanes, cache.keys);
  }
}

void store_values(const CacheView& cache, const AttentionShape& shape, size_t kv_head, size_t slot,
                  size_t count, const float* rows, size_t stride) {
  const size_t head_dim = shape.head_dim, elements = cache_row_elements(head_dim);
  const size_t before = kv_head * cache_slots(cache.type, cache.slots);
  if (cache.type == CacheType::kQ8) {
    HWY_DYNAMIC_DISPATCH(store_coded_values)
    (head_dim, q8_transforms_values(shape) ? q8_block(elements) : 1, slot, count, rows, stride,
     static_cast<int8_t*>(cache.values) + before * elements, cache.value_scales + before);
    return;
  }
  for (const size_t end = slot + count; slot < end; ++slot, rows += stride) {
    const size_t start = (before + slot) * elements;
    if (cache.type == CacheType::kF32 && head_dim == elements) {
      std::copy_n(rows, head_dim, static_cast<float*>(cache.values) + start);
    } else {
      store_row(cache.type, head_dim, rows, start, 1, cache.values);
    }
  }
}

}  // namespace volvelle
#endif  // HWY_ONCE
