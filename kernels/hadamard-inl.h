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
  return hn::Add(partners, hn::IfThenElse(is_second, hn::Neg(v), v));
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
// multiplied by `scale`.
template <bool twice>
HWY_INLINE void transform_strides(size_t stride, size_t count, float scale, float* x) {
  const Floats d;
  const auto factor = hn::Set(d, scale);
  constexpr size_t parts = twice ? 4 : 2;
  for (size_t start = 0; start < count; start += parts * stride) {
    for (size_t i = start; i < start + stride; i += hn::Lanes(d)) {
      const auto a = hn::LoadU(d, x + i), b = hn::LoadU(d, x + i + stride);
      auto sum = hn::Add(a, b), difference = hn::Sub(a, b);
      if constexpr (twice) {
        const auto c = hn::LoadU(d, x + i + 2 * stride), e = hn::LoadU(d, x + i + 3 * stride);
        const auto later_sum = hn::Add(c, e), later_difference = hn::Sub(c, e);
        hn::StoreU(hn::Mul(hn::Sub(sum, later_sum), factor), d, x + i + 2 * stride);
        hn::StoreU(hn::Mul(hn::Sub(difference, later_difference), factor), d, x + i + 3 * stride);
        sum = hn::Add(sum, later_sum);
        difference = hn::Add(difference, later_difference);
      }
      hn::StoreU(hn::Mul(sum, factor), d, x + i);
      hn::StoreU(hn::Mul(difference, factor), d, x + i + stride);
    }
  }
}

// x = scale * S x in each block, S being the matrix of signs (-1)^popcount(i & j). Each element is
// a sum in one fixed order.
//
//   x      [count]
//   block  a power of two that divides `count`
HWY_INLINE void transform_blocks(size_t block, size_t count, float scale, float* x) {
  const Floats d;
  const size_t lanes = hn::Lanes(d);
  const auto lane_scale = hn::Set(d, block <= lanes ? scale : 1.0f);
  // A vector holds whole blocks, or a block whole vectors.
  for_each_vector(d, count, [&](auto part, size_t i) HWY_ATTR {
    const auto v = transform_lanes(block, part.load(d, x + i));
    part.store(hn::Mul(v, lane_scale), d, x + i);
  });
  for (size_t stride = lanes; stride < block;) {
    const bool twice = 2 * stride < block;
    const size_t next = stride * (twice ? 4 : 2);
    const float factor = next >= block ? scale : 1.0f;
    if (twice) {
      transform_strides<true>(stride, count, factor, x);
    } else {
      transform_strides<false>(stride, count, factor, x);
    }
    stride = next;
  }
}

}  // namespace volvelle::VOLVELLE_TARGET
HWY_AFTER_NAMESPACE();

#endif  // toggled include guard
