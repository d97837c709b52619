// The Walsh-Hadamard transform of a row, as kernels share it: see hadamard.h.

#if defined(VOLVELLE_KERNELS_HADAMARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VOLVELLE_KERNELS_HADAMARD_INL_H_
#undef VOLVELLE_KERNELS_HADAMARD_INL_H_
#else
#define VOLVELLE_KERNELS_HADAMARD_INL_H_
#endif

#include <cstddef>

#include "hwy/highway.h"
#include "kernels/target.h"
#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace volvelle::VOLVELLE_TARGET {
namespace hn = hwy::HWY_NAMESPACE;

// Pairs of elements that are `stride` apart, both within a vector, become their sum and difference.
// `partners` is v with the elements of each pair exchanged.
HWY_INLINE hn::Vec<Floats> combine(size_t stride, hn::Vec<Floats> v, hn::Vec<Floats> partners) {
  const Floats d;
  const hn::RebindToUnsigned<Floats> du;
  const auto second = hn::And(hn::Iota(du, 0), hn::Set(du, static_cast<uint32_t>(stride)));
  const auto is_second = hn::RebindMask(d, hn::Ne(second, hn::Zero(du)));
  const auto one = hn::Set(d, 1.0f);
  return hn::MulAdd(v, hn::IfThenElse(is_second, hn::Neg(one), one), partners);  // rounds once
}

HWY_INLINE hn::Vec<Floats> transform_lanes(size_t block, hn::Vec<Floats> v) {
  const Floats d;
  if (block >= 2) v = combine(1, v, hn::Shuffle2301(v));
  if (block >= 4) v = combine(2, v, hn::Shuffle1032(v));
  if constexpr (HWY_MAX_LANES_D(Floats) > 4) {
    if (block >= 8 && hn::Lanes(d) >= 8) v = combine(4, v, hn::SwapAdjacentBlocks(v));
  }
  if constexpr (HWY_MAX_LANES_D(Floats) > 8) {
    if (block >= 16 && hn::Lanes(d) >= 16) v = combine(8, v, hn::ConcatLowerUpper(d, v, v));
  }
  return v;
}

// Butterflies of `stride` in [count]; with `twice`, those of 2 * stride as well. Outputs are
// multiplied by `scale`, and see(vector) is called with them.
template <bool twice, class See>
HWY_INLINE void transform_strides(size_t stride, size_t count, float scale, float* x,
                                  const See& see) {
  const Floats d;
  const auto store = [&](hn::Vec<Floats> v, size_t i) HWY_ATTR {
    const auto scaled = hn::Mul(v, hn::Set(d, scale));
    see(scaled);
    hn::StoreU(scaled, d, x + i);
  };
  constexpr size_t parts = twice ? 4 : 2;
  for (size_t start = 0; start < count; start += parts * stride) {
    for (size_t i = start; i < start + stride; i += hn::Lanes(d)) {
      const auto a = hn::LoadU(d, x + i), b = hn::LoadU(d, x + i + stride);
      auto sum = hn::Add(a, b), difference = hn::Sub(a, b);
      if constexpr (twice) {
        const auto c = hn::LoadU(d, x + i + 2 * stride), e = hn::LoadU(d, x + i + 3 * stride);
        const auto later_sum = hn::Add(c, e), later_difference = hn::Sub(c, e);
        store(hn::Sub(sum, later_sum), i + 2 * stride);
        store(hn::Sub(difference, later_difference), i + 3 * stride);
        sum = hn::Add(sum, later_sum);
        difference = hn::Add(difference, later_difference);
      }
      store(sum, i);
      store(difference, i + stride);
    }
  }
}

// Butterflies within vectors, each of which holds whole blocks or is part of one. Outputs are
// multiplied by `scale`, and see(vector) is called with them, of a part of one with zeros.
template <class See>
HWY_INLINE void transform_vectors(size_t block, size_t count, float scale, const float* x, float* y,
                                  const See& see) {
  const Floats d;
  for_each_vector(d, count, [&](auto part, size_t i) HWY_ATTR {
    const auto v = hn::Mul(transform_lanes(block, part.load(d, x + i)), hn::Set(d, scale));
    see(v);
    part.store(v, d, y + i);
  });
}

HWY_INLINE void butterfly(hn::Vec<Floats>& a, hn::Vec<Floats>& b) {
  const auto sum = hn::Add(a, b);
  b = hn::Sub(a, b);
  a = sum;
}

// Vectors that butterflies join while they stay in registers.
constexpr size_t kGroup = 8;

// All butterflies within kGroup vectors. Outputs are multiplied by `scale`, and see(vector) is
// called with them.
template <class See>
HWY_INLINE void transform_group(float scale, const float* x, float* y, const See& see) {
  const Floats d;
  const size_t n = hn::Lanes(d);
  const auto load = [&](size_t i) HWY_ATTR { return transform_lanes(n, hn::LoadU(d, x + i * n)); };
  auto v0 = load(0), v1 = load(1), v2 = load(2), v3 = load(3);
  auto v4 = load(4), v5 = load(5), v6 = load(6), v7 = load(7);
  butterfly(v0, v1), butterfly(v2, v3), butterfly(v4, v5), butterfly(v6, v7);
  butterfly(v0, v2), butterfly(v1, v3), butterfly(v4, v6), butterfly(v5, v7);
  butterfly(v0, v4), butterfly(v1, v5), butterfly(v2, v6), butterfly(v3, v7);
  const auto store = [&](size_t i, hn::Vec<Floats> v) HWY_ATTR {
    v = hn::Mul(v, hn::Set(d, scale));
    see(v);
    hn::StoreU(v, d, y + i * n);
  };
  store(0, v0), store(1, v1), store(2, v2), store(3, v3);
  store(4, v4), store(5, v5), store(6, v6), store(7, v7);
}

// y = scale * S x in each block, S being the matrix of signs (-1)^popcount(i & j). Each element is
// a sum in one fixed order.
//
//   x, y   [count], maybe the same
//   block  a power of two that divides `count`
//   see    called with every vector of the outputs; zeros stand past the row's end
template <class See>
HWY_INLINE void transform_blocks(size_t block, size_t count, float scale, const float* x, float* y,
                                 const See& see) {
  const auto look_away = [](hn::Vec<Floats>) HWY_ATTR {};
  const size_t lanes = hn::Lanes(Floats());
  size_t stride = lanes;  // up to which butterflies are done
  if (block >= kGroup * lanes) {
    stride = kGroup * lanes;
    for (size_t i = 0; i < count; i += stride) {
      if (block == stride) {
        transform_group(scale, x + i, y + i, see);
      } else {
        transform_group(1.0f, x + i, y + i, look_away);
      }
    }
  } else if (block <= lanes) {
    transform_vectors(block, count, scale, x, y, see);
  } else {
    transform_vectors(block, count, 1.0f, x, y, look_away);
  }
  for (; 4 * stride < block; stride *= 4) {
    transform_strides<true>(stride, count, 1.0f, y, look_away);
  }
  if (4 * stride == block) {
    transform_strides<true>(stride, count, scale, y, see);
  } else if (2 * stride == block) {
    transform_strides<false>(stride, count, scale, y, see);
  }
}

HWY_INLINE void transform_blocks(size_t block, size_t count, float scale, float* x) {
  transform_blocks(block, count, scale, x, x, [](hn::Vec<Floats>) HWY_ATTR {});
}

}  // namespace volvelle::VOLVELLE_TARGET
HWY_AFTER_NAMESPACE();

#endif  // toggled include guard
