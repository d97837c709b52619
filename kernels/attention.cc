#include "kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "kernels/dot_product.h"
#include "kernels/quantize.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"
#include "kernels/attention_products-inl.h"
#include "kernels/hadamard-inl.h"
#include "kernels/math-inl.h"
#include "kernels/quantize-inl.h"
#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace volvelle::VOLVELLE_TARGET {

// What rows have got from the positions they have met so far. A query row is one head of one token;
// rows lie token by token.
struct RowState {
  float* sums;    // [rows, elements], weighted values
  float* maxima;  // [rows], greatest logit, which weighs 1; -infinity before the first
  float* totals;  // [rows], weights, summed

  RowState(float* floats, size_t rows, size_t elements)
      : sums(floats), maxima(sums + rows * elements), totals(maxima + rows) {}

  static size_t floats(size_t rows, size_t elements) {
    return (rows * (elements + 2) + 15) / 16 * 16;
  }
};

// How the scratch is divided.
struct Workspace {
  float* merged;    // State after the parts that are done
  float* part;      // State after the part at hand
  float* queries;   // [rows, elements], scaled and padded
  float* weights;   // [kRows, kTile], logits, then e^(logit - the tile's greatest)
  float* biases;    // [kTile], of one row's logits
  float* keys;      // [kTile, elements], a tile's keys as floats, where relative rows want them
  float* spread;    // [elements], of one query
  float* scales;    // [rows], of query codes
  int32_t* starts;  // [rows], see QueryCodes
  int8_t* codes;    // [rows, elements], of queries
  uint8_t* weight_codes;  // [kRows, kTile]

  Workspace(const AttentionShape& shape, float* scratch, size_t rows, size_t elements) {
    // As numbers, since what is measured begins at no address at all.
    auto at = reinterpret_cast<uintptr_t>(scratch);
    const auto take = [&at](size_t floats) {
      const size_t bytes = (floats + 15) / 16 * 16 * sizeof(float);
      return reinterpret_cast<float*>(std::exchange(at, at + bytes));
    };
    merged = take(RowState::floats(rows, elements));
    part = take(RowState::floats(rows, elements));
    queries = take(rows * elements);
    weights = take(kRows * kTile);
    biases = take(kTile);
    keys = take(shape.relative.query ? kTile * elements : 0);
    spread = take(elements);
    scales = take(rows);
    starts = reinterpret_cast<int32_t*>(take(rows));
    codes = reinterpret_cast<int8_t*>(take(rows * elements / sizeof(float)));
    weight_codes = reinterpret_cast<uint8_t*>(take(kRows * kTile / sizeof(float)));
    end = at;
  }

  uintptr_t end;
};

// Quantises a padded row, and transforms it before if told to, in place; returns the codes' scale.
HWY_NOINLINE float quantize_transformed(bool transformed, float* row, size_t elements,
                                        int8_t* codes) {
  if (!transformed) return quantize_symmetric(row, elements, codes);
  auto largest = hn::Zero(Floats());
  const auto see = [&](hn::Vec<Floats> v) HWY_ATTR { largest = hn::Max(largest, hn::Abs(v)); };
  transform_blocks(q8_block(elements), elements, 1, row, see);
  return quantize_below(largest, row, elements, codes);
}

// The sum of a padded row of codes.
HWY_INLINE int32_t sum_codes(const int8_t* codes, size_t elements) {
  const Sums d;
  auto sum = hn::Zero(d);
  for (size_t e = 0; e < elements; e += 4 * hn::Lanes(d)) {
    const auto some = hn::LoadN(Signed(), codes + e, elements - e);
    sum = hn::SumOfMulQuadAccumulate(d, hn::Set(Unsigned(), 1), some, sum);
  }
  return hn::ReduceSum(d, sum);
}

size_t rows_of(const AttentionShape& shape, size_t count) {
  return count * (shape.query_heads / shape.kv_heads);
}

size_t attention_scratch_floats(const AttentionShape& shape) {
  const Workspace work(shape, nullptr, rows_of(shape, kAttentionTokens),
                       cache_row_elements(shape.head_dim));
  return work.end / sizeof(float);
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
HWY_NOINLINE void add_relative_logits(const AttentionShape& shape, size_t head, const float* query,
                                      const float* keys, ptrdiff_t own, size_t begin, size_t end,
                                      float* logits) {
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
      added = std::fma(with_query, shape.scale, added);
    }
    logits[s] += added;
  }
}

