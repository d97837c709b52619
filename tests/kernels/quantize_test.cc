#include "kernels/quantize.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/hadamard.h"
#include "tests/kernels/sweep.h"

namespace volvelle {
namespace {

void check_q8(const std::vector<float>& x) {
  std::vector<int8_t> expected(x.size());
  const float expected_scale = scalar::quantize_q8(x.data(), x.size(), expected.data());
  std::vector<float> expected_back(x.size());
  scalar::dequantize_q8(expected.data(), expected_scale, x.size(), expected_back.data());
  for_each_target([&] {
    std::vector<int8_t> codes(x.size());
    const float scale = quantize_q8(x.data(), x.size(), codes.data());
    std::vector<float> back(x.size());
    dequantize_q8(codes.data(), scale, x.size(), back.data());
    CHECK(scale == expected_scale);
    CHECK(codes == expected);
    CHECK(back == expected_back);
  });
}

TEST_CASE("int8 rows equal their twin to the bit, whatever their width and magnitude") {
  for (size_t count = 0; count <= 70; ++count) {
    for (const float magnitude : {1e-44f, 1e-40f, 1e-30f, 1.0f, 1e4f, 1e38f}) {
      CAPTURE(count);
      CAPTURE(magnitude);
      check_q8(random_row(count, -magnitude, magnitude));
    }
  }
}

TEST_CASE("an int8 code is off by at most half a step, and the greatest element is code 127") {
  const std::vector<float> x = random_row(1000);
  const float greatest = std::fabs(*std::max_element(
      x.begin(), x.end(), [](float a, float b) { return std::fabs(a) < std::fabs(b); }));
  for_each_target([&] {
    std::vector<int8_t> codes(x.size());
    const float scale = quantize_q8(x.data(), x.size(), codes.data());
    CHECK(scale == greatest / 127);
    CHECK(std::max(*std::max_element(codes.begin(), codes.end()),
                   static_cast<int8_t>(-*std::min_element(codes.begin(), codes.end()))) == 127);
    for (size_t i = 0; i < x.size(); ++i) {
      // Beside half a step, the quotient and the scale round.
      CHECK(std::fabs(codes[i] * double{scale} - x[i]) <= scale * (0.5 + 127 * 2 * kRounding));
    }
  });
}

TEST_CASE("int8 codes round ties to even, and a row of zeros has scale 0") {
  for_each_target([&] {
    const std::vector<float> x = {127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f};
    std::vector<int8_t> codes(x.size());
    CHECK(quantize_q8(x.data(), x.size(), codes.data()) == 1);
    CHECK(codes == std::vector<int8_t>{127, 0, 2, 2, 0, -2, -2});
    const std::vector<float> zeros(x.size(), -0.0f);
    CHECK(quantize_q8(zeros.data(), x.size(), codes.data()) == 0);
    CHECK(codes == std::vector<int8_t>(x.size(), 0));
  });
}

RowCode quantize_row(std::vector<float> x, std::vector<int8_t>& codes) {
  RowCode code;
  quantize_rows(1, {x.data(), 1, x.size()}, x.data(), codes.data(), x.size(), &code);
  return code;
}

TEST_CASE("rows that are rotated as they are quantised equal those rotated before, to the bit") {
  for (const size_t block : {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024}) {
    for (const size_t rows : {1, 2, 4, 7}) {
      const size_t count = block * (1 + random_below(3)), stride = count + random_below(5);
      CAPTURE(block);
      CAPTURE(rows);
      const std::vector<float> x = random_row(rows * count, -1, 3);
      std::vector<float> expected_y = x;
      std::vector<int8_t> expected(rows * stride, 99);
      std::vector<RowCode> expected_means(rows);
      scalar::quantize_rows(block, {x.data(), rows, count}, expected_y.data(), expected.data(),
                            stride, expected_means.data());
      for_each_target([&] {
        std::vector<float> y = x;
        std::vector<int8_t> codes(rows * stride, 99);
        std::vector<RowCode> means(rows);
        quantize_rows(block, {x.data(), rows, count}, y.data(), codes.data(), stride, means.data());
        CHECK(y == expected_y);
        CHECK(codes == expected);
        for (size_t r = 0; r < rows; ++r) {
          CHECK(means[r].scale == expected_means[r].scale);
          CHECK(means[r].zero_point == expected_means[r].zero_point);
        }
      });
    }
  }
}

TEST_CASE("activations whose sum is too large for a float keep their finite scale") {
  const std::vector<float> x(40, 1e38f);
  for_each_target([&] {
    std::vector<int8_t> codes(x.size());
    CHECK(quantize_row(x, codes).scale == 1e38f / 255);
    CHECK(codes == std::vector<int8_t>(x.size(), 127));
  });
}

TEST_CASE("activations' codes equal their twin's to the bit, whatever their width and magnitude") {
  for (size_t count = 0; count <= 70; ++count) {
    for (const float magnitude : {1e-44f, 1e-40f, 1e-36f, 1e-30f, 1.0f, 1e4f, 1e38f}) {
      for (const float low : {-magnitude, -0.1f * magnitude, 0.0f, 0.5f * magnitude}) {
        CAPTURE(count);
        CAPTURE(magnitude);
        CAPTURE(low);
        const std::vector<float> x = random_row(count, low, magnitude);
        std::vector<int8_t> expected(count);
        RowCode expected_code;
        scalar::quantize_rows(1, {x.data(), 1, count}, nullptr, expected.data(), count,
                              &expected_code);
        for_each_target([&] {
          std::vector<int8_t> codes(count);
          const RowCode code = quantize_row(x, codes);
          CHECK(code.scale == expected_code.scale);
          CHECK(code.zero_point == expected_code.zero_point);
          CHECK(codes == expected);
          std::vector<uint8_t> more(count);
          RowCode unsigned_code;
          quantize_rows(1, {x.data(), 1, count}, nullptr, more.data(), count, &unsigned_code);
          CHECK(unsigned_code.scale == code.scale);
          CHECK(unsigned_code.zero_point == code.zero_point + 128);
          size_t apart = 0;
          for (size_t i = 0; i < count; ++i) apart += more[i] != codes[i] + 128;
          CHECK(apart == 0);
        });
      }
    }
  }
}

TEST_CASE("an activation's code is off by at most half a step, and zero is exact") {
  for (const auto& [low, high] : {std::pair{-1.0f, 1.0f}, {-0.01f, 30.0f}, {2.0f, 3.0f}}) {
    std::vector<float> x = random_row(999, low, high);
    x.push_back(0);
    for_each_target([&] {
      std::vector<int8_t> codes(x.size());
      const RowCode code = quantize_row(x, codes);
      CHECK(codes.back() == code.zero_point);
      for (size_t i = 0; i < x.size(); ++i) {
        // The zero point rounds as well: at either end a code may be cut off by half a step more.
        const double back = (codes[i] - code.zero_point) * double{code.scale};
        const double limit = codes[i] == -128 || codes[i] == 127 ? 1.0 : 0.5;
        CHECK(std::fabs(back - x[i]) <= code.scale * (limit + 255 * 3 * kRounding));
      }
    });
  }
}

TEST_CASE("activations with a NaN or an infinity anywhere have no finite scale") {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    for (size_t at = 0; at < 50; ++at) {
      std::vector<float> x = random_row(50);
      x[at] = bad;
      std::vector<int8_t> codes(x.size());
      for_each_target([&] { CHECK(std::isnan(quantize_row(x, codes).scale)); });
    }
  }
}

TEST_CASE("and none where they are rotated, wherever in its block it is") {
  for (const size_t block : {2, 8, 16, 32, 64, 128, 256}) {
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      for (size_t at = 0; at < 2 * block; ++at) {
        std::vector<float> x = random_row(2 * block), y(x.size());
        x[at] = bad;
        std::vector<int8_t> codes(x.size());
        for_each_target([&] {
          RowCode code;
          quantize_rows(block, {x.data(), 1, x.size()}, y.data(), codes.data(), x.size(), &code);
          CHECK(std::isnan(code.scale));
        });
      }
    }
  }
}

