#include "converter/positions/additive.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace volvelle {
namespace {

constexpr double kBase = 10000;

std::vector<double> frequencies(const SinusoidPlan& plan) {
  const bool spread = plan.layout == SinusoidLayout::kSpread;
  const size_t half = plan.width / 2;
  std::vector<double> values(spread ? half : (plan.width + 1) / 2);
  const float step = static_cast<float>(-std::log(kBase) / (static_cast<double>(half) - 1));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = spread ? static_cast<float>(std::exp(double{static_cast<float>(i) * step}))
                       : 1 / std::pow(kBase, 2.0 * static_cast<double>(i) / plan.width);
  }
  return values;
}

}  // namespace

std::vector<float> bake_sinusoids(const SinusoidPlan& plan, uint64_t first, uint64_t rows) {
  const std::vector<double> rates = frequencies(plan);
  const bool interleaved = plan.layout == SinusoidLayout::kInterleaved;
  std::vector<float> table(rows * plan.width);
  for (uint64_t row = first; row < first + rows; ++row) {
    if (row == plan.zero_row) continue;
    float* values = table.data() + (row - first) * plan.width;
    for (size_t i = 0; i < rates.size(); ++i) {
      const double angle = static_cast<double>(row) * rates[i];
      const size_t cosine = interleaved ? 2 * i + 1 : rates.size() + i;
      values[interleaved ? 2 * i : i] = static_cast<float>(std::sin(angle));
      if (cosine < plan.width) values[cosine] = static_cast<float>(std::cos(angle));
    }
  }
  return table;
}

}  // namespace volvelle
