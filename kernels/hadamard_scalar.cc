#include <cmath>

#include "kernels/hadamard.h"

namespace volvelle::scalar {

void add_and_subtract(size_t block, size_t count, float* x) {
  for (size_t stride = 1; stride < block; stride *= 2) {
    for (size_t i = 0; i < count; ++i) {
      if (i & stride) continue;
      const float a = x[i], b = x[i + stride];
      x[i] = a + b;
      x[i + stride] = a - b;
    }
  }
}

void hadamard(size_t block, size_t count, float* x) {
  add_and_subtract(block, count, x);
  if (block == 1) return;
  const float scale = 1 / std::sqrt(static_cast<float>(block));
  for (size_t i = 0; i < count; ++i) x[i] *= scale;
}

}  // namespace volvelle::scalar
