// Rounding with compensation, against dense algebra in double precision.

#include "converter/quantize/compensation.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "converter/quantize/outer_products.h"
#include "converter/quantize/q4.h"

namespace volvelle {
namespace {

using Matrix = std::vector<double>;  // square, row by row

std::vector<float> random_floats(size_t count, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// Sums of x_i x_j over rows whose columns depend on each other.
std::vector<float> random_moments(size_t columns, std::mt19937& random) {
  const size_t rows = 3 * columns;
  std::vector<float> x = random_floats(rows * columns, random), moments(columns * columns);
  for (size_t r = 0; r < rows; ++r) {
    for (size_t i = 1; i < columns; ++i) x[r * columns + i] += 0.8f * x[r * columns + i - 1];
  }
  add_outer_products({x.data(), columns}, {x.data(), columns}, rows, columns, columns,
                     {moments.data(), columns});
  return moments;
}

// What compensate makes of moments before it takes them apart: see its declaration.
Matrix damped(const std::vector<float>& moments, size_t columns, double damping) {
  Matrix result(moments.begin(), moments.end());
  double mean = 0;
  for (size_t i = 0; i < columns; ++i) mean += result[i * columns + i] / columns;
  for (size_t i = 0; i < columns; ++i) {
    double& element = result[i * columns + i];
    element += std::max(0.01 * element, damping * mean);
  }
  return result;
}

// Gauss-Jordan; the matrix is positive definite.
Matrix inverse(Matrix a, size_t n) {
  Matrix b(n * n);
  for (size_t i = 0; i < n; ++i) b[i * n + i] = 1;
  for (size_t k = 0; k < n; ++k) {
    const double pivot = a[k * n + k];
    for (size_t j = 0; j < n; ++j) a[k * n + j] /= pivot, b[k * n + j] /= pivot;
    for (size_t i = 0; i < n; ++i) {
      const double factor = a[i * n + k];
      if (i == k || factor == 0) continue;
      for (size_t j = 0; j < n; ++j) {
        a[i * n + j] -= factor * a[k * n + j];
        b[i * n + j] -= factor * b[k * n + j];
      }
    }
  }
  return b;
}

double bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

struct Rounded {
  std::vector<uint8_t> codes;
  std::vector<uint16_t> scales;
  std::vector<int8_t> minima;
  std::vector<float> minimum_scales;
  double cost = 0;
  size_t blocks = 0;

  int code(size_t row, size_t column) const {
    const size_t at = row * blocks * kQ4Block + column;
    return (codes[at / 2] >> (at % 2 * 4) & 15) - 8;
  }
  double scale(size_t row, size_t column) const {
    return bf16(scales[row * blocks + column / kQ4Block]);
  }
  double minimum(size_t row, size_t column) const {
    if (minima.empty()) return 0;
    return minima[row * blocks + column / kQ4Block] * double{minimum_scales[row]};
  }
  double value(size_t row, size_t column) const {
    return code(row, column) * scale(row, column) + minimum(row, column);
  }
};

Rounded round_rows(const std::vector<float>& x, size_t rows, size_t columns,
                   const Compensation& compensation, bool with_minima) {
  Rounded result;
  result.blocks = q4_blocks(columns);
  result.codes.resize(rows * result.blocks * kQ4Block / 2);
  result.scales.resize(rows * result.blocks);
  if (with_minima) result.minima.resize(rows * result.blocks), result.minimum_scales.resize(rows);
  const auto cost = quantize_q4_rows_compensated(
      x.data(), rows, columns, compensation, result.codes.data(), result.scales.data(),
      with_minima ? result.minima.data() : nullptr, result.minimum_scales.data());
  REQUIRE(cost.has_value());
  result.cost = *cost;
  return result;
}

// (w - q) H (w - q)' over all rows.
double cost_of(const std::vector<float>& x, const Rounded& rounded, size_t rows, size_t columns,
               const Matrix& moments) {
  double cost = 0;
  std::vector<double> error(columns);
  for (size_t r = 0; r < rows; ++r) {
    for (size_t i = 0; i < columns; ++i) error[i] = x[r * columns + i] - rounded.value(r, i);
    for (size_t i = 0; i < columns; ++i) {
      for (size_t j = 0; j < columns; ++j) cost += error[i] * error[j] * moments[i * columns + j];
    }
  }
  return cost;
}

TEST_CASE("sums of outer products are those of plain loops, for any shape") {
  std::mt19937 random(1);
  for (const size_t depth : {1, 3, 32, 300}) {
    for (const size_t rows : {1, 4, 7, 70}) {
      for (const size_t columns : {1, 15, 16, 31, 33, 70}) {
        const size_t a_stride = rows + 1, b_stride = columns + 2, c_stride = columns + 3;
        const std::vector<float> a = random_floats(depth * a_stride, random);
        const std::vector<float> b = random_floats(depth * b_stride, random);
        const std::vector<float> before = random_floats(rows * c_stride, random);
        std::vector<float> c = before;
        add_outer_products({a.data(), a_stride}, {b.data(), b_stride}, depth, rows, columns,
                           {c.data(), c_stride});
        size_t wrong = 0;
        for (size_t i = 0; i < rows; ++i) {
          for (size_t j = 0; j < c_stride; ++j) {
            double expected = before[i * c_stride + j], size = std::fabs(expected);
            for (size_t k = 0; k < depth && j < columns; ++k) {
              const double product = double{a[k * a_stride + i]} * b[k * b_stride + j];
              expected += product, size += std::fabs(product);
            }
            // Each of the sums rounds once or twice, by at most half of 2^-23 of what it has.
            wrong += std::fabs(c[i * c_stride + j] - expected) >
                     static_cast<double>(depth) * 0x1p-23 * size;
          }
        }
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("moments are taken apart into a unit triangle and a diagonal") {
  std::mt19937 random(2);
  const ThreadPool threads = *ThreadPool::make(2);
  for (const size_t n : {1, 5, 32, 33, 96, 130}) {
    CAPTURE(n);
    const std::vector<float> moments = random_moments(n, random);
    const Compensation parts = compensate(moments, n, 0.02f, threads);
    const Matrix expected = damped(moments, n, 0.02f);
    double worst = 0, largest = 0;
    const auto triangle = [&](size_t i, size_t k) {
      return i == k ? 1.0 : i < k ? double{parts.feedback[i * n + k]} : 0.0;
    };
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j <= i; ++j) {
        double product = 0;
        for (size_t k = 0; k < n; ++k) product += triangle(i, k) * parts.worth[k] * triangle(j, k);
        worst = std::max(worst, std::fabs(product - expected[i * n + j]));
        largest = std::max(largest, std::fabs(expected[i * n + j]));
      }
    }
    // Higham 2002, theorem 10.3: each element is off by at most n + 1 roundings of the diagonal's
    // size.
    CHECK(worst <= static_cast<double>(n + 1) * 0x1p-24 * largest);
  }
}

TEST_CASE("codes are those of a dense step with the inverse of the moments") {
  // Frantar et al. 2022, algorithm 1, column by column, with the scales and minima that were found.
  std::mt19937 random(3);
  const ThreadPool threads = *ThreadPool::make(1);
  for (const size_t columns : {32, 64, 100}) {
    for (const bool with_minima : {false, true}) {
      CAPTURE(columns);
      CAPTURE(with_minima);
      const size_t rows = 21;
      const std::vector<float> moments = random_moments(columns, random);
      const std::vector<float> x = random_floats(rows * columns, random);
      const Rounded rounded =
          round_rows(x, rows, columns, compensate(moments, columns, 0.01f, threads), with_minima);
      const Matrix h = damped(moments, columns, 0.01f);
      size_t different = 0, undecided = 0;
      for (size_t r = 0; r < rows; ++r) {
        std::vector<double> w(x.begin() + r * columns, x.begin() + (r + 1) * columns);
        // The inverse of what is left of H once the columns before are fixed.
        Matrix left = inverse(h, columns);
        for (size_t j = 0; j < columns; ++j) {
          const double scale = rounded.scale(r, j), minimum = rounded.minimum(r, j);
          const double step = (w[j] - minimum) / scale;
          const double code = std::clamp(std::nearbyint(step), -8.0, 7.0);
          if (code != rounded.code(r, j)) {
            // Float sums decide near the middle between two steps; what follows is another path.
            CHECK(std::fabs(step - (code + rounded.code(r, j)) / 2) < 1e-3);
            ++undecided;
            break;
          }
          const double error = (w[j] - (code * scale + minimum)) / left[j * columns + j];
          for (size_t k = j + 1; k < columns; ++k) w[k] -= error * left[j * columns + k];
          const Matrix before = left;
          for (size_t i = j; i < columns; ++i) {
            for (size_t k = j; k < columns; ++k) {
              left[i * columns + k] -=
                  before[i * columns + j] * before[j * columns + k] / before[j * columns + j];
            }
          }
          different += code != rounded.code(r, j);
        }
      }
      CHECK(different == 0);
      CHECK(undecided <= 1);
    }
  }
}

TEST_CASE("the cost that is told is the error's, and less than nearest rounding's") {
  std::mt19937 random(4);
  const ThreadPool threads = *ThreadPool::make(2);
  constexpr size_t kRows = 37, kColumns = 160;
  const std::vector<float> moments = random_moments(kColumns, random);
  const std::vector<float> x = random_floats(kRows * kColumns, random);
  const Compensation compensation = compensate(moments, kColumns, 0.01f, threads);
  const Matrix h = damped(moments, kColumns, 0.01f);
  double plain_cost = 0;
  {
    Rounded nearest;
    nearest.blocks = q4_blocks(kColumns);
    nearest.codes.resize(kRows * kColumns / 2);
    nearest.scales.resize(kRows * nearest.blocks);
    REQUIRE(quantize_q4_rows(x.data(), kRows, kColumns, nearest.codes.data(), nearest.scales.data())
                .has_value());
    plain_cost = cost_of(x, nearest, kRows, kColumns, h);
  }
  const Rounded rounded = round_rows(x, kRows, kColumns, compensation, false);
  const double cost = cost_of(x, rounded, kRows, kColumns, h);
  CHECK(std::fabs(rounded.cost - cost) <= 1e-3 * cost);
  // Neighbours share 0.8 / sqrt(1 + 0.64) of their variance: far more than a quarter can be made
  // up.
  CHECK(cost < 0.75 * plain_cost);
  const Rounded with_minima = round_rows(x, kRows, kColumns, compensation, true);
  CHECK(std::fabs(with_minima.cost - cost_of(x, with_minima, kRows, kColumns, h)) <=
        1e-3 * with_minima.cost);
  CHECK(with_minima.cost < cost);
}

TEST_CASE("rows of zeros and tiny rows keep scales that are normal") {
  const ThreadPool threads = *ThreadPool::make(1);
  constexpr size_t kColumns = 40;
  std::mt19937 random(5);
  const Compensation compensation =
      compensate(random_moments(kColumns, random), kColumns, 0.01f, threads);
  for (const float size : {0.0f, 0x1p-140f, 0x1p-120f, 0x1p120f}) {
    std::vector<float> x = random_floats(kColumns, random);
    for (float& value : x) value *= size;
    for (const bool with_minima : {false, true}) {
      const Rounded rounded = round_rows(x, 1, kColumns, compensation, with_minima);
      for (const uint16_t scale : rounded.scales) {
        CHECK(bf16(scale) >= 0x1p-126);
        CHECK(std::isfinite(bf16(scale)));
      }
      for (size_t i = 0; i < kColumns; ++i) {
        if (size == 0) CHECK(rounded.value(0, i) == 0);
      }
    }
  }
}

}  // namespace
}  // namespace volvelle
