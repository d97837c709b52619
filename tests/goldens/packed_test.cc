// Checkpoints of packed linears in four bits; their logits in f32 are those of goldens_test.cc.

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "kernels/quantize.h"
#include "tests/goldens/golden.h"

namespace volvelle {
namespace {

// Of a tensor and its dequantised weights: the largest distance of an element, in what bounds it. A
// bfloat16 is off by at most 2^-8 of itself, which counts up to 8 times without minima and up to 15
// times with them, and a minimum by half a step of int8.
float largest_distance(const Tensor& stored, const Tensor& meant) {
  REQUIRE(stored.rows == meant.rows);
  REQUIRE(stored.columns == meant.columns);
  const ThinWeights minima = stored.block_minima();
  std::vector<float> a(stored.columns), b(stored.columns);
  float largest = 0;
  for (size_t row = 0; row < stored.rows; ++row) {
    read_row(stored, row, a.data());
    read_row(meant, row, b.data());
    for (size_t i = 0; i < a.size(); ++i) {
      const uint16_t bits = stored.block_scales()[row * stored.blocks() + i / kQ4Block];
      const float scale = std::bit_cast<float>(uint32_t{bits} << 16);
      const float bound = minima.codes == nullptr ? 8 * 0x1p-8f * scale
                                                  : 15 * 0x1p-8f * scale + minima.scales[row] / 2;
      largest = std::max(largest, std::fabs(a[i] - b[i]) / bound);
    }
  }
  return largest;
}

TEST_CASE("packed linears keep their grid, but for the rounding of scales and minima") {
  for (const std::string folder : {"awq", "gptq", "gptq_v2"}) {
    CAPTURE(folder);
    const Golden golden = read_golden(folder);
    const auto exact = convert_to_model(golden.source, "f32");
    const auto model = convert_to_model(golden.source, "q4");
    size_t kept = 0;
    for (size_t i = 0; i < model->tensors().size(); ++i) {
      const Tensor& tensor = model->tensors()[i];
      if (tensor.type != TensorType::kQ4) continue;
      CAPTURE(tensor.name);
      // Groups that lie scattered can be gathered in the feed-forward's second linear alone.
      if (folder == "gptq_v2" && !tensor.name.ends_with("down.weight")) continue;
      CHECK(tensor.rotation == 1);
      CHECK(tensor.minima.bytes.empty() == (folder == "gptq"));
      CHECK(largest_distance(tensor, exact->tensors()[i]) <= 1.001f);
      ++kept;
    }
    CHECK(kept == (folder == "gptq_v2" ? 2 : 8));
  }
}

}  // namespace
}  // namespace volvelle
