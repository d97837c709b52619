// Normalisation of rows.

#ifndef VOLVELLE_KERNELS_NORM_H_
#define VOLVELLE_KERNELS_NORM_H_

#include <cstddef>

namespace volvelle {

// y = x / sqrt(mean(x^2) + epsilon) * weight for each row. Zhang and Sennrich 2019,
// arXiv:1910.07467, eq. 4.
//
//   x       [rows, width], row r at x + r * x_stride
//   weight  [width]; null: ones
//   y       [rows, width], row r at y + r * y_stride; may be x itself
void rms_norm(const float* x, size_t x_stride, const float* weight, float epsilon, size_t rows,
              size_t width, float* y, size_t y_stride);

// y = (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias for each row, the variance being
// that of the population. Ba et al. 2016, arXiv:1607.06450, eq. 4. As rms_norm; `weight` or `bias`
// may be null: ones, zeros.
void layer_norm(const float* x, size_t x_stride, const float* weight, const float* bias,
                float epsilon, size_t rows, size_t width, float* y, size_t y_stride);

// x = min(max(x, -limit), limit) for [count] floats; limit > 0.
void clamp(float limit, size_t count, float* x);

// x += branch for [count] floats: the residual connection.
void add(const float* branch, size_t count, float* x);

// x *= factor for [count] floats.
void multiply(float factor, size_t count, float* x);

namespace scalar {
void rms_norm(const float* x, size_t x_stride, const float* weight, float epsilon, size_t rows,
              size_t width, float* y, size_t y_stride);
void layer_norm(const float* x, size_t x_stride, const float* weight, const float* bias,
                float epsilon, size_t rows, size_t width, float* y, size_t y_stride);
void clamp(float limit, size_t count, float* x);
void add(const float* branch, size_t count, float* x);
void multiply(float factor, size_t count, float* x);
}  // namespace scalar

}  // namespace volvelle

#endif  // VOLVELLE_KERNELS_NORM_H_
