#include "kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/quantize.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"
#include "kernels/math-inl.h"
#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace volvelle::HWY_NAMESPACE {

// Slots whose keys and values are taken together: in int8 and 128 dimensions both stay in 16 KiB.
constexpr size_t kTile = 64;
// Query rows whose sums stay in registers while a tile passes by.
constexpr size_t kRows = 4;

// How the scratch is divided. A query row is one head of one token; rows lie token by token.
struct Workspace {
  float* queries;  // [rows, elements], scaled and padded
  float* sums;     // [rows, elements], weighted values so far
  float* weights;  // [kRows, kTile], logits, then e^(logit - maximum)
  float* biases;   // [kTile], of one row's logits
  float* maxima;   // [rows], greatest logit so far
  float* totals;   // [rows], weights so far, summed

  Workspace(float* scratch, size_t rows, size_t elements)
      : queries(scratch),
        sums(queries + rows * elements),
        weights(sums + rows * elements),
        biases(weights + kRows * kTile),
        maxima(biases + kTile),
        totals(maxima + rows) {}

  static size_t floats(size_t rows, size_t elements) {
    return 2 * rows * elements + (kRows + 1) * kTile + 2 * rows;
  }
};

size_t attention_scratch_floats(const AttentionShape& shape) {
  return Workspace::floats(kAttentionTokens * (shape.query_heads / shape.kv_heads),
                           cache_row_elements(shape.head_dim));
}

HWY_INLINE hn::Vec<Floats> load_elements(Floats d, const float* from) { return hn::LoadU(d, from); }

HWY_INLINE hn::Vec<Floats> load_elements(Floats d, const uint16_t* from) {
  return promote_halves(d, hn::LoadU(hn::Rebind<uint16_t, Floats>(), from));
}

HWY_INLINE hn::Vec<Floats> load_elements(Floats d, const int8_t* from) {
  const auto codes = hn::LoadU(hn::Rebind<int8_t, Floats>(), from);
  return hn::ConvertTo(d, hn::PromoteTo(hn::RebindToSigned<Floats>(), codes));
}

// logits[r * kTile + s] = queries[r] . keys[s] * scales[s] for slots [low, high). Two keys at a
// time share each load of a query; of an odd count the last is taken twice.
template <size_t rows, typename T>
HWY_INLINE void multiply_keys(const float* HWY_RESTRICT queries, size_t elements,
                              const T* HWY_RESTRICT keys, const float* HWY_RESTRICT scales,
                              size_t low, size_t high, float* HWY_RESTRICT logits) {
  const Floats d;
  for (size_t s = low; s < high; s += 2) {
    const size_t t = HWY_MIN(s + 1, high - 1);
    auto s0 = hn::Zero(d), t0 = s0;
    [[maybe_unused]] auto s1 = s0, t1 = s0, s2 = s0, t2 = s0, s3 = s0, t3 = s0;
    for (size_t e = 0; e < elements; e += hn::Lanes(d)) {
      const auto key_s = load_elements(d, keys + s * elements + e);
      const auto key_t = load_elements(d, keys + t * elements + e);
      const auto q0 = hn::Load(d, queries + e);
      s0 = hn::MulAdd(q0, key_s, s0);
      t0 = hn::MulAdd(q0, key_t, t0);
      if constexpr (rows > 1) {
        const auto q1 = hn::Load(d, queries + elements + e);
        s1 = hn::MulAdd(q1, key_s, s1);
        t1 = hn::MulAdd(q1, key_t, t1);
      }
      if constexpr (rows > 2) {
        const auto q2 = hn::Load(d, queries + 2 * elements + e);
        s2 = hn::MulAdd(q2, key_s, s2);
        t2 = hn::MulAdd(q2, key_t, t2);
      }
      if constexpr (rows > 3) {
        const auto q3 = hn::Load(d, queries + 3 * elements + e);
        s3 = hn::MulAdd(q3, key_s, s3);
        t3 = hn::MulAdd(q3, key_t, t3);
      }
    }
    const float scale_s = scales ? scales[s] : 1.0f, scale_t = scales ? scales[t] : 1.0f;
    logits[s] = hn::ReduceSum(d, s0) * scale_s;
    logits[t] = hn::ReduceSum(d, t0) * scale_t;
    if constexpr (rows > 1) {
      logits[kTile + s] = hn::ReduceSum(d, s1) * scale_s;
      logits[kTile + t] = hn::ReduceSum(d, t1) * scale_t;
    }
    if constexpr (rows > 2) {
      logits[2 * kTile + s] = hn::ReduceSum(d, s2) * scale_s;
      logits[2 * kTile + t] = hn::ReduceSum(d, t2) * scale_t;
    }
    if constexpr (rows > 3) {
      logits[3 * kTile + s] = hn::ReduceSum(d, s3) * scale_s;
      logits[3 * kTile + t] = hn::ReduceSum(d, t3) * scale_t;
    }
  }
}

