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
  float* spread;    // [kRows, elements], of queries that become codes
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
    spread = take(kRows * elements);
    scales = take(rows);
    starts = reinterpret_cast<int32_t*>(take(rows));
    codes = reinterpret_cast<int8_t*>(take(rows * elements / sizeof(float)));
    weight_codes = reinterpret_cast<uint8_t*>(take(kRows * kTile / sizeof(float)));
    end = at;
  }

  uintptr_t end;
};

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

// Which slots of a tile a row sees, [begin, end), and the vectors that hold what it or its
// neighbours see, [first, past); whole: all of these.
template <bool whole>
struct Span {
  size_t first, past, begin, end;
};

// The rows' step of the online softmax is in three passes over a tile, so that all of them are
// under way at once. First the greatest of the logits of slots [begin, end), lane by lane; the
// others become -infinity.
template <bool whole>
HWY_INLINE hn::Vec<Floats> greatest_logits(const Span<whole>& span, float* HWY_RESTRICT logits) {
  const Floats d;
  const size_t n = hn::Lanes(d);
  if constexpr (!whole) {
    const float lowest = -std::numeric_limits<float>::infinity();
    std::fill(logits + span.first, logits + span.begin, lowest);
    std::fill(logits + span.end, logits + span.past, lowest);
  }
  auto greatest = hn::Load(d, logits + span.first);
  for (size_t s = span.first + n; s < span.past; s += n) {
    greatest = hn::Max(greatest, hn::Load(d, logits + s));
  }
  return greatest;
}

// What a value's weight in a row is times the value's scale. Scales of slots that weigh nothing
// need not be numbers.
template <bool whole>
HWY_INLINE hn::Vec<Floats> scaled_weight(hn::Vec<Floats> weight, const float* scales) {
  const Floats d;
  const auto scaled = hn::Mul(weight, hn::LoadU(d, scales));
  return whole ? scaled : hn::IfThenZeroElse(hn::Eq(weight, hn::Zero(d)), scaled);
}

// A tile's weights of a few rows, lane by lane.
struct TileWeights {
  FourVectors sums;
  FourVectors tops;  // the greatest times its value's scale; 0 without scales
};

// Then the logits of row `r` become weights relative to the greatest of them. `scales` may be null.
template <bool whole>
HWY_INLINE void weigh(const Span<whole>& span, float greatest, const float* scales,
                      float* HWY_RESTRICT logits, size_t r, TileWeights& tile) {
  const Floats d;
  const size_t n = hn::Lanes(d);
  const auto own = hn::Set(d, greatest);
  auto sum = hn::Zero(d), top = sum;
  for (size_t s = span.first; s < span.past; s += n) {
    const auto distance = hn::Sub(hn::Load(d, logits + s), own);
    auto weight = exp_of_weight(d, distance);
    if constexpr (!whole) {
      weight = hn::IfThenZeroElse(hn::Lt(distance, hn::Set(d, -87.0f)), weight);
    }
    hn::Store(weight, d, logits + s);
    sum = hn::Add(sum, weight);
    if (scales) top = hn::Max(top, scaled_weight<whole>(weight, scales + s));
  }
  tile.sums.set(r, sum);
  if (scales) tile.tops.set(r, top);
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
  for (size_t s = span.first; s < span.past; s += n) {
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
    const float greatest = std::max(part.maxima[row], merged.maxima[row]);
    const float grow = std::exp(part.maxima[row] - greatest);
    const float shrink = std::exp(merged.maxima[row] - greatest);  // one of the two is 1
    merged.maxima[row] = greatest;
    merged.totals[row] = merged.totals[row] * shrink + part.totals[row] * grow;
    for (size_t e = row * elements; e < (row + 1) * elements; e += hn::Lanes(d)) {
      const auto earlier = hn::Mul(hn::Load(d, merged.sums + e), hn::Set(d, shrink));
      const auto sum = hn::MulAdd(hn::Load(d, part.sums + e), hn::Set(d, grow), earlier);
      hn::Store(sum, d, merged.sums + e);
    }
  }
}

// A tile of the cache, as weights need to know it: it begins with what is or would be position
// `origin`'s.
struct TileAt {
  size_t origin;
  const float *key_scales, *value_scales;  // of int8
};