// sums = sums * shrink + grow * sum of weights[s] * value[r] over slots [begin, end). Neighbours of
// the same distance are taken at once.
HWY_NOINLINE void add_relative_values(const AttentionShape& shape, size_t head,
                                      const float* weights, ptrdiff_t own, size_t begin, size_t end,
                                      float shrink, float grow, float* HWY_RESTRICT sums) {
  const Floats d;
  const RelativeRows& relative = shape.relative;
  for (size_t s = begin; s < end;) {
    const size_t r = relative_row(relative, s, own);
    float weight = 0;
    for (; s < end && relative_row(relative, s, own) == r; ++s) weight += weights[s];
    weight *= grow;
    const float* value = relative.value + head * relative.head_stride + r * shape.head_dim;
    for_each_vector(d, shape.head_dim, [&](auto lanes, size_t i) HWY_ATTR {
      const auto sum = hn::Mul(lanes.load(d, sums + i), hn::Set(d, shrink));
      lanes.store(hn::MulAdd(hn::Set(d, weight), lanes.load(d, value + i), sum), d, sums + i);
    });
    shrink = 1;
  }
}

// How much a row's earlier sums and a tile's own count beside the greatest logit of both. One of
// the two is 1.
HWY_INLINE void scale_to_greatest(float greatest, float& maximum, float& shrink, float& grow) {
  shrink = grow = 1;
  if (greatest > maximum) {
    shrink = std::exp(maximum - greatest);
    maximum = greatest;
  } else if (greatest < maximum) {
    grow = std::exp(greatest - maximum);
  }
}

// Logits of whole vectors that hold slots [low, high), capped and then biased. `biases` may be
// null.
HWY_NOINLINE void adjust(float soft_cap, const float* HWY_RESTRICT biases, size_t low, size_t high,
                         float* HWY_RESTRICT logits) {
  const Floats d;
  const size_t n = hn::Lanes(d);
  for (size_t s = low / n * n; s < high; s += n) {
    auto logit = hn::Load(d, logits + s);
    if (soft_cap > 0) {
      const auto cap = hn::Set(d, soft_cap);
      logit = hn::Mul(cap, tanh(d, hn::Div(logit, cap)));
    }
    if (biases) logit = hn::Add(logit, hn::Load(d, biases + s));
    hn::Store(logit, d, logits + s);
  }
}

// Which slots of a tile a row sees, and which of them its neighbours do; whole: all.
template <bool whole>
struct Span {
  size_t low, high, begin, end;

  size_t first_vector() const {
    return whole ? 0 : low / hn::Lanes(Floats()) * hn::Lanes(Floats());
  }
  size_t end_vector() const { return whole ? kTile : high; }  // or what follows in its last vector
};

// One row's step of the online softmax is in three passes over a tile, so that those of several
// rows can be under way at once. First the greatest of the logits of slots [begin, end); the rest
// of [low, high) become -infinity.
template <bool whole>
HWY_INLINE float greatest_logit(const Span<whole>& span, float* HWY_RESTRICT logits) {
  const Floats d;
  const size_t n = hn::Lanes(d);
  const size_t first = span.first_vector(), end = span.end_vector();
  if constexpr (!whole) {
    const float lowest = -std::numeric_limits<float>::infinity();
    std::fill(logits + first, logits + span.begin, lowest);
    std::fill(logits + span.end, logits + (end + n - 1) / n * n, lowest);
  }
  auto greatest = hn::Load(d, logits + first);
  for (size_t s = first + n; s < end; s += n) greatest = hn::Max(greatest, hn::Load(d, logits + s));
  return hn::ReduceMax(d, greatest);
}

// What a value's weight in a row is times the value's scale. Scales of slots that weigh nothing
// need not be numbers.
template <bool whole>
HWY_INLINE hn::Vec<Floats> scaled_weight(hn::Vec<Floats> weight, const float* scales) {
  const Floats d;
  const auto scaled = hn::Mul(weight, hn::LoadU(d, scales));
  return whole ? scaled : hn::IfThenZeroElse(hn::Eq(weight, hn::Zero(d)), scaled);
}

