#include "runtime/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace volvelle {
namespace {

constexpr float kLargest = std::numeric_limits<float>::max();

// What a logit counts as: NaN and -inf are the least likely, +inf is the likeliest, and differences
// stay finite in double.
float sane(float logit) {
  return std::isnan(logit) ? -kLargest : std::clamp(logit, -kLargest, kLargest);
}

// Below this, a weight is lost in a float sum of weights that has the likeliest token's 1 in it.
constexpr double kLeastLogWeight = -40;

constexpr auto kInverseFactorials = [] {  // 1 / k!
  std::array<double, 14> inverse{1};
  double factorial = 1;
  for (size_t k = 1; k < inverse.size(); ++k)
    inverse[k] = 1 / (factorial *= static_cast<double>(k));
  return inverse;
}();

// e^x for kLeastLogWeight <= x <= 0, within 1e-15, from operations that IEEE 754 rounds in one way
// only: libraries' exp differ between machines in the last bit, and then so would tokens. x = n ln
// 2 + r, then a Taylor series in r
// (|r| <= 0.347; the first term left out is r^14/14! < 5e-18).
double exact_exp(double x) {
  constexpr double kLog2E = 0x1.71547652b82fep+0;
  constexpr double kLn2High = 0x1.62e42fefa39efp-1;
  constexpr double kLn2Low = 0x1.abc9e3b39803fp-56;
  const double n = std::nearbyint(x * kLog2E);
  const double r = std::fma(-n, kLn2Low, std::fma(-n, kLn2High, x));
  double sum = 0;
  for (size_t k = kInverseFactorials.size(); k-- > 0;)
    sum = std::fma(sum, r, kInverseFactorials[k]);
  return std::ldexp(sum, static_cast<int>(n));
}

}  // namespace

Result<void> check(const SamplerOptions& options) {
  if (!(options.temperature >= 0 && options.temperature <= kLargest)) {
    return fail("temperature is {}; it must be 0 (greedy) or a positive number",
                options.temperature);
  }
  if (!(options.top_p >= 0 && options.top_p <= 1)) {
    return fail("top-p is {}; it must be from 0 to 1", options.top_p);
  }
  if (!(options.min_p >= 0 && options.min_p <= 1)) {
    return fail("min-p is {}; it must be from 0 to 1", options.min_p);
  }
  if (!(options.repetition_penalty > 0 && options.repetition_penalty <= kLargest)) {
    return fail("the repetition penalty is {}; it must be positive, and 1 is none",
                options.repetition_penalty);
  }
  return {};
}

Sampler::Sampler(const SamplerOptions& options, size_t vocabulary)
    : options_(options), random_(options.seed) {
  candidates_.reserve(vocabulary);
  weights_.reserve(vocabulary);
}

int32_t Sampler::sample(std::span<const float> logits, std::span<const int32_t> seen) {
  if (logits.empty()) return 0;
  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i)
    candidates_.push_back({sane(logits[i]), static_cast<int32_t>(i)});
  if (options_.repetition_penalty != 1) {
    for (const int32_t token :
         seen) {  // from `logits`, so that a token seen twice is not punished twice
      if (token < 0 || static_cast<size_t>(token) >= logits.size()) continue;
      const float logit = sane(logits[token]);
      candidates_[token].logit = sane(logit < 0 ? logit * options_.repetition_penalty
                                                : logit / options_.repetition_penalty);
    }
  }

  const auto likelier = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  };
  const Candidate best = *std::ranges::min_element(candidates_, likelier);
  if (options_.temperature == 0 || options_.top_k == 1) return best.token;

  const auto log_weight = [&](const Candidate& candidate) {
    return (static_cast<double>(candidate.logit) - best.logit) / options_.temperature;
  };
  std::erase_if(candidates_, [&](const Candidate& candidate) {
    return log_weight(candidate) < kLeastLogWeight;
  });
  if (options_.top_k > 0 && options_.top_k < candidates_.size()) {
    const auto last = candidates_.begin() + static_cast<ptrdiff_t>(options_.top_k - 1);
    std::ranges::nth_element(candidates_, last, likelier);
    const float least = last->logit;
    std::erase_if(candidates_, [&](const Candidate& candidate) { return candidate.logit < least; });
  }
  std::ranges::sort(candidates_, likelier);  // one order, whatever nth_element made of it

  weights_.clear();
  double total = 0;
  for (const Candidate& candidate : candidates_) {
    weights_.push_back(exact_exp(log_weight(candidate)));
    total += weights_.back();
  }
  // Both cuts leave the likeliest candidates: a prefix of at least one.
  size_t kept = 1;
  double sum = weights_[0];
  while (kept < weights_.size() && sum < options_.top_p * total &&
         weights_[kept] >= options_.min_p) {
    sum += weights_[kept++];
  }

  double left =
      static_cast<double>(random_() >> 11) * 0x1p-53 * sum;  // 53 random bits: uniform in [0, 1)
  for (size_t i = 0; i + 1 < kept; ++i) {
    if (left < weights_[i]) return candidates_[i].token;
    left -= weights_[i];
  }
  return candidates_[kept - 1].token;
}

}  // namespace volvelle
