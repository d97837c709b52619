#include "kernels/norm.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "tests/kernels/sweep.h"

namespace volvelle {
namespace {

std::vector<size_t> widths() {
  std::vector<size_t> all;
  for (size_t width = 1; width <= 70; ++width) all.push_back(width);
  for (const size_t width : {127, 128, 576, 1001, 4096, 4097}) all.push_back(width);
  return all;
}

// Squares are summed in at least 16 chains, so width / 16 roundings at worst, halved by the root;
// then come the chains' sum, mean, root, quotient and two products.
double norm_error(size_t width) { return (static_cast<double>(width) / 32 + 10) * kRounding; }

TEST_CASE("an RMS norm equals its twin, rows close together, apart, and in place") {
  for (const size_t width : widths()) {
    CAPTURE(width);
    const size_t rows = 1 + random_below(4), x_stride = width + random_below(5);
    const size_t y_stride = width + random_below(5);
    const float epsilon = 1e-5f;
    const std::vector<float> x = random_row((rows - 1) * x_stride + width, -3, 3);
    const std::vector<float> weight = random_row(width, -2, 2);
    std::vector<float> expected((rows - 1) * y_stride + width, -7.0f);
    scalar::rms_norm(x.data(), x_stride, weight.data(), epsilon, rows, width, expected.data(),
                     y_stride);
    for_each_target([&] {
      std::vector<float> y(expected.size(), -7.0f), in_place = x;
      rms_norm(x.data(), x_stride, weight.data(), epsilon, rows, width, y.data(), y_stride);
      rms_norm(in_place.data(), x_stride, weight.data(), epsilon, rows, width, in_place.data(),
               x_stride);
      for (size_t i = 0; i < y.size(); ++i) {
        CHECK(std::fabs(y[i] - expected[i]) <= norm_error(width) * std::fabs(expected[i]));
      }
      for (size_t row = 0; row < rows; ++row) {
        for (size_t i = 0; i < width; ++i) {
          CHECK(in_place[row * x_stride + i] == y[row * y_stride + i]);
        }
      }
    });
  }
}

TEST_CASE("a row of equal elements has norm one, and a row of zeros stays zero") {
  for_each_target([&] {
    for (const float value : {1e-3f, 1.0f, 1e4f}) {
      const std::vector<float> x(100, value), weight(100, 1.0f);
      std::vector<float> y(100);
      rms_norm(x.data(), 100, weight.data(), 0, 1, 100, y.data(), 100);
      for (const float element : y) CHECK(std::fabs(element - 1) <= norm_error(100));
    }
    std::vector<float> zeros(33, 0.0f);
    rms_norm(zeros.data(), 33, std::vector<float>(33, 1.0f).data(), 1e-6f, 1, 33, zeros.data(), 33);
    CHECK(zeros == std::vector<float>(33, 0.0f));
  });
}

TEST_CASE("an RMS norm without a weight is one with ones, to the bit") {
  for (const size_t width : widths()) {
    const std::vector<float> x = random_row(width, -3, 3), ones(width, 1.0f);
    for_each_target([&] {
      std::vector<float> with(width), without(width);
      rms_norm(x.data(), width, ones.data(), 1e-5f, 1, width, with.data(), width);
      rms_norm(x.data(), width, nullptr, 1e-5f, 1, width, without.data(), width);
      CHECK(with == without);
    });
  }
}

// What an RMS norm's error is to x, a layer norm's is to x - mean; and the mean is wrong by as many
// roundings of a mean of elements up to `greatest` as its chains are long. The sum with the bias is
// rounded once here and once in the twin.
double layer_norm_error(const float* x, size_t width, double greatest, float epsilon, double weight,
                        double bias, double expected) {
  double mean = 0, variance = epsilon;
  const double count = static_cast<double>(width);
  for (size_t i = 0; i < width; ++i) mean += x[i] / count;
  for (size_t i = 0; i < width; ++i) variance += (x[i] - mean) * (x[i] - mean) / count;
  const double off = (count / 16 + 5) * kRounding * greatest;
  return norm_error(width) * std::fabs(expected - bias) +
         off * std::fabs(weight) / std::sqrt(variance) + 2 * kRounding * std::fabs(expected);
}

TEST_CASE("a layer norm equals its twin, with and without weight and bias, and in place") {
  for (const size_t width : widths()) {
    for (const int given : {0, 1, 2, 3}) {
      if (leave_out()) continue;
      CAPTURE(width);
      CAPTURE(given);
      const size_t rows = 1 + random_below(4), x_stride = width + random_below(5);
      const size_t y_stride = width + random_below(5);
      const float epsilon = 1e-5f;
      const std::vector<float> x = random_row((rows - 1) * x_stride + width, -3, 3);
      const std::vector<float> weights = random_row(width, -2, 2), biases = random_row(width);
      const float* weight = given & 1 ? weights.data() : nullptr;
      const float* bias = given & 2 ? biases.data() : nullptr;
      std::vector<float> expected((rows - 1) * y_stride + width, -7.0f);
      scalar::layer_norm(x.data(), x_stride, weight, bias, epsilon, rows, width, expected.data(),
                         y_stride);
      std::vector<double> allowed(expected.size(), 0.0);  // none between rows
      for (size_t row = 0; row < rows; ++row) {
        for (size_t i = 0; i < width; ++i) {
          const size_t at = row * y_stride + i;
          allowed[at] = layer_norm_error(x.data() + row * x_stride, width, 3, epsilon,
                                         weight ? weight[i] : 1, bias ? bias[i] : 0, expected[at]);
        }
      }
      for_each_target([&] {
        std::vector<float> y(expected.size(), -7.0f), in_place = x;
        layer_norm(x.data(), x_stride, weight, bias, epsilon, rows, width, y.data(), y_stride);
        layer_norm(in_place.data(), x_stride, weight, bias, epsilon, rows, width, in_place.data(),
                   x_stride);
        size_t wrong = 0;
        for (size_t i = 0; i < y.size(); ++i) {
          if (!(std::fabs(double{y[i]} - expected[i]) <= allowed[i])) ++wrong;
        }
        for (size_t row = 0; row < rows; ++row) {
          for (size_t i = 0; i < width; ++i) {
            if (in_place[row * x_stride + i] != y[row * y_stride + i]) ++wrong;
          }
        }
        CHECK(wrong == 0);
      });
    }
  }
}

TEST_CASE("a layer norm of 1e5 and one on either side is one on either side") {
  // All sums are whole numbers below 2^24. Squares of x itself would be 1e10, where floats are 1024
  // apart.
  for (const size_t width : {2, 6, 64, 100}) {
    std::vector<float> x(width), expected(width);
    for (size_t i = 0; i < width; ++i) {
      expected[i] = i % 2 ? 1.0f : -1.0f;
      x[i] = 1e5f + expected[i];
    }
    for_each_target([&] {
      std::vector<float> y(width);
      layer_norm(x.data(), width, nullptr, nullptr, 0, 1, width, y.data(), width);
      CHECK(y == expected);
    });
  }
}

TEST_CASE("a clamp equals its twin to the bit") {
  for (const size_t width : widths()) {
    const std::vector<float> x = random_row(width, -3, 3);
    for (const float limit : {0.5f, 1.25f, 8.0f}) {
      std::vector<float> expected = x;
      scalar::clamp(limit, width, expected.data());
      for_each_target([&] {
        std::vector<float> y = x;
        clamp(limit, width, y.data());
        CHECK(y == expected);
      });
    }
  }
  std::vector<float> ends = {HUGE_VALF, -HUGE_VALF, 2.0f, -2.0f, 0.0f};
  for_each_target([&] {
    std::vector<float> y = ends;
    clamp(2, y.size(), y.data());
    CHECK(y == std::vector<float>{2.0f, -2.0f, 2.0f, -2.0f, 0.0f});
  });
}

TEST_CASE("adding a branch and multiplying by a factor equal their twins to the bit") {
  for (const size_t width : widths()) {
    const std::vector<float> x = random_row(width), branch = random_row(width);
    std::vector<float> expected = x;
    scalar::add(branch.data(), width, expected.data());
    scalar::multiply(0.37f, width, expected.data());
    for_each_target([&] {
      std::vector<float> y = x;
      add(branch.data(), width, y.data());
      multiply(0.37f, width, y.data());
      CHECK(y == expected);
    });
  }
}

}  // namespace
}  // namespace volvelle
