// An encoder and the decoder behind it, from a source's tokens to those of its translation, summary
// or answer: greedily or by beam search, under the rules that checkpoints state. Steps, scores and
// the order of the rules are those of github.com/huggingface/transformers, generation/utils.py.

#ifndef VOLVELLE_RUNTIME_TRANSLATOR_H_
#define VOLVELLE_RUNTIME_TRANSLATOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "platforms/error.h"
#include "platforms/thread_pool.h"
#include "runtime/encoder.h"
#include "runtime/model.h"

namespace volvelle {

struct Hypothesis {
  std::vector<int32_t> tokens;  // what follows the start token, an end included
  double score = 0;             // sum of log-probabilities / length ^ length_penalty; greedy: 0
};

class Translator {
 public:
  struct Options {
    size_t longest_source = 512;  // tokens, and of sources that the encoder takes together
    size_t longest_target = 512;  // the start token counted
    size_t beams = 1;
  };

  // `model` and `pool` outlive the translator.
  static Result<std::unique_ptr<Translator>> open(std::shared_ptr<const Model> model,
                                                  ThreadPool& pool, const Options& options);
  ~Translator();

  // The best that `settings` lead to, of at most the options' beams and lengths. `each`, where it
  // is given, hears of every token of a greedy search and may end it with an error.
  using EachToken = std::function<Result<void>(int32_t token)>;
  Result<Hypothesis> translate(std::span<const int32_t> source, const Generation& settings,
                               const EachToken& each = nullptr);

  // The same for each of many sources, several of which go through the encoder together; hands over
  // what becomes of them one by one, in order.
  using Sink = std::function<Result<void>(size_t source, Hypothesis best)>;
  Result<void> translate_all(std::span<const Sentence> sources, const Generation& settings,
                             const Sink& sink, const EachToken& each = nullptr);

  // Logits [targets, vocabulary] after each of `targets`, the start token first.
  Result<std::vector<float>> logits(std::span<const int32_t> source,
                                    std::span<const int32_t> targets);

  size_t bytes() const;  // of packed weights, caches and scratch

 private:
  struct State;
  explicit Translator(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_TRANSLATOR_H_
