#include "kernels/int4_product.h"

#include <doctest/doctest.h>

#include <bit>
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

float float_of(uint16_t bfloat16) { return std::bit_cast<float>(uint32_t{bfloat16} << 16); }

// A random matrix with its panels, and rows of codes for it.
struct Product {
  std::vector<uint8_t> weights;  // [outputs, inputs / 2]
  std::vector<uint16_t> scales;  // [outputs, blocks]
  std::vector<float> bias;
  std::vector<int8_t> codes;
  std::vector<int32_t> starts;
  std::vector<RowCode> means;
  std::unique_ptr<void, AlignedDelete> panels;
  Int4Matrix matrix;
  size_t rows;

  Product(size_t outputs, size_t blocks, size_t row_count, bool biased)
      : weights(outputs * blocks * kQ4Block / 2),
        bias(biased ? random_row(outputs, -5, 5) : std::vector<float>()),
        codes(row_count * blocks * kQ4Block),
        starts(row_count * blocks),
        rows(row_count) {
    for (uint8_t& two : weights) two = static_cast<uint8_t>(random_below(256));
    for (int8_t& code : codes) code = static_cast<int8_t>(random_below(256));
    for (const float scale : random_row(outputs * blocks, 0.001f, 0.1f)) {
      scales.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(scale) >> 16));
    }
    for (size_t r = 0; r < rows; ++r) {
      means.push_back({static_cast<int32_t>(random_below(256)) - 128, random_row(1, 0.001f, 1)[0]});
      scalar::start_blocks(codes.data() + r * blocks * kQ4Block, blocks, &starts[r * blocks]);
    }
    matrix = {.inputs = blocks * kQ4Block, .outputs = outputs};
    panels.reset(::operator new(matrix.bytes(), std::align_val_t(64)));
    pack_int4(matrix, weights.data(), scales.data(), biased ? bias.data() : nullptr, panels.get());
    matrix.panels = panels.get();
  }

  template <class Multiply>
  std::vector<float> multiply(const Multiply& function) const {
    std::vector<float> y(rows * matrix.outputs, NAN);
    for (size_t panel = matrix.panel_count(); panel-- > 0;) {
      function(matrix, panel, codes.data(), starts.data(), means.data(), rows, y.data());
    }
    return y;
  }

  struct Exact {
    double value = 0, size = 0;  // the latter of the magnitudes that are summed
  };

  // In doubles, from the matrix as it was before it was packed.
  Exact exact(size_t row, size_t output) const {
    Exact result;
    for (size_t i = 0; i < matrix.inputs; ++i) {
      const size_t at = output * matrix.inputs + i;
      const double weight =
          ((weights[at / 2] >> (at % 2 * 4) & 15) - 8) * double{float_of(scales[at / kQ4Block])};
      result.value += (codes[row * matrix.inputs + i] - means[row].zero_point) * weight;
      result.size += (std::abs(codes[row * matrix.inputs + i]) + std::abs(means[row].zero_point)) *
                     std::fabs(weight);
    }
    const double offset = bias.empty() ? 0 : bias[output];
    return {result.value * means[row].scale + offset,
            result.size * means[row].scale + std::fabs(offset)};
  }
};

TEST_CASE("a four-bit product is the sum of its products, whatever the rows, inputs and outputs") {
  for (const size_t outputs : {1, 15, 16, 17, 47, 48, 49, 100}) {
    for (const size_t blocks : {1, 2, 3, 18}) {
      for (const size_t rows : {1, 2, 3, 4, 5, 7, 8, 9}) {
        CAPTURE(outputs);
        CAPTURE(blocks);
        CAPTURE(rows);
        const Product product(outputs, blocks, rows, (outputs + blocks + rows) % 2 == 0);
        const std::vector<float> twin = product.multiply(scalar::multiply_int4);
        for_each_target([&] {
          const std::vector<float> y = product.multiply(multiply_int4);
          CHECK(y == twin);  // both round once for each block, and in the same order
          double worst = 0;  // in units of what is allowed
          for (size_t i = 0; i < y.size(); ++i) {
            const auto [exact, size] = product.exact(i / outputs, i % outputs);
            // Each block's addition rounds, those of the sums' product and of the bias, and the
            // sums themselves.
            const double allowed = (static_cast<double>(blocks) + 4) * size * kRounding + 1e-30;
            worst = std::max(worst, std::fabs(y[i] - exact) / allowed);
          }
          CHECK(worst <= 1);
        });
      }
    }
  }
}

TEST_CASE("a row's four-bit products are the same to the bit whatever rows go with it") {
  const Product product(97, 4, 11, true);
  for_each_target([&] {
    const std::vector<float> all = product.multiply(multiply_int4);
    for (size_t row = 0; row < product.rows; ++row) {
      std::vector<float> alone(97);
      for (size_t panel = 0; panel < product.matrix.panel_count(); ++panel) {
        multiply_int4(product.matrix, panel, product.codes.data() + row * 128,
                      product.starts.data() + row * 4, product.means.data() + row, 1, alone.data());
      }
      CHECK(std::equal(alone.begin(), alone.end(), all.begin() + static_cast<long>(row) * 97));
    }
  });
}

TEST_CASE("what blocks start with is -8 times the sum of their codes, extreme ones too") {
  std::vector<int8_t> codes(5 * kQ4Block);
  for (int8_t& code : codes) code = static_cast<int8_t>(random_below(256));
  std::fill_n(codes.begin(), kQ4Block, int8_t{-128});
  std::fill_n(codes.begin() + kQ4Block, kQ4Block, int8_t{127});
  std::vector<int32_t> expected(5);
  scalar::start_blocks(codes.data(), 5, expected.data());
  CHECK(expected[0] == 8 * 128 * 32);
  CHECK(expected[1] == -8 * 127 * 32);
  for_each_target([&] {
    std::vector<int32_t> starts(5);
    start_blocks(codes.data(), 5, starts.data());
    CHECK(starts == expected);
  });
}

TEST_CASE("a four-bit product of activations that are no number is none") {
  Product product(17, 2, 2, false);
  product.means[1].scale = NAN;
  for_each_target([&] {
    const std::vector<float> y = product.multiply(multiply_int4);
    for (size_t o = 0; o < 17; ++o) CHECK(std::isnan(y[17 + o]));
  });
}

}  // namespace
}  // namespace volvelle
