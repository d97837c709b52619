#include "kernels/norm.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norm.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"
#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace volvelle::HWY_NAMESPACE {

// Four running sums: they hide the latency of addition, and each rounds over fewer terms.
HWY_INLINE float sum_of_squares(const float* x, size_t count) {
  const Floats d;
  const size_t lanes = hn::Lanes(d);
  auto sum0 = hn::Zero(d), sum1 = hn::Zero(d), sum2 = hn::Zero(d), sum3 = hn::Zero(d);
  size_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    const auto x0 = hn::LoadU(d, x + i), x1 = hn::LoadU(d, x + i + lanes);
    const auto x2 = hn::LoadU(d, x + i + 2 * lanes), x3 = hn::LoadU(d, x + i + 3 * lanes);
    sum0 = hn::MulAdd(x0, x0, sum0);
    sum1 = hn::MulAdd(x1, x1, sum1);
    sum2 = hn::MulAdd(x2, x2, sum2);
    sum3 = hn::MulAdd(x3, x3, sum3);
  }
  for (; i < count; i += lanes) {
    const auto x0 = hn::LoadN(d, x + i, count - i);
    sum0 = hn::MulAdd(x0, x0, sum0);
  }
  return hn::ReduceSum(d, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3)));
}

void rms_norm(const float* x, size_t x_stride, const float* weight, float epsilon, size_t rows,
              size_t width, float* y, size_t y_stride) {
  const Floats d;
  for (size_t row = 0; row < rows; ++row, x += x_stride, y += y_stride) {
    const float mean = sum_of_squares(x, width) / static_cast<float>(width);
    const float factor = 1.0f / std::sqrt(mean + epsilon);
    for_each_vector(d, width, [&](auto lanes, size_t i) HWY_ATTR {
      const auto scaled = hn::Mul(lanes.load(d, x + i), hn::Set(d, factor));
      lanes.store(hn::Mul(scaled, lanes.load(d, weight + i)), d, y + i);
    });
  }
}

void add(const float* branch, size_t count, float* x) {
  const Floats d;
  for_each_vector(d, count, [&](auto lanes, size_t i) HWY_ATTR {
    lanes.store(hn::Add(lanes.load(d, x + i), lanes.load(d, branch + i)), d, x + i);
  });
}

void multiply(float factor, size_t count, float* x) {
  const Floats d;
  for_each_vector(d, count, [&](auto lanes, size_t i) HWY_ATTR {
    lanes.store(hn::Mul(lanes.load(d, x + i), hn::Set(d, factor)), d, x + i);
  });
}

}  // namespace volvelle::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace volvelle {

HWY_EXPORT(rms_norm);
HWY_EXPORT(add);
HWY_EXPORT(multiply);

void rms_norm(const float* x, size_t x_stride, const float* weight, float epsilon, size_t rows,
              size_t width, float* y, size_t y_stride) {
  HWY_DYNAMIC_DISPATCH(rms_norm)(x, x_stride, weight, epsilon, rows, width, y, y_stride);
}

void add(const float* branch, size_t count, float* x) {
  HWY_DYNAMIC_DISPATCH(add)(branch, count, x);
}

void multiply(float factor, size_t count, float* x) {
  HWY_DYNAMIC_DISPATCH(multiply)(factor, count, x);
}

}  // namespace volvelle
#endif  // HWY_ONCE
