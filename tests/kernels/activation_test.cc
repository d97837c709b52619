#include "kernels/activation.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/kernels/sweep.h"

namespace volvelle {
namespace {

constexpr Activation kActivations[] = {
    Activation::kSilu, Activation::kGeluErf,     Activation::kGeluTanh, Activation::kGeluSigmoid,
    Activation::kRelu, Activation::kReluSquared, Activation::kTanh};

// SiLU: exp within 1 ulp, sum, quotient and two products, all relative. A GELU adds its erf or tanh
// to 1, whose error of up to 2e-7 is multiplied by half of x, and the tanh's argument is off by 4
// roundings, which moves tanh by at most half of that, relative to 1. 1.702 x is off by two
// roundings, its own and the constant's, and a power by as much as its exponent. A ReLU rounds with
// its up, its square once more.
double gate_error(Activation activation, double x, double up, double expected) {
  double error = 3 * kRounding * std::fabs(expected) + 1e-35;
  switch (activation) {
    case Activation::kSilu:
      error += 3 * kRounding * std::fabs(expected);
      break;
    case Activation::kGeluErf:
    case Activation::kGeluTanh:
      error += 2e-7 * std::fabs(x * up);
      break;
    case Activation::kGeluSigmoid:
      error += (3 + 2 * 1.702 * std::fabs(x)) * kRounding * std::fabs(expected);
      break;
    case Activation::kTanh:
      error += 2e-7 * std::fabs(up);
      break;
    case Activation::kRelu:
    case Activation::kReluSquared:
      break;
  }
  return error;
}

void check_gate(const std::vector<float>& gate_up, size_t stride, size_t rows, size_t width) {
  for (const Activation activation : kActivations) {
    const size_t y_stride = width + 3;
    std::vector<float> expected((rows - 1) * y_stride + width, -7.0f);
    scalar::gate(activation, gate_up.data(), stride, rows, width, expected.data(), y_stride);
    for_each_target([&] {
      std::vector<float> y(expected.size(), -7.0f);
      gate(activation, gate_up.data(), stride, rows, width, y.data(), y_stride);
      double worst = 0;  // in units of what is allowed
      for (size_t i = 0; i < y.size(); ++i) {
        const size_t row = i / y_stride, element = i % y_stride;
        if (element >= width) {
          CHECK(y[i] == -7.0f);
          continue;
        }
        CHECK(std::isfinite(y[i]));
        const float* x = gate_up.data() + row * stride + element;
        worst = std::max(worst, std::fabs(double{y[i]} - expected[i]) /
                                    gate_error(activation, x[0], x[width], expected[i]));
      }
      CAPTURE(static_cast<int>(activation));
      CHECK(worst <= 1.0);
    });
  }
}

TEST_CASE("a gate equals its twin for every width") {
  for (size_t width = 1; width <= 70; ++width) {
    CAPTURE(width);
    const size_t rows = 1 + random_below(3), stride = 2 * width + random_below(5);
    check_gate(random_row((rows - 1) * stride + 2 * width, -8, 8), stride, rows, width);
  }
}

TEST_CASE("a gate equals its twin at every magnitude, and is finite for large inputs") {
  std::vector<float> gates = {0.0f, -0.0f, 1e-40f, -1e-40f, 1e4f, -1e4f, 1e10f, -1e10f};
  for (float x = -100; x <= 100; x += 0.0117f) gates.push_back(x);
  for (float x = 1e-30f; x < 1e4f; x *= 1.3f) gates.insert(gates.end(), {x, -x});
  std::vector<float> gate_up = gates;
  gate_up.resize(2 * gates.size(), 1.0f);
  check_gate(gate_up, 2 * gates.size(), 1, gates.size());
}

TEST_CASE("an activation alone is a gate whose ups are one, to the bit, and may be in place") {
  for (const Activation activation : kActivations) {
    for (size_t width = 1; width <= 70; ++width) {
      CAPTURE(static_cast<int>(activation));
      CAPTURE(width);
      const size_t rows = 3, stride = width + random_below(5);
      const std::vector<float> x = random_row((rows - 1) * stride + width, -8, 8);
      std::vector<float> gate_up(rows * 2 * width, 1.0f), twin = x;
      for (size_t row = 0; row < rows; ++row) {
        std::copy_n(x.begin() + row * stride, width, gate_up.begin() + row * 2 * width);
      }
      scalar::activate(activation, x.data(), stride, rows, width, twin.data(), stride);
      for_each_target([&] {
        std::vector<float> expected = x, y(x.size(), -7.0f), in_place = x;
        gate(activation, gate_up.data(), 2 * width, rows, width, expected.data(), stride);
        activate(activation, x.data(), stride, rows, width, y.data(), stride);
        activate(activation, in_place.data(), stride, rows, width, in_place.data(), stride);
        CHECK(in_place == expected);  // what lies between rows stays as well
        double worst = 0;             // in units of what is allowed
        for (size_t i = 0; i < y.size(); ++i) {
          if (i % stride >= width) {
            CHECK(y[i] == -7.0f);
            continue;
          }
          CHECK(y[i] == expected[i]);
          worst = std::max(
              worst, std::fabs(double{y[i]} - twin[i]) / gate_error(activation, x[i], 1, twin[i]));
        }
        CHECK(worst <= 1.0);
      });
    }
  }
}

TEST_CASE("an activation for int8 codes is within what is stated of the other") {
  std::vector<float> x = {0.0f, -0.0f, 1e-40f, -1e-40f, 1e10f, -1e10f};
  for (float v = -9; v <= 9; v += 0.00113f) x.push_back(v);
  for (const Activation activation : kActivations) {
    CAPTURE(static_cast<int>(activation));
    std::vector<float> twin(x.size());
    scalar::activate(activation, x.data(), x.size(), 1, x.size(), twin.data(), x.size());
    for_each_target([&] {
      std::vector<float> y(x.size());
      activate_coarsely(activation, x.data(), x.size(), 1, x.size(), y.data(), x.size());
      double worst = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        const double error = std::fabs(double{y[i]} - twin[i]);
        worst = std::max(worst, error - gate_error(activation, x[i], 1, twin[i]));
      }
      CHECK(worst <= (activation == Activation::kGeluErf ? kCoarseActivation : 0));
    });
  }
}

TEST_CASE("what is not a number is none after every activation") {
  const std::vector<float> x(19, std::numeric_limits<float>::quiet_NaN());  // vectors and a rest
  for (const Activation activation : kActivations) {
    CAPTURE(static_cast<int>(activation));
    for_each_target([&] {
      for (const auto function : {&activate, &activate_coarsely}) {
        std::vector<float> y(x.size());
        function(activation, x.data(), x.size(), 1, x.size(), y.data(), x.size());
        CHECK(std::ranges::all_of(y, [](float value) { return std::isnan(value); }));
      }
    });
  }
}

TEST_CASE("rectified units of whole numbers are whole numbers") {
  const std::vector<float> x = {-3.0f, -1.0f, 0.0f, 1.0f, 2.0f, 3.0f};
  for_each_target([&] {
    std::vector<float> y(6);
    activate(Activation::kRelu, x.data(), 6, 1, 6, y.data(), 6);
    CHECK(y == std::vector<float>{0.0f, 0.0f, 0.0f, 1.0f, 2.0f, 3.0f});
    activate(Activation::kReluSquared, x.data(), 6, 1, 6, y.data(), 6);
    CHECK(y == std::vector<float>{0.0f, 0.0f, 0.0f, 1.0f, 4.0f, 9.0f});
  });
}

TEST_CASE("a GELU is within 1e-6 of the double formula where it bends") {
  std::vector<float> gates;
  for (float x = -6; x <= 6; x += 0.00031f) gates.push_back(x);
  std::vector<float> gate_up = gates, y(gates.size());
  gate_up.resize(2 * gates.size(), 1.0f);
  for_each_target([&] {
    gate(Activation::kGeluErf, gate_up.data(), 0, 1, gates.size(), y.data(), 0);
    double worst = 0;
    for (size_t i = 0; i < y.size(); ++i) {
      const double x = gates[i];
      worst = std::max(worst, std::fabs(y[i] - x * (1 + std::erf(x / std::sqrt(2.0))) / 2));
    }
    CHECK(worst <= 1e-6);
  });
}

TEST_CASE("an activation of what is not a number is no number") {
  for (const Activation activation :
       {Activation::kSilu, Activation::kGeluErf, Activation::kGeluTanh, Activation::kTanh}) {
    for_each_target([&] {
      float x = std::numeric_limits<float>::quiet_NaN();
      activate(activation, &x, 1, 1, 1, &x, 1);
      CHECK(std::isnan(x));
    });
  }
}

TEST_CASE("a soft cap equals its twin, and holds for any logit") {
  std::vector<float> x = {0.0f,
                          -0.0f,
                          1e4f,
                          -1e4f,
                          std::numeric_limits<float>::max(),
                          std::numeric_limits<float>::infinity()};
  for (float v = 1e-20f; v < 1e6f; v *= 1.7f) x.insert(x.end(), {v, -v});
  for (const float cap : {1.0f, 30.0f, 50.0f}) {
    for (size_t count = 1; count <= x.size(); ++count) {
      std::vector<float> expected(x.begin(), x.begin() + count);
      scalar::soft_cap(cap, count, expected.data());
      for_each_target([&] {
        std::vector<float> y(x.begin(), x.begin() + count);
        soft_cap(cap, count, y.data());
        for (size_t i = 0; i < count; ++i) {
          // tanh within 3 ulp; the quotient and the product round once each.
          CHECK(std::fabs(y[i] - expected[i]) <= 4.5 * kUlp * std::fabs(expected[i]));
          CHECK(std::fabs(y[i]) <= cap);
        }
      });
    }
  }
}

}  // namespace
}  // namespace volvelle
