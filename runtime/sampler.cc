#include "runtime/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
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

// e^x for kLeastLogWeight <= x <= 0, within 1e-15, from sums and products alone, which IEEE 754
// rounds in one way only (this file is compiled without fused ones): libraries' exp differ between
// machines in the last bit, and then so would tokens. x = n ln 2 + r, then a Taylor series in r
// (|r| <= 0.347; the first term left out is r^14/14! < 5e-18).
double exact_exp(double x) {
  constexpr double kLog2E = 0x1.71547652b82fep+0;
  constexpr double kLn2High = 0x1.62e42feep-1;  // n times it is exact
  constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  constexpr double kRound = 0x1.8p52;  // added to a small number, leaves no fraction
  const double n = (x * kLog2E + kRound) - kRound;
  const double r = (x - n * kLn2High) - n * kLn2Low;
  double sum = 0;
  for (size_t k = kInverseFactorials.size(); k-- > 0;) sum = sum * r + kInverseFactorials[k];
  return sum * std::bit_cast<double>((1023 + static_cast<int64_t>(n)) << 52);
}

// The first of the largest. Floats compare as integers do, once the order of negative ones is
// turned round, and integers are searched a vector at a time.
int32_t likeliest(std::span<const float> logits) {
  const auto rank = [](float logit) {
    const int32_t bits = std::bit_cast<int32_t>(sane(logit) + 0.0f);  // -0 is 0
    return bits ^ ((bits >> 31) & 0x7fffffff);
  };
  int32_t most = std::numeric_limits<int32_t>::min();
  for (const float logit : logits) most = std::max(most, rank(logit));
  return static_cast<int32_t>(std::ranges::find(logits, most, rank) - logits.begin());
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
  if (options.temperature > 0) candidates_.reserve(vocabulary);
  if (options.repetition_penalty != 1) penalized_.reserve(vocabulary);
}

int32_t Sampler::sample(std::span<const float> logits, std::span<const int32_t> seen) {
  if (logits.empty()) return 0;
  const bool greedy = options_.temperature == 0 || options_.top_k == 1;
  const std::span<const float> penalized = penalize(logits, seen);
  const int32_t best = likeliest(penalized);
  if (greedy) return best;

  // A candidate for every token whose weight counts beside the likeliest one's.
  const double largest = sane(penalized[best]);
  const auto log_weight = [&](float logit) {
    return (static_cast<double>(logit) - largest) / options_.temperature;
  };
  candidates_.clear();
  for (size_t i = 0; i < penalized.size(); ++i) {
    const float logit = sane(penalized[i]);
    if (log_weight(logit) >= kLeastLogWeight)
      candidates_.push_back({logit, static_cast<int32_t>(i), 0});
  }
  const auto likelier = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  };
  if (options_.top_k > 0 && options_.top_k < candidates_.size()) {
    const auto last = candidates_.begin() + static_cast<ptrdiff_t>(options_.top_k - 1);
    std::ranges::nth_element(candidates_, last, likelier);
    const float least = last->logit;
    std::erase_if(candidates_, [&](const Candidate& candidate) { return candidate.logit < least; });
    // One order, whatever nth_element made of it.
    std::ranges::sort(candidates_, {}, &Candidate::token);
  }
  double total = 0;
  for (Candidate& candidate : candidates_) {
    candidate.weight = exact_exp(log_weight(candidate.logit));
    total += candidate.weight;
  }
  if (options_.min_p > 0) {
    std::erase_if(candidates_, [&](const Candidate& candidate) {
      return candidate.token != best && candidate.weight < options_.min_p;
    });
  }
  double sum = total;
  size_t kept = candidates_.size();
  if (options_.top_p < 1 || options_.min_p > 0) {
    // The likeliest ones, of which as many are brought in order as are needed.
    constexpr size_t kStep = 64;
    sum = 0;
    size_t ordered = 0;
    for (kept = 0; kept < candidates_.size() && (kept == 0 || sum < options_.top_p * total);) {
      if (kept == ordered) {
        ordered = std::min(candidates_.size(), std::max(kStep, 4 * ordered));
        const auto first = candidates_.begin() + static_cast<ptrdiff_t>(kept);
        const auto end = candidates_.begin() + static_cast<ptrdiff_t>(ordered);
        std::ranges::partial_sort(first, end, candidates_.end(), likelier);
      }
      sum += candidates_[kept++].weight;
    }
  }

  double left =
      static_cast<double>(random_() >> 11) * 0x1p-53 * sum;  // 53 random bits: uniform in [0, 1)
  for (size_t i = 0; i + 1 < kept; ++i) {
    if (left < candidates_[i].weight) return candidates_[i].token;
    left -= candidates_[i].weight;
  }
  return candidates_[kept - 1].token;
}

// `logits`, or a copy in which the tokens `seen` are less likely.
std::span<const float> Sampler::penalize(std::span<const float> logits,
                                         std::span<const int32_t> seen) {
  if (options_.repetition_penalty == 1) return logits;
  penalized_.assign(logits.begin(), logits.end());
  // From `logits`, so that a token seen twice is not punished twice.
  for (const int32_t token : seen) {
    if (token < 0 || static_cast<size_t>(token) >= logits.size()) continue;
    const float logit = sane(logits[token]);
    penalized_[token] =
        sane(logit < 0 ? logit * options_.repetition_penalty : logit / options_.repetition_penalty);
  }
  return penalized_;
}

}  // namespace volvelle
