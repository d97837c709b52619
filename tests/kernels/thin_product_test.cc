#include "kernels/thin_product.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "kernels/quantize.h"
#include "tests/kernels/sweep.h"

namespace volvelle {
namespace {

TEST_CASE("sums over blocks equal their twin, whatever the length") {
  for (size_t count = 0; count <= 200; ++count) {
    const std::vector<float> x = random_row(count);
    std::vector<float> expected((count + kQ4Block - 1) / kQ4Block);
    scalar::sum_blocks(x.data(), count, expected.data());
    for_each_target([&] {
      std::vector<float> sums(expected.size());
      sum_blocks(x.data(), count, sums.data());
      for (size_t b = 0; b < sums.size(); ++b) {
        // 32 terms of at most 1: no partial sum is above 32, and there are at most 31 roundings.
        CHECK(std::fabs(sums[b] - expected[b]) <= 31 * 32 * kRounding);
      }
    });
  }
}

TEST_CASE(
    "a thin product is added as its twin adds it, for any rows, inputs and stretch of outputs") {
  for (const size_t rows : {1, 3, 4, 5, 9}) {
    for (const size_t inputs : {1, 2, 18, 48}) {
      for (const size_t outputs : {1, 15, 16, 17, 100}) {
        std::vector<int8_t> codes(inputs * outputs);
        for (int8_t& code : codes) code = static_cast<int8_t>(random_below(255));
        const std::vector<float> scales = random_row(outputs);
        const ThinWeights weights{codes.data(), scales.data(), inputs, outputs};
        const std::vector<float> x = random_row(rows * inputs);
        const std::vector<float> before = random_row(rows * outputs);
        const size_t first = random_below(outputs), count = 1 + random_below(outputs - first);
        std::vector<float> expected = before;
        scalar::add_thin_product(weights, x.data(), rows, first, count, expected.data());
        for_each_target([&] {
          std::vector<float> y = before;
          add_thin_product(weights, x.data(), rows, first, count, y.data());
          double worst = 0;
          for (size_t i = 0; i < y.size(); ++i) {
            worst = std::max(worst, std::fabs(double{y[i]} - expected[i]));
          }
          // Each of the products, up to 128, rounds the running sum, up to `inputs` of them; the
          // last two roundings are those of the output.
          const double greatest = 128.0 * static_cast<double>(inputs);
          CHECK(worst <= (static_cast<double>(inputs) + 3) * greatest * kRounding);
        });
      }
    }
  }
}

}  // namespace
}  // namespace volvelle