// A tile's weights of one row.
struct TileWeights {
  float sum;
  float top;  // the greatest times its value's scale; 0 without scales
};

// Then logits become weights relative to the greatest of them. `scales` may be null.
template <bool whole>
HWY_INLINE TileWeights weigh(const Span<whole>& span, float greatest, const float* scales,
                             float* HWY_RESTRICT logits) {
  const Floats d;
  const size_t n = hn::Lanes(d);
  const auto own = hn::Set(d, greatest);
  auto sum = hn::Zero(d), top = sum;
  for (size_t s = span.first_vector(); s < span.end_vector(); s += n) {
    const auto distance = hn::Sub(hn::Load(d, logits + s), own);
    auto weight = exp_of_weight(d, distance);
    if constexpr (!whole) {
      weight = hn::IfThenZeroElse(hn::Lt(distance, hn::Set(d, -87.0f)), weight);
    }
    hn::Store(weight, d, logits + s);
    sum = hn::Add(sum, weight);
    if (scales) top = hn::Max(top, scaled_weight<whole>(weight, scales + s));
  }
  return {hn::ReduceSum(d, sum), scales ? hn::ReduceMax(d, top) : 0};
}

// Then, for int8 values: codes[s] = weights[s] * scales[s] in units of the returned one, of which
// `top` has kLargestWeight.
template <bool whole>
HWY_INLINE float quantize_weights(const Span<whole>& span, float top,
                                  const float* HWY_RESTRICT weights,
                                  const float* HWY_RESTRICT scales, uint8_t* HWY_RESTRICT codes) {
  const Floats d;
  const size_t n = hn::Lanes(d);
  const auto inverse = hn::Set(d, top > 0 ? kLargestWeight / top : 0.0f);
  const hn::Rebind<uint8_t, Floats> d8;
  for (size_t s = span.first_vector(); s < span.end_vector(); s += n) {
    const auto scaled = scaled_weight<whole>(hn::Load(d, weights + s), scales + s);
    // At this magnitude a float's last bit is one, so that the last byte is the code.
    const auto code = hn::Add(hn::Mul(scaled, inverse), hn::Set(d, 0x1p23f));
    hn::StoreU(hn::TruncateTo(d8, hn::BitCast(hn::RebindToUnsigned<Floats>(), code)), d8,
               codes + s);
  }
  return top / kLargestWeight;
}

// Which positions a token sees: [first_seen(t), seen_end(t)), counted from the session's first; `t`
// counts from the call's first.
struct Sight {
  const AttentionShape& shape;
  const AttentionChunk& chunk;
  size_t first;
  size_t position;  // of the call's first token, from the session's first

  Sight(const AttentionShape& s, const CacheView& cache, const AttentionChunk& c, size_t t)
      : shape(s), chunk(c), first(t), position(c.position + t - cache.first_position) {}

  size_t seen_end(size_t token) const {
    if (!shape.bidirectional) return position + token + 1;
    return shape.window > 0 ? std::min(chunk.keys, position + token + shape.window) : chunk.keys;
  }

  size_t first_seen(size_t token) const {
    const size_t end = position + token + 1;
    size_t from = shape.window > 0 && shape.window < end ? end - shape.window : 0;
    if (shape.stretch > 0) {
      // Stretches begin at multiples of all positions, not of the session's.
      const size_t into = (chunk.position + first + token) % shape.stretch;
      if (into < end) from = std::max(from, end - 1 - into);
    }
    return from;
  }
};

// Parts and tiles are cut by slot, and so in the same places however a session's tokens are divided
// into chunks: a token's sums are taken in the same order, and its output is the same to the bit.
// Returns the position after p's `size` slots.
HWY_INLINE size_t cut_end(const CacheView& cache, size_t p, size_t size) {
  const size_t slot = p % cache.slots;
  return p - slot + std::min(slot / size * size + size, cache.slots);
}

size_t attention_parts(const AttentionShape& shape, const CacheView& cache,
                       const AttentionChunk& chunk, size_t first, size_t count) {
  const Sight sight(shape, cache, chunk, first);
  const size_t last = sight.seen_end(count - 1);
  size_t parts = 0;
  for (size_t p = sight.first_seen(0); p < last; p = cut_end(cache, p, kAttentionPart)) ++parts;
  return parts;
}

