#include "converter/positions/alibi.h"

#include <bit>
#include <cmath>

namespace volvelle {
namespace {

// Correctly rounded from float operands, where the references are within one unit of the last
// place.
float power(float base, float exponent) {
  return static_cast<float>(std::pow(double{base}, double{exponent}));
}

// 2^-(8 / heads), rounded to float before its powers are taken
float bloom_base(uint32_t heads) { return static_cast<float>(std::exp2(-8.0 / heads)); }

}  // namespace

std::vector<float> bloom_slopes(uint32_t heads) {
  const uint32_t whole = std::bit_floor(heads);
  std::vector<float> slopes(heads);
  for (uint32_t head = 0; head < heads; ++head) {
    slopes[head] = head < whole
                       ? power(bloom_base(whole), static_cast<float>(head + 1))
                       : power(bloom_base(2 * whole), static_cast<float>(2 * (head - whole) + 1));
  }
  return slopes;
}

std::vector<float> mpt_slopes(uint32_t heads, double bias_max) {
  const uint32_t whole = std::bit_ceil(heads);
  const float step = static_cast<float>(bias_max / whole);
  std::vector<float> slopes(heads);
  for (uint32_t head = 0; head < heads; ++head) {
    uint32_t k = head + 1;
    if (whole != heads) k = head < whole / 2 ? 2 * head + 2 : 2 * (head - whole / 2) + 1;
    slopes[head] = 1.0f / power(2, static_cast<float>(k) * step);
  }
  return slopes;
}

std::vector<float> falcon_slopes(uint32_t heads, uint32_t head_dim) {
  std::vector<float> slopes = bloom_slopes(heads);
  for (float& slope : slopes)
    slope = static_cast<float>(slope / std::sqrt(static_cast<double>(head_dim)));
  return slopes;
}

}  // namespace volvelle