// For `vectors` vectors of elements from `e` on: sums[r] = sums[r] * shrink[r] + sum of weights[r *
// kTile + s] * values[s] over slots [low, high).
template <size_t rows, size_t vectors, typename T>
HWY_INLINE void add_values_at(size_t e, const float* HWY_RESTRICT weights,
                              const T* HWY_RESTRICT values, size_t elements, size_t low,
                              size_t high, const float* HWY_RESTRICT shrink,
                              float* HWY_RESTRICT sums) {
  const Floats d;
  const size_t n = hn::Lanes(d);
  const auto load = [&](size_t r, size_t offset) HWY_ATTR {
    if (r >= rows || offset > n * (vectors - 1)) return hn::Zero(d);
    return hn::Mul(hn::Load(d, sums + r * elements + e + offset), hn::Set(d, shrink[r]));
  };
  auto a0 = load(0, 0), b0 = load(0, n);
  auto a1 = load(1, 0), b1 = load(1, n);
  auto a2 = load(2, 0), b2 = load(2, n);
  auto a3 = load(3, 0), b3 = load(3, n);
  for (size_t s = low; s < high; ++s) {
    const auto a = load_elements(d, values + s * elements + e);
    auto b = a;
    if constexpr (vectors > 1) b = load_elements(d, values + s * elements + e + n);
    const auto w0 = hn::Set(d, weights[s]);
    a0 = hn::MulAdd(w0, a, a0);
    if constexpr (vectors > 1) b0 = hn::MulAdd(w0, b, b0);
    if constexpr (rows > 1) {
      const auto w1 = hn::Set(d, weights[kTile + s]);
      a1 = hn::MulAdd(w1, a, a1);
      if constexpr (vectors > 1) b1 = hn::MulAdd(w1, b, b1);
    }
    if constexpr (rows > 2) {
      const auto w2 = hn::Set(d, weights[2 * kTile + s]);
      a2 = hn::MulAdd(w2, a, a2);
      if constexpr (vectors > 1) b2 = hn::MulAdd(w2, b, b2);
    }
    if constexpr (rows > 3) {
      const auto w3 = hn::Set(d, weights[3 * kTile + s]);
      a3 = hn::MulAdd(w3, a, a3);
      if constexpr (vectors > 1) b3 = hn::MulAdd(w3, b, b3);
    }
  }
  const auto store = [&](auto a_sum, auto b_sum, size_t r) HWY_ATTR {
    if (r >= rows) return;
    hn::Store(a_sum, d, sums + r * elements + e);
    if constexpr (vectors > 1) hn::Store(b_sum, d, sums + r * elements + e + n);
  };
  store(a0, b0, 0);
  store(a1, b1, 1);
  store(a2, b2, 2);
  store(a3, b3, 3);
}

template <size_t rows, typename T>
HWY_INLINE void add_values(const float* weights, const T* values, size_t elements, size_t low,
                           size_t high, const float* shrink, float* sums) {
  const size_t n = hn::Lanes(Floats());
  size_t e = 0;
  for (; e + 2 * n <= elements; e += 2 * n) {
    add_values_at<rows, 2>(e, weights, values, elements, low, high, shrink, sums);
  }
  if (e < elements) add_values_at<rows, 1>(e, weights, values, elements, low, high, shrink, sums);
}