TEST_CASE("a rotated row's codes mean its rotation") {
  for (const size_t block : {2, 16, 128, 512}) {
    const std::vector<float> x = random_row(3 * block);
    std::vector<float> rotated = x;
    scalar::hadamard(block, x.size(), rotated.data());
    for_each_target([&] {
      std::vector<float> y(x.size());
      std::vector<int8_t> codes(x.size());
      RowCode code;
      quantize_rows(block, {x.data(), 1, x.size()}, y.data(), codes.data(), x.size(), &code);
      for (size_t i = 0; i < x.size(); ++i) {
        const double back = (codes[i] - code.zero_point) * double{code.scale};
        CHECK(std::fabs(back - rotated[i]) <= code.scale * (1 + 255 * 4 * kRounding));
      }
    });
  }
}

TEST_CASE("every half survives the way to float and back") {
  std::vector<uint16_t> halves(65536);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  std::vector<float> expected(halves.size());
  scalar::from_f16(halves.data(), halves.size(), expected.data());
  for_each_target([&] {
    std::vector<float> floats(halves.size());
    std::vector<uint16_t> back(halves.size());
    from_f16(halves.data(), halves.size(), floats.data());
    to_f16(floats.data(), floats.size(), back.data());
    size_t wrong = 0;
    for (size_t i = 0; i < halves.size(); ++i) {
      const bool number = (i & 0x7c00) < 0x7c00, infinite = (i & 0x7fff) == 0x7c00;
      if (number || infinite) {
        wrong += std::bit_cast<uint32_t>(floats[i]) != std::bit_cast<uint32_t>(expected[i]);
        wrong += back[i] != (infinite ? i - 1 : i);  // infinity becomes the largest finite half
      } else {
        wrong += !std::isnan(floats[i]) || !std::isnan(expected[i]);
        wrong += (back[i] & 0x7c00) != 0x7c00 || (back[i] & 0x3ff) == 0;
      }
    }
    CHECK(wrong == 0);
  });
}

