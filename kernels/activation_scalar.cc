#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/activation.h"

namespace volvelle::scalar {
namespace {

double activated(Activation activation, double x) {
  switch (activation) {
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kGeluErf:
      return x * (1 + std::erf(x / std::numbers::sqrt2)) / 2;
    case Activation::kGeluTanh:
      return x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x))) / 2;
    case Activation::kGeluSigmoid:
      return x / (1 + std::exp(-1.702 * x));
    case Activation::kRelu:
      return std::max(x, 0.0);
    case Activation::kReluSquared:
      return std::max(x, 0.0) * std::max(x, 0.0);
    case Activation::kTanh:
      return std::tanh(x);
  }
  return x;
}

}  // namespace

void gate(Activation activation, const float* gate_up, size_t gate_up_stride, size_t rows,
          size_t width, float* y, size_t y_stride) {
  for (size_t row = 0; row < rows; ++row, gate_up += gate_up_stride, y += y_stride) {
    for (size_t i = 0; i < width; ++i) {
      y[i] = static_cast<float>(activated(activation, gate_up[i]) * gate_up[width + i]);
    }
  }
}

void activate(Activation activation, const float* x, size_t x_stride, size_t rows, size_t width,
              float* y, size_t y_stride) {
  for (size_t row = 0; row < rows; ++row, x += x_stride, y += y_stride) {
    for (size_t i = 0; i < width; ++i) y[i] = static_cast<float>(activated(activation, x[i]));
  }
}

void soft_cap(float cap, size_t count, float* x) {
  for (size_t i = 0; i < count; ++i) {
    x[i] = static_cast<float>(cap * std::tanh(static_cast<double>(x[i]) / cap));
  }
}

}  // namespace volvelle::scalar