// The row of a table of 2 * reach + 1 distances that belongs to slot s, when the query's own
// position lies in slot `own`, maybe past the tile's end.
HWY_INLINE size_t distance_row(size_t s, ptrdiff_t own, ptrdiff_t reach) {
  return static_cast<size_t>(std::clamp(static_cast<ptrdiff_t>(s) - own, -reach, reach) + reach);
}

HWY_INLINE size_t relative_row(const RelativeRows& relative, size_t s, ptrdiff_t own) {
  const size_t row = distance_row(s, own, static_cast<ptrdiff_t>(relative.clip));
  return relative.row_of ? relative.row_of[row] : row;
}

// biases[s] of one head's logits, for all slots of the tile.
HWY_NOINLINE void fill_biases(const AttentionShape& shape, size_t head, ptrdiff_t own,
                              float* HWY_RESTRICT biases) {
  const Floats d;
  std::fill(biases, biases + kTile, 0.0f);
  if (shape.distance_bias.table) {
    // One value for all slots too far back, a stretch of the table, one value for all too far on.
    const ptrdiff_t reach = static_cast<ptrdiff_t>(shape.distance_bias.reach);
    const float* table = shape.distance_bias.table + head * (2 * shape.distance_bias.reach + 1);
    const ptrdiff_t tile = static_cast<ptrdiff_t>(kTile);
    const ptrdiff_t near = std::clamp(own - reach, ptrdiff_t{0}, tile);
    const ptrdiff_t past = std::clamp(own + reach + 1, ptrdiff_t{0}, tile);
    std::fill(biases, biases + near, table[0]);
    if (near < past) {
      std::copy(table + (near - own + reach), table + (past - own + reach), biases + near);
    }
    std::fill(biases + past, biases + tile, table[2 * reach]);
  }
  if (shape.linear_bias.slopes) {
    const auto slope = hn::Set(d, shape.linear_bias.slopes[head]);
    for (size_t s = 0; s < kTile; s += hn::Lanes(d)) {
      auto distance = hn::Iota(d, static_cast<float>(static_cast<ptrdiff_t>(s) - own));
      if (shape.linear_bias.symmetric) distance = hn::Neg(hn::Abs(distance));
      hn::Store(hn::MulAdd(slope, distance, hn::Load(d, biases + s)), d, biases + s);
    }
  }
}

// The product of a row that is padded with zeros and one that is not.
template <typename T>
HWY_INLINE float multiply_rows(const T* HWY_RESTRICT padded, const float* HWY_RESTRICT row,
                               size_t count) {
  const Floats d;
  auto sum = hn::Zero(d);
  for_each_vector(d, count, [&](auto lanes, size_t i) HWY_ATTR {
    sum = hn::MulAdd(load_elements(d, padded + i), lanes.load(d, row + i), sum);
  });
  return hn::ReduceSum(d, sum);
}

// logits[s] += query . key[r] + scale * keys[s] . query[r] for slots [begin, end); `query` is
// scaled already. Neighbours of the same distance share the first product.
template <typename T>
HWY_NOINLINE void add_relative_logits(const AttentionShape& shape, size_t head, const float* query,
                                      const T* keys, const float* scales, ptrdiff_t own,
                                      size_t begin, size_t end, float* logits) {
  const RelativeRows& relative = shape.relative;
  const size_t elements = cache_row_elements(shape.head_dim);
  float with_key = 0;
  for (size_t s = begin, last = 0; s < end; ++s) {
    const size_t r = relative_row(relative, s, own);
    if (relative.key && (s == begin || r != last)) {
      with_key = multiply_rows(
          query, relative.key + head * relative.head_stride + r * shape.head_dim, shape.head_dim);
    }
    last = r;
    float added = with_key;
    if (relative.query) {
      const float with_query = multiply_rows(
          keys + s * elements, relative.query + head * relative.head_stride + r * shape.head_dim,
          shape.head_dim);
      added = std::fma(with_query, scales ? shape.scale * scales[s] : shape.scale, added);
    }
    logits[s] += added;
  }
}

