#include <algorithm>
#include <cmath>

#include "kernels/norm.h"

namespace volvelle::scalar {

void rms_norm(const float* x, size_t x_stride, const float* weight, float epsilon, size_t rows,
              size_t width, float* y, size_t y_stride) {
  for (size_t row = 0; row < rows; ++row, x += x_stride, y += y_stride) {
    double squares = 0;
    for (size_t i = 0; i < width; ++i) squares += static_cast<double>(x[i]) * x[i];
    const double root = std::sqrt(squares / static_cast<double>(width) + epsilon);
    for (size_t i = 0; i < width; ++i) {
      y[i] = static_cast<float>(x[i] / root * (weight ? weight[i] : 1.0));
    }
  }
}

void layer_norm(const float* x, size_t x_stride, const float* weight, const float* bias,
                float epsilon, size_t rows, size_t width, float* y, size_t y_stride) {
  for (size_t row = 0; row < rows; ++row, x += x_stride, y += y_stride) {
    double mean = 0, variance = 0;
    for (size_t i = 0; i < width; ++i) mean += x[i] / static_cast<double>(width);
    for (size_t i = 0; i < width; ++i) variance += (x[i] - mean) * (x[i] - mean);
    const double root = std::sqrt(variance / static_cast<double>(width) + epsilon);
    for (size_t i = 0; i < width; ++i) {
      const double scaled = (x[i] - mean) / root * (weight ? weight[i] : 1.0);
      y[i] = static_cast<float>(scaled + (bias ? bias[i] : 0.0));
    }
  }
}

void clamp(float limit, size_t count, float* x) {
  for (size_t i = 0; i < count; ++i) x[i] = std::min(std::max(x[i], -limit), limit);
}

void add(const float* branch, size_t count, float* x) {
  for (size_t i = 0; i < count; ++i) x[i] += branch[i];
}

void multiply(float factor, size_t count, float* x) {
  for (size_t i = 0; i < count; ++i) x[i] *= factor;
}

}  // namespace volvelle::scalar
