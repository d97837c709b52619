#include "converter/positions/rotary.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <numbers>

namespace volvelle {
std::vector<float> divided_frequencies(double base, uint32_t width,
                                       std::span<const float> divisors) {
  std::vector<float> frequencies = rotary_powers(base, width);
  for (size_t plane = 0; plane < frequencies.size(); ++plane) {
    frequencies[plane] = 1.0f / (divisors[plane] * frequencies[plane]);
  }
  return frequencies;
}

std::vector<float> proportional_frequencies(double base, uint32_t width, uint32_t turning,
                                            double factor) {
  std::vector<float> frequencies = rotary_frequencies(base, width);
  for (float& frequency : frequencies) frequency /= static_cast<float>(factor);
  std::fill(frequencies.begin() + std::min<size_t>(turning, frequencies.size()), frequencies.end(),
            0.0f);
  return frequencies;
}

double ntk_base(double base, double factor, uint32_t width) {
  if (width <= 2) return base;  // the only plane turns by 1 whatever the base
  return base * std::pow(factor, static_cast<double>(width) / (width - 2));
}

std::vector<float> scale_llama3(std::span<const float> frequencies, const RotaryScaling& scaling) {
  const float factor = static_cast<float>(scaling.factor);
  const float low = static_cast<float>(scaling.low_frequency_factor);
  const float range =
      static_cast<float>(scaling.high_frequency_factor - scaling.low_frequency_factor);
  const double original = static_cast<double>(scaling.original_context);
  const float longest = static_cast<float>(original / scaling.low_frequency_factor);
  const float shortest = static_cast<float>(original / scaling.high_frequency_factor);

  // The reference divides a number by a tensor as the tensor's reciprocal times the number.
  std::vector<float> scaled(frequencies.begin(), frequencies.end());
  for (float& frequency : scaled) {
    const float wavelength = 1 / frequency * static_cast<float>(2 * std::numbers::pi);
    if (wavelength > longest) {
      frequency = frequency / factor;
    } else if (!(wavelength < shortest)) {
      const float smooth = (1 / wavelength * static_cast<float>(original) - low) / range;
      frequency = (1 - smooth) * frequency / factor + smooth * frequency;
    }
  }
  return scaled;
}

std::pair<double, double> yarn_range(double base, uint32_t width, const RotaryScaling& scaling) {
  // The plane that turns so many times within the original context.
  const auto plane_of = [&](double turns) {
    const double context = static_cast<double>(scaling.original_context);
    return width * std::log(context / (turns * 2 * std::numbers::pi)) / (2 * std::log(base));
  };
  double low = plane_of(scaling.beta_fast);
  double high = plane_of(scaling.beta_slow);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(width) - 1);
  if (low == high) high += 0.001;  // as the reference keeps the ramp finite
  return {low, high};
}

std::vector<float> scale_yarn(double base, uint32_t width, const RotaryScaling& scaling) {
  const auto [low, high] = yarn_range(base, width, scaling);
  const float start = static_cast<float>(low);
  const float length = static_cast<float>(high - low);
  const float factor = static_cast<float>(scaling.factor);
  std::vector<float> frequencies = rotary_powers(base, width);
  for (size_t plane = 0; plane < frequencies.size(); ++plane) {
    const float ramp = std::clamp((static_cast<float>(plane) - start) / length, 0.0f, 1.0f);
    const float kept = 1 - ramp;
    const float stretched = 1.0f / (factor * frequencies[plane]);
    const float original = 1.0f / frequencies[plane];
    frequencies[plane] = stretched * (1 - kept) + original * kept;
  }
  return frequencies;
}

double attention_factor(const RotaryScaling& scaling) {
  const double factor = scaling.factor;
  if (scaling.kind == RotaryScalingKind::kYarn) {
    if (scaling.attention_factor) return *scaling.attention_factor;
    const auto amplitude = [&](double mscale) {
      return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1;
    };
    if (scaling.mscale != 0 && scaling.mscale_all_dim != 0) {
      return amplitude(scaling.mscale) / amplitude(scaling.mscale_all_dim);
    }
    return amplitude(1);
  }
  if (scaling.kind == RotaryScalingKind::kLongRope) {
    if (scaling.attention_factor) return *scaling.attention_factor;
    if (factor <= 1) return 1;
    return std::sqrt(1 +
                     std::log(factor) / std::log(static_cast<double>(scaling.original_context)));
  }
  return 1;
}

std::vector<float> scaled_frequencies(const RotaryPlan& plan) {
  if (!plan.frequencies.empty()) return plan.frequencies;
  const RotaryScaling& scaling = plan.scaling;
  std::vector<float> frequencies = rotary_frequencies(plan.base, plan.width);
  if (!plan.divisors.empty()) {
    for (size_t plane = 0; plane < frequencies.size(); ++plane) {
      frequencies[plane] /= plan.divisors[plane];
    }
    return frequencies;
  }
  switch (scaling.kind) {
    case RotaryScalingKind::kNone:
    case RotaryScalingKind::kDynamicNtk:
      return frequencies;
    case RotaryScalingKind::kLinear:
      for (float& frequency : frequencies) frequency /= static_cast<float>(scaling.factor);
      return frequencies;
    case RotaryScalingKind::kNtk:
      return rotary_frequencies(ntk_base(plan.base, scaling.factor, plan.width), plan.width);
    case RotaryScalingKind::kYarn:
      return scale_yarn(plan.base, plan.width, scaling);
    case RotaryScalingKind::kLongRope:
      return divided_frequencies(plan.base, plan.width, scaling.short_factors);
    case RotaryScalingKind::kLlama3:
      return scale_llama3(frequencies, scaling);
    case RotaryScalingKind::kProportional:
      return proportional_frequencies(plan.base, plan.width, scaling.turning_planes,
                                      scaling.factor);
  }
  return frequencies;
}

void turn_dials(RotaryTables& tables, uint64_t context) {
  const int fine_bits =
      std::bit_width(context - 1) / 2;  // from sqrt(context / 2) to sqrt(2 context)
  tables.fine_rows = uint32_t{1} << fine_bits;
  tables.coarse_rows = static_cast<uint32_t>((context + tables.fine_rows - 1) >> fine_bits);
  const auto turn = [&](std::span<const float> frequencies, std::vector<float>& coarse,
                        std::vector<float>& fine) {
    fine = dial_rows(frequencies, tables.fine_rows, 1, 1);
    coarse = dial_rows(frequencies, tables.coarse_rows, tables.fine_rows, tables.amplitude);
  };
  turn(tables.frequencies, tables.coarse, tables.fine);
  if (tables.switch_length != 0)
    turn(tables.long_frequencies, tables.long_coarse, tables.long_fine);
}

RotaryTables bake(const RotaryPlan& plan, uint64_t context) {
  RotaryTables tables;
  tables.original_frequencies =
      rotary_frequencies(plan.origin ? plan.origin->base : plan.base, plan.width);
  tables.frequencies = scaled_frequencies(plan);
  tables.amplitude = static_cast<float>(attention_factor(plan.scaling));
  if (plan.scaling.kind == RotaryScalingKind::kLongRope &&
      context > plan.scaling.original_context) {
    tables.switch_length = plan.scaling.original_context;
    tables.long_frequencies = divided_frequencies(plan.base, plan.width, plan.scaling.long_factors);
  }
  turn_dials(tables, context);
  return tables;
}

}  // namespace volvelle
