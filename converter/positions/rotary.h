// Rotary positions, baked: from a base and a scaling to frequencies, formed in float exactly as the
// models were trained with them, and from frequencies to two dials whose angles, cosines and sines
// are formed in double and rounded once. RoPE: Su et al. 2021, arXiv:2104.09864.

#ifndef VOLVELLE_CONVERTER_POSITIONS_ROTARY_H_
#define VOLVELLE_CONVERTER_POSITIONS_ROTARY_H_

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/rotary.h"
#include "platforms/error.h"
#include "runtime/rotary_tables.h"

namespace volvelle {

enum class RotaryScalingKind : uint8_t {
  kNone,
  kLinear,        // all frequencies / factor. Chen et al. 2023, arXiv:2306.15595
  kNtk,           // base * factor^(width / (width - 2))
  kDynamicNtk,    // the same by the length of a sequence: dynamic_ntk_base()
  kYarn,          // Peng et al. 2023, arXiv:2309.00071
  kLongRope,      // a divisor for each plane, two sets of them. Ding et al. 2024, arXiv:2402.13753
  kLlama3,        // stretches long wavelengths only. Grattafiori et al. 2024, arXiv:2407.21783
  kProportional,  // the first planes turn, all / factor, the others stand still
};

// Each kind reads the fields that name it, and `factor`.
struct RotaryScaling {
  RotaryScalingKind kind = RotaryScalingKind::kNone;
  double factor = 1;

  // Yarn, llama3: the context before it was extended. LongRoPE: the longest sequence that the short
  // divisors serve. Dynamic NTK: the context that was trained. 0: not stated.
  uint64_t original_context = 0;

  // Llama3: wavelengths above original_context / low_frequency_factor are stretched by `factor`,
  // those below original_context / high_frequency_factor stay, those between are blended.
  double low_frequency_factor = 1;
  double high_frequency_factor = 4;

  // Yarn: planes that turn more than beta_fast times within the original context stay, those that
  // turn less than beta_slow times are stretched, those between are blended.
  double beta_fast = 32;
  double beta_slow = 1;
  bool truncate = true;  // the blend's ends are rounded outwards to whole planes

  // Yarn, LongRoPE: the number itself, or none and what it is derived from.
  std::optional<double> attention_factor;
  double mscale = 0;
  double mscale_all_dim = 0;

  std::vector<float> short_factors;  // LongRoPE: [width / 2] divisors
  std::vector<float> long_factors;
  uint32_t turning_planes = 0;  // proportional

  bool operator==(const RotaryScaling&) const = default;
};

// What a checkpoint says, where a user asked for something else.
struct RotaryOrigin {
  double base = 10000;
  RotaryScaling scaling;
  std::vector<float> frequencies;  // [width / 2], as they are baked; empty: formed of the others

  bool operator==(const RotaryOrigin&) const = default;
};

// One rotary scheme.
struct RotaryPlan {
  Pairing pairing = Pairing::kHalf;
  uint32_t width = 0;  // rotated elements of a head; even
  double base = 10000;
  RotaryScaling scaling;
  // [width / 2]: each frequency is divided by its own, and `scaling` is but a record; empty: none
  std::vector<float> divisors;
  // [width / 2]: as a file already has them baked; empty: formed of the above
  std::vector<float> frequencies;
  std::optional<RotaryOrigin> origin;  // none: base and scaling are the checkpoint's own

  bool operator==(const RotaryPlan&) const = default;
};

struct RotaryTables {
  std::vector<float> original_frequencies;  // [planes], of the checkpoint's base, before scaling
  std::vector<float> frequencies;           // [planes]; dynamic NTK: up to the trained context
  std::vector<float> long_frequencies;      // [planes] beyond switch_length; empty: no such
  std::vector<float> coarse;                // [coarse_rows, 2, planes], times `amplitude`
  std::vector<float> fine;                  // [fine_rows, 2, planes]
  std::vector<float> long_coarse;           // of the long frequencies, with as many rows
  std::vector<float> long_fine;
  uint32_t coarse_rows = 0;
  uint32_t fine_rows = 0;
  float amplitude = 1;
  uint64_t switch_length = 0;  // sequences longer than this turn by the long dial; 0: never

  Dial dial() const {
    return {coarse.data(), fine.data(), coarse_rows, fine_rows, frequencies.size()};
  }
  Dial long_dial() const {
    return {long_coarse.data(), long_fine.data(), coarse_rows, fine_rows, long_frequencies.size()};
  }
};

// The same frequencies scaled, in float. `frequencies` are the unscaled ones of the whole width.
std::vector<float> scale_llama3(std::span<const float> frequencies, const RotaryScaling& scaling);
std::vector<float> scale_yarn(double base, uint32_t width, const RotaryScaling& scaling);

// The first and last plane of yarn's blend, rounded and clamped as `scaling` asks.
std::pair<double, double> yarn_range(double base, uint32_t width, const RotaryScaling& scaling);

// 1 / (divisor * base^(2i / width)) with the divisor inside, as LongRoPE's reference has it.
std::vector<float> divided_frequencies(double base, uint32_t width,
                                       std::span<const float> divisors);

// The first `turning` of 1 / base^(2i / width) / factor, and zeros.
std::vector<float> proportional_frequencies(double base, uint32_t width, uint32_t turning,
                                            double factor);

// NTK-aware interpolation: the base whose slowest plane turns `factor` times slower.
double ntk_base(double base, double factor, uint32_t width);

// What multiplies cosines and sines; 1 but for yarn and LongRoPE.
double attention_factor(const RotaryScaling& scaling);

// What the plan's dials turn by: float [width / 2], of LongRoPE the short ones.
std::vector<float> scaled_frequencies(const RotaryPlan& plan);

// Turns the frequencies of `tables` into dials that reach [0, context), context in [1,
// kMaxContext].
void turn_dials(RotaryTables& tables, uint64_t context);

// Dials that reach the positions [0, context); context in [1, kMaxContext]. About 2 * sqrt(context)
// rows. LongRoPE has a long dial only where the context goes beyond its switch.
RotaryTables bake(const RotaryPlan& plan, uint64_t context);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_POSITIONS_ROTARY_H_