// The query rows of one call, and the weights that their logits become: as floats, or with `coded`
// rows and weights as codes. Instantiated for both and every instruction set: what runs once a tile
// or less is not inlined.
template <bool coded>
class QueryRows {
 public:
  HWY_NOINLINE QueryRows(const AttentionShape& shape, const CacheView& cache,
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
        adjusted_(shape.soft_cap > 0 || shape.linear_bias.slopes || shape.distance_bias.table ||
                  shape.relative.key || shape.relative.query),
        work_(shape, scratch, rows_, elements_) {
    // Query row `row`, scaled and padded.
    const auto pad = [&](size_t row, float* padded) HWY_ATTR {
      const Floats d;
      const float* query = chunk.queries + (first + row / group_) * chunk.query_stride +
                           (kv_head * group_ + row % group_) * shape.head_dim;
      std::fill(padded + shape.head_dim, padded + elements_, 0.0f);
      for_each_vector(d, shape.head_dim, [&](auto lanes, size_t i) HWY_ATTR {
        lanes.store(hn::Mul(lanes.load(d, query + i), hn::Set(d, shape.scale)), d, padded + i);
      });
    };
    for (size_t row = 0; row < rows_ && (!coded || shape.relative.key); ++row) {
      pad(row, work_.queries + row * elements_);
    }
    for (size_t row = 0; row < rows_ && coded; row += kRows) {
      const size_t some = std::min(kRows, rows_ - row);
      for (size_t r = 0; r < some; ++r) pad(row + r, work_.spread + r * elements_);
      int8_t* const codes = work_.codes + row * elements_;
      const size_t block = q8_transforms_keys(shape) ? q8_block(elements_) : 1;
      const float factor = 1 / static_cast<float>(block);
      quantize_transformed(block, work_.spread, some, elements_, codes, work_.scales + row);
      for (size_t r = 0; r < some; ++r) {
        work_.scales[row + r] *= factor;
        work_.starts[row + r] = 0;
        if constexpr (kLoadedKeyOffset != 0) {
          work_.starts[row + r] = -kLoadedKeyOffset * sum_codes(codes + r * elements_, elements_);
        }
      }
    }
  }

  const Workspace& work() const { return work_; }
  size_t first_position() const { return sight_.first_seen(0); }
  size_t end_position() const { return sight_.seen_end(count_ - 1); }

 protected:
  // From logits to the weights of values, of `n` rows. Not inlined, for size.
  [[gnu::noclone]] HWY_NOINLINE Joins weigh_rows(size_t n, size_t row, const TileAt& tile,
                                                 size_t low, size_t high,
                                                 const RowState& state) const {
    size_t begins[kRows], ends[kRows];  // equal where a row sees nothing
    for (size_t r = 0; r < n; ++r) {
      const size_t token = (row + r) / group_;
      begins[r] = std::max(sight_.first_seen(token), tile.origin + low) - tile.origin;
      ends[r] = std::min(sight_.seen_end(token), tile.origin + high);
      ends[r] = std::max(ends[r], tile.origin + begins[r]) - tile.origin;
    }
    const size_t lanes = hn::Lanes(Floats());
    const size_t first = low / lanes * lanes, past = (high + lanes - 1) / lanes * lanes;
    // Calls body(r, span) for each row that sees any.
    const auto for_each = [&](const auto& body) HWY_ATTR {
#pragma GCC unroll 1
      for (size_t r = 0; r < n; ++r) {
        if (begins[r] == first && ends[r] == past) {
          body(r, Span<true>{first, past, first, past});
        } else if (begins[r] < ends[r]) {
          body(r, Span<false>{first, past, begins[r], ends[r]});
        }
      }
    };
    const auto weights_of = [&](size_t r) { return work_.weights + r * kTile; };
    const auto codes_of = [&](size_t r) { return work_.weight_codes + r * kTile; };

    FourVectors logits;
    for (size_t r = 0; r < n; ++r) {
      if (begins[r] < ends[r]) continue;
      logits.set(r, hn::Set(Floats(), -std::numeric_limits<float>::infinity()));
      std::fill_n(weights_of(r), kTile, 0.0f);
      if constexpr (coded) std::fill_n(codes_of(r), kTile, uint8_t{0});
    }
    for_each([&](size_t r, const auto& span) HWY_ATTR {
      if (adjusted_) {
        adjust_row(row + r, tile, low, high, span.begin, span.end, weights_of(r));
      }
      logits.set(r, greatest_logits(span, weights_of(r)));
    });
    const hn::CappedTag<float, kRows> d;
    HWY_ALIGN float greatest[kRows];
    hn::Store(logits.greatest(), d, greatest);
    TileWeights weights;
    for_each([&](size_t r, const auto& span) HWY_ATTR {
      weigh(span, greatest[r], coded ? tile.value_scales : nullptr, weights_of(r), r, weights);
    });

    // How much the rows' earlier sums and the tile's own count beside the greatest logit of both.
    const auto own = hn::Load(d, greatest), earlier = hn::LoadN(d, state.maxima + row, n);
    const auto maxima = hn::Max(earlier, own);
    const auto beside = [&](auto logit) HWY_ATTR {
      const auto less = exp_of_weight(d, hn::Sub(logit, maxima));
      return hn::IfThenElse(hn::Eq(logit, maxima), hn::Set(d, 1.0f), less);  // -infinity is another
    };
    const auto shrink = beside(earlier), grow = beside(own);
    const auto total = hn::Mul(hn::LoadN(d, state.totals + row, n), shrink);
    hn::StoreN(hn::MulAdd(weights.sums.sum(), grow, total), d, state.totals + row, n);
    hn::StoreN(maxima, d, state.maxima + row, n);
    Joins joins;
    hn::StoreU(shrink, d, joins.shrink);
    hn::StoreU(grow, d, joins.grow);
    if (!coded && !shape_.relative.value) return joins;

    HWY_ALIGN float tops[kRows];
    if constexpr (coded) hn::Store(weights.tops.greatest(), d, tops);
    for_each([&](size_t r, const auto& span) HWY_ATTR {
      if (shape_.relative.value) {
        add_relative_values(shape_, head_of(row + r), weights_of(r), own_slot(row + r, tile),
                            span.begin, span.end, joins.shrink[r], joins.grow[r],
                            state.sums + (row + r) * elements_);
        joins.shrink[r] = 1;
      }
      if constexpr (coded) {
        joins.grow[r] *=
            quantize_weights(span, tops[r], weights_of(r), tile.value_scales, codes_of(r));
      }
    });
    return joins;
  }

  // All that may happen to logits before their softmax.
  HWY_NOINLINE void adjust_row(size_t row, const TileAt& tile, size_t low, size_t high,
                               size_t begin, size_t end, float* logits) const {
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
  ptrdiff_t own_slot(size_t row, const TileAt& tile) const {
    return static_cast<ptrdiff_t>(sight_.position + row / group_ - tile.origin);
  }

  const AttentionShape& shape_;
  const CacheView& cache_;
  Sight sight_;
  size_t kv_head_, count_, rows_, group_, elements_;
  bool adjusted_;
  Workspace work_;
};

// The same over a cache of one type.
template <typename T>
class Attending : public QueryRows<std::is_same_v<T, int8_t>> {
  static constexpr bool kCodes = std::is_same_v<T, int8_t>;
  using Key = std::conditional_t<kCodes, uint8_t, T>;
  using Rows = QueryRows<kCodes>;
  using Rows::elements_, Rows::work_;
  using Rows::shape_, Rows::cache_, Rows::sight_, Rows::kv_head_, Rows::rows_, Rows::group_;

 public:
  using Rows::Rows;

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
  struct Tile : TileAt {
    const Key* keys;
    const T* values;
  };

  // The tile that begins at slot `slot`, whose positions from `end` on are another's.
  void run_tile(size_t slot, size_t origin, size_t end, const RowState& state) const {
    // A head has slots beside that only fill memory.
    const size_t row_at = kv_head_ * cache_slots(cache_.type, cache_.slots) + slot;
    const size_t at = row_at * elements_;
    const Tile tile = {{origin, kCodes ? cache_.key_scales + row_at : nullptr,
                        kCodes ? cache_.value_scales + row_at : nullptr},
                       static_cast<const Key*>(cache_.keys) + at,
                       static_cast<const T*>(cache_.values) + at};
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
    const Joins joins = this->weigh_rows(n, row, tile, low, high, state);
    if constexpr (kCodes) {
      add_values<n>(work_.weight_codes, tile.values, elements_, low, high, joins, sums);
    } else {
      add_values<n>(work_.weights, tile.values, elements_, low, high, joins, sums);
    }
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
    const float divisor = static_cast<float>(block) * state.totals[row];
    if (transformed) transform_blocks(block, elements, 1, sums);
    for_each_vector(d, shape.head_dim, [&](auto lanes, size_t i) HWY_ATTR {
      lanes.store(hn::Div(lanes.load(d, sums + i), hn::Set(d, divisor)), d, output + i);
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

}  // namespace volvelle
#endif  // HWY_ONCE
