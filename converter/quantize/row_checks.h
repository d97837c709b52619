// What both formats ask of a row before it is quantised: that it is finite, and a power of two that
// brings it near one, so that squares neither overflow nor vanish.

#ifndef VOLVELLE_CONVERTER_QUANTIZE_ROW_CHECKS_H_
#define VOLVELLE_CONVERTER_QUANTIZE_ROW_CHECKS_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "platforms/error.h"

namespace volvelle {

// Fails on the first value of x [rows, columns] that is a NaN or an infinity.
Result<void> check_finite(const float* x, size_t rows, size_t columns, size_t first_row);

// The powers of two that turn values of magnitude up to `largest` into ones below 4 (from 1, where
// `largest` is normal) and back, exactly.
struct PowerOfTwo {
  explicit PowerOfTwo(float largest) {
    const int exponent =
        std::clamp(static_cast<int>(std::bit_cast<uint32_t>(largest) >> 23), 1, 253);
    down = std::bit_cast<float>(static_cast<uint32_t>(254 - exponent) << 23);
    up = std::bit_cast<float>(static_cast<uint32_t>(exponent) << 23);
    least_normal = 0x1p-126f * down;
  }
  float down;
  float up;
  float least_normal;  // what 2^-126, the least scale that is allowed, is turned into; or 0
};

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_QUANTIZE_ROW_CHECKS_H_
