#include "kernels/quantize.h"

#include <algorithm>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantize.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"
#include "kernels/hadamard-inl.h"
#include "kernels/quantize-inl.h"
#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace volvelle::HWY_NAMESPACE {

using Codes = hn::Rebind<int8_t, Floats>;
using UnsignedCodes = hn::Rebind<uint8_t, Floats>;
using Halves = hn::Rebind<hwy::float16_t, Floats>;
using HalfBits = hn::Rebind<uint16_t, Floats>;

float quantize_q8(const float* x, size_t count, int8_t* codes) {
  float scale;
  quantize_symmetric(x, 1, count, codes, &scale);
  return scale;
}

// Of up to four rows whose codes are being made.
struct Measures {
  FourVectors least, greatest;
  FourVectors sums;  // finite where all of a row is, if it is not too large
};

// Transforms row `r` of those and measures it.
HWY_NOINLINE void transform_and_measure(size_t block, const float* x, size_t count, float* y,
                                        size_t r, Measures& measures) {
  const Floats d;
  auto least = hn::Zero(d), greatest = least, sum = least;
  const auto see = [&](hn::Vec<Floats> v) HWY_ATTR {
    least = hn::Min(least, v);
    greatest = hn::Max(greatest, v);
  };
  if (block > 1) {
    transform_blocks(block, count, 1, x, y, see);
    // A NaN or an infinity is in every element of its block by now, and it lasts in a sum.
    const size_t step = std::max(block, hn::Lanes(d));
    for (size_t i = 0; i < count; i += step) sum = hn::Add(sum, hn::LoadN(d, y + i, count - i));
  } else {
    for_each_vector(d, count, [&](auto lanes, size_t i) HWY_ATTR {
      const auto v = lanes.load(d, x + i);
      see(v);
      sum = hn::Add(sum, v);
    });
  }
  measures.least.set(r, least);
  measures.greatest.set(r, greatest);
  measures.sums.set(r, sum);
}

template <class DCode>
HWY_INLINE void write_codes(DCode dc, const float* x, size_t count, float inverse,
                            int32_t zero_point, hn::TFromD<DCode>* codes) {
  const Floats d;
  const hn::RebindToSigned<Floats> di;
  const size_t lanes = hn::Lanes(d);
  const auto factor = hn::Set(d, inverse);
  const hn::Repartition<int16_t, Floats> dh;
  const hn::Repartition<hn::TFromD<DCode>, Floats> whole;
  const auto shift = hn::Set(dh, static_cast<int16_t>(zero_point));
  size_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    // At this magnitude a float's last bit is a whole step, so that it rounds as NearestInt does,
    // and the last 16 bits are the step as an integer.
    const auto steps = [&](size_t at) HWY_ATTR {
      const auto step = hn::Mul(hn::LoadU(d, x + i + at * lanes), factor);
      return hn::BitCast(dh, hn::Add(step, hn::Set(d, 0x1.8p23f)));
    };
    const auto ab = hn::Add(hn::ConcatEven(dh, steps(1), steps(0)), shift);
    const auto ce = hn::Add(hn::ConcatEven(dh, steps(3), steps(2)), shift);
    hn::StoreU(hn::OrderedDemote2To(whole, ab, ce), whole, codes + i);
  }
  const auto zero = hn::Set(di, zero_point);
  for_each_vector(d, count - i, [&](auto part, size_t at) HWY_ATTR {
    const auto step = hn::NearestInt(hn::Mul(part.load(d, x + i + at), factor));
    part.store(hn::DemoteTo(dc, hn::Add(step, zero)), dc, codes + i + at);
  });
}

