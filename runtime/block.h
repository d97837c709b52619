// One block of a transformer, run over a chunk of tokens: block.cc reads like its equations.

#ifndef VOLVELLE_RUNTIME_BLOCK_H_
#define VOLVELLE_RUNTIME_BLOCK_H_

#include <cstddef>

#include "kernels/attention.h"
#include "platforms/error.h"
#include "platforms/thread_pool.h"
#include "runtime/linear.h"
#include "runtime/model.h"

namespace volvelle {

// Scratch that all blocks share, each sized for the largest of them and one chunk of tokens.
struct Workspace {
  float* normed = nullptr;     // [tokens, width]
  float* qkv = nullptr;        // [tokens, (query_heads + 2 * kv_heads) * head_dim]
  float* attended = nullptr;   // [tokens, query_heads * head_dim]
  float* branch = nullptr;     // [tokens, width]
  float* gate_up = nullptr;    // [tokens, 2 * feed-forward width]
  float* gated = nullptr;      // [tokens, feed-forward width]
  float* attention = nullptr;  // [threads, attention_floats]
  size_t attention_floats = 0;
  QuantizedInput quantized;
};

// The tokens that are going through the blocks.
struct Chunk {
  float* x = nullptr;  // [tokens, width], the residual stream
  size_t tokens = 0;
  size_t position = 0;  // of the first
};

class BlockOperator {
 public:
  static Result<BlockOperator> make(const Model& model, const Block& block, size_t width,
                                    PackedWeights& packed);

  // Adds the block's two branches to `chunk.x` and stores the chunk's keys and values in `cache`.
  //
  //   rotary_rows  [tokens, 2, planes] of this block's dial; null where it has none
  Result<void> run(const Chunk& chunk, const CacheView& cache, const float* rotary_rows,
                   const Workspace& workspace, const ThreadPool& pool);

 private:
  BlockOperator(const Block& block, size_t width) : block_(&block), width_(width) {}

  void prepare_heads(const Chunk& chunk, const CacheView& cache, const float* rotary_rows,
                     const Workspace& workspace, const ThreadPool& pool) const;
  void attend_all(const Chunk& chunk, const CacheView& cache, const Workspace& workspace,
                  const ThreadPool& pool) const;

  const Block* block_;
  size_t width_;
  LinearOperator qkv_, output_, gate_up_, down_;
};

// The kernels' view of an attention's numbers.
AttentionShape attention_shape(const Attention& attention);

// Rows that one thread takes at a time.
inline constexpr size_t kRowsPerTask = 16;

// Calls function(first, count) for consecutive rows until all `rows` are done, on the threads of
// `pool`.
template <typename Function>
void for_rows(const ThreadPool& pool, size_t rows, const Function& function) {
  pool.parallel_for((rows + kRowsPerTask - 1) / kRowsPerTask, [&](size_t task, size_t) {
    const size_t first = task * kRowsPerTask;
    function(first, rows - first < kRowsPerTask ? rows - first : kRowsPerTask);
  });
}

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_BLOCK_H_
