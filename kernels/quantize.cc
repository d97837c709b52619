#include "kernels/quantize.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantize.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"
#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace volvelle::HWY_NAMESPACE {

using Codes = hn::Rebind<int8_t, Floats>;
using UnsignedCodes = hn::Rebind<uint8_t, Floats>;
using Halves = hn::Rebind<hwy::float16_t, Floats>;
using HalfBits = hn::Rebind<uint16_t, Floats>;

float quantize_q8(const float* x, size_t count, int8_t* codes) {
  const Floats d;
  auto largest = hn::Zero(d);
  for_each_vector(d, count, [&](auto lanes, size_t i) HWY_ATTR {
    largest = hn::Max(largest, hn::Abs(lanes.load(d, x + i)));
  });
  const float scale = hn::ReduceMax(d, largest) / 127.0f;
  const float divisor = scale > 0 ? scale : 1.0f;
  for_each_vector(d, count, [&](auto lanes, size_t i) HWY_ATTR {
    const auto code = hn::Div(lanes.load(d, x + i), hn::Set(d, divisor));
    // A denormal scale is rounded so coarsely that a code could pass 127.
    const auto bounded = hn::Min(hn::Max(code, hn::Set(d, -127.0f)), hn::Set(d, 127.0f));
    lanes.store(hn::DemoteTo(Codes(), hn::NearestInt(bounded)), Codes(), codes + i);
  });
  return scale;
}

HWY_INLINE hn::Vec<hn::RebindToSigned<Floats>> to_steps(hn::Vec<Floats> x, hn::Vec<Floats> factor) {
  return hn::NearestInt(hn::Mul(x, factor));
}

using Halved = hn::Repartition<int16_t, Floats>;

// to_steps of `a`, then of `b`, where all are below 2^15.
HWY_INLINE hn::Vec<Halved> to_halved_steps(hn::Vec<Floats> a, hn::Vec<Floats> b,
                                           hn::Vec<Floats> factor) {
#if HWY_ARCH_ARM_A64
  // Added to a number so great that the unit of its last place is 1, they are rounded and stand in
  // its last bits. Conversion has one unit only, where addition has two.
  const auto bits = [&](hn::Vec<Floats> x) HWY_ATTR {
    const auto great = hn::Set(Floats(), 0x1.8p23f);
    return hn::BitCast(hn::RebindToUnsigned<Floats>(), hn::Add(hn::Mul(x, factor), great));
  };
  const hn::RebindToUnsigned<Halved> du;
  return hn::BitCast(Halved(), hn::OrderedTruncate2To(du, bits(a), bits(b)));
#else
  return hn::OrderedDemote2To(Halved(), to_steps(a, factor), to_steps(b, factor));
#endif
}

// Codes of signed bytes, to which `offset` is added.
template <class DCode>
HWY_INLINE RowCode quantize_row(DCode dc, int32_t offset, const float* x, size_t count,
                                hn::TFromD<DCode>* codes) {
  const Floats d;
  const hn::RebindToSigned<Floats> di;
  auto least = hn::Zero(d), greatest = least, poison = least;
  const auto see = [&](auto a, auto b) HWY_ATTR {
    least = hn::Min(least, hn::Min(a, b)), greatest = hn::Max(greatest, hn::Max(a, b));
    // NaN for NaN and infinity, else zero
    poison = hn::Or(poison, hn::Or(hn::Sub(a, a), hn::Sub(b, b)));
  };
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    see(hn::LoadU(d, x + i), hn::LoadU(d, x + i + lanes));
  }
  for (; i < count; i += lanes) {
    const auto a = hn::LoadN(d, x + i, count - i);
    see(a, a);
  }
  const float low = hn::ReduceMin(d, least);
  const float high = hn::ReduceMax(d, greatest);
  const float nothing = hn::ReduceSum(d, poison);
  RowCode code{0, (high - low) / 255.0f};
  const float inverse = nothing == 0 && code.scale >= 0x1p-126f ? 1.0f / code.scale : 0.0f;
  if (nothing != 0) code.scale = nothing;
  code.zero_point =
      static_cast<int32_t>(std::nearbyint(-128.0f - (inverse > 0 ? low * inverse : 0))) + offset;
  const auto zero = hn::Set(di, code.zero_point);
  const auto factor = hn::Set(d, inverse);
  const hn::Repartition<hn::TFromD<DCode>, Floats> whole;
  const auto shift = hn::Set(Halved(), static_cast<int16_t>(code.zero_point));
  for (i = 0; i + 4 * lanes <= count; i += 4 * lanes) {
    const auto two = [&](const float* from) HWY_ATTR {
      const auto steps = to_halved_steps(hn::LoadU(d, from), hn::LoadU(d, from + lanes), factor);
      return hn::Add(steps, shift);
    };
    hn::StoreU(hn::OrderedDemote2To(whole, two(x + i), two(x + i + 2 * lanes)), whole, codes + i);
  }
  for_each_vector(d, count - i, [&](auto part, size_t at) HWY_ATTR {
    const auto step = to_steps(part.load(d, x + i + at), factor);
    part.store(hn::DemoteTo(dc, hn::Add(step, zero)), dc, codes + i + at);
  });
  return code;
}

RowCode quantize_activations(const float* x, size_t count, int8_t* codes) {
  return quantize_row(Codes(), 0, x, count, codes);
}

RowCode quantize_unsigned(const float* x, size_t count, uint8_t* codes) {
  return quantize_row(UnsignedCodes(), 128, x, count, codes);
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
HWY_EXPORT(quantize_activations);
HWY_EXPORT(quantize_unsigned);
HWY_EXPORT(dequantize_q8);
HWY_EXPORT(to_f16);
HWY_EXPORT(from_f16);

float quantize_q8(const float* x, size_t count, int8_t* codes) {
  return HWY_DYNAMIC_DISPATCH(quantize_q8)(x, count, codes);
}

RowCode quantize_activations(const float* x, size_t count, int8_t* codes) {
  return HWY_DYNAMIC_DISPATCH(quantize_activations)(x, count, codes);
}

RowCode quantize_unsigned(const float* x, size_t count, uint8_t* codes) {
  return HWY_DYNAMIC_DISPATCH(quantize_unsigned)(x, count, codes);
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
