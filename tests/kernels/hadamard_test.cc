#include "kernels/hadamard.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "tests/kernels/sweep.h"

namespace volvelle {
namespace {

TEST_CASE(
    "the Hadamard transform equals its twin to the bit, for every block and number of blocks") {
  for (size_t block = 1; block <= 4096; block *= 2) {
    for (size_t blocks = 1; blocks <= 9 && block * blocks <= 8192; ++blocks) {
      CAPTURE(block);
      CAPTURE(blocks);
      const std::vector<float> x = random_row(block * blocks);
      std::vector<float> expected = x;
      scalar::hadamard(block, x.size(), expected.data());
      for_each_target([&] {
        std::vector<float> y = x;
        hadamard(block, y.size(), y.data());
        CHECK(y == expected);
      });
    }
  }
}

TEST_CASE("the Hadamard transform of a unit vector is a row of signs") {
  for (const size_t block : {2, 8, 64, 512}) {
    for (size_t j = 0; j < block; j += 1 + j / 3) {
      for_each_target([&] {
        std::vector<float> x(2 * block);
        x[block + j] = 1;
        hadamard(block, x.size(), x.data());
        size_t wrong = 0;
        for (size_t i = 0; i < block; ++i) {
          // Sylvester's matrix in closed form.
          const float sign = std::popcount(i & j) % 2 == 0 ? 1.0f : -1.0f;
          if (x[block + i] != sign / std::sqrt(static_cast<float>(block))) ++wrong;
          if (x[i] != 0) ++wrong;
        }
        CHECK(wrong == 0);
      });
    }
  }
}

TEST_CASE("the Hadamard transform is its own inverse") {
  const std::vector<float> x = random_row(3 * 256);
  for_each_target([&] {
    std::vector<float> y = x;
    hadamard(256, y.size(), y.data());
    hadamard(256, y.size(), y.data());
    // Twice eight additions and a product, of values whose sum of squares stays the same: 18
    // roundings of at most the block's length, sqrt(256 / 3), each.
    for (size_t i = 0; i < x.size(); ++i) {
      CHECK(std::fabs(y[i] - x[i]) <= 18 * kRounding * std::sqrt(256.0 / 3));
    }
  });
}

}  // namespace
}  // namespace volvelle
