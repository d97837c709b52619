// Linears against the products that the file's own weights spell, whatever form they are stored in.

#include "runtime/linear.h"

#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/quantize.h"
#include "runtime/file_format.h"
#include "tests/goldens/golden.h"

namespace volvelle {
namespace {

struct Forms {
  size_t rotated = 0, with_minima = 0, float_weights = 0, with_side_columns = 0;
};

// Each output may differ from weight * x + bias by what rounding x to int8 does, where the operator
// does that: |weight| times the rounded row's distance, in Euclidean length.
void check_linear(const Model& model, const Linear& linear, ThreadPool& pool, Forms& forms) {
  const Tensor& weight = *linear.weight;
  CAPTURE(weight.name);
  const size_t inputs = linear.inputs(), outputs = linear.outputs();
  forms.rotated += weight.rotation > 1;
  forms.with_minima += weight.block_minima().codes != nullptr;
  forms.float_weights += weight.type == TensorType::kF32;
  forms.with_side_columns += !weight.side_columns.empty();
  PackedWeights packed;
  auto op = LinearOperator::make(model, linear, packed);
  REQUIRE(op.has_value());
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const size_t rows : {1, 2, 5, 16, 19}) {
    CAPTURE(rows);
    const auto scratch = LinearScratch::make(rows, weight.padded_columns(), pool.threads());
    REQUIRE(scratch.has_value());
    std::vector<float> x(rows * inputs + 16), y(rows * outputs + 16), w(inputs);
    for (float& value : x) value = normal(random);
    for (size_t r = 0; r < rows; ++r) {
      for (const uint32_t column : weight.side_columns) x[r * inputs + column] *= 1000;
    }
    REQUIRE(op->run(x.data(), rows, y.data(), *scratch, pool).has_value());
    for (size_t r = 0; r < rows; ++r) {
      std::vector<float> turned(x.begin() + r * inputs, x.begin() + (r + 1) * inputs);
      for (const uint32_t column : weight.side_columns) turned[column] = 0;
      std::vector<int8_t> codes(inputs);
      RowCode code;
      std::vector<float> scratch_row(inputs);
      scalar::quantize_rows(weight.rotation, {turned.data(), 1, inputs}, scratch_row.data(),
                            codes.data(), inputs, &code);
      scalar::hadamard(weight.rotation, inputs, turned.data());
      double distance = 0, length = 0;
      for (size_t i = 0; i < inputs; ++i) {
        const double back = (codes[i] - code.zero_point) * double{code.scale};
        distance += (back - turned[i]) * (back - turned[i]);
        length += double{turned[i]} * turned[i];
      }
      // Beside it, sums of floats in another order: 1e-5 of the products' size.
      const double off =
          (weight.type == TensorType::kF32 ? 0 : std::sqrt(distance)) + 1e-5 * std::sqrt(length);
      size_t wrong = 0;
      for (size_t n = 0; n < outputs; ++n) {
        read_row(weight, n, w.data());
        double expected = linear.bias ? linear.bias[n] : 0.0, size = 0;
        for (size_t i = 0; i < inputs; ++i) {
          expected += double{w[i]} * x[r * inputs + i];
          size += double{w[i]} * w[i];
        }
        // What is not rounded is a sum of floats as well.
        double beside = 0;
        for (const uint32_t column : weight.side_columns) {
          beside += std::fabs(double{w[column]} * x[r * inputs + column]);
        }
        if (!(std::fabs(y[r * outputs + n] - expected) <=
              off * std::sqrt(size) + 1e-6 * beside + 1e-7)) {
          ++wrong;
        }
      }
      CHECK(wrong == 0);
    }
  }
}

// The linear with weights of their own for a few columns, as a file may have them. Their inputs are
// large: rounded with the others, they would miss the bound of check_linear many times over.
class WithSideColumns {
 public:
  explicit WithSideColumns(const Linear& linear) : weight_(*linear.weight), linear_(linear) {
    std::mt19937 random(2);
    for (const size_t column : {size_t{0}, weight_.columns / 2, weight_.columns - 1}) {
      columns_.push_back(static_cast<uint32_t>(column));
    }
    codes_.resize(columns_.size() * weight_.rows);
    for (int8_t& code : codes_) code = static_cast<int8_t>(random() % 255 - 127);
    for (size_t row = 0; row < weight_.rows; ++row) scales_.push_back(1e-3f * (1 + row % 7));
    weight_.side_columns = columns_;
    weight_.side = view(std::as_bytes(std::span(codes_)));
    weight_.side_scales = view(std::as_bytes(std::span(scales_)));
    linear_.weight = &weight_;
  }

  const Linear& linear() const { return linear_; }

 private:
  static SegmentView view(std::span<const std::byte> bytes) {
    return {.bytes = bytes, .checksum = checksum(bytes)};
  }

  Tensor weight_;
  Linear linear_;
  std::vector<uint32_t> columns_;
  std::vector<int8_t> codes_;
  std::vector<float> scales_;
};

TEST_CASE("a linear multiplies by what the file's weights mean, in every form and for any rows") {
  ThreadPool pool = *ThreadPool::make(2);
  Forms forms;
  for (const char* source : {"llama_wide_heads_biases", "llama_odd_widths", "stablelm",
                             "gguf_llama_256_blocks/model.gguf", "bert_classify"}) {
    for (const char* weights : {"f32", "q8", "q4"}) {
      CAPTURE(source);
      CAPTURE(weights);
      const auto model = convert_to_model(std::string("tests/goldens/") + source, weights);
      model->for_each_linear([&](const Linear& linear, double) {
        check_linear(*model, linear, pool, forms);
        if (linear.weight->type == TensorType::kF32 || linear.inputs() < 4) return;
        check_linear(*model, WithSideColumns(linear).linear(), pool, forms);
      });
    }
  }
  CHECK(forms.rotated > 0);
  CHECK(forms.with_minima > 0);
  CHECK(forms.float_weights > 0);
  CHECK(forms.with_side_columns > 0);
}

}  // namespace
}  // namespace volvelle
