// Linears against the products that the file's own weights spell, whatever form they are stored in.

#include "runtime/linear.h"

#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/hadamard.h"
#include "kernels/quantize.h"
#include "tests/goldens/golden.h"

namespace volvelle {
namespace {

struct Forms {
  size_t rotated = 0, with_minima = 0, float_weights = 0;
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
    REQUIRE(op->run(x.data(), rows, y.data(), *scratch, pool).has_value());
    for (size_t r = 0; r < rows; ++r) {
      std::vector<float> turned(x.begin() + r * inputs, x.begin() + (r + 1) * inputs);
      scalar::hadamard(weight.rotation, inputs, turned.data());
      std::vector<int8_t> codes(inputs);
      const RowCode code = scalar::quantize_activations(turned.data(), inputs, codes.data());
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
        if (!(std::fabs(y[r * outputs + n] - expected) <= off * std::sqrt(size) + 1e-7)) ++wrong;
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("a linear multiplies by what the file's weights mean, in every form and for any rows") {
  ThreadPool pool = *ThreadPool::make(2);
  Forms forms;
  for (const char* source : {"llama_wide_heads_biases", "llama_odd_widths", "stablelm",
                             "gguf_llama_256_blocks/model.gguf", "bert_classify"}) {
    for (const char* weights : {"f32", "q8", "q4"}) {
      CAPTURE(source);
      CAPTURE(weights);
      const auto model = convert_to_model(std::string("tests/goldens/") + source, weights);
      model->for_each_linear(
          [&](const Linear& linear, double) { check_linear(*model, linear, pool, forms); });
    }
  }
  CHECK(forms.rotated > 0);
  CHECK(forms.with_minima > 0);
  CHECK(forms.float_weights > 0);
}

}  // namespace
}  // namespace volvelle
