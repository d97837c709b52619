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

// add(... add(0, x[0]) ..., x[count - 1]) in vectors, whose last is filled up with `neutral`, which
// adds nothing. Eight running sums hide the latency of addition, four cycles in each of two units,
// and each rounds over fewer terms.
template <class Add>
HWY_INLINE float sum_of(const float* x, size_t count, float neutral, const Add& add) {
  const Floats d;
  const size_t lanes = hn::Lanes(d);
  auto sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  auto sum4 = sum0, sum5 = sum0, sum6 = sum0, sum7 = sum0;
  size_t i = 0;
  const auto load = [&](size_t v) HWY_ATTR { return hn::LoadU(d, x + i + v * lanes); };
  for (; i + 8 * lanes <= count; i += 8 * lanes) {
    sum0 = add(sum0, load(0)), sum1 = add(sum1, load(1));
    sum2 = add(sum2, load(2)), sum3 = add(sum3, load(3));
    sum4 = add(sum4, load(4)), sum5 = add(sum5, load(5));
    sum6 = add(sum6, load(6)), sum7 = add(sum7, load(7));
  }
  for (; i < count; i += lanes) {
    sum0 = add(sum0, hn::LoadNOr(hn::Set(d, neutral), d, x + i, count - i));
  }
  sum0 = hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3));
  sum4 = hn::Add(hn::Add(sum4, sum5), hn::Add(sum6, sum7));
  return hn::ReduceSum(d, hn::Add(sum0, sum4));
}

void rms_norm(const float* x, size_t x_stride, const float* weight, float epsilon, size_t rows,
              size_t width, float* y, size_t y_stride) {
  const Floats d;
  for (size_t row = 0; row < rows; ++row, x += x_stride, y += y_stride) {
    const float squares =
        sum_of(x, width, 0, [&](auto sum, auto v) HWY_ATTR { return hn::MulAdd(v, v, sum); });
    const float factor = 1.0f / std::sqrt(squares / static_cast<float>(width) + epsilon);
    for_each_vector(d, width, [&](auto lanes, size_t i) HWY_ATTR {
      auto scaled = hn::Mul(lanes.load(d, x + i), hn::Set(d, factor));
      if (weight) scaled = hn::Mul(scaled, lanes.load(d, weight + i));
      lanes.store(scaled, d, y + i);
    });
  }
}

// The variance is summed of deviations from the mean, in a second pass: squares of x itself would
// cancel where the mean is far from zero.
void layer_norm(const float* x, size_t x_stride, const float* weight, const float* bias,
                float epsilon, size_t rows, size_t width, float* y, size_t y_stride) {
  const Floats d;
  const float count = static_cast<float>(width);
  for (size_t row = 0; row < rows; ++row, x += x_stride, y += y_stride) {
    const float total =
        sum_of(x, width, 0, [&](auto sum, auto v) HWY_ATTR { return hn::Add(sum, v); });
    const float mean = total / count;
    const float squares = sum_of(x, width, mean, [&](auto sum, auto v) HWY_ATTR {
      const auto deviation = hn::Sub(v, hn::Set(d, mean));
      return hn::MulAdd(deviation, deviation, sum);
    });
    const float factor = 1.0f / std::sqrt(squares / count + epsilon);
    for_each_vector(d, width, [&](auto lanes, size_t i) HWY_ATTR {
      const auto deviation = hn::Sub(lanes.load(d, x + i), hn::Set(d, mean));
      auto scaled = hn::Mul(deviation, hn::Set(d, factor));
      if (weight) scaled = hn::Mul(scaled, lanes.load(d, weight + i));
      if (bias) scaled = hn::Add(scaled, lanes.load(d, bias + i));
      lanes.store(scaled, d, y + i);
    });
  }
}

void clamp(float limit, size_t count, float* x) {
  const Floats d;
  for_each_vector(d, count, [&](auto lanes, size_t i) HWY_ATTR {
    const auto least = hn::Max(lanes.load(d, x + i), hn::Set(d, -limit));
    lanes.store(hn::Min(least, hn::Set(d, limit)), d, x + i);
  });
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
HWY_EXPORT(layer_norm);
HWY_EXPORT(clamp);
HWY_EXPORT(add);
HWY_EXPORT(multiply);

void rms_norm(const float* x, size_t x_stride, const float* weight, float epsilon, size_t rows,
              size_t width, float* y, size_t y_stride) {
  HWY_DYNAMIC_DISPATCH(rms_norm)(x, x_stride, weight, epsilon, rows, width, y, y_stride);
}

void layer_norm(const float* x, size_t x_stride, const float* weight, const float* bias,
                float epsilon, size_t rows, size_t width, float* y, size_t y_stride) {
  HWY_DYNAMIC_DISPATCH(layer_norm)(x, x_stride, weight, bias, epsilon, rows, width, y, y_stride);
}

void clamp(float limit, size_t count, float* x) { HWY_DYNAMIC_DISPATCH(clamp)(limit, count, x); }

void add(const float* branch, size_t count, float* x) {
  HWY_DYNAMIC_DISPATCH(add)(branch, count, x);
}

void multiply(float factor, size_t count, float* x) {
  HWY_DYNAMIC_DISPATCH(multiply)(factor, count, x);
}

}  // namespace volvelle
#endif  // HWY_ONCE
