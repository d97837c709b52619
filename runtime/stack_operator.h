// A stack made ready to run: its embedding and blocks over a chunk of tokens, which may belong to
// several sequences, with all the scratch that takes.

#ifndef VOLVELLE_RUNTIME_STACK_OPERATOR_H_
#define VOLVELLE_RUNTIME_STACK_OPERATOR_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "platforms/error.h"
#include "platforms/memory.h"
#include "platforms/thread_pool.h"
#include "runtime/block.h"
#include "runtime/linear.h"
#include "runtime/model.h"
#include "runtime/packed_weights.h"

namespace volvelle {

class StackOperator {
 public:
  // Room for `chunk` tokens at a time. `inputs` is the most that a linear after the stack reads,
  // and `length` the positions of a session, by which some rotary scalings go. `model`, `pool` and
  // `packed` outlive the operator.
  static Result<StackOperator> make(const Model& model, const Stack& stack, ThreadPool& pool,
                                    PackedWeights& packed, size_t chunk, size_t inputs,
                                    size_t length);

  // Bytes that such an operator holds beside packed weights.
  static Result<size_t> bytes_for(const Stack& stack, ThreadPool& pool, size_t chunk, size_t inputs,
                                  size_t length);

  struct Input {
    std::span<const int32_t> tokens;           // at most a chunk; each is in the vocabulary
    std::span<const int32_t> types;            // [tokens]; empty: all 0
    std::span<const SequenceChunk> sequences;  // that the tokens belong to, in their order
  };
  using CacheOf = std::function<const CacheView&(size_t layer, size_t sequence)>;

  // What comes out of the last block, [tokens, width], valid until the next call.
  //
  //   length   of the longest sequence so far, for which dials are chosen
  //   sources  [layers] for cross-attention; empty: none
  Result<float*> run(const Input& input, size_t length, const CacheOf& cache_of,
                     std::span<const SourceView> sources);

  // Stores the keys and values of source rows x [rows, encoder's width] in `caches` [layers].
  Result<void> read_source(std::span<const float> x, size_t rows,
                           std::span<const CacheView> caches);

  // Whether sequences of `length` and of `longer` positions turn by different dials.
  bool dials_change(size_t length, size_t longer) const;
  bool has_switch() const;  // whether dials_change ever

  LinearScratch& linear_scratch() { return workspace_.linear; }
  const LinearScratch& linear_scratch() const { return workspace_.linear; }
  float* normed() const { return workspace_.normed; }  // scratch [chunk, width]
  size_t bytes() const { return scratch_.bytes().size() + workspace_.linear.bytes(); }

 private:
  // The rows of one dial for the present chunk, shared by all blocks that turn it.
  struct DialRows {
    const Rotary* rotary = nullptr;
    float* rows = nullptr;  // [chunk, 2, planes]
    // Dynamic NTK: the session's own dial; without planes where the model's serves.
    std::vector<float> coarse = {}, fine = {};
    Dial own = {};

    void bake(size_t length);
    const Dial& for_length(size_t length) const;
  };

  StackOperator(const Stack& stack, ThreadPool& pool, size_t chunk)
      : stack_(&stack), pool_(&pool), chunk_(chunk) {}
  Result<void> reserve(size_t inputs, size_t length);
  Result<void> embed(const Input& input);
  void place_and_norm(size_t tokens, size_t width, float* x);
  void place(const Input& input);

  const Stack* stack_;
  ThreadPool* pool_;
  size_t chunk_;
  std::vector<BlockOperator> blocks_;
  LinearOperator embedding_projection_;
  AlignedBuffer scratch_;
  Workspace workspace_;
  float* x_ = nullptr;         // [chunk, width]
  float* embedded_ = nullptr;  // [chunk, embedding width], where it is projected
  std::vector<DialRows> dials_;
  std::vector<uint32_t> positions_, sequence_of_;  // [chunk]
  std::vector<uint32_t> rows_;                     // [chunk], of the table at the embedding
  std::vector<AttentionTask> tasks_;
  std::vector<CacheView> caches_;  // [sequences], of one layer
};

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_STACK_OPERATOR_H_
