// Rows in int8, as kernels share them: see quantize.h.

#if defined(VOLVELLE_KERNELS_QUANTIZE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VOLVELLE_KERNELS_QUANTIZE_INL_H_
#undef VOLVELLE_KERNELS_QUANTIZE_INL_H_
#else
#define VOLVELLE_KERNELS_QUANTIZE_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/target.h"
#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace volvelle::VOLVELLE_TARGET {
namespace hn = hwy::HWY_NAMESPACE;

// What to multiply by to count steps of `scale`.
HWY_INLINE float inverse_of(float scale) { return scale >= 0x1p-126f ? 1.0f / scale : 0.0f; }

// quantize_q8 of a row that `largest` holds the magnitudes of.
HWY_INLINE float quantize_below(hn::Vec<Floats> largest, const float* x, size_t count,
                                int8_t* codes) {
  const Floats d;
  const hn::Rebind<int8_t, Floats> dc;
  const float scale = hn::ReduceMax(d, largest) / 127.0f;
  const auto inverse = hn::Set(d, inverse_of(scale));
  for_each_vector(d, count, [&](auto lanes, size_t i) HWY_ATTR {
    const auto code = hn::NearestInt(hn::Mul(lanes.load(d, x + i), inverse));
    lanes.store(hn::DemoteTo(dc, code), dc, codes + i);
  });
  return scale;
}

HWY_INLINE float quantize_symmetric(const float* x, size_t count, int8_t* codes) {
  const Floats d;
  auto largest = hn::Zero(d);
  for_each_vector(d, count, [&](auto lanes, size_t i) HWY_ATTR {
    largest = hn::Max(largest, hn::Abs(lanes.load(d, x + i)));
  });
  return quantize_below(largest, x, count, codes);
}

}  // namespace volvelle::VOLVELLE_TARGET
HWY_AFTER_NAMESPACE();

#endif  // toggled include guard
