#include "kernels/quantize.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantize.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"
#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace volvelle::HWY_NAMESPACE {

using Codes = hn::Rebind<int8_t, Floats>;
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
HWY_EXPORT(dequantize_q8);
HWY_EXPORT(to_f16);
HWY_EXPORT(from_f16);

float quantize_q8(const float* x, size_t count, int8_t* codes) {
  return HWY_DYNAMIC_DISPATCH(quantize_q8)(x, count, codes);
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
