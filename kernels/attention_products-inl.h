// The two products of attention over one tile of the cache, for a few query rows at once: queries
// by keys, and weights by values. In rows of floats or halves, and in int8 tiles. Vectors have
// names and no arrays, since some targets' vectors have no size.

#if defined(VOLVELLE_KERNELS_ATTENTION_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VOLVELLE_KERNELS_ATTENTION_PRODUCTS_INL_H_
#undef VOLVELLE_KERNELS_ATTENTION_PRODUCTS_INL_H_
#else
#define VOLVELLE_KERNELS_ATTENTION_PRODUCTS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <numeric>

#include "hwy/highway.h"
#include "kernels/attention.h"
#include "kernels/dot-inl.h"
#include "kernels/target.h"
#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace volvelle::VOLVELLE_TARGET {
namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kTile = kCacheTile;
// Query rows whose sums stay in registers while a tile passes by.
constexpr size_t kRows = 4;

HWY_INLINE hn::Vec<Floats> load_elements(Floats d, const float* from) { return hn::LoadU(d, from); }

HWY_INLINE hn::Vec<Floats> load_elements(Floats d, const uint16_t* from) {
  return promote_halves(d, hn::LoadU(hn::Rebind<uint16_t, Floats>(), from));
}

// logits[r * kTile + s] = queries[r] . keys[s] for slots [low, high), and what else is in their
// vectors. Each sum has two parts: they hide latency, and each rounds over half as many terms.
template <size_t rows, typename T>
HWY_INLINE void multiply_keys(const float* HWY_RESTRICT queries, size_t elements,
                              const T* HWY_RESTRICT keys, size_t low, size_t high,
                              float* HWY_RESTRICT logits) {
  const Floats d;
  const size_t n = hn::Lanes(d);
  for (size_t s = low / n * n; s < high; s += n) {
    const T* const key = keys + key_index(s, 0, elements);
    auto a0 = hn::Zero(d), b0 = a0;
    [[maybe_unused]] auto a1 = a0, b1 = a0, a2 = a0, b2 = a0, a3 = a0, b3 = a0;
    for (size_t e = 0; e < elements; e += 2) {
      const auto even = load_elements(d, key + e * kKeyLanes);
      const auto odd = load_elements(d, key + (e + 1) * kKeyLanes);
      const float* q = queries + e;
      a0 = hn::MulAdd(hn::Set(d, q[0]), even, a0);
      b0 = hn::MulAdd(hn::Set(d, q[1]), odd, b0);
      if constexpr (rows > 1) {
        q += elements;
        a1 = hn::MulAdd(hn::Set(d, q[0]), even, a1);
        b1 = hn::MulAdd(hn::Set(d, q[1]), odd, b1);
      }
      if constexpr (rows > 2) {
        q += elements;
        a2 = hn::MulAdd(hn::Set(d, q[0]), even, a2);
        b2 = hn::MulAdd(hn::Set(d, q[1]), odd, b2);
      }
      if constexpr (rows > 3) {
        q += elements;
        a3 = hn::MulAdd(hn::Set(d, q[0]), even, a3);
        b3 = hn::MulAdd(hn::Set(d, q[1]), odd, b3);
      }
    }
    hn::Store(hn::Add(a0, b0), d, logits + s);
    if constexpr (rows > 1) hn::Store(hn::Add(a1, b1), d, logits + kTile + s);
    if constexpr (rows > 2) hn::Store(hn::Add(a2, b2), d, logits + 2 * kTile + s);
    if constexpr (rows > 3) hn::Store(hn::Add(a3, b3), d, logits + 3 * kTile + s);
  }
}

// How a tile's weighted values join the sums so far, row by row: sums = sums * shrink + grow *
// theirs.
struct Joins {
  float shrink[kRows], grow[kRows];
};

// sums[r] = sums[r] * shrink[r] + grow[r] * added, for row r's one or two vectors of elements.
template <size_t vectors>
HWY_INLINE void join(const Joins& joins, size_t r, hn::Vec<Floats> a, hn::Vec<Floats> b,
                     float* HWY_RESTRICT sums) {
  const Floats d;
  const auto shrink = hn::Set(d, joins.shrink[r]), grow = hn::Set(d, joins.grow[r]);
  hn::Store(hn::MulAdd(grow, a, hn::Mul(shrink, hn::Load(d, sums))), d, sums);
  if constexpr (vectors < 2) return;
  sums += hn::Lanes(d);
  hn::Store(hn::MulAdd(grow, b, hn::Mul(shrink, hn::Load(d, sums))), d, sums);
}

