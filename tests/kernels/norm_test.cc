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
