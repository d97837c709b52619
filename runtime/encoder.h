// Sentences going through an encoder, many at a time and without padding: each attends to itself
// only. What comes out is the encoder's own, or what one of the model's tasks makes of it: vectors,
// labels, words for gaps.

#ifndef VOLVELLE_RUNTIME_ENCODER_H_
#define VOLVELLE_RUNTIME_ENCODER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "platforms/error.h"
#include "platforms/thread_pool.h"
#include "runtime/model.h"

namespace volvelle {

class LinearObserver;

// Divides a row by its length; one of zeros stays.
void to_unit_length(std::span<float> row);

struct Sentence {
  std::vector<int32_t> tokens;
  std::vector<int32_t> types;  // [tokens]; empty: all 0
};

class Encoder {
 public:
  // `model` and `pool` outlive the encoder. With `task`, one of the model's, outputs are the
  // task's. `chunk` tokens at most go through at a time, and every sentence fits in that many.
  // `observer`, which may be null and outlives the encoder, is of all its linears.
  static Result<std::unique_ptr<Encoder>> open(std::shared_ptr<const Model> model, ThreadPool& pool,
                                               const Task* task, size_t chunk,
                                               LinearObserver* observer = nullptr);
  ~Encoder();

  // Hands over what becomes of each sentence: `rows` is 1 where the task pools, else the sentence's
  // tokens; values [rows, width()], valid during the call. All sentences are checked before any is
  // computed. A sentence's values are the same to the bit whatever else is in the batch, with f32
  // weights.
  using Sink =
      std::function<Result<void>(size_t sentence, size_t rows, std::span<const float> values)>;
  Result<void> run(std::span<const Sentence> sentences, const Sink& sink);

  size_t width() const;  // of an output row
  size_t bytes() const;  // that the encoder holds, packed weights included

 private:
  struct State;
  explicit Encoder(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_ENCODER_H_
