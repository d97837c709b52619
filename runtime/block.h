// One block of a transformer, run over a chunk of tokens: block.cc reads like its equations.

#ifndef VOLVELLE_RUNTIME_BLOCK_H_
#define VOLVELLE_RUNTIME_BLOCK_H_

#include <cstddef>
#include <span>
#include <vector>

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
  float* gate_up = nullptr;    // [tokens, 2 * feed-forward width], or once where it is plain
  float* attention = nullptr;  // [threads, attention_floats]
  float* partials = nullptr;   // [partial_floats], of attention to a cache in parts
  float* source = nullptr;     // [tokens, 2 * cross-attention's width]; null: none
  float* routes = nullptr;  // [tokens, experts]: what each is worth to each token; null: no experts
  float* routed = nullptr;  // [tokens, width]: the rows of those tokens that one expert gets
  float* neighbours = nullptr;  // [tokens, kernel * width]; null: no convolution
  float* convolved = nullptr;   // [tokens, width]
  size_t attention_floats = 0;
  size_t partial_floats = 0;
  LinearScratch linear;
};

// Consecutive tokens of one sequence among those that go through the blocks together.
struct SequenceChunk {
  size_t first = 0;  // row of the first token
  size_t tokens = 0;
  size_t position = 0;  // of the first token
  size_t keys = 0;      // bidirectional: tokens of the sequence
  size_t padding = 0;   // tokens before the first that do not count; see AdditiveTable::padding
};

// Up to kAttentionTokens tokens of a sequence, which one call of `attend` takes.
struct AttentionTask {
  uint32_t sequence = 0;
  uint32_t first = 0;  // of the sequence's tokens
};

// The tokens that are going through the blocks, sequence by sequence.
struct Chunk {
  float* x = nullptr;  // [tokens, width], the residual stream
  size_t tokens = 0;
  std::span<const SequenceChunk> sequences;
  std::span<const AttentionTask> tasks;   // of all sequences
  std::span<const uint32_t> sequence_of;  // [tokens]
  std::span<const uint32_t> positions;    // [tokens]
};

// Keys and values of a source, which every token of a sequence attends to.
struct SourceView {
  CacheView cache;
  size_t tokens = 0;
};

// What a branch reads: x, which gains `branch` before, normalised.
struct BranchInput {
  float* x = nullptr;  // [tokens, width]
  size_t width = 0;
  const Norm* norm = nullptr;  // null: x itself
  float* branch = nullptr;     // [tokens, width], which is added to x times `scale`; null: none
  float branch_scale = 1;

  // Rows [first, first + count), each of which is to be made once, [count, width]: at `to`, or
  // where they lie already.
  const float* make(size_t first, size_t count, float* to) const;
};

class BlockOperator {
 public:
  static Result<BlockOperator> make(const Model& model, const Block& block, size_t width,
                                    PackedWeights& packed);

  // Adds the block's branches to `chunk.x` and stores the chunk's keys and values in `caches`.
  //
  //   caches       [sequences]
  //   source       what cross-attention attends to
  //   rotary_rows  [tokens, 2, planes] of this block's dial; null where it has none
  Result<void> run(const Chunk& chunk, std::span<const CacheView> caches, const SourceView& source,
                   const float* rotary_rows, const Workspace& workspace, const ThreadPool& pool);

  // Stores the keys and values of source rows [first, first + rows), x [rows, encoder's width], at
  // most a chunk of them. The block has cross-attention.
  Result<void> read_source(const float* x, size_t first, size_t rows, const CacheView& cache,
                           const Workspace& workspace, const ThreadPool& pool);

 private:
  struct ExpertOperator {
    LinearOperator gate_up, down;
  };

  BlockOperator(const Block& block, size_t width) : block_(&block), width_(width) {}

  // Each writes its branch [tokens, width] to the workspace's `branch`.
  Result<void> attention_branch(const BranchInput& input, const Chunk& chunk,
                                std::span<const CacheView> caches, const float* rotary_rows,
                                const Workspace& workspace, const ThreadPool& pool);
  Result<void> cross_branch(const BranchInput& input, const Chunk& chunk, const SourceView& source,
                            const Workspace& workspace, const ThreadPool& pool);
  Result<void> convolve(const Chunk& chunk, const Workspace& workspace, const ThreadPool& pool);
  Result<void> feed_forward_branch(const BranchInput& input, size_t tokens,
                                   const Workspace& workspace, const ThreadPool& pool);

  // output = down(activation(gate) * up) of what the expert's gate_up gave in the workspace.
  Result<void> finish_expert(ExpertOperator& expert, size_t tokens, float* output,
                             const Workspace& workspace, const ThreadPool& pool);
  Result<void> run_experts(const float* input, size_t tokens, const Workspace& workspace,
                           const ThreadPool& pool);
  void prepare_heads(const Chunk& chunk, std::span<const CacheView> caches,
                     const float* rotary_rows, const Workspace& workspace,
                     const ThreadPool& pool) const;
  void attend_all(const Chunk& chunk, std::span<const CacheView> caches, const Workspace& workspace,
                  const ThreadPool& pool) const;

  const Block* block_;
  size_t width_;
  LinearOperator qkv_, output_, router_, convolution_;
  LinearOperator cross_query_, cross_key_value_, cross_output_;
  std::vector<ExpertOperator> experts_;
};

// y = norm(x) for rows [rows, width], strides in floats; y may be x.
void run_norm(const Norm& norm, const float* x, size_t x_stride, size_t rows, size_t width,
              float* y, size_t y_stride);

// Turns a router's logits [experts] into what each expert is worth to the token: the softmax over
// all, of which the `used` largest stay and, with `normalize`, are scaled to sum to one; the others
// become 0.
void choose_experts(std::span<float> scores, size_t used, bool normalize);

// The kernels' view of an attention's numbers.
AttentionShape attention_shape(const Attention& attention);
AttentionShape attention_shape(const CrossAttention& attention);

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_BLOCK_H_
