#include "converter/positions/rotary.h"

#include <bit>
#include <cmath>
#include <cstddef>
#include <numbers>

namespace volvelle {
namespace {

// Row r turns plane i by r * stride * frequencies[i]. The product of a float and an integer below
// 2^29 is exact in double, so that the only errors are those of the library's cosine and sine and
// of the rounding to float.
std::vector<float> dial_rows(std::span<const float> frequencies, uint32_t rows, uint64_t stride) {
  const size_t planes = frequencies.size();
  std::vector<float> values(rows * 2 * planes);
  for (uint64_t row = 0; row < rows; ++row) {
    float* cosines = values.data() + row * 2 * planes;
    float* sines = cosines + planes;
    for (size_t plane = 0; plane < planes; ++plane) {
      const double angle = static_cast<double>(row * stride) * frequencies[plane];
      cosines[plane] = static_cast<float>(std::cos(angle));
      sines[plane] = static_cast<float>(std::sin(angle));
    }
  }
  return values;
}

}  // namespace

std::vector<float> rotary_frequencies(double base, uint32_t width) {
  const float float_base = static_cast<float>(base);
  std::vector<float> frequencies(width / 2);
  for (uint32_t plane = 0; plane < width / 2; ++plane) {
    const float exponent = static_cast<float>(2 * plane) / static_cast<float>(width);
    // The references' float powers are within one unit of the last place of the correctly rounded
    // one and differ with the processor; a double power rounded once is the correctly rounded one.
    const float power = static_cast<float>(std::pow(double{float_base}, double{exponent}));
    frequencies[plane] = 1.0f / power;
  }
  return frequencies;
}

std::vector<float> scale_llama3(std::span<const float> frequencies, const Llama3Scaling& scaling) {
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

RotaryTables bake(const RotaryPlan& plan, uint64_t context) {
  RotaryTables tables;
  tables.original_frequencies = rotary_frequencies(plan.base, plan.width);
  tables.frequencies = tables.original_frequencies;
  if (!plan.divisors.empty()) {
    for (size_t plane = 0; plane < tables.frequencies.size(); ++plane) {
      tables.frequencies[plane] /= plan.divisors[plane];
    }
  } else if (plan.scaling == RotaryScalingKind::kLlama3) {
    tables.frequencies = scale_llama3(tables.original_frequencies, plan.llama3);
  }

  const int fine_bits =
      std::bit_width(context - 1) / 2;  // from sqrt(context / 2) to sqrt(2 context)
  tables.fine_rows = uint32_t{1} << fine_bits;
  tables.coarse_rows = static_cast<uint32_t>((context + tables.fine_rows - 1) >> fine_bits);
  tables.fine = dial_rows(tables.frequencies, tables.fine_rows, 1);
  tables.coarse = dial_rows(tables.frequencies, tables.coarse_rows, tables.fine_rows);
  return tables;
}

}  // namespace volvelle
