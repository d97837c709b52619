// Rotary positions, baked: from a base and a scaling to frequencies, formed in float exactly as the
// models were trained with them, and from frequencies to two dials whose angles, cosines and sines
// are formed in double and rounded once. RoPE: Su et al. 2021, arXiv:2104.09864.

#ifndef VOLVELLE_CONVERTER_POSITIONS_ROTARY_H_
#define VOLVELLE_CONVERTER_POSITIONS_ROTARY_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/rotary.h"
#include "platforms/error.h"

namespace volvelle {

// Positions above this would make the product of a position and a float frequency inexact in
// double.
inline constexpr uint64_t kMaxContext = uint64_t{1} << 28;

// Wavelengths above original_context / low_frequency_factor are stretched by `factor`, those below
// original_context / high_frequency_factor stay, and those between are blended (Llama 3.1).
struct Llama3Scaling {
  double factor = 1;
  double low_frequency_factor = 1;
  double high_frequency_factor = 4;
  uint64_t original_context = 0;  // 0: not stated; the factors come from divisors

  bool operator==(const Llama3Scaling&) const = default;
};

enum class RotaryScalingKind : uint8_t { kNone, kLlama3 };

// What a checkpoint says about one rotary scheme.
struct RotaryPlan {
  Pairing pairing = Pairing::kHalf;
  uint32_t width = 0;  // rotated elements of a head; even
  double base = 10000;
  RotaryScalingKind scaling = RotaryScalingKind::kNone;
  Llama3Scaling llama3;
  std::vector<float> divisors;  // [width / 2]: each frequency is divided by its own; empty: none

  bool operator==(const RotaryPlan&) const = default;
};

struct RotaryTables {
  std::vector<float> original_frequencies;  // [planes], before scaling
  std::vector<float> frequencies;           // [planes]
  std::vector<float> coarse;                // [coarse_rows, 2, planes]
  std::vector<float> fine;                  // [fine_rows, 2, planes]
  uint32_t coarse_rows = 0;
  uint32_t fine_rows = 0;

  Dial dial() const {
    return {coarse.data(), fine.data(), coarse_rows, fine_rows, frequencies.size()};
  }
};

// 1 / base^(2i / width) for i in [0, width / 2), every step in float as the references take it.
std::vector<float> rotary_frequencies(double base, uint32_t width);

// The same frequencies scaled, in float.
std::vector<float> scale_llama3(std::span<const float> frequencies, const Llama3Scaling& scaling);

// Dials that reach the positions [0, context); context in [1, kMaxContext]. About 2 * sqrt(context)
// rows.
RotaryTables bake(const RotaryPlan& plan, uint64_t context);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_POSITIONS_ROTARY_H_