// Codes of signed bytes, to which `offset` is added. What a transformed row lacks to a rotation is
// a factor, which the codes' scale takes up.
template <class DCode>
HWY_INLINE void quantize_rows(DCode dc, int32_t offset, size_t block, const FloatRows& x,
                              float* transformed, hn::TFromD<DCode>* codes, size_t stride,
                              RowCode* means) {
  constexpr size_t kAtOnce = FourVectors::kRows;
  const hn::CappedTag<float, kAtOnce> d;
  const hn::RebindToSigned<decltype(d)> di;
  const auto root = hn::Set(d, std::sqrt(static_cast<float>(block)));
  const float* const measured = block > 1 ? transformed : x.x;
  for (size_t first = 0; first < x.rows; first += kAtOnce) {
    const size_t end = std::min(first + kAtOnce, x.rows);
    Measures measures;
    for (size_t r = first; r < end; ++r) {
      const size_t at = r * x.count;
      transform_and_measure(block, x.x + at, x.count, transformed + at, r - first, measures);
    }
    const auto low = measures.least.least();
    const auto scale = hn::Div(hn::Sub(measures.greatest.greatest(), low), hn::Set(d, 255.0f));
    const auto inverse = inverse_of(d, scale);
    const auto zero = hn::Sub(hn::Set(d, -128.0f), hn::Mul(low, inverse));
    HWY_ALIGN float inverses[kAtOnce], scales[kAtOnce], sums[kAtOnce];
    HWY_ALIGN int32_t zero_points[kAtOnce];
    hn::Store(inverse, d, inverses);
    hn::Store(hn::Div(scale, root), d, scales);
    hn::Store(measures.sums.sum(), d, sums);
    hn::Store(hn::Add(hn::NearestInt(zero), hn::Set(di, offset)), di, zero_points);
    for (size_t r = first; r < end; ++r) {
      const float* const row = measured + r * x.count;
      means[r] = {zero_points[r - first], scales[r - first]};
      if (!std::isfinite(sums[r - first]) &&
          !std::all_of(row, row + x.count, [](float value) { return std::isfinite(value); })) {
        means[r] = {offset - 128, std::numeric_limits<float>::quiet_NaN()};
        inverses[r - first] = 0;
      }
      write_codes(dc, row, x.count, inverses[r - first], means[r].zero_point, codes + r * stride);
    }
  }
}

void quantize_signed(size_t block, const FloatRows& x, float* transformed, int8_t* codes,
                     size_t stride, RowCode* means) {
  quantize_rows(Codes(), 0, block, x, transformed, codes, stride, means);
}

void quantize_unsigned(size_t block, const FloatRows& x, float* transformed, uint8_t* codes,
                       size_t stride, RowCode* means) {
  quantize_rows(UnsignedCodes(), 128, block, x, transformed, codes, stride, means);
}

void dequantize_q8(const int8_t* codes, float scale, size_t count, float* y) {
  const Floats d;
  const hn::RebindToSigned<Floats> di;
  for_each_vector(d, count, [&](auto lanes, size_t i) HWY_ATTR {
    const auto code = hn::ConvertTo(d, hn::PromoteTo(di, lanes.load(Codes(), codes + i)));
    lanes.store(hn::Mul(code, hn::Set(d, scale)), d, y + i);
  });
}

void to_f16(const float* x, size_t count, uint16_t* y) {
  const Floats d;
  for_each_vector(d, count, [&](auto lanes, size_t i) HWY_ATTR {
    const auto v = lanes.load(d, x + i);
    const auto bounded = hn::Min(hn::Max(v, hn::Set(d, -65504.0f)), hn::Set(d, 65504.0f));
    const auto half = hn::DemoteTo(Halves(), hn::IfThenElse(hn::IsNaN(v), v, bounded));
    lanes.store(hn::BitCast(HalfBits(), half), HalfBits(), y + i);
  });
}

void from_f16(const uint16_t* x, size_t count, float* y) {
  const Floats d;
  for_each_vector(d, count, [&](auto lanes, size_t i) HWY_ATTR {
    lanes.store(promote_halves(d, lanes.load(HalfBits(), x + i)), d, y + i);
  });
}

}  // namespace volvelle::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace volvelle {

HWY_EXPORT(quantize_q8);
HWY_EXPORT(quantize_signed);
HWY_EXPORT(quantize_unsigned);
HWY_EXPORT(dequantize_q8);
HWY_EXPORT(to_f16);
HWY_EXPORT(from_f16);

float quantize_q8(const float* x, size_t count, int8_t* codes) {
  return HWY_DYNAMIC_DISPATCH(quantize_q8)(x, count, codes);
}

void quantize_rows(size_t block, const FloatRows& x, float* transformed, int8_t* codes,
                   size_t stride, RowCode* means) {
  HWY_DYNAMIC_DISPATCH(quantize_signed)(block, x, transformed, codes, stride, means);
}

void quantize_rows(size_t block, const FloatRows& x, float* transformed, uint8_t* codes,
                   size_t stride, RowCode* means) {
  HWY_DYNAMIC_DISPATCH(quantize_unsigned)(block, x, transformed, codes, stride, means);
}

void dequantize_q8(const int8_t* codes, float scale, size_t count, float* y) {
  HWY_DYNAMIC_DISPATCH(dequantize_q8)(codes, scale, count, y);
}

void to_f16(const float* x, size_t count, uint16_t* y) {
  HWY_DYNAMIC_DISPATCH(to_f16)(x, count, y);
}

void from_f16(const uint16_t* x, size_t count, float* y) {
  HWY_DYNAMIC_DISPATCH(from_f16)(x, count, y);
}

}  // namespace volvelle
#endif  // HWY_ONCE
