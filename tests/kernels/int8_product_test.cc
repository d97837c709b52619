#include "kernels/int8_product.h"

#include <doctest/doctest.h>

#include <cmath>
#include <memory>
#include <new>
#include <vector>

#include "tests/kernels/sweep.h"

namespace volvelle {
namespace {

struct AlignedDelete {
  void operator()(void* p) const { ::operator delete(p, std::align_val_t(64)); }
};

// A random matrix with its panels, and rows of codes for it.
struct Product {
  std::vector<int8_t> weights;
  std::vector<float> scales, bias;
  std::vector<uint8_t> codes;
  std::vector<RowCode> means;
  std::unique_ptr<void, AlignedDelete> panels;
  Int8Matrix matrix;
  size_t rows;

  Product(size_t outputs, size_t inputs, size_t row_count, bool biased)
      : weights(outputs * inputs),
        scales(random_row(outputs, 0.001f, 0.1f)),
        bias(biased ? random_row(outputs, -5, 5) : std::vector<float>()),
        codes(row_count * inputs),
        rows(row_count) {
    for (int8_t& weight : weights) weight = static_cast<int8_t>(random_below(255) - 127);
    for (uint8_t& code : codes) code = static_cast<uint8_t>(random_below(256));
    for (size_t r = 0; r < rows; ++r) {
      means.push_back({static_cast<int32_t>(random_below(256)), random_row(1, 0.001f, 1)[0]});
    }
    matrix = {.inputs = inputs, .outputs = outputs};
    panels.reset(::operator new(matrix.bytes(), std::align_val_t(64)));
    pack_int8(matrix, weights.data(), scales.data(), biased ? bias.data() : nullptr, panels.get());
    matrix.panels = panels.get();
  }

  template <class Multiply>
  std::vector<float> multiply(const Multiply& function) const {
    std::vector<float> y(rows * matrix.outputs, NAN);
    for (size_t panel = matrix.panel_count(); panel-- > 0;) {
      function(matrix, panel, codes.data(), means.data(), rows, y.data());
    }
    return y;
  }

  // In doubles, from the matrix as it was before it was packed.
  double exact(size_t row, size_t output) const {
    double sum = 0;
    for (size_t i = 0; i < matrix.inputs; ++i) {
      sum += double(codes[row * matrix.inputs + i] - means[row].zero_point) *
             weights[output * matrix.inputs + i];
    }
    return sum * scales[output] * means[row].scale + (bias.empty() ? 0 : bias[output]);
  }
};

TEST_CASE("an int8 product is the sum of its products, whatever the rows, inputs and outputs") {
  for (const size_t outputs : {1, 15, 16, 17, 47, 48, 49, 100, 144}) {
    for (const size_t inputs : {4, 8, 60, 384}) {
      for (const size_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 19}) {
        CAPTURE(outputs);
        CAPTURE(inputs);
        CAPTURE(rows);
        const Product product(outputs, inputs, rows, (outputs + inputs + rows) % 2 == 0);
        const std::vector<float> twin = product.multiply(scalar::multiply_int8);
        for_each_target([&] {
          const std::vector<float> y = product.multiply(multiply_int8);
          double worst = 0, from_twin = 0;  // in units of what is allowed
          for (size_t i = 0; i < y.size(); ++i) {
            const double exact = product.exact(i / outputs, i % outputs);
            const double bias = product.bias.empty() ? 0 : std::fabs(product.bias[i % outputs]);
            // Roundings of the sum to a float, of the two scales' product, of the product with it
            // and of the bias' addition.
            const double allowed = (4 * (std::fabs(exact) + bias) + 1e-30) * kRounding;
            worst = std::max(worst, std::fabs(y[i] - exact) / allowed);
            from_twin = std::max(from_twin, std::fabs(double{y[i]} - twin[i]) / allowed);
          }
          CHECK(worst <= 1);
          CHECK(from_twin <= 1);
        });
      }
    }
  }
}

TEST_CASE("a row's int8 products are the same to the bit whatever rows go with it") {
  const Product product(97, 64, 21, true);
  for_each_target([&] {
    const std::vector<float> all = product.multiply(multiply_int8);
    for (size_t row = 0; row < product.rows; ++row) {
      std::vector<float> alone(97);
      for (size_t panel = 0; panel < product.matrix.panel_count(); ++panel) {
        multiply_int8(product.matrix, panel, product.codes.data() + row * 64,
                      product.means.data() + row, 1, alone.data());
      }
      CHECK(std::equal(alone.begin(), alone.end(), all.begin() + row * 97));
    }
  });
}

TEST_CASE(
    "an int8 product of extreme codes and many inputs is exact, and one of no number is none") {
  // 255 * 127 * 16384 is below 2^31.
  Product product(17, 16384, 3, false);
  std::fill(product.weights.begin(), product.weights.end(), int8_t{-127});
  pack_int8(product.matrix, product.weights.data(), product.scales.data(), nullptr,
            product.panels.get());
  std::fill(product.codes.begin(), product.codes.end(), uint8_t{255});
  product.means = {{0, 1}, {255, 1}, {0, NAN}};
  for_each_target([&] {
    const std::vector<float> y = product.multiply(multiply_int8);
    for (size_t o = 0; o < 17; ++o) {
      CHECK(y[o] == doctest::Approx(product.exact(0, o)).epsilon(4 * kRounding));
      CHECK(y[17 + o] == 0);
      CHECK(std::isnan(y[34 + o]));
    }
  });
}

}  // namespace
}  // namespace volvelle