size_t partial_floats(const AttentionShape& shape, size_t count) {
  return RowState::floats(rows_of(shape, count), cache_row_elements(shape.head_dim));
}

void clear(const RowState& partial, size_t rows, size_t elements) {
  std::fill(partial.sums, partial.sums + rows * elements, 0.0f);
  std::fill(partial.maxima, partial.maxima + rows, -std::numeric_limits<float>::infinity());
  std::fill(partial.totals, partial.totals + rows, 0.0f);
}

void clear_partial(const AttentionShape& shape, size_t count, float* merged) {
  const size_t rows = rows_of(shape, count), elements = cache_row_elements(shape.head_dim);
  clear(RowState(merged, rows, elements), rows, elements);
}

void merge(const RowState& part, size_t rows, size_t elements, const RowState& merged) {
  const Floats d;
  for (size_t row = 0; row < rows; ++row) {
    if (part.totals[row] == 0) continue;  // this row sees nothing there
    float shrink, grow;
    scale_to_greatest(part.maxima[row], merged.maxima[row], shrink, grow);
    merged.totals[row] = merged.totals[row] * shrink + part.totals[row] * grow;
    for (size_t e = row * elements; e < (row + 1) * elements; e += hn::Lanes(d)) {
      const auto earlier = hn::Mul(hn::Load(d, merged.sums + e), hn::Set(d, shrink));
      const auto sum = hn::MulAdd(hn::Load(d, part.sums + e), hn::Set(d, grow), earlier);
      hn::Store(sum, d, merged.sums + e);
    }
  }
}

// Instantiated for every type of cache and instruction set: what runs once a tile or less is not
// inlined.
template <typename T>
class Attending {
 public:
  HWY_NOINLINE Attending(const AttentionShape& shape, const CacheView& cache,
                         const AttentionChunk& chunk, size_t kv_head, size_t first, size_t count,
                         float* scratch)
      : shape_(shape),
        cache_(cache),
        sight_(shape, cache, chunk, first),
        kv_head_(kv_head),
        count_(count),
        rows_(rows_of(shape, count)),
        group_(shape.query_heads / shape.kv_heads),
        elements_(cache_row_elements(shape.head_dim)),
        slots_(cache_slots(cache.type, cache.slots)),
        adjusted_(shape.soft_cap > 0 || shape.linear_bias.slopes || shape.distance_bias.table ||
                  shape.relative.key || shape.relative.query),
        work_(shape, scratch, rows_, elements_) {
    const Floats d;
    for (size_t row = 0; row < rows_; ++row) {
      const float* query = chunk.queries + (first + row / group_) * chunk.query_stride +
                           (kv_head * group_ + row % group_) * shape.head_dim;
      const auto pad = [&](float* padded) HWY_ATTR {
        std::fill(padded + shape.head_dim, padded + elements_, 0.0f);
        for_each_vector(d, shape.head_dim, [&](auto lanes, size_t i) HWY_ATTR {
          lanes.store(hn::Mul(lanes.load(d, query + i), hn::Set(d, shape.scale)), d, padded + i);
        });
      };
      if (!kCodes || shape.relative.key) pad(work_.queries + row * elements_);
      if constexpr (kCodes) {
        int8_t* const codes = work_.codes + row * elements_;
        float* const spread = work_.spread;
        pad(spread);
        const bool transformed = q8_transforms_keys(shape);
        const float factor = transformed ? 1 / static_cast<float>(q8_block(elements_)) : 1;
        work_.scales[row] = quantize_transformed(transformed, spread, elements_, codes) * factor;
        if constexpr (kLoadedKeyOffset != 0) {
          work_.starts[row] = -kLoadedKeyOffset * sum_codes(codes, elements_);
        } else {
          work_.starts[row] = 0;
        }
      }
    }
  }

  const Workspace& work() const { return work_; }
  size_t first_position() const { return sight_.first_seen(0); }
  size_t end_position() const { return sight_.seen_end(count_ - 1); }

  // What the rows get from positions [p, end).
  HWY_NOINLINE void run(size_t p, size_t end, const RowState& state) const {
    clear(state, rows_, elements_);
    for (size_t tile_end = 0; p < end; p = tile_end) {
      tile_end = std::min(cut_end(cache_, p, kTile), end);
      const size_t slot = p % cache_.slots;
      run_tile(slot / kTile * kTile, p - slot % kTile, tile_end, state);
    }
  }

