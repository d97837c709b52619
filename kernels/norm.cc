#include "kernels/norm.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norm.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"
#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace volvelle::HWY_NAMESPACE {

// add(... add(0, x[0]) ..., x[count - 1]) in the lanes of a vector; the row's last one is filled up
// with `neutral`, which adds nothing. Eight running sums hide the latency of addition, four cycles
// in each of two units, and each rounds over fewer terms.
template <class Add>
HWY_INLINE hn::Vec<Floats> sum_of(const float* x, size_t count, float neutral, const Add& add) {
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
  return hn::Add(sum0, sum4);
}

constexpr size_t kAtOnce = FourVectors::kRows;
using RowFloats = hn::CappedTag<float, kAtOnce>;

// 1 / sqrt(squares / count + epsilon) of a few rows.
HWY_INLINE void factors_of(const FourVectors& squares, float count, float epsilon,
                           float* HWY_RESTRICT factors) {
  const RowFloats d;
  const auto mean = hn::Div(squares.sum(), hn::Set(d, count));
  const auto root = hn::Sqrt(hn::Add(mean, hn::Set(d, epsilon)));
  hn::Store(hn::Div(hn::Set(d, 1.0f), root), d, factors);
}

void rms_norm(const float* x, size_t x_stride, const float* weight, float epsilon, size_t rows,
              size_t width, float* y, size_t y_stride) {
  const Floats d;
  HWY_ALIGN float factors[kAtOnce];
  for (size_t first = 0; first < rows; first += kAtOnce) {
    const size_t end = std::min(first + kAtOnce, rows);
    FourVectors squares;
    for (size_t row = first; row < end; ++row) {
      squares.set(row - first, sum_of(x + row * x_stride, width, 0, [&](auto sum, auto v) HWY_ATTR {
                    return hn::MulAdd(v, v, sum);
                  }));
    }
    factors_of(squares, static_cast<float>(width), epsilon, factors);
    for (size_t row = first; row < end; ++row) {
      const auto factor = hn::Set(d, factors[row - first]);
      for_each_vector(d, width, [&](auto lanes, size_t i) HWY_ATTR {
        auto scaled = hn::Mul(lanes.load(d, x + row * x_stride + i), factor);
        if (weight) scaled = hn::Mul(scaled, lanes.load(d, weight + i));
        lanes.store(scaled, d, y + row * y_stride + i);
      });
    }
  }
}

// The variance is summed of deviations from the mean, in a second pass: squares of x itself would
// cancel where the mean is far from zero.
void layer_norm(const float* x, size_t x_stride, const float* weight, const float* bias,
                float epsilon, size_t rows, size_t width, float* y, size_t y_stride) {
  const Floats d;
  const RowFloats d4;
  const float count = static_cast<float>(width);
  HWY_ALIGN float means[kAtOnce], factors[kAtOnce];
  for (size_t first = 0; first < rows; first += kAtOnce) {
    const size_t end = std::min(first + kAtOnce, rows);
    FourVectors totals, squares;
    for (size_t row = first; row < end; ++row) {
      totals.set(row - first, sum_of(x + row * x_stride, width, 0,
                                     [&](auto sum, auto v) HWY_ATTR { return hn::Add(sum, v); }));
    }
    hn::Store(hn::Div(totals.sum(), hn::Set(d4, count)), d4, means);
    for (size_t row = first; row < end; ++row) {
      const float mean = means[row - first];
      const auto add = [&](auto sum, auto v) HWY_ATTR {
        const auto deviation = hn::Sub(v, hn::Set(d, mean));
        return hn::MulAdd(deviation, deviation, sum);
      };
      squares.set(row - first, sum_of(x + row * x_stride, width, mean, add));
    }
    factors_of(squares, count, epsilon, factors);
    for (size_t row = first; row < end; ++row) {
      const auto mean = hn::Set(d, means[row - first]), factor = hn::Set(d, factors[row - first]);
      for_each_vector(d, width, [&](auto lanes, size_t i) HWY_ATTR {
        const auto deviation = hn::Sub(lanes.load(d, x + row * x_stride + i), mean);
        auto scaled = hn::Mul(deviation, factor);
        if (weight) scaled = hn::Mul(scaled, lanes.load(d, weight + i));
        if (bias) scaled = hn::Add(scaled, lanes.load(d, bias + i));
        lanes.store(scaled, d, y + row * y_stride + i);
      });
    }
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
