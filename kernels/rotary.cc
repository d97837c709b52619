#include "kernels/rotary.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rotary.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"
#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace volvelle::HWY_NAMESPACE {

void read_dial(const Dial& dial, std::span<const uint32_t> positions, float* rows) {
  const Floats d;
  const size_t planes = dial.planes;
  for (const uint32_t position : positions) {
    const float* coarse = dial.coarse + position / dial.fine_rows * dial.width();
    const float* fine = dial.fine + position % dial.fine_rows * dial.width();
    for_each_vector(d, planes, [&](auto lanes, size_t i) HWY_ATTR {
      const auto c0 = lanes.load(d, coarse + i), s0 = lanes.load(d, coarse + planes + i);
      const auto c1 = lanes.load(d, fine + i), s1 = lanes.load(d, fine + planes + i);
      lanes.store(hn::MulSub(c0, c1, hn::Mul(s0, s1)), d, rows + i);
      lanes.store(hn::MulAdd(s0, c1, hn::Mul(c0, s1)), d, rows + planes + i);
    });
    rows += dial.width();
  }
}

HWY_INLINE void rotate_half(float* x, size_t planes, const float* cosines, const float* sines) {
  const Floats d;
  for_each_vector(d, planes, [&](auto lanes, size_t i) HWY_ATTR {
    const auto a = lanes.load(d, x + i), b = lanes.load(d, x + planes + i);
    const auto c = lanes.load(d, cosines + i), s = lanes.load(d, sines + i);
    lanes.store(hn::MulSub(a, c, hn::Mul(b, s)), d, x + i);
    lanes.store(hn::MulAdd(b, c, hn::Mul(a, s)), d, x + planes + i);
  });
}

HWY_INLINE void rotate_interleaved(float* x, size_t planes, const float* cosines,
                                   const float* sines) {
  const Floats d;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= planes; i += hn::Lanes(d)) {
    hn::Vec<Floats> a, b;
    hn::LoadInterleaved2(d, x + 2 * i, a, b);
    const auto c = hn::LoadU(d, cosines + i), s = hn::LoadU(d, sines + i);
    hn::StoreInterleaved2(hn::MulSub(a, c, hn::Mul(b, s)), hn::MulAdd(b, c, hn::Mul(a, s)), d,
                          x + 2 * i);
  }
  for (; i < planes; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    x[2 * i] = a * cosines[i] - b * sines[i];
    x[2 * i + 1] = b * cosines[i] + a * sines[i];
  }
}

void rotate(float* x, const HeadShape& shape, Pairing pairing, size_t planes, const float* rows) {
  for (size_t token = 0; token < shape.tokens; ++token) {
    const float* cosines = rows + token * 2 * planes;
    const float* sines = cosines + planes;
    for (size_t head = 0; head < shape.heads; ++head) {
      float* elements = x + token * shape.token_stride + head * shape.head_dim;
      if (pairing == Pairing::kHalf) {
        rotate_half(elements, planes, cosines, sines);
      } else {
        rotate_interleaved(elements, planes, cosines, sines);
      }
    }
  }
}

}  // namespace volvelle::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace volvelle {

HWY_EXPORT(read_dial);
HWY_EXPORT(rotate);

void read_dial(const Dial& dial, std::span<const uint32_t> positions, float* rows) {
  HWY_DYNAMIC_DISPATCH(read_dial)(dial, positions, rows);
}

void rotate(float* x, const HeadShape& shape, Pairing pairing, size_t planes, const float* rows) {
  HWY_DYNAMIC_DISPATCH(rotate)(x, shape, pairing, planes, rows);
}

}  // namespace volvelle
#endif  // HWY_ONCE