 private:
  static constexpr bool kCodes = std::is_same_v<T, int8_t>;
  using Key = std::conditional_t<kCodes, uint8_t, T>;

  // What is at one tile's slots, the first of which is or would be position `origin`'s.
  struct Tile {
    const Key* keys;
    const T* values;
    const float *key_scales, *value_scales;  // of int8
    size_t origin;
  };

  // The tile that begins at slot `slot`, whose positions from `end` on are another's.
  void run_tile(size_t slot, size_t origin, size_t end, const RowState& state) const {
    const size_t row_at = kv_head_ * slots_ + slot, at = row_at * elements_;
    const Tile tile = {static_cast<const Key*>(cache_.keys) + at,
                       static_cast<const T*>(cache_.values) + at,
                       kCodes ? cache_.key_scales + row_at : nullptr,
                       kCodes ? cache_.value_scales + row_at : nullptr, origin};
    if (shape_.relative.query) widen_keys(tile, end - origin);
    for (size_t row = 0, row_end = 0; row < rows_; row = row_end) {
      row_end = std::min(row + kRows, rows_);
      const size_t from = std::max(sight_.first_seen(row / group_), origin);
      const size_t to = std::min(sight_.seen_end((row_end - 1) / group_), end);
      if (from >= to) continue;
      const size_t low = from - origin, high = to - origin;
      switch (row_end - row) {
        case 1:
          run_rows<1>(row, tile, low, high, state);
          break;
        case 2:
          run_rows<2>(row, tile, low, high, state);
          break;
        case 3:
          run_rows<3>(row, tile, low, high, state);
          break;
        default:
          run_rows<4>(row, tile, low, high, state);
      }
    }
  }

  // Rows [row, row + n) and the tile's slots [low, high), of which each row sees some or none.
  template <size_t n>
  void run_rows(size_t row, const Tile& tile, size_t low, size_t high,
                const RowState& state) const {
    float* const sums = state.sums + row * elements_;
    if constexpr (kCodes) {
      const QueryCodes codes = {work_.codes + row * elements_, work_.starts + row,
                                work_.scales + row};
      multiply_keys<n>(codes, elements_, tile.keys, tile.key_scales, low, high, work_.weights);
    } else {
      multiply_keys<n>(work_.queries + row * elements_, elements_, tile.keys, low, high,
                       work_.weights);
    }
    const Joins joins = weigh_rows(n, row, tile, low, high, state);
    if constexpr (kCodes) {
      add_values<n>(work_.weight_codes, tile.values, elements_, low, high, joins, sums);
    } else {
      add_values<n>(work_.weights, tile.values, elements_, low, high, joins, sums);
    }
  }

  // From logits to the weights of values, of `n` rows. Not inlined, for size.
  [[gnu::noclone]] HWY_NOINLINE Joins weigh_rows(size_t n, size_t row, const Tile& tile, size_t low,
                                                 size_t high, const RowState& state) const {
    size_t begins[kRows], ends[kRows];  // equal where a row sees nothing
    for (size_t r = 0; r < n; ++r) {
      const size_t token = (row + r) / group_;
      begins[r] = std::max(sight_.first_seen(token), tile.origin + low) - tile.origin;
      ends[r] = std::min(sight_.seen_end(token), tile.origin + high);
      ends[r] = std::max(ends[r], tile.origin + begins[r]) - tile.origin;
    }
    // Calls body(r, span) for each row that sees any.
    const auto for_each = [&](const auto& body) HWY_ATTR {
#pragma GCC unroll 1
      for (size_t r = 0; r < n; ++r) {
        if (begins[r] == 0 && ends[r] == kTile) {
          body(r, Span<true>{low, high, 0, kTile});
        } else if (begins[r] < ends[r]) {
          body(r, Span<false>{low, high, begins[r], ends[r]});
        }
      }
    };
    const auto weights_of = [&](size_t r) { return work_.weights + r * kTile; };
    const auto codes_of = [&](size_t r) { return work_.weight_codes + r * kTile; };

    Joins joins;
    for (size_t r = 0; r < n; ++r) {
      joins.shrink[r] = 1;
      joins.grow[r] = 0;
      if (begins[r] < ends[r]) continue;
      std::fill_n(weights_of(r), kTile, 0.0f);
      if constexpr (kCodes) std::fill_n(codes_of(r), kTile, uint8_t{0});
    }
    float greatest[kRows];
    TileWeights tops[kRows];
    for_each([&](size_t r, const auto& span) HWY_ATTR {
      if (adjusted_) {
        adjust_row(row + r, tile, low, high, span.begin, span.end, weights_of(r));
      }
      greatest[r] = greatest_logit(span, weights_of(r));
    });
    for_each([&](size_t r, const auto& span) HWY_ATTR {
      tops[r] = weigh(span, greatest[r], kCodes ? tile.value_scales : nullptr, weights_of(r));
    });
    for_each([&](size_t r, const auto& span) HWY_ATTR {
      float &shrink = joins.shrink[r], &grow = joins.grow[r], &total = state.totals[row + r];
      scale_to_greatest(greatest[r], state.maxima[row + r], shrink, grow);
      total = total * shrink + tops[r].sum * grow;
      if (shape_.relative.value) {
        add_relative_values(shape_, head_of(row + r), weights_of(r), own_slot(row + r, tile),
                            span.begin, span.end, shrink, grow, state.sums + (row + r) * elements_);
        shrink = 1;
      }
      if constexpr (kCodes) {
        grow *= quantize_weights(span, tops[r].top, weights_of(r), tile.value_scales, codes_of(r));
      }
    });
    return joins;
  }

