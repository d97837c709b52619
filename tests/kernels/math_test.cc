// The errors that kernels/math-inl.h states, against the double functions of the C library, over
// every 499th float.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/kernels/math_test.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"
#include "kernels/math-inl.h"
#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace volvelle::HWY_NAMESPACE {

void exp_all(std::vector<float>& x) {
  const Floats d;
  for_each_vector(d, x.size(), [&](auto lanes, size_t i) HWY_ATTR {
    lanes.store(exp_nonpositive(d, lanes.load(d, x.data() + i)), d, x.data() + i);
  });
}

void tanh_all(std::vector<float>& x) {
  const Floats d;
  for_each_vector(d, x.size(), [&](auto lanes, size_t i) HWY_ATTR {
    lanes.store(tanh(d, lanes.load(d, x.data() + i)), d, x.data() + i);
  });
}

void erfc_all(std::vector<float>& x) {
  const Floats d;
  for_each_vector(d, x.size(), [&](auto lanes, size_t i) HWY_ATTR {
    lanes.store(erfc_sqrt2(d, lanes.load(d, x.data() + i)), d, x.data() + i);
  });
}

}  // namespace volvelle::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <doctest/doctest.h>

#include "tests/kernels/sweep.h"

namespace volvelle {
namespace {

HWY_EXPORT(exp_all);
HWY_EXPORT(tanh_all);
HWY_EXPORT(erfc_all);

// Every 499th float from 0 to `end`, with `sign`.
std::vector<float> floats_up_to(float end, float sign) {
  std::vector<float> x;
  for (uint32_t bits = 0; bits <= std::bit_cast<uint32_t>(end); bits += 499) {
    if (leave_out()) continue;
    x.push_back(sign * std::bit_cast<float>(bits));
  }
  return x;
}

double ulps(float y, double truth) {
  const int exponent = std::max(std::ilogb(truth), -126);
  return std::fabs(y - truth) / std::ldexp(1.0, exponent - 23);
}

TEST_CASE("exp of a number that is not positive is within 1 ulp") {
  const std::vector<float> x = floats_up_to(87.0f, -1);
  for_each_target([&] {
    std::vector<float> y = x;
    HWY_DYNAMIC_DISPATCH(exp_all)(y);
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      worst = std::max(worst, ulps(y[i], std::exp(static_cast<double>(x[i]))));
    }
    CHECK(worst <= 1.0);
  });
}

TEST_CASE("exp is 1 at 0 and 0 at minus infinity") {
  for_each_target([&] {
    std::vector<float> y = {0.0f, -0.0f, -std::numeric_limits<float>::infinity(), -1e30f, -87.1f};
    HWY_DYNAMIC_DISPATCH(exp_all)(y);
    CHECK(y == std::vector<float>{1, 1, 0, 0, 0});
  });
}

TEST_CASE("tanh is within 3 ulp, odd, and 1 at infinity") {
  for (const float sign : {1.0f, -1.0f}) {
    const std::vector<float> x = floats_up_to(std::numeric_limits<float>::infinity(), sign);
    for_each_target([&] {
      std::vector<float> y = x;
      HWY_DYNAMIC_DISPATCH(tanh_all)(y);
      double worst = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        worst = std::max(worst, ulps(y[i], std::tanh(static_cast<double>(x[i]))));
      }
      CHECK(worst <= 3.0);
    });
  }
}

TEST_CASE("erfc is within 2.4e-7 up to where it is nothing") {
  const std::vector<float> x = floats_up_to(4.0f, 1);
  for_each_target([&] {
    std::vector<float> y = x;
    HWY_DYNAMIC_DISPATCH(erfc_all)(y);
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      worst = std::max(worst, std::fabs(y[i] - std::erfc(std::sqrt(2.0) * x[i])));
    }
    CHECK(worst <= 2.4e-7);
    CHECK(y.back() >= 0);
    CHECK(y.back() <= 1e-13);
  });
}

TEST_CASE("what is not a number stays so") {
  for_each_target([&] {
    std::vector<float> y = {std::numeric_limits<float>::quiet_NaN()};
    HWY_DYNAMIC_DISPATCH(tanh_all)(y);
    CHECK(std::isnan(y[0]));
  });
}

}  // namespace
}  // namespace volvelle
#endif  // HWY_ONCE
