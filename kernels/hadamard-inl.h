// The Walsh-Hadamard transform of a row, which spreads what stands out in a few elements over many,
// so that a row's int8 scale suits all of them. It is its own inverse but for a factor, and leaves
// products of two transformed rows what they were, but for the same factor. Chee et al. 2023,
// arXiv:2307.13304, section 4.2; Ashkboos et al. 2024, arXiv:2404.00456, section 4.

#if defined(VOLVELLE_KERNELS_HADAMARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VOLVELLE_KERNELS_HADAMARD_INL_H_
#undef VOLVELLE_KERNELS_HADAMARD_INL_H_
#else
#define VOLVELLE_KERNELS_HADAMARD_INL_H_
#endif

#include <cstddef>

#include "hwy/highway.h"
#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace volvelle::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Each lane's partner is `swapped`: the lower of two, whose numbers differ in bit `half`, becomes
// their sum, the upper their difference.
HWY_INLINE hn::Vec<Floats> add_and_subtract(hn::Vec<Floats> x, hn::Vec<Floats> swapped,
                                            int32_t half) {
  const Floats d;
  const hn::RebindToSigned<Floats> di;
  const auto upper = hn::TestBit(hn::Iota(di, 0), hn::Set(di, half));
  return hn::Add(swapped, hn::IfThenElse(hn::RebindMask(d, upper), hn::Neg(x), x));
}

// Transforms each block of `block` elements of x, a power of two of at least 16. count is a
// multiple of it.
HWY_INLINE void hadamard(float* x, size_t count, size_t block) {
  const Floats d;
  const size_t n = hn::Lanes(d);
  for (size_t i = 0; i < count; i += n) {
    auto v = hn::LoadU(d, x + i);
    v = add_and_subtract(v, hn::Reverse2(d, v), 1);
    if (n > 2) v = add_and_subtract(v, hn::Shuffle1032(v), 2);
    if constexpr (HWY_MAX_LANES_D(Floats) > 4) {
      if (n > 4) v = add_and_subtract(v, hn::SwapAdjacentBlocks(v), 4);
    }
    if constexpr (HWY_MAX_LANES_D(Floats) > 8) {
      if (n > 8) v = add_and_subtract(v, hn::ConcatLowerUpper(d, v, v), 8);
    }
    hn::StoreU(v, d, x + i);
  }
  for (size_t half = n; half < block; half *= 2) {
    for (size_t i = 0; i < count; i += (i + n) % half == 0 ? half + n : n) {
      const auto a = hn::LoadU(d, x + i), b = hn::LoadU(d, x + i + half);
      hn::StoreU(hn::Add(a, b), d, x + i);
      hn::StoreU(hn::Sub(a, b), d, x + i + half);
    }
  }
}

}  // namespace volvelle::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled include guard
