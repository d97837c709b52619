// Normalisation of rows.

#ifndef VOLVELLE_KERNELS_NORM_H_
#define VOLVELLE_KERNELS_NORM_H_

#include <cstddef>

namespace volvelle {

// y = x / sqrt(mean(x^2) + epsilon) * weight for each row. Zhang and Sennrich 2019,
// arXiv:1910.07467, eq. 4.
//
//   x       [rows, width], row r at x + r * x_stride
//   weight  [width]
//   y       [rows, width], row r at y + r * y_stride; may be x itself
void rms_norm(const float* x, size_t x_stride, const float* weight, float epsilon, size_t rows,
              size_t width, float* y, size_t y_stride);

// x += branch for [count] floats: the residual connection.
void add(const float* branch, size_t count, float* x);

// x *= factor for [count] floats.
void multiply(float factor, size_t count, float* x);

namespace scalar {
void rms_norm(const float* x, size_t x_stride, const float* weight, float epsilon, size_t rows,
              size_t width, float* y, size_t y_stride);
void add(const float* branch, size_t count, float* x);
void multiply(float factor, size_t count, float* x);
}  // namespace scalar

}  // namespace volvelle

#endif  // VOLVELLE_KERNELS_NORM_H_