// sums = sums * shrink + sum of weights[s] * value[r] over slots [begin, end). Neighbours of the
// same distance are taken at once.
HWY_NOINLINE void add_relative_values(const AttentionShape& shape, size_t head,
                                      const float* weights, ptrdiff_t own, size_t begin, size_t end,
                                      float shrink, float* HWY_RESTRICT sums) {
  const Floats d;
  const RelativeRows& relative = shape.relative;
  for (size_t s = begin; s < end;) {
    const size_t r = relative_row(relative, s, own);
    float weight = 0;
    for (; s < end && relative_row(relative, s, own) == r; ++s) weight += weights[s];
    const float* value = relative.value + head * relative.head_stride + r * shape.head_dim;
    for_each_vector(d, shape.head_dim, [&](auto lanes, size_t i) HWY_ATTR {
      const auto sum = hn::Mul(lanes.load(d, sums + i), hn::Set(d, shrink));
      lanes.store(hn::MulAdd(hn::Set(d, weight), lanes.load(d, value + i), sum), d, sums + i);
    });
    shrink = 1;
  }
}

// One row's step of the online softmax: its logits of slots [begin, end), capped and then biased,
// become weights relative to the greatest logit so far, and weights of the rest of [low, high)
// zero. `biases` may be null. Returns what multiplies the row's earlier sums.
HWY_NOINLINE float weigh(float soft_cap, const float* HWY_RESTRICT biases, size_t low, size_t high,
                         size_t begin, size_t end, float* HWY_RESTRICT logits, float& maximum,
                         float& total) {
  if (begin >= end) {
    std::fill(logits + low, logits + high, 0.0f);
    return 1.0f;
  }
  const Floats d;
  const size_t n = hn::Lanes(d);
  low = low / n * n;
  high = (high + n - 1) / n * n;  // at most kTile, a multiple of n
  const float lowest = -std::numeric_limits<float>::infinity();
  std::fill(logits + low, logits + begin, lowest);
  std::fill(logits + end, logits + high, lowest);

  auto greatest = hn::Set(d, maximum);
  for (size_t s = low; s < high; s += n) {
    auto logit = hn::Load(d, logits + s);
    if (soft_cap > 0 || biases) {
      auto changed = logit;
      if (soft_cap > 0) {
        const auto cap = hn::Set(d, soft_cap);
        changed = hn::Mul(cap, tanh(d, hn::Div(changed, cap)));
      }
      if (biases) changed = hn::Add(changed, hn::Load(d, biases + s));
      logit = hn::IfThenElse(hn::Eq(logit, hn::Set(d, lowest)), logit, changed);
      hn::Store(logit, d, logits + s);
    }
    greatest = hn::Max(greatest, logit);
  }
  const float earlier = maximum;
  maximum = hn::ReduceMax(d, greatest);

  auto sum = hn::Zero(d);
  for (size_t s = low; s < high; s += n) {
    const auto logit = hn::Load(d, logits + s);
    const auto weight = exp_nonpositive(d, hn::Sub(logit, hn::Set(d, maximum)));
    hn::Store(weight, d, logits + s);
    sum = hn::Add(sum, weight);
  }
  const float shrink = std::exp(earlier - maximum);  // 0 in a row's first tile
  total = total * shrink + hn::ReduceSum(d, sum);
  return shrink;
}