  // All that may happen to logits before their softmax.
  HWY_NOINLINE void adjust_row(size_t row, const Tile& tile, size_t low, size_t high, size_t begin,
                               size_t end, float* logits) const {
    const ptrdiff_t own = own_slot(row, tile);
    if (shape_.relative.key || shape_.relative.query) {
      add_relative_logits(shape_, head_of(row), work_.queries + row * elements_, work_.keys, own,
                          begin, end, logits);
    }
    const bool biased = shape_.linear_bias.slopes || shape_.distance_bias.table;
    if (biased) fill_biases(shape_, head_of(row), own, work_.biases);
    adjust(shape_.soft_cap, biased ? work_.biases : nullptr, low, high, logits);
  }

  size_t head_of(size_t row) const { return kv_head_ * group_ + row % group_; }

  // The tile's slot of a row's own position, maybe before or past its end.
  ptrdiff_t own_slot(size_t row, const Tile& tile) const {
    return static_cast<ptrdiff_t>(sight_.position + row / group_ - tile.origin);
  }

  void widen_keys(const Tile& tile, size_t slots) const {
    for (size_t s = 0; s < slots; ++s) {
      for (size_t e = 0; e < elements_; ++e) {
        float& wide = work_.keys[s * elements_ + e];
        if constexpr (kCodes) {
          const int code = tile.keys[q8_key_index(s, e, elements_)] - kKeyOffset;
          wide = static_cast<float>(code) * tile.key_scales[s];
        } else if constexpr (std::is_same_v<Key, float>) {
          wide = tile.keys[key_index(s, e, elements_)];
        } else {
          from_f16(tile.keys + key_index(s, e, elements_), 1, &wide);
        }
      }
    }
  }

  const AttentionShape& shape_;
  const CacheView& cache_;
  Sight sight_;
  size_t kv_head_, count_, rows_, group_, elements_;
  size_t slots_;  // of a head, with those that only fill memory
  bool adjusted_;
  Workspace work_;
};

// Calls function(attending) with what the cache's type needs.
template <class Function>
void with_attending(const AttentionShape& shape, const CacheView& cache,
                    const AttentionChunk& chunk, size_t kv_head, size_t first, size_t count,
                    float* scratch, const Function& function) {
#ifdef VOLVELLE_BUILDS_DOT_PRODUCT  // from which only codes gain
  return function(Attending<int8_t>(shape, cache, chunk, kv_head, first, count, scratch));
#else
  switch (cache.type) {
    case CacheType::kF32:
      return function(Attending<float>(shape, cache, chunk, kv_head, first, count, scratch));
    case CacheType::kF16:
      return function(Attending<uint16_t>(shape, cache, chunk, kv_head, first, count, scratch));
    case CacheType::kQ8:
      return function(Attending<int8_t>(shape, cache, chunk, kv_head, first, count, scratch));
  }
#endif
}

