#include <algorithm>

#include "kernels/quantize.h"
#include "kernels/thin_product.h"

namespace volvelle::scalar {

void sum_blocks(const float* x, size_t count, float* sums) {
  for (size_t first = 0; first < count; first += kQ4Block) {
    double sum = 0;
    for (size_t i = first; i < std::min(count, first + kQ4Block); ++i) sum += x[i];
    *sums++ = static_cast<float>(sum);
  }
}

void add_thin_product(const ThinWeights& weights, const float* x, size_t rows, size_t first,
                      size_t count, float* y) {
  for (size_t r = 0; r < rows; ++r) {
    for (size_t n = first; n < first + count; ++n) {
      double sum = 0;
      for (size_t i = 0; i < weights.inputs; ++i) {
        sum += double{x[r * weights.inputs + i]} * weights.codes[i * weights.outputs + n];
      }
      y[r * weights.outputs + n] += static_cast<float>(weights.scales[n] * sum);
    }
  }
}

}  // namespace volvelle::scalar
