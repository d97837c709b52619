#include <algorithm>

#include "kernels/int8_product.h"

namespace volvelle::scalar {

void multiply_int8(const Int8Matrix& matrix, size_t panel, const uint8_t* codes,
                   const RowCode* means, size_t rows, float* y) {
  const auto* at = static_cast<const std::byte*>(matrix.panels) + panel * matrix.panel_bytes();
  const float* const scales = reinterpret_cast<const float*>(at) + kPanelOutputs;
  const float* const biases = scales + kPanelOutputs;
  const auto* const weights = reinterpret_cast<const int8_t*>(biases + kPanelOutputs);
  const size_t first = panel * kPanelOutputs;
  const size_t outputs = std::min(kPanelOutputs, matrix.outputs - first);
  for (size_t r = 0; r < rows; ++r) {
    for (size_t o = 0; o < outputs; ++o) {
      uint32_t sum = 0;  // wraps
      for (size_t i = 0; i < matrix.inputs; ++i) {
        const int code = codes[r * matrix.inputs + i] - means[r].zero_point;
        sum += static_cast<uint32_t>(code * weights[(i / 4 * kPanelOutputs + o) * 4 + i % 4]);
      }
      y[r * matrix.outputs + first + o] =
          static_cast<float>(static_cast<int32_t>(sum)) * (scales[o] * means[r].scale) + biases[o];
    }
  }
}

}  // namespace volvelle::scalar