// For `vectors` vectors of elements from `e` on: joins to sums[r] the sum of weights[r * kTile + s]
// * values[s] over slots [low, high).
template <size_t rows, size_t vectors, typename T>
HWY_INLINE void add_values_at(size_t e, const float* HWY_RESTRICT weights,
                              const T* HWY_RESTRICT values, size_t elements, size_t low,
                              size_t high, const Joins& joins, float* HWY_RESTRICT sums) {
  const Floats d;
  const size_t n = hn::Lanes(d);
  auto a0 = hn::Zero(d), b0 = a0;
  [[maybe_unused]] auto a1 = a0, b1 = a0, a2 = a0, b2 = a0, a3 = a0, b3 = a0;
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
  join<vectors>(joins, 0, a0, b0, sums + e);
  if constexpr (rows > 1) join<vectors>(joins, 1, a1, b1, sums + elements + e);
  if constexpr (rows > 2) join<vectors>(joins, 2, a2, b2, sums + 2 * elements + e);
  if constexpr (rows > 3) join<vectors>(joins, 3, a3, b3, sums + 3 * elements + e);
}

// Codes of a few query rows, whose logits are scale * query . key * key's scale.
struct QueryCodes {
  const int8_t* codes;    // [rows, elements]
  const int32_t* starts;  // [rows], -kLoadedKeyOffset * the sum of a row's codes
  const float* scales;    // [rows]
};

// logits[r * kTile + s] = queries[r] . keys[s] for slots [low, high) and maybe their neighbours,
// whose logits mean nothing. Lanes are slots. `keys` is the tile's. Bytes are taken in the order in
// which they lie: two streams at once would leave the CPU's own reading ahead behind.
template <size_t rows>
HWY_INLINE void multiply_keys(const QueryCodes& queries, size_t elements,
                              const uint8_t* HWY_RESTRICT keys,
                              const float* HWY_RESTRICT key_scales, size_t low, size_t high,
                              float* HWY_RESTRICT logits) {
  const Floats d;
  const Sums ds;
  const size_t n = hn::Lanes(d);
  for (size_t s = low / n * n; s < high; s += n) {
    const uint8_t* const own_keys = keys + q8_key_index(s, 0, elements);
    auto a0 = hn::Set(ds, queries.starts[0]), b0 = hn::Zero(ds);
    [[maybe_unused]] auto a1 = b0, b1 = b0, a2 = b0, b2 = b0, a3 = b0, b3 = b0;
    if constexpr (rows > 1) a1 = hn::Set(ds, queries.starts[1]);
    if constexpr (rows > 2) a2 = hn::Set(ds, queries.starts[2]);
    if constexpr (rows > 3) a3 = hn::Set(ds, queries.starts[3]);
    for (size_t e = 0; e < elements; e += kCacheRowElements) {
      const auto row = [&](size_t r) HWY_ATTR {
        return Sixteen<Signed>(queries.codes + (r < rows ? r : 0) * elements + e);
      };
      const auto q0 = row(0), q1 = row(1), q2 = row(2), q3 = row(3);
      const auto add = [&]<int i>(auto& sum0, auto& sum1, auto& sum2, auto& sum3) HWY_ATTR {
        const auto key = load_keys(own_keys + (e + 4 * i) * kKeyLanes);
        sum0 = add_dot<i>(key, q0, sum0);
        if constexpr (rows > 1) sum1 = add_dot<i>(key, q1, sum1);
        if constexpr (rows > 2) sum2 = add_dot<i>(key, q2, sum2);
        if constexpr (rows > 3) sum3 = add_dot<i>(key, q3, sum3);
      };
      add.template operator()<0>(a0, a1, a2, a3);
      add.template operator()<1>(b0, b1, b2, b3);
      add.template operator()<2>(a0, a1, a2, a3);
      add.template operator()<3>(b0, b1, b2, b3);
    }
    const auto key_scale = hn::LoadU(d, key_scales + s);
    const auto store = [&](size_t r, hn::Vec<Sums> even, hn::Vec<Sums> odd) HWY_ATTR {
      const auto scaled =
          hn::Mul(hn::ConvertTo(d, hn::Add(even, odd)), hn::Set(d, queries.scales[r]));
      hn::Store(hn::Mul(scaled, key_scale), d, logits + r * kTile + s);
    };
    store(0, a0, b0);
    if constexpr (rows > 1) store(1, a1, b1);
    if constexpr (rows > 2) store(2, a2, b2);
    if constexpr (rows > 3) store(3, a3, b3);
  }
}

// Codes of a few rows' weights.
struct WeightCodes {
  const uint8_t* codes;   // [rows, kTile]
  const int32_t* starts;  // [rows], -kLoadedValueOffset * the sum of a row's codes
};

