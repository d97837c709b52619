#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/hadamard.h"
#include "kernels/quantize.h"

namespace volvelle::scalar {
namespace {

uint16_t half_of(float x) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  if (std::isnan(x)) return sign | 0x7e00;
  const float magnitude = std::min(std::fabs(x), 65504.0f);
  // Below 2^-14 a half counts units of 2^-24; above it has 11 bits. A carry moves to the next
  // exponent.
  if (magnitude < 0x1p-14f)
    return sign | static_cast<uint16_t>(std::nearbyint(magnitude * 0x1p24f));
  int exponent = 0;
  const float fraction = std::frexp(magnitude, &exponent);  // in [1/2, 1)
  const int bits = static_cast<int>(std::nearbyint(fraction * 2048));
  return sign | static_cast<uint16_t>(((exponent + 14) << 10) + bits - 1024);
}

float float_of(uint16_t x) {
  const int exponent = x >> 10 & 31, mantissa = x & 1023;
  const float magnitude = exponent == 0   ? std::ldexp(static_cast<float>(mantissa), -24)
                          : exponent < 31 ? std::ldexp(1024.0f + mantissa, exponent - 25)
                          : mantissa == 0 ? std::numeric_limits<float>::infinity()
                                          : std::numeric_limits<float>::quiet_NaN();
  return x & 0x8000 ? -magnitude : magnitude;
}

}  // namespace

float quantize_q8(const float* x, size_t count, int8_t* codes) {
  float largest = 0;
  for (size_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(x[i]));
  const float scale = largest / 127.0f;
  const float inverse = scale >= std::numeric_limits<float>::min() ? 1.0f / scale : 0.0f;
  for (size_t i = 0; i < count; ++i) codes[i] = static_cast<int8_t>(std::nearbyint(x[i] * inverse));
  return scale;
}

namespace {

RowCode quantize_row(const float* x, size_t count, int8_t* codes) {
  float least = 0, greatest = 0;
  bool finite = true;
  for (size_t i = 0; i < count; ++i) {
    least = std::min(least, x[i]);
    greatest = std::max(greatest, x[i]);
    finite = finite && std::isfinite(x[i]);
  }
  RowCode code{0, (greatest - least) / 255.0f};
  if (!finite) code.scale = std::numeric_limits<float>::quiet_NaN();
  const float inverse = code.scale >= std::numeric_limits<float>::min() ? 1.0f / code.scale : 0.0f;
  code.zero_point = static_cast<int32_t>(std::nearbyint(-128.0f - least * inverse));
  for (size_t i = 0; i < count; ++i) {
    const float step = finite ? std::nearbyint(x[i] * inverse) : 0.0f;
    const int32_t shifted = static_cast<int32_t>(step) + code.zero_point;
    codes[i] = static_cast<int8_t>(std::clamp(shifted, -128, 127));
  }
  return code;
}

}  // namespace

void quantize_rows(size_t block, const FloatRows& x, float* transformed, int8_t* codes,
                   size_t stride, RowCode* means) {
  for (size_t r = 0; r < x.rows; ++r) {
    const float* row = x.x + r * x.count;
    if (block > 1) {
      std::copy_n(row, x.count, transformed + r * x.count);
      row = transformed + r * x.count;
      add_and_subtract(block, x.count, transformed + r * x.count);
    }
    means[r] = quantize_row(row, x.count, codes + r * stride);
    if (block > 1) means[r].scale /= std::sqrt(static_cast<float>(block));
  }
}

void quantize_rows(size_t block, const FloatRows& x, float* transformed, uint8_t* codes,
                   size_t stride, RowCode* means) {
  scalar::quantize_rows(block, x, transformed, reinterpret_cast<int8_t*>(codes), stride, means);
  for (size_t r = 0; r < x.rows; ++r) {
    means[r].zero_point += 128;
    for (size_t i = 0; i < x.count; ++i) codes[r * stride + i] ^= 128;
  }
}

void dequantize_q8(const int8_t* codes, float scale, size_t count, float* y) {
  for (size_t i = 0; i < count; ++i) y[i] = codes[i] * scale;
}

void to_f16(const float* x, size_t count, uint16_t* y) {
  for (size_t i = 0; i < count; ++i) y[i] = half_of(x[i]);
}

void from_f16(const uint16_t* x, size_t count, float* y) {
  for (size_t i = 0; i < count; ++i) y[i] = float_of(x[i]);
}

}  // namespace volvelle::scalar
