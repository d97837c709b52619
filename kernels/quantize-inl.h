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
#include "kernels/hadamard-inl.h"
#include "kernels/target.h"
#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace volvelle::VOLVELLE_TARGET {
namespace hn = hwy::HWY_NAMESPACE;

// What to multiply by to count steps of each scale.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V inverse_of(D d, V scale) {
  const auto tiny = hn::Lt(scale, hn::Set(d, 0x1p-126f));
  return hn::IfThenZeroElse(tiny, hn::Div(hn::Set(d, 1.0f), scale));
}

// round(x * inverse) of a row.
HWY_INLINE void write_symmetric(const float* x, size_t count, float inverse, int8_t* codes) {
  const Floats d;
  const hn::Rebind<int8_t, Floats> dc;
  const auto factor = hn::Set(d, inverse);
  for_each_vector(d, count, [&](auto lanes, size_t i) HWY_ATTR {
    const auto code = hn::NearestInt(hn::Mul(lanes.load(d, x + i), factor));
    lanes.store(hn::DemoteTo(dc, code), dc, codes + i);
  });
}

// quantize_q8 of up to four rows, in which `largest` holds magnitudes.
HWY_INLINE void quantize_below(const FourVectors& largest, const float* x, size_t rows,
                               size_t count, int8_t* codes, float* scales) {
  const hn::CappedTag<float, FourVectors::kRows> d;
  const auto scale = hn::Div(largest.greatest(), hn::Set(d, 127.0f));
  HWY_ALIGN float inverses[FourVectors::kRows];
  hn::Store(inverse_of(d, scale), d, inverses);
  hn::StoreN(scale, d, scales, rows);
  for (size_t r = 0; r < rows; ++r) {
    write_symmetric(x + r * count, count, inverses[r], codes + r * count);
  }
}

// The same of rows as they are.
HWY_INLINE void quantize_symmetric(const float* x, size_t rows, size_t count, int8_t* codes,
                                   float* scales) {
  const Floats d;
  FourVectors largest;
  for (size_t r = 0; r < rows; ++r) {
    auto own = hn::Zero(d);
    for_each_vector(d, count, [&](auto lanes, size_t i) HWY_ATTR {
      own = hn::Max(own, hn::Abs(lanes.load(d, x + r * count + i)));
    });
    largest.set(r, own);
  }
  quantize_below(largest, x, rows, count, codes, scales);
}

// The same of rows that are transformed before, in place: hadamard.h, times sqrt(block).
inline HWY_NOINLINE void quantize_transformed(size_t block, float* x, size_t rows, size_t elements,
                                              int8_t* codes, float* scales) {
  if (block == 1) return quantize_symmetric(x, rows, elements, codes, scales);
  FourVectors largest;
  for (size_t r = 0; r < rows; ++r) {
    float* const row = x + r * elements;
    auto own = hn::Zero(Floats());
    const auto see = [&](hn::Vec<Floats> v) HWY_ATTR { own = hn::Max(own, hn::Abs(v)); };
    transform_blocks(block, elements, 1, row, row, see);
    largest.set(r, own);
  }
  quantize_below(largest, x, rows, elements, codes, scales);
}

}  // namespace volvelle::VOLVELLE_TARGET
HWY_AFTER_NAMESPACE();

#endif  // toggled include guard
