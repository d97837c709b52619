// The two 16-bit floating-point formats that checkpoints use, to and from float: IEEE binary16
// ("F16", 5 exponent and 10 fraction bits) and bfloat16 ("BF16", the upper half of a float).

#ifndef VOLVELLE_CONVERTER_SOURCES_FLOAT16_H_
#define VOLVELLE_CONVERTER_SOURCES_FLOAT16_H_

#include <bit>
#include <cstdint>

namespace volvelle {

inline float float_from_bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// Rounds to nearest, ties to even; past the largest finite value to infinity; a NaN stays one.
inline uint16_t bf16_from_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Exact, subnormals and NaN payloads included.
inline float float_from_f16(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  const uint32_t rebias =
      magnitude >= 0x7c00 ? 2 * (127 - 15) : 127 - 15;  // infinity, NaN: 31 to 255
  const uint32_t normal = (magnitude << 13) + (rebias << 23);
  const uint32_t subnormal = std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-24f);
  return std::bit_cast<float>(sign | (magnitude < 0x400 ? subnormal : normal));
}

// Rounds to nearest, ties to even; past 65519.99 to infinity; a NaN stays one.
inline uint16_t f16_from_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;
  if (magnitude >= std::bit_cast<uint32_t>(65520.0f)) return sign | 0x7c00;
  if (magnitude < std::bit_cast<uint32_t>(0x1p-14f)) {
    // One half has the last bit 2^-24 of a subnormal, so that the sum rounds to it.
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    return sign |
           static_cast<uint16_t>(std::bit_cast<uint32_t>(sum) - std::bit_cast<uint32_t>(0.5f));
  }
  const uint32_t rebiased = magnitude - ((127 - 15) << 23);
  return sign | static_cast<uint16_t>((rebiased + 0xfff + (rebiased >> 13 & 1)) >> 13);
}

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_SOURCES_FLOAT16_H_
