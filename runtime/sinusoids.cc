#include "runtime/sinusoids.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

namespace volvelle {
namespace {

constexpr double kBase = 10000;

// Calls visit(element, angle, is_cosine) for the elements of row `row` that are not always zero.
template <typename Visit>
void for_each_element(SinusoidLayout layout, std::span<const double> rates, size_t width,
                      uint64_t row, const Visit& visit) {
  const bool interleaved = layout == SinusoidLayout::kInterleaved;
  for (size_t i = 0; i < rates.size(); ++i) {
    const auto angle = static_cast<long double>(row) * rates[i];
    const size_t cosine = interleaved ? 2 * i + 1 : rates.size() + i;
    visit(interleaved ? 2 * i : i, angle, false);
    if (cosine < width) visit(cosine, angle, true);
  }
}

}  // namespace

std::vector<double> sinusoid_rates(SinusoidLayout layout, size_t width) {
  const bool spread = layout == SinusoidLayout::kSpread;
  const size_t half = width / 2;
  std::vector<double> rates(spread ? half : (width + 1) / 2);
  const float step = static_cast<float>(-std::log(kBase) / (static_cast<double>(half) - 1));
  for (size_t i = 0; i < rates.size(); ++i) {
    rates[i] = spread
                   ? static_cast<float>(std::exp(double{static_cast<float>(i) * step}))
                   : 1 / std::pow(kBase, 2.0 * static_cast<double>(i) / static_cast<double>(width));
  }
  return rates;
}

double sinusoid_error(SinusoidLayout layout, const float* table, size_t rows, size_t width) {
  constexpr size_t kMostRows = 1024;
  const std::vector<double> rates = sinusoid_rates(layout, width);
  const size_t step = std::max<size_t>(1, rows / kMostRows);
  long double worst = 0;
  for (size_t row = 0; row < rows; row += step) {
    const std::span<const float> values(table + row * width, width);
    if (std::ranges::all_of(values, [](float value) { return value == 0; })) continue;
    for_each_element(layout, rates, width, row, [&](size_t i, long double angle, bool cosine) {
      worst = std::max(worst, std::abs(values[i] - (cosine ? std::cos(angle) : std::sin(angle))));
    });
  }
  return static_cast<double>(worst);
}

std::vector<float> bake_sinusoids(const SinusoidPlan& plan, uint64_t first, uint64_t rows) {
  const std::vector<double> rates = sinusoid_rates(plan.layout, plan.width);
  std::vector<float> table(rows * plan.width);
  for (uint64_t row = first; row < first + rows; ++row) {
    if (row == plan.zero_row) continue;
    float* values = table.data() + (row - first) * plan.width;
    for_each_element(plan.layout, rates, plan.width, row,
                     [&](size_t i, long double angle, bool cosine) {
                       const auto exact = static_cast<double>(angle);
                       values[i] = static_cast<float>(cosine ? std::cos(exact) : std::sin(exact));
                     });
  }
  return table;
}

}  // namespace volvelle