template <typename T>
void attend_as(const AttentionShape& shape, const CacheView& cache, const AttentionChunk& chunk,
               size_t kv_head, size_t first, size_t count, float* scratch) {
  const Floats d;
  const size_t group = shape.query_heads / shape.kv_heads;
  const size_t rows = count * group;
  const size_t elements = cache_row_elements(shape.head_dim);
  const Workspace work(scratch, rows, elements);
  for (size_t row = 0; row < rows; ++row) {
    const float* query = chunk.queries + (first + row / group) * chunk.query_stride +
                         (kv_head * group + row % group) * shape.head_dim;
    float* padded = work.queries + row * elements;
    std::fill(padded + shape.head_dim, padded + elements, 0.0f);
    for_each_vector(d, shape.head_dim, [&](auto lanes, size_t i) HWY_ATTR {
      lanes.store(hn::Mul(lanes.load(d, query + i), hn::Set(d, shape.scale)), d, padded + i);
    });
  }
  std::fill(work.sums, work.sums + rows * elements, 0.0f);
  std::fill(work.maxima, work.maxima + rows, -std::numeric_limits<float>::infinity());
  std::fill(work.totals, work.totals + rows, 0.0f);

  // Positions from here on count from the session's first. Token t sees [first_seen(t),
  // seen_end(t)).
  const size_t position = chunk.position + first - cache.first_position;
  const auto seen_end = [&](size_t token) {
    if (!shape.bidirectional) return position + token + 1;
    return shape.window > 0 ? std::min(chunk.keys, position + token + shape.window) : chunk.keys;
  };
  const auto first_seen = [&](size_t token) {
    const size_t end = position + token + 1;
    size_t from = shape.window > 0 && shape.window < end ? end - shape.window : 0;
    if (shape.stretch > 0) {
      // Stretches begin at multiples of all positions, not of the session's.
      const size_t into = (chunk.position + first + token) % shape.stretch;
      if (into < end) from = std::max(from, end - 1 - into);
    }
    return from;
  };
  const RelativeRows& relative = shape.relative;
  const bool biased = shape.linear_bias.slopes || shape.distance_bias.table;
  const size_t last = seen_end(count - 1);
  const T* keys = static_cast<const T*>(cache.keys) + kv_head * cache.slots * elements;
  const T* values = static_cast<const T*>(cache.values) + kv_head * cache.slots * elements;
  const bool scaled = cache.type == CacheType::kQ8;

  for (size_t p = first_seen(0), tile_end = 0; p < last; p = tile_end) {
    // Tiles are cut by slot, and so in the same places however a session's tokens are divided into
    // chunks: a token's sums are taken in the same order, and its output is the same to the bit.
    const size_t slot = p % cache.slots;
    const size_t tile = slot / kTile * kTile;
    const size_t origin = p - (slot - tile);  // the position in the tile's first slot
    tile_end = origin + std::min(kTile, cache.slots - tile);
    const T* tile_keys = keys + tile * elements;
    const T* tile_values = values + tile * elements;
    const float* key_scales = scaled ? cache.key_scales + kv_head * cache.slots + tile : nullptr;
    const float* value_scales =
        scaled ? cache.value_scales + kv_head * cache.slots + tile : nullptr;

    for (size_t row = 0, row_end = 0; row < rows; row = row_end) {
      row_end = std::min(row + kRows, rows);
      const size_t seen_from = std::max(first_seen(row / group), origin);
      const size_t seen_to = std::min(seen_end((row_end - 1) / group), tile_end);
      if (seen_from >= seen_to) continue;
      const size_t low = seen_from - origin, high = seen_to - origin;  // slots of the tile

      const auto step = [&]<size_t n>() HWY_ATTR {
        multiply_keys<n>(work.queries + row * elements, elements, tile_keys, key_scales, low, high,
                         work.weights);
        float shrink[kRows];
        for (size_t r = 0; r < n; ++r) {
          const size_t token = (row + r) / group, head = kv_head * group + (row + r) % group;
          const size_t begin = std::max(first_seen(token), seen_from) - origin;
          const size_t end = std::max(std::min(seen_end(token), seen_to), seen_from) - origin;
          float* weights = work.weights + r * kTile;
          const ptrdiff_t own = static_cast<ptrdiff_t>(position + token - origin);
          if (relative.key || relative.query) {
            add_relative_logits(shape, head, work.queries + (row + r) * elements, tile_keys,
                                key_scales, own, begin, end, weights);
          }
          if (biased) fill_biases(shape, head, own, work.biases);
          shrink[r] = weigh(shape.soft_cap, biased ? work.biases : nullptr, low, high, begin, end,
                            weights, work.maxima[row + r], work.totals[row + r]);
          if (relative.value && begin < end) {
            add_relative_values(shape, head, weights, own, begin, end, shrink[r],
                                work.sums + (row + r) * elements);
            shrink[r] = 1;
          }
          if (scaled) {
            for (size_t s = low; s < high; ++s) weights[s] *= value_scales[s];
          }
        }
        add_values<n>(work.weights, tile_values, elements, low, high, shrink,
                      work.sums + row * elements);
      };
      switch (row_end - row) {
        case 1:
          step.template operator()<1>();
          break;
        case 2:
          step.template operator()<2>();
          break;
        case 3:
          step.template operator()<3>();
          break;
        default:
          step.template operator()<4>();
      }
    }
  }

  for (size_t row = 0; row < rows; ++row) {
    float* output = chunk.outputs + (first + row / group) * chunk.output_stride +
                    (kv_head * group + row % group) * shape.head_dim;
    for_each_vector(d, shape.head_dim, [&](auto lanes, size_t i) HWY_ATTR {
      const auto sums = lanes.load(d, work.sums + row * elements + i);
      lanes.store(hn::Div(sums, hn::Set(d, work.totals[row])), d, output + i);
    });
  }
}

