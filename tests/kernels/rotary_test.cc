#include "kernels/rotary.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/kernels/sweep.h"

namespace volvelle {
namespace {

// A dial as the converter bakes it: frequencies formed in float, angle, cosine and sine in double.
struct BakedDial {
  std::vector<float> frequencies, coarse, fine;
  Dial dial;

  BakedDial(size_t coarse_rows, size_t fine_rows, size_t planes, float base = 10000) {
    for (size_t i = 0; i < planes; ++i) {
      const float exponent = static_cast<float>(2 * i) / static_cast<float>(2 * planes);
      frequencies.push_back(1.0f / std::pow(base, exponent));
    }
    coarse = bake(coarse_rows, fine_rows);
    fine = bake(fine_rows, 1);
    dial = {coarse.data(), fine.data(), coarse_rows, fine_rows, planes};
  }

  std::vector<float> bake(size_t rows, size_t step) const {
    std::vector<float> table;
    for (size_t row = 0; row < rows; ++row) {
      for (float f : frequencies) table.push_back(std::cos(double{f} * double(row * step)));
      for (float f : frequencies) table.push_back(std::sin(double{f} * double(row * step)));
    }
    return table;
  }
};

// The greatest distance of the rows of `positions` from long double's cosines and sines.
double worst_error(const BakedDial& baked, const std::vector<uint32_t>& positions) {
  const size_t planes = baked.dial.planes;
  std::vector<float> rows(positions.size() * 2 * planes);
  read_dial(baked.dial, positions, rows.data());
  long double worst = 0;
  for (size_t t = 0; t < positions.size(); ++t) {
    for (size_t i = 0; i < planes; ++i) {
      const long double angle = static_cast<long double>(baked.frequencies[i]) * positions[t];
      const float* row = rows.data() + t * 2 * planes;
      worst = std::max(worst, std::fabs(row[i] - std::cos(angle)));
      worst = std::max(worst, std::fabs(row[planes + i] - std::sin(angle)));
    }
  }
  return static_cast<double>(worst);
}

// The design's promise at every position. Each of the dials' four numbers is off by at most 2^-25,
// which adds up to sqrt(2) * 2^-24 over both rows, and product and sum round by 2^-24 or less: 2e-7
// covers it.
constexpr double kDialError = 2e-7;

TEST_CASE("a dial's row is within 2e-7 of the true angle, at landmarks and every seam") {
  for (const float base : {10000.0f, 500000.0f, 1000000.0f}) {
    const BakedDial baked(258, 512, 64, base);
    std::vector<uint32_t> positions = {0, 1, 2, 4095, 4096, 8191, 32767, 32768, 131000, 131071};
    for (uint32_t seam = 512; seam < baked.dial.positions(); seam += 512) {
      positions.insert(positions.end(), {seam - 1, seam, seam + 1});
    }
    for_each_target([&] { CHECK(worst_error(baked, positions) <= kDialError); });
  }
}

TEST_CASE("a dial's row is within 2e-7 of the true angle, whatever the number of planes") {
  for (size_t planes = 1; planes <= 70; ++planes) {
    const BakedDial baked(9, 7, planes);
    std::vector<uint32_t> positions(baked.dial.positions());
    for (size_t p = 0; p < positions.size(); ++p) positions[p] = static_cast<uint32_t>(p);
    for_each_target([&] { CHECK(worst_error(baked, positions) <= kDialError); });
  }
}

TEST_CASE("a dial of one coarse row is a flat table, given back to the bit") {
  const BakedDial baked(1, 100, 20);
  for_each_target([&] {
    std::vector<float> row(40);
    for (uint32_t p = 0; p < 100; ++p) {
      read_dial(baked.dial, std::vector<uint32_t>{p}, row.data());
      CHECK(std::equal(row.begin(), row.end(), baked.fine.begin() + p * 40));
    }
  });
}

TEST_CASE("reading a dial equals its twin") {
  const size_t planes = 1 + random_below(70);
  const BakedDial baked(11, 13, planes);
  std::vector<uint32_t> positions;
  for (int i = 0; i < 20; ++i) positions.push_back(random_below(11 * 13));
  std::vector<float> expected(positions.size() * 2 * planes);
  scalar::read_dial(baked.dial, positions, expected.data());
  for_each_target([&] {
    std::vector<float> rows(expected.size());
    read_dial(baked.dial, positions, rows.data());
    for (size_t i = 0; i < rows.size(); ++i) {
      // Two products and a sum of numbers up to 1, each rounded once; the twin rounds once more.
      CHECK(std::fabs(rows[i] - expected[i]) <= 4 * kRounding);
    }
  });
}

struct Turn {
  size_t tokens, heads, head_dim, planes, token_stride;
};

// Every width of head in which a tail could hide, wholly and partly rotated, rows close together or
// apart.
std::vector<Turn> turns() {
  std::vector<Turn> all;
  for (const size_t head_dim : {2, 3, 4, 12, 20, 33, 64, 80, 128, 256}) {
    for (const size_t planes : {size_t{1}, head_dim / 8, head_dim / 4, head_dim / 2}) {
      if (planes == 0) continue;
      const size_t heads = 1 + random_below(4);
      all.push_back({1 + random_below(5), heads, head_dim, planes, heads * head_dim});
      all.push_back({3, heads, head_dim, planes, heads * head_dim + 7});
    }
  }
  for (size_t planes = 1; planes <= 70; ++planes) {
    all.push_back({2, 2, 2 * planes + planes % 3, planes, 2 * (2 * planes + planes % 3)});
  }
  return all;
}

TEST_CASE("a rotation equals its twin and leaves the elements past its width alone") {
  for (const Turn& turn : turns()) {
    for (const Pairing pairing : {Pairing::kHalf, Pairing::kInterleaved}) {
      CAPTURE(turn.head_dim);
      CAPTURE(turn.planes);
      const HeadShape shape = {turn.tokens, turn.heads, turn.head_dim, turn.token_stride};
      const std::vector<float> rows = random_row(turn.tokens * 2 * turn.planes);
      const std::vector<float> x =
          random_row((turn.tokens - 1) * turn.token_stride + turn.heads * turn.head_dim);
      std::vector<float> expected = x;
      scalar::rotate(expected.data(), shape, pairing, turn.planes, rows.data());
      for_each_target([&] {
        std::vector<float> y = x;
        rotate(y.data(), shape, pairing, turn.planes, rows.data());
        double worst = 0;
        for (size_t i = 0; i < y.size(); ++i) {
          worst = std::max(worst, std::fabs(double{y[i]} - expected[i]));
        }
        // Products up to 1 and a sum up to 2, each rounded once; the twin rounds once more.
        CHECK(worst <= 6 * kRounding);
        for (size_t i = 0; i < turn.tokens * turn.heads; ++i) {
          const size_t end = i / turn.heads * turn.token_stride + i % turn.heads * turn.head_dim;
          for (size_t e = 2 * turn.planes; e < turn.head_dim; ++e) CHECK(y[end + e] == x[end + e]);
        }
      });
    }
  }
}

TEST_CASE("a rotation preserves the length of every head") {
  const size_t head_dim = 128, tokens = 50;
  const BakedDial baked(258, 512, head_dim / 2);
  std::vector<uint32_t> positions;
  for (size_t t = 0; t < tokens; ++t) positions.push_back(random_below(baked.dial.positions()));
  std::vector<float> rows(tokens * head_dim);
  const std::vector<float> x = random_row(tokens * head_dim);
  const auto length = [&](const std::vector<float>& v, size_t token) {
    double squares = 0;
    for (size_t i = 0; i < head_dim; ++i) squares += std::pow(v[token * head_dim + i], 2.0);
    return std::sqrt(squares);
  };
  for_each_target([&] {
    read_dial(baked.dial, positions, rows.data());
    for (const Pairing pairing : {Pairing::kHalf, Pairing::kInterleaved}) {
      std::vector<float> y = x;
      rotate(y.data(), {tokens, 1, head_dim, head_dim}, pairing, head_dim / 2, rows.data());
      for (size_t t = 0; t < tokens; ++t) {
        // A row's cosine and sine are off by kDialError at most, so its length by sqrt 2 times
        // that; then rounding.
        CHECK(std::fabs(length(y, t) / length(x, t) - 1) <= 1.5 * kDialError + 2 * kRounding);
      }
    }
  });
}

TEST_CASE("half and interleaved pairing are one rotation of differently ordered elements") {
  const size_t planes = 37;
  const std::vector<float> rows = random_row(2 * planes);
  const std::vector<float> half = random_row(2 * planes);
  for_each_target([&] {
    std::vector<float> a = half, b(2 * planes);
    for (size_t i = 0; i < planes; ++i) b[2 * i] = half[i], b[2 * i + 1] = half[planes + i];
    rotate(a.data(), {1, 1, 2 * planes, 2 * planes}, Pairing::kHalf, planes, rows.data());
    rotate(b.data(), {1, 1, 2 * planes, 2 * planes}, Pairing::kInterleaved, planes, rows.data());
    for (size_t i = 0; i < planes; ++i) {
      // The last planes may be computed with and without fused products: the twin's bound.
      CHECK(std::fabs(a[i] - b[2 * i]) <= 6 * kRounding);
      CHECK(std::fabs(a[planes + i] - b[2 * i + 1]) <= 6 * kRounding);
    }
  });
}

}  // namespace
}  // namespace volvelle
