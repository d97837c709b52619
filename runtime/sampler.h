// Chooses the next token from logits: greedy, or temperature with top-k, top-p, min-p and a
// repetition penalty. Order as in the reference: penalty, temperature, top-k, top-p, min-p.

#ifndef VOLVELLE_RUNTIME_SAMPLER_H_
#define VOLVELLE_RUNTIME_SAMPLER_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "platforms/error.h"

namespace volvelle {

struct SamplerOptions {
  float temperature = 0;  // 0: greedy
  size_t top_k = 0;       // 0: all; ties with the k-th stay
  float top_p = 1;        // smallest set of likeliest tokens whose probability reaches it
  float min_p = 0;        // drops tokens below this fraction of the likeliest's probability
  float repetition_penalty =
      1;  // logits of tokens already seen: l < 0 ? l * r : l / r (Keskar et al. 2019)
  uint64_t seed = 0;
};

// Why these options make no sense, as a sentence that names the one at fault.
Result<void> check(const SamplerOptions& options);

class Sampler {
 public:
  Sampler(const SamplerOptions& options, size_t vocabulary);

  // The next token after `logits` [vocabulary]; `seen` are the prompt's and all generated tokens.
  // The same seed, logits and calls give the same tokens on every machine.
  int32_t sample(std::span<const float> logits, std::span<const int32_t> seen);

 private:
  struct Candidate {
    float logit;
    int32_t token;
    double weight;  // relative to the likeliest: exp of logit differences
  };
  std::span<const float> penalize(std::span<const float> logits, std::span<const int32_t> seen);

  SamplerOptions options_;
  std::mt19937_64 random_;
  std::vector<Candidate> candidates_;
  std::vector<float> penalized_;
};

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_SAMPLER_H_
