// One sequence of tokens going through a model: the cache of what was fed, and the logits that
// follow. A session allocates everything when it opens and nothing afterwards.

#ifndef VOLVELLE_RUNTIME_SESSION_H_
#define VOLVELLE_RUNTIME_SESSION_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "kernels/attention.h"
#include "platforms/error.h"
#include "platforms/thread_pool.h"
#include "runtime/model.h"

namespace volvelle {

class LinearObserver;

struct SessionOptions {
  CacheType cache = CacheType::kQ8;
  size_t context = 0;         // tokens the cache can hold; 0: all that the model's positions allow
  size_t chunk = 512;         // tokens that go through the model at a time, at most
  size_t first_position = 0;  // position of the first token
  size_t lanes = 1;           // sequences of equal length that may be fed side by side
  LinearObserver* observer = nullptr;  // of the linears in the blocks; outlives the session
};

// What a session holds, in bytes. The model file beside it is only mapped: the system drops its
// pages when it wants for memory.
struct MemoryPlan {
  uint64_t packed = 0;   // weights as they are multiplied
  uint64_t cache = 0;    // of the whole context; pages are taken as tokens come
  uint64_t scratch = 0;  // everything else, of the longest chunk

  uint64_t total() const { return packed + cache + scratch; }
};

// What helps where the positions of a model's stack end, after a semicolon.
std::string_view remedy_for_length(const Stack& stack);

class Session {
 public:
  // What a session with these options will hold, before a weight is packed: `packed` is within a
  // per cent, the rest exact.
  static Result<MemoryPlan> plan(const Model& model, ThreadPool& pool,
                                 const SessionOptions& options);

  // `model` and `pool` outlive the session. Fails with a sentence when the context exceeds the
  // model's, and when less memory is left than the session would hold: then the sentence names the
  // longest context that can be had.
  static Result<std::unique_ptr<Session>> open(std::shared_ptr<const Model> model, ThreadPool& pool,
                                               const SessionOptions& options);
  ~Session();

  // Feeds `tokens` after those already fed and returns the logits [vocabulary] that follow the last
  // one, valid until the next call. All tokens are checked before any is computed: an error leaves
  // the session as it was.
  Result<std::span<const float>> feed(std::span<const int32_t> tokens);

  // Feeds `tokens` and hands over the logits after each: `rows` consecutive ones at a time, logits
  // [rows, vocabulary], `first` counting from 0 within this call. `sink` may return an error, which
  // ends the call.
  using LogitsSink =
      std::function<Result<void>(size_t first, size_t rows, std::span<const float> logits)>;
  Result<void> feed_all(std::span<const int32_t> tokens, const LogitsSink& sink);

  // Feeds the next token of each sequence, [up to lanes], and returns the logits that follow them,
  // [tokens, vocabulary], valid until the next call.
  Result<std::span<const float>> feed_each(std::span<const int32_t> tokens);

  // Sequence i goes on from what sequence parents[i] was, for at most as many as there are lanes.
  void follow(std::span<const size_t> parents);

  // Forgets every token, and lets the decoder attend to x [rows, encoder's width] from now on.
  Result<void> read_source(std::span<const float> x, size_t rows);

  // Forgets `tokens`, which are the last that were fed, in one call of at most a chunk.
  void take_back(std::span<const int32_t> tokens);

  // Whether tokens that are fed together may make the sequence so much longer that the first ones'
  // logits are others than alone.
  bool length_matters() const;

  // Forgets every token.
  void clear();

  size_t tokens() const;       // fed so far
  size_t context() const;      // that fit
  size_t chunk() const;        // that go through the model at a time
  size_t cache_bytes() const;  // reserved for keys and values
  size_t scratch_bytes()
      const;  // everything else that the session holds, packed weights not counted
  size_t packed_bytes() const;  // packed weights

  // Bytes of cached keys and values that decoding the next token reads.
  size_t cache_bytes_per_token() const;

 private:
  struct State;
  explicit Session(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_SESSION_H_
