#include <cmath>

#include "kernels/norm.h"

namespace volvelle::scalar {

void rms_norm(const float* x, size_t x_stride, const float* weight, float epsilon, size_t rows,
              size_t width, float* y, size_t y_stride) {
  for (size_t row = 0; row < rows; ++row, x += x_stride, y += y_stride) {
    double squares = 0;
    for (size_t i = 0; i < width; ++i) squares += static_cast<double>(x[i]) * x[i];
    const double root = std::sqrt(squares / static_cast<double>(width) + epsilon);
    for (size_t i = 0; i < width; ++i) y[i] = static_cast<float>(x[i] / root * weight[i]);
  }
}

void add(const float* branch, size_t count, float* x) {
  for (size_t i = 0; i < count; ++i) x[i] += branch[i];
}

void multiply(float factor, size_t count, float* x) {
  for (size_t i = 0; i < count; ++i) x[i] *= factor;
}

}  // namespace volvelle::scalar
