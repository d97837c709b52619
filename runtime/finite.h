// Whether numbers are numbers. XNNPACK's quantisation of activations drops NaN silently, so what is
// not finite must be noticed before it gets there.

#ifndef VOLVELLE_RUNTIME_FINITE_H_
#define VOLVELLE_RUNTIME_FINITE_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

namespace volvelle {

// Whether no value is infinite or NaN. Looks at all of them, which compilers turn into vectors.
inline bool all_finite(std::span<const float> values) {
  constexpr uint32_t kInfinity = 0x7f800000;
  uint32_t greatest = 0;
  for (const float value : values)
    greatest = std::max(greatest, std::bit_cast<uint32_t>(value) & 0x7fffffff);
  return greatest < kInfinity;
}

// The same of bfloat16 values.
inline bool all_finite_bf16(std::span<const uint16_t> values) {
  constexpr uint16_t kInfinity = 0x7f80;
  uint16_t greatest = 0;
  for (const uint16_t value : values)
    greatest = std::max(greatest, static_cast<uint16_t>(value & 0x7fff));
  return greatest < kInfinity;
}

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_FINITE_H_