TEST_CASE("halves known by their definition come out so") {
  // IEEE 754 binary16: 1, the least normal and denormal, the largest, and ties on both sides of
  // even.
  const std::vector<float> x = {1.0f,         -0.0f,       0x1p-14f, 0x1p-24f, 0x1p-25f,
                                0x1.8p-24f,   65504.0f,    65520.0f, 1e30f,    -1e30f,
                                0x1.002p0f,   0x1.006p0f,  1e-40f,   -1e-40f,  0x3ffp-24f,
                                0x1.ffep-15f, 0x1.fffp-15f};
  const std::vector<uint16_t> expected = {0x3c00, 0x8000, 0x0400, 0x0001, 0x0000, 0x0002,
                                          0x7bff, 0x7bff, 0x7bff, 0xfbff, 0x3c00, 0x3c02,
                                          0x0000, 0x8000, 0x03ff, 0x0400, 0x0400};
  std::vector<uint16_t> y(x.size());
  scalar::to_f16(x.data(), x.size(), y.data());
  CHECK(y == expected);
  for_each_target([&] {
    to_f16(x.data(), x.size(), y.data());
    CHECK(y == expected);
  });
}

TEST_CASE("floats become the same halves as their twin makes, near every half and at every width") {
  std::vector<float> x;
  for (uint32_t bits = 0; bits < 0x7f800000; bits += 1021) {
    x.push_back(std::bit_cast<float>(bits));
    x.push_back(-x.back());
  }
  for (uint16_t half = 0; half < 0x7bff; ++half) {  // ties between neighbours, and just off them
    float pair[2];
    const uint16_t halves[2] = {half, static_cast<uint16_t>(half + 1)};
    scalar::from_f16(halves, 2, pair);
    const float tie = pair[0] + (pair[1] - pair[0]) / 2;
    x.insert(x.end(), {tie, std::nextafter(tie, 0.0f), std::nextafter(tie, 1e9f), -tie});
  }
  std::vector<uint16_t> expected(x.size());
  scalar::to_f16(x.data(), x.size(), expected.data());
  for_each_target([&] {
    std::vector<uint16_t> y(x.size());
    to_f16(x.data(), x.size(), y.data());
    CHECK(y == expected);
    for (size_t count = 0; count <= 70; ++count) {
      std::vector<uint16_t> few(count);
      to_f16(x.data(), count, few.data());
      CHECK(std::equal(few.begin(), few.end(), expected.begin()));
      std::vector<float> back(count);
      from_f16(few.data(), count, back.data());
      std::vector<float> expected_back(count);
      scalar::from_f16(few.data(), count, expected_back.data());
      CHECK(back == expected_back);
    }
  });
}

}  // namespace
}  // namespace volvelle
