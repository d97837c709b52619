// Activations of the feed-forward network.

#ifndef VOLVELLE_KERNELS_ACTIVATION_H_
#define VOLVELLE_KERNELS_ACTIVATION_H_

#include <cstddef>
#include <cstdint>

namespace volvelle {

enum class Activation : uint8_t {
  kSilu,         // x * sigmoid(x)
  kGeluErf,      // x * (1 + erf(x / sqrt 2)) / 2
  kGeluTanh,     // x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2
  kGeluSigmoid,  // x * sigmoid(1.702 x)
  kRelu,         // max(x, 0)
  kReluSquared,  // max(x, 0)^2: So et al. 2021, arXiv:2109.08668
  kTanh,
};

// y = activation(gate) * up, for each row. Shazeer 2020, arXiv:2002.05202, eq. 6.
//
//   gate_up  [rows, 2 * width]: `width` gates, then `width` ups;
//            row r at gate_up + r * gate_up_stride
//   y        [rows, width], row r at y + r * y_stride
void gate(Activation activation, const float* gate_up, size_t gate_up_stride, size_t rows,
          size_t width, float* y, size_t y_stride);

// y = activation(x) for each row; y may be x itself.
//
//   x  [rows, width], row r at x + r * x_stride
//   y  [rows, width], row r at y + r * y_stride
void activate(Activation activation, const float* x, size_t x_stride, size_t rows, size_t width,
              float* y, size_t y_stride);

// The same in fewer steps, for rows that become int8 codes next: GELU by erf within
// kCoarseActivation of the other, absolutely, others as they are.
inline constexpr float kCoarseActivation = 1.6e-4f;
void activate_coarsely(Activation activation, const float* x, size_t x_stride, size_t rows,
                       size_t width, float* y, size_t y_stride);

// x = cap * tanh(x / cap) for [count] floats: arXiv:2408.00118, section 2.
void soft_cap(float cap, size_t count, float* x);

namespace scalar {
void gate(Activation activation, const float* gate_up, size_t gate_up_stride, size_t rows,
          size_t width, float* y, size_t y_stride);
void activate(Activation activation, const float* x, size_t x_stride, size_t rows, size_t width,
              float* y, size_t y_stride);
void soft_cap(float cap, size_t count, float* x);
}  // namespace scalar

}  // namespace volvelle

#endif  // VOLVELLE_KERNELS_ACTIVATION_H_
