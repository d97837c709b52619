#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/int4_product.h"

namespace volvelle::scalar {

void start_blocks(const int8_t* codes, size_t blocks, int32_t* starts) {
  for (size_t b = 0; b < blocks; ++b) {
    int32_t sum = 0;
    for (size_t i = 0; i < kQ4Block; ++i) sum += codes[b * kQ4Block + i];
    starts[b] = -8 * sum;
  }
}

void multiply_int4(const Int4Matrix& matrix, size_t panel, const int8_t* codes,
                   const int32_t* starts, const RowCode* means, size_t rows, float* y) {
  const auto* at = static_cast<const uint8_t*>(matrix.panels) + panel * matrix.panel_bytes();
  const auto* const sums =
      reinterpret_cast<const float*>(at + matrix.blocks() * Int4Matrix::kBlockBytes);
  const float* const biases = sums + kPanelOutputs;
  const size_t first = panel * kPanelOutputs;
  const size_t outputs = std::min(kPanelOutputs, matrix.outputs - first);
  for (size_t r = 0; r < rows; ++r) {
    for (size_t o = 0; o < outputs; ++o) {
      float total = 0;
      for (size_t b = 0; b < matrix.blocks(); ++b) {
        const uint8_t* const weights = at + b * Int4Matrix::kBlockBytes;
        const auto* const scales =
            reinterpret_cast<const uint16_t*>(weights + Int4Matrix::kCodeBytes);
        int32_t sum = starts[r * matrix.blocks() + b];
        for (size_t i = 0; i < kQ4Block; ++i) {
          const uint8_t two = weights[(i / 8 * kPanelOutputs + o) * 4 + i % 4];
          sum += codes[r * matrix.inputs + b * kQ4Block + i] * (i % 8 < 4 ? two & 15 : two >> 4);
        }
        total = std::fma(static_cast<float>(sum), std::bit_cast<float>(uint32_t{scales[o]} << 16),
                         total);
      }
      total = std::fma(-static_cast<float>(means[r].zero_point), sums[o], total);
      y[r * matrix.outputs + first + o] = std::fma(total, means[r].scale, biases[o]);
    }
  }
}

}  // namespace volvelle::scalar