// For a vector of elements from `e` on: joins to sums[r] the sum of codes[r * kTile + s] *
// values[s] over slots [low, high). Lanes are elements. `values` is the tile's; codes of the other
// slots that share four bytes with these are 0.
template <size_t rows>
HWY_INLINE void add_values_at(size_t e, const WeightCodes& weights,
                              const int8_t* HWY_RESTRICT values, size_t elements, size_t low,
                              size_t high, const Joins& joins, float* HWY_RESTRICT sums) {
  const Floats d;
  const int8_t* const own_values = values + q8_value_index(0, e, elements);
  auto a0 = hn::Set(Sums(), weights.starts[0]), b0 = hn::Zero(Sums());
  [[maybe_unused]] auto a1 = b0, b1 = b0, a2 = b0, b2 = b0, a3 = b0, b3 = b0;
  if constexpr (rows > 1) a1 = hn::Set(Sums(), weights.starts[1]);
  if constexpr (rows > 2) a2 = hn::Set(Sums(), weights.starts[2]);
  if constexpr (rows > 3) a3 = hn::Set(Sums(), weights.starts[3]);
  size_t s = low / 4 * 4;
  for (; s + 12 < high; s += 16) {
    const auto row = [&](size_t r) HWY_ATTR {
      return Sixteen<Unsigned>(weights.codes + (r < rows ? r : 0) * kTile + s);
    };
    const auto w0 = row(0), w1 = row(1), w2 = row(2), w3 = row(3);
    const auto add = [&]<int i>(auto& sum0, auto& sum1, auto& sum2, auto& sum3) HWY_ATTR {
      const auto four = load_values(own_values + (s + 4 * i) * kValueLanes);
      sum0 = add_dot<i>(four, w0, sum0);
      if constexpr (rows > 1) sum1 = add_dot<i>(four, w1, sum1);
      if constexpr (rows > 2) sum2 = add_dot<i>(four, w2, sum2);
      if constexpr (rows > 3) sum3 = add_dot<i>(four, w3, sum3);
    };
    add.template operator()<0>(a0, a1, a2, a3);
    add.template operator()<1>(b0, b1, b2, b3);
    add.template operator()<2>(a0, a1, a2, a3);
    add.template operator()<3>(b0, b1, b2, b3);
  }
  for (; s < high; s += 4) {
    const auto four = load_values(own_values + s * kValueLanes);
    const auto code = [&](size_t r) HWY_ATTR {
      return broadcast_four(Unsigned(), weights.codes + r * kTile + s);
    };
    a0 = add_dot(code(0), four, a0);
    if constexpr (rows > 1) a1 = add_dot(code(1), four, a1);
    if constexpr (rows > 2) a2 = add_dot(code(2), four, a2);
    if constexpr (rows > 3) a3 = add_dot(code(3), four, a3);
  }
  const auto join_row = [&](size_t r, hn::Vec<Sums> even, hn::Vec<Sums> odd) HWY_ATTR {
    const auto sum = hn::ConvertTo(d, hn::Add(even, odd));
    join<1>(joins, r, sum, sum, sums + r * elements + e);
  };
  join_row(0, a0, b0);
  if constexpr (rows > 1) join_row(1, a1, b1);
  if constexpr (rows > 2) join_row(2, a2, b2);
  if constexpr (rows > 3) join_row(3, a3, b3);
}

// Joins to sums[r] the sum of weights[r * kTile + s] * values[s] over slots [low, high).
template <size_t rows, typename T>
HWY_INLINE void add_values(const float* weights, const T* values, size_t elements, size_t low,
                           size_t high, const Joins& joins, float* sums) {
  const size_t n = hn::Lanes(Floats());
  size_t e = 0;
  for (; e + 2 * n <= elements; e += 2 * n) {
    add_values_at<rows, 2>(e, weights, values, elements, low, high, joins, sums);
  }
  if (e < elements) add_values_at<rows, 1>(e, weights, values, elements, low, high, joins, sums);
}

template <size_t rows>
HWY_INLINE void add_values(const uint8_t* codes, const int8_t* values, size_t elements, size_t low,
                           size_t high, const Joins& joins, float* sums) {
  int32_t starts[rows] = {};
  if constexpr (kLoadedValueOffset != 0) {
    for (size_t r = 0; r < rows; ++r) {
      const uint8_t* const row = codes + r * kTile;
      starts[r] = -kLoadedValueOffset * std::accumulate(row + low / 4 * 4, row + high, int32_t{0});
    }
  }
  const size_t n = hn::Lanes(Floats());
  for (size_t e = 0; e < elements; e += n) {
    add_values_at<rows>(e, WeightCodes{codes, starts}, values, elements, low, high, joins, sums);
  }
}

}  // namespace volvelle::VOLVELLE_TARGET
HWY_AFTER_NAMESPACE();

#endif  // toggled include guard