void merge_parts(const AttentionShape& shape, size_t count, const float* partials, size_t parts,
                 float* merged) {
  const size_t rows = rows_of(shape, count), elements = cache_row_elements(shape.head_dim);
  for (size_t part = 0; part < parts; ++part) {
    float* const own = const_cast<float*>(partials) + part * RowState::floats(rows, elements);
    merge(RowState(own, rows, elements), rows, elements, RowState(merged, rows, elements));
  }
}

void write_merged(const AttentionShape& shape, CacheType type, const AttentionChunk& chunk,
                  size_t kv_head, size_t first, size_t count, float* merged) {
  const Floats d;
  const size_t rows = rows_of(shape, count), group = shape.query_heads / shape.kv_heads;
  const size_t elements = cache_row_elements(shape.head_dim);
  const RowState state(merged, rows, elements);
  const bool transformed = type == CacheType::kQ8 && q8_transforms_values(shape);
  for (size_t row = 0; row < rows; ++row) {
    float* output = chunk.outputs + (first + row / group) * chunk.output_stride +
                    (kv_head * group + row % group) * shape.head_dim;
    float* const sums = state.sums + row * elements;
    const size_t block = transformed ? q8_block(elements) : 1;
    const float factor = 1 / static_cast<float>(block);
    if (transformed) transform_blocks(block, elements, 1, sums);
    for_each_vector(d, shape.head_dim, [&](auto lanes, size_t i) HWY_ATTR {
      const auto sum = hn::Mul(lanes.load(d, sums + i), hn::Set(d, factor));
      lanes.store(hn::Div(sum, hn::Set(d, state.totals[row])), d, output + i);
    });
  }
}

void attend(const AttentionShape& shape, const CacheView& cache, const AttentionChunk& chunk,
            size_t kv_head, size_t first, size_t count, float* scratch) {
  const size_t rows = rows_of(shape, count), elements = cache_row_elements(shape.head_dim);
  with_attending(shape, cache, chunk, kv_head, first, count, scratch, [&](const auto& attending) {
    const Workspace& work = attending.work();
    const RowState merged(work.merged, rows, elements), part(work.part, rows, elements);
    const size_t last = attending.end_position();
    size_t p = attending.first_position();
    const auto part_end = [&] { return std::min(cut_end(cache, p, kAttentionPart), last); };
    if (part_end() == last) {  // the only one, which to merge would not change
      attending.run(p, last, merged);
      p = last;
    } else {
      clear(merged, rows, elements);
    }
    for (size_t end = 0; p < last; p = end) {
      end = part_end();
      attending.run(p, end, part);
      merge(part, rows, elements, merged);
    }
    VOLVELLE_TARGET::write_merged(shape, cache.type, chunk, kv_head, first, count, work.merged);
  });
}

