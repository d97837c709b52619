#include "runtime/rotary_tables.h"

#include <cmath>
#include <cstddef>

namespace volvelle {

std::vector<float> rotary_powers(double base, uint32_t width) {
  const double float_base = static_cast<float>(base);
  std::vector<float> values(width / 2);
  for (uint32_t plane = 0; plane < width / 2; ++plane) {
    const float exponent = static_cast<float>(2 * plane) / static_cast<float>(width);
    values[plane] = static_cast<float>(std::pow(float_base, double{exponent}));
  }
  return values;
}

std::vector<float> rotary_frequencies(double base, uint32_t width) {
  std::vector<float> frequencies = rotary_powers(base, width);
  for (float& frequency : frequencies) frequency = 1.0f / frequency;
  return frequencies;
}

float dynamic_ntk_base(double base, double factor, uint32_t width, uint64_t trained_context,
                       uint64_t length) {
  const float unscaled = static_cast<float>(base);
  if (width <= 2 || length <= trained_context) return unscaled;
  const float stretched =
      static_cast<float>(factor) * static_cast<float>(length) / static_cast<float>(trained_context);
  const double growth = stretched - static_cast<float>(factor - 1);
  // The reference's exponent is no float.
  return unscaled * static_cast<float>(std::pow(growth, static_cast<double>(width) / (width - 2)));
}

// The product of a float and an integer below 2^29 is exact in double, so that the only errors are
// those of the library's cosine and sine and of the rounding to float.
std::vector<float> dial_rows(std::span<const float> frequencies, uint32_t rows, uint64_t stride,
                             float amplitude) {
  const size_t planes = frequencies.size();
  std::vector<float> values(rows * 2 * planes);
  for (uint64_t row = 0; row < rows; ++row) {
    float* cosines = values.data() + row * 2 * planes;
    float* sines = cosines + planes;
    for (size_t plane = 0; plane < planes; ++plane) {
      const double angle = static_cast<double>(row * stride) * frequencies[plane];
      cosines[plane] = static_cast<float>(std::cos(angle) * amplitude);
      sines[plane] = static_cast<float>(std::sin(angle) * amplitude);
    }
  }
  return values;
}

}  // namespace volvelle