void attend(const AttentionShape& shape, const CacheView& cache, const AttentionChunk& chunk,
            size_t kv_head, size_t first, size_t count, float* scratch) {
  switch (cache.type) {
    case CacheType::kF32:
      return attend_as<float>(shape, cache, chunk, kv_head, first, count, scratch);
    case CacheType::kF16:
      return attend_as<uint16_t>(shape, cache, chunk, kv_head, first, count, scratch);
    case CacheType::kQ8:
      return attend_as<int8_t>(shape, cache, chunk, kv_head, first, count, scratch);
  }
}

}  // namespace volvelle::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace volvelle {
namespace {

void store_row(CacheType type, void* rows, float* scales, size_t row, size_t head_dim,
               const float* from) {
  const size_t elements = cache_row_elements(head_dim), bytes = cache_element_bytes(type);
  auto* to = static_cast<std::byte*>(rows) + row * elements * bytes;
  switch (type) {
    case CacheType::kF32:
      std::memcpy(to, from, head_dim * bytes);
      break;
    case CacheType::kF16:
      to_f16(from, head_dim, reinterpret_cast<uint16_t*>(to));
      break;
    case CacheType::kQ8:
      scales[row] = quantize_q8(from, head_dim, reinterpret_cast<int8_t*>(to));
      break;
  }
  std::memset(to + head_dim * bytes, 0, (elements - head_dim) * bytes);
}

}  // namespace

HWY_EXPORT(attend);

size_t attention_scratch_floats(const AttentionShape& shape) {
  return HWY_STATIC_DISPATCH(attention_scratch_floats)(shape);
}

void attend(const AttentionShape& shape, const CacheView& cache, const AttentionChunk& chunk,
            size_t kv_head, size_t first, size_t count, float* scratch) {
  HWY_DYNAMIC_DISPATCH(attend)(shape, cache, chunk, kv_head, first, count, scratch);
}

void store_key(const CacheView& cache, const AttentionShape& shape, size_t kv_head, size_t slot,
               const float* row) {
  store_row(cache.type, cache.keys, cache.key_scales, kv_head * cache.slots + slot, shape.head_dim,
            row);
}

void store_value(const CacheView& cache, const AttentionShape& shape, size_t kv_head, size_t slot,
                 const float* row) {
  store_row(cache.type, cache.values, cache.value_scales, kv_head * cache.slots + slot,
            shape.head_dim, row);
}

}  // namespace volvelle
#endif  // HWY_ONCE