void attend_part(const AttentionShape& shape, const CacheView& cache, const AttentionChunk& chunk,
                 size_t kv_head, size_t first, size_t count, size_t part, float* scratch,
                 float* partial) {
  const size_t rows = rows_of(shape, count), elements = cache_row_elements(shape.head_dim);
  with_attending(shape, cache, chunk, kv_head, first, count, scratch, [&](const auto& attending) {
    size_t p = attending.first_position();
    for (; part > 0; --part) p = cut_end(cache, p, kAttentionPart);
    const size_t end = std::min(cut_end(cache, p, kAttentionPart), attending.end_position());
    attending.run(p, end, RowState(partial, rows, elements));
  });
}

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
HWY_INLINE void store_coded(size_t head_dim, bool transformed, size_t slot, size_t count,
                            const float* rows, size_t stride, void* head, float* scales) {
  const size_t elements = cache_row_elements(head_dim);
  alignas(64) float row[kMaxHeadDim];
  alignas(64) int8_t codes[4 * kMaxHeadDim];
  for (size_t end = slot + count, some = 0; slot < end; slot += some) {
    some = slot % 4 == 0 && end - slot >= 4 ? 4 : 1;
    for (size_t r = 0; r < some; ++r, rows += stride) {
      std::copy(rows, rows + head_dim, row);
      std::fill(row + head_dim, row + elements, 0.0f);
      scales[slot + r] = quantize_transformed(transformed, row, elements, codes + r * elements);
    }
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

void store_coded_keys(size_t head_dim, bool transformed, size_t slot, size_t count,
                      const float* rows, size_t stride, void* head, float* scales) {
  store_coded<true>(head_dim, transformed, slot, count, rows, stride, head, scales);
}

void store_coded_values(size_t head_dim, bool transformed, size_t slot, size_t count,
                        const float* rows, size_t stride, void* head, float* scales) {
  store_coded<false>(head_dim, transformed, slot, count, rows, stride, head, scales);
}

}  // namespace volvelle::VOLVELLE_TARGET
HWY_AFTER_NAMESPACE();

#if HWY_ONCE && !defined(VOLVELLE_BUILDS_DOT_PRODUCT)
namespace volvelle {

#if VOLVELLE_HAS_DOT_PRODUCT  // see attention_dot_product.cc
namespace N_DOT_PRODUCT {
void attend(const AttentionShape& shape, const CacheView& cache, const AttentionChunk& chunk,
            size_t kv_head, size_t first, size_t count, float* scratch);
void attend_part(const AttentionShape& shape, const CacheView& cache, const AttentionChunk& chunk,
                 size_t kv_head, size_t first, size_t count, size_t part, float* scratch,
                 float* partial);
}  // namespace N_DOT_PRODUCT
#define VOLVELLE_CHOOSE(FUNCTION)                                                 \
  (cache.type == CacheType::kQ8 && takes_dot_product() ? &N_DOT_PRODUCT::FUNCTION \
                                                       : HWY_DYNAMIC_POINTER(FUNCTION))
#else
#define VOLVELLE_CHOOSE(FUNCTION) (HWY_DYNAMIC_POINTER(FUNCTION))
#endif

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
HWY_EXPORT(attend);
HWY_EXPORT(attend_part);
HWY_EXPORT(merge_parts);
HWY_EXPORT(write_merged);

void attend(const AttentionShape& shape, const CacheView& cache, const AttentionChunk& chunk,
            size_t kv_head, size_t first, size_t count, float* scratch) {
  VOLVELLE_CHOOSE(attend)(shape, cache, chunk, kv_head, first, count, scratch);
}

void attend_part(const AttentionShape& shape, const CacheView& cache, const AttentionChunk& chunk,
                 size_t kv_head, size_t first, size_t count, size_t part, float* scratch,
                 float* partial) {
  VOLVELLE_CHOOSE(attend_part)(shape, cache, chunk, kv_head, first, count, part, scratch, partial);
}

void merge_parts(const AttentionShape& shape, size_t count, const float* partials, size_t parts,
                 float* merged) {
  HWY_DYNAMIC_DISPATCH(merge_parts)(shape, count, partials, parts, merged);
}

void write_merged(const AttentionShape& shape, CacheType type, const AttentionChunk& chunk,
                  size_t kv_head, size_t first, size_t count, float* merged) {
  HWY_DYNAMIC_DISPATCH(write_merged)(shape, type, chunk, kv_head, first, count, merged);
}

size_t attention_scratch_floats(const AttentionShape& shape) {
  return HWY_STATIC_DISPATCH(attention_scratch_floats)(shape);
}

size_t attention_parts(const AttentionShape& shape, const CacheView& cache,
                       const AttentionChunk& chunk, size_t first, size_t count) {
  return HWY_STATIC_DISPATCH(attention_parts)(shape, cache, chunk, first, count);
}

size_t attention_partial_floats(const AttentionShape& shape, size_t count) {
  return HWY_STATIC_DISPATCH(partial_floats)(shape, count);
}

void clear_partial(const AttentionShape& shape, size_t count, float* merged) {
  HWY_STATIC_DISPATCH(clear_partial)(shape, count, merged);
}

void store_keys(const CacheView& cache, const AttentionShape& shape, size_t kv_head, size_t slot,
                size_t count, const float* rows, size_t stride) {
  const size_t head_dim = shape.head_dim, elements = cache_row_elements(head_dim);
  const size_t before = kv_head * cache_slots(cache.type, cache.slots);
  if (cache.type == CacheType::kQ8) {
    HWY_DYNAMIC_DISPATCH(store_coded_keys)
    (head_dim, q8_transforms_keys(shape), slot, count, rows, stride,
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
    (head_dim, q8_transforms_values(shape), slot, count, rows, stride,
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
