#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "converter/quantize/q4.h"
#include "converter/quantize/q8.h"
#include "converter/sources/float16.h"
#include "hwy/targets.h"
#include "tests/scratch_folder.h"
#include "tests/sources/damage.h"

namespace volvelle {
namespace {

struct Q4 {
  Q4(const std::vector<float>& x, size_t rows, size_t columns)
      : codes(rows * q4_blocks(columns) * 16), scales(rows * q4_blocks(columns)), values(x.size()) {
    REQUIRE(quantize_q4_rows(x.data(), rows, columns, codes.data(), scales.data()).has_value());
    dequantize_q4_rows(codes.data(), scales.data(), rows, columns, values.data());
  }
  std::vector<uint8_t> codes;
  std::vector<uint16_t> scales;
  std::vector<float> values;
};

struct Q8 {
  Q8(const std::vector<float>& x, size_t rows, size_t columns)
      : codes(x.size()), scales(rows), values(x.size()) {
    REQUIRE(quantize_q8_rows(x.data(), rows, columns, codes.data(), scales.data()).has_value());
    dequantize_q8_rows(codes.data(), scales.data(), rows, columns, values.data());
  }
  std::vector<int8_t> codes;
  std::vector<float> scales;
  std::vector<float> values;
};

struct Q4Minima {
  Q4Minima(const std::vector<float>& x, size_t rows, size_t columns)
      : codes(rows * q4_blocks(columns) * 16),
        scales(rows * q4_blocks(columns)),
        minima(scales.size()),
        minimum_scales(rows),
        values(x.size()) {
    REQUIRE(quantize_q4_rows_with_minima(x.data(), rows, columns, codes.data(), scales.data(),
                                         minima.data(), minimum_scales.data())
                .has_value());
    dequantize_q4_rows(codes.data(), scales.data(), rows, columns, values.data());
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t row = i / columns, block = i % columns / kQ4Block;
      values[i] += minima[row * q4_blocks(columns) + block] * minimum_scales[row];
    }
  }
  std::vector<uint8_t> codes;
  std::vector<uint16_t> scales;
  std::vector<int8_t> minima;
  std::vector<float> minimum_scales;
  std::vector<float> values;
};

double squared_error(const float* x, const float* y, size_t count) {
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += (double{x[i]} - y[i]) * (double{x[i]} - y[i]);
  return sum;
}

// The error of a block's nearest codes from `low` to `high` under `scale`.
double error_under(const float* x, size_t count, double scale, int low, int high) {
  double sum = 0;
  for (size_t i = 0; i < count; ++i) {
    const double code = std::clamp(std::nearbyint(x[i] / scale), double(low), double(high));
    sum += (x[i] - code * scale) * (x[i] - code * scale);
  }
  return sum;
}

float largest_of(const float* x, size_t count) {
  float largest = 0;
  for (size_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(x[i]));
  return largest;
}

// Blocks as they occur, and as they should not: bell-shaped, flat, heavy-tailed, sparse, one-sided,
// outlying.
std::vector<float> random_blocks(size_t blocks) {
  std::mt19937_64& engine = random_engine();
  std::normal_distribution<float> bell;
  std::uniform_real_distribution<float> flat(-1, 1);
  std::vector<float> x;
  for (size_t block = 0; block < blocks; ++block) {
    const float size = std::exp2(20 * flat(engine));
    for (size_t i = 0; i < kQ4Block; ++i) {
      float value = bell(engine);
      switch (block % 6) {
        case 1:
          value = flat(engine);
          break;
        case 2:
          value = value * value * value;
          break;
        case 3:
          value = engine() % 8 == 0 ? value : 0;
          break;
        case 4:
          value = std::fabs(value);
          break;
        case 5:
          value = i == block % kQ4Block ? (block & 8 ? 9.0f : -9.0f) : value;
          break;
      }
      x.push_back(value * size);
    }
  }
  return x;
}

// The least error of a block under the bfloat16 scales from `from` to `to`: brute force in double.
double least_error(const float* x, float from, float to) {
  double least = std::numeric_limits<double>::infinity();
  for (uint16_t bits = bf16_from_float(from); float_from_bf16(bits) <= to; ++bits) {
    least = std::min(least, error_under(x, kQ4Block, float_from_bf16(bits), -8, 7));
  }
  return least;
}

TEST_CASE(
    "no bfloat16 scale up to a sixth of the maximum is better for a q4 block than the chosen one") {
  const size_t blocks = 3000;
  const std::vector<float> x = random_blocks(blocks);
  const Q4 q4(x, 1, x.size());
  double chosen_sum = 0;
  double least_sum = 0;
  for (size_t block = 0; block < blocks; ++block) {
    const float* from = &x[block * kQ4Block];
    const float largest = largest_of(from, kQ4Block);
    if (largest == 0) continue;
    const double chosen = squared_error(from, &q4.values[block * kQ4Block], kQ4Block);
    const double energy = error_under(from, kQ4Block, 1e30, 0, 0);
    CAPTURE(block);
    // What float rounding leaves: two errors may be closer than their float sums can tell.
    CHECK(chosen <= least_error(from, largest / 24, largest / 6) + 1e-6 * energy);
    chosen_sum += chosen / energy;
    least_sum += std::min(chosen, least_error(from, largest / 6, largest * 2)) / energy;
  }
  // Coarser scales are better now and then, by little.
  CHECK(chosen_sum <= least_sum * 1.001);
}

TEST_CASE("q4 is no worse than scaling by the maximum alone") {
  const size_t blocks = 3000;
  const std::vector<float> x = random_blocks(blocks);
  const Q4 q4(x, 1, x.size());
  for (size_t block = 0; block < blocks; ++block) {
    const float* from = &x[block * kQ4Block];
    const float largest = largest_of(from, kQ4Block);
    if (largest == 0) continue;
    const double chosen = squared_error(from, &q4.values[block * kQ4Block], kQ4Block);
    for (const float code : {7.0f, 8.0f}) {
      const float scale = float_from_bf16(bf16_from_float(largest / code));
      CHECK(chosen <= error_under(from, kQ4Block, scale, -8, 7) * (1 + 1e-5));
    }
  }
}

TEST_CASE("weights on a four-bit grid are kept exactly") {
  std::mt19937_64& engine = random_engine();
  for (int top = 1; top <= 8; ++top) {
    for (const float scale : {1.0f, 0.0390625f, 0x1.82p-30f, 0x1.fep60f}) {
      std::vector<float> x(kQ4Block * 8);
      for (float& value : x) value = (static_cast<int>(engine() % (2 * top)) - top) * scale;
      for (size_t block = 0; block < 8; ++block) x[block * kQ4Block + block] = -top * scale;
      CAPTURE(top);
      CAPTURE(scale);
      CHECK(Q4(x, 1, x.size()).values == x);
    }
  }
}

TEST_CASE("weights on a grid with minima stay on it but for the rounding of scale and minimum") {
  std::mt19937_64& engine = random_engine();
  for (const int top : {15, 14, 9, 6}) {
    for (const float size : {1.0f, 0x1p-30f, 0x1p60f}) {
      CAPTURE(top);
      CAPTURE(size);
      constexpr size_t kBlocks = 18;
      std::vector<float> x(kQ4Block * kBlocks), steps(kBlocks), minima(kBlocks);
      float most = 0;
      for (size_t b = 0; b < kBlocks; ++b) {
        steps[b] = size * (0.5f + static_cast<float>(engine() % 1000) / 1000);
        minima[b] = -steps[b] * static_cast<float>(engine() % 1500) / 100;
        for (size_t i = 0; i < kQ4Block; ++i) {
          const auto code = static_cast<float>(i < 2 ? i * top : engine() % (top + 1));
          x[b * kQ4Block + i] = minima[b] + steps[b] * code;
        }
        most = std::max(most, std::fabs(minima[b] + 8 * steps[b]));
      }
      const Q4Minima q4(x, 1, x.size());
      for (size_t i = 0; i < x.size(); ++i) {
        // A bfloat16 scale is off by 2^-9 at most, which over 15 steps counts once, the minimum
        // being fitted to the rest; and the value of code 8 by half of 1/127 of the greatest, which
        // the scale moves too.
        const double step = steps[i / kQ4Block], scale_error = 15 * step * 0x1p-9;
        CHECK(std::fabs(double{x[i]} - q4.values[i]) <= scale_error + 1.05 * most / 254);
      }
    }
  }
}

TEST_CASE("minima cost nothing where the grid is symmetric, and gain little where there is none") {
  const std::vector<float> random = random_blocks(64);
  const Q4Error none = *q4_error(random.data(), 4, random.size() / 4);
  CHECK(none.plain < 3 * none.with_minima);
  std::vector<float> grid(kQ4Block * 64);
  for (size_t i = 0; i < grid.size(); ++i) grid[i] = static_cast<float>(i * 7 % 16) - 11.3f;
  const Q4Error kept = *q4_error(grid.data(), 4, grid.size() / 4);
  CHECK(kept.plain > 8 * kept.with_minima);
}

TEST_CASE("scales with minima are positive and normal whatever the weights' size") {
  for (const float size : {0.0f, 0x1p-149f, 0x1p-127f, 0x1p-100f, 1.0f, 0x1p100f, 0x1p126f}) {
    CAPTURE(size);
    std::vector<float> x(96, size);  // a block of equals, one of zeros and one of all kinds
    std::fill(x.begin() + 32, x.begin() + 64, 0.0f);
    for (size_t i = 64; i < 96; ++i) x[i] = size * static_cast<float>(std::sin(0.7 * i));
    const Q4Minima q4(x, 1, x.size());
    for (const uint16_t scale : q4.scales) CHECK(std::isnormal(float_from_bf16(scale)));
    CHECK(std::isnormal(q4.minimum_scales[0]));
    for (size_t i = 0; i < x.size(); ++i) {
      CHECK(std::fabs(double{x[i]} - q4.values[i]) <= std::max(size / 6.0, 0x1p-122));
    }
  }
}

TEST_CASE("q4 codes lie low nibble first, and short rows are padded with code 8") {
  std::vector<float> x(2 * 35);
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<float>(static_cast<int>(i % 35 % 16) - 8);
  const Q4 q4(x, 2, 35);
  REQUIRE(q4.scales.size() == 4);
  CHECK(q4.values == x);
  for (size_t row = 0; row < 2; ++row) {
    const uint8_t* codes = &q4.codes[row * 32];
    CHECK(q4.scales[row * 2] == bf16_from_float(1));
    for (int i = 0; i < 16; ++i) CHECK(codes[i] == (2 * i % 16 | (2 * i + 1) % 16 << 4));
    CHECK((codes[17] >> 4) == 8);
    for (int i = 18; i < 32; ++i) CHECK(codes[i] == 0x88);
  }
}

TEST_CASE("scales are positive and normal whatever the weights' size") {
  for (const float size : {0.0f, 0x1p-149f, 0x1p-140f, 0x1p-127f, 0x1p-126f, 0x1p-124f, 0x1p-123f,
                           0x1p-100f, 1.0f, 0x1p100f, 0x1.fffffep127f}) {
    CAPTURE(size);
    std::vector<float> x(96);
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = size * static_cast<float>(std::sin(0.7 * static_cast<double>(i)));
    x[5] = size;
    const Q4 q4(x, 1, x.size());
    for (const uint16_t scale : q4.scales) {
      CHECK(std::isnormal(float_from_bf16(scale)));
      CHECK((scale & 0x8000) == 0);
    }
    const Q8 q8(x, 1, x.size());
    CHECK(std::isnormal(q8.scales[0]));
    CHECK(q8.scales[0] > 0);
    for (size_t i = 0; i < x.size(); ++i) {
      // Half a step, of at most max|x| / 6 and max|x| / 127, or of 2^-126; what is cut off stays
      // below a step.
      CHECK(std::fabs(double{x[i]} - q4.values[i]) <= std::max(size / 6.0, 0x1p-126));
      CHECK(std::fabs(double{x[i]} - q8.values[i]) <= std::max(size / 127.0, 0x1p-126));
    }
    if (size == 0) {
      CHECK(q4.scales[0] == 0x0080);
      CHECK(q4.codes == std::vector<uint8_t>(48, 0x88));
      CHECK(q8.scales[0] == 0x1p-126f);
      CHECK(q8.codes == std::vector<int8_t>(96, 0));
    }
  }
}

TEST_CASE(
    "a q8 row is never worse than scaling by its maximum, and close to the best scale there is") {
  std::mt19937_64& engine = random_engine();
  std::normal_distribution<float> bell;
  for (const size_t columns : {1, 15, 16, 17, 576, 1000, 4096}) {
    CAPTURE(columns);
    std::vector<float> x(columns);
    for (float& value : x) value = 0.02f * bell(engine);
    const Q8 q8(x, 1, columns);
    const double chosen = squared_error(x.data(), q8.values.data(), columns);
    const float largest = largest_of(x.data(), columns);
    const double plain = error_under(x.data(), columns, largest / 127, -127, 127);
    CHECK(chosen <= plain * (1 + 1e-4) + 1e-12 * largest * largest);
    // Brute force over 4000 scales.
    double least = plain;
    for (int i = 1; i < 4000; ++i) {
      least = std::min(least,
                       error_under(x.data(), columns, largest / 127 * (1 - i / 8000.0), -127, 127));
    }
    if (columns >= 576) CHECK(chosen <= least * 1.02);
    CHECK(*std::ranges::min_element(q8.codes) >= -127);
  }
}

TEST_CASE("every instruction set quantises to the same bits") {
  const std::vector<float> x = random_blocks(500);
  const Q4 q4(x, 25, x.size() / 25);
  const Q8 q8(x, 25, x.size() / 25);
  int targets = 0;
  for (int64_t left = hwy::SupportedTargets(); left != 0; left &= left - 1) {
    hwy::SetSupportedTargetsForTest(left & -left);
    const Q4 other4(x, 25, x.size() / 25);
    const Q8 other8(x, 25, x.size() / 25);
    hwy::SetSupportedTargetsForTest(0);
    CHECK(other4.codes == q4.codes);
    CHECK(other4.scales == q4.scales);
    CHECK(other8.codes == q8.codes);
    CHECK(other8.scales == q8.scales);
    ++targets;
  }
  CHECK(targets > 0);
}

TEST_CASE("a weight that is not finite is named by row and column") {
  std::vector<float> x(3 * 40, 1.0f);
  std::vector<uint8_t> codes(3 * 2 * 16);
  std::vector<int8_t> codes8(x.size());
  std::vector<uint16_t> scales(3 * 2);
  std::vector<float> scales8(3);
  for (const auto& [value, word] :
       {std::pair(NAN, "not a number"), std::pair(-INFINITY, "infinite")}) {
    x[40 + 33] = value;
    const auto q4 = quantize_q4_rows(x.data(), 3, 40, codes.data(), scales.data(), 100);
    const auto q8 = quantize_q8_rows(x.data(), 3, 40, codes8.data(), scales8.data());
    REQUIRE(!q4.has_value());
    REQUIRE(!q8.has_value());
    CHECK(q4.error().message.starts_with(std::format("row 101, column 33 is {}", word)));
    CHECK(q8.error().message.starts_with(std::format("row 1, column 33 is {}", word)));
  }
}

}  // namespace
}  // namespace volvelle
