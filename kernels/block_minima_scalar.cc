#include <algorithm>

#include "kernels/block_minima.h"
#include "kernels/quantize.h"

namespace volvelle::scalar {

void sum_blocks(const float* x, size_t count, float* sums) {
  for (size_t first = 0; first < count; first += kQ4Block) {
    double sum = 0;
    for (size_t i = first; i < std::min(count, first + kQ4Block); ++i) sum += x[i];
    *sums++ = static_cast<float>(sum);
  }
}

void add_block_minima(const BlockMinima& minima, const float* sums, size_t rows, size_t first,
                      size_t count, float* y) {
  for (size_t r = 0; r < rows; ++r) {
    for (size_t n = first; n < first + count; ++n) {
      double sum = 0;
      for (size_t b = 0; b < minima.blocks; ++b) {
        sum += double{sums[r * minima.blocks + b]} * minima.codes[b * minima.outputs + n];
      }
      y[r * minima.outputs + n] += static_cast<float>(minima.scales[n] * sum);
    }
  }
}

}  // namespace volvelle::scalar
