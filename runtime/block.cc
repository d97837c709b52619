#include "runtime/block.h"

#include <algorithm>

#include "kernels/activation.h"
#include "kernels/norm.h"
#include "kernels/rotary.h"

namespace volvelle {

AttentionShape attention_shape(const Attention& attention) {
  return {.query_heads = attention.query_heads,
          .kv_heads = attention.kv_heads,
          .head_dim = attention.head_dim,
          .scale = attention.scale,
          .soft_cap = attention.soft_cap,
          .window = attention.window};
}

Result<BlockOperator> BlockOperator::make(const Model& model, const Block& block, size_t width,
                                          PackedWeights& packed) {
  BlockOperator result(block, width);
  VOLVELLE_ASSIGN_OR_RETURN(result.qkv_, LinearOperator::make(model, block.attention.qkv, packed));
  VOLVELLE_ASSIGN_OR_RETURN(result.output_,
                            LinearOperator::make(model, block.attention.output, packed));
  VOLVELLE_ASSIGN_OR_RETURN(result.gate_up_,
                            LinearOperator::make(model, block.feed_forward.gate_up, packed));
  VOLVELLE_ASSIGN_OR_RETURN(result.down_,
                            LinearOperator::make(model, block.feed_forward.down, packed));
  return result;
}

Result<void> BlockOperator::run(const Chunk& chunk, const CacheView& cache,
                                const float* rotary_rows, const Workspace& workspace,
                                const ThreadPool& pool) {
  const Block& block = *block_;
  const Workspace& w = workspace;
  const size_t tokens = chunk.tokens, inner = block.feed_forward.down.weight->columns;
  const auto norm = [&](const Norm& norm, size_t first, size_t count) {
    rms_norm(chunk.x + first * width_, width_, norm.weight, norm.epsilon, count, width_,
             w.normed + first * width_, width_);
  };
  const auto add_branch = [&](size_t first, size_t count) {
    add(w.branch + first * width_, count * width_, chunk.x + first * width_);
  };

  // x += output(attention(qkv(norm(x))))
  for_rows(pool, tokens,
           [&](size_t first, size_t count) { norm(block.attention_norm, first, count); });
  VOLVELLE_RETURN_IF_ERROR(qkv_.run(w.normed, tokens, w.qkv, w.quantized, pool));
  prepare_heads(chunk, cache, rotary_rows, w, pool);
  attend_all(chunk, cache, w, pool);
  VOLVELLE_RETURN_IF_ERROR(output_.run(w.attended, tokens, w.branch, w.quantized, pool));

  // x += down(activation(gate(norm(x))) * up(norm(x)))
  for_rows(pool, tokens, [&](size_t first, size_t count) {
    add_branch(first, count);
    norm(block.feed_forward_norm, first, count);
  });
  VOLVELLE_RETURN_IF_ERROR(gate_up_.run(w.normed, tokens, w.gate_up, w.quantized, pool));
  for_rows(pool, tokens, [&](size_t first, size_t count) {
    gate(block.feed_forward.activation, w.gate_up + first * 2 * inner, 2 * inner, count, inner,
         w.gated + first * inner, inner);
  });
  VOLVELLE_RETURN_IF_ERROR(down_.run(w.gated, tokens, w.branch, w.quantized, pool));
  for_rows(pool, tokens, add_branch);
  return {};
}

// Normalises and rotates q and k in place and moves k and v into the cache.
void BlockOperator::prepare_heads(const Chunk& chunk, const CacheView& cache,
                                  const float* rotary_rows, const Workspace& workspace,
                                  const ThreadPool& pool) const {
  const Attention& attention = block_->attention;
  const AttentionShape shape = attention_shape(attention);
  const size_t head_dim = attention.head_dim;
  const size_t stride = attention.query_width() + 2 * attention.kv_width();
  for_rows(pool, chunk.tokens, [&](size_t first, size_t count) {
    float* const queries = workspace.qkv + first * stride;  // [count, query_heads, head_dim]
    float* const keys = queries + attention.query_width();  // [count, kv_heads, head_dim]
    float* const values = keys + attention.kv_width();      // [count, kv_heads, head_dim]
    const auto norm_and_rotate = [&](float* heads, size_t head_count,
                                     const std::optional<Norm>& norm) {
      if (norm) {
        for (size_t t = 0; t < count; ++t) {
          float* row = heads + t * stride;
          rms_norm(row, head_dim, norm->weight, norm->epsilon, head_count, head_dim, row, head_dim);
        }
      }
      if (attention.rotary != nullptr) {
        const size_t planes = attention.rotary->dial.planes;
        rotate(heads, {count, head_count, head_dim, stride}, attention.rotary->pairing, planes,
               rotary_rows + first * 2 * planes);
      }
    };
    norm_and_rotate(queries, attention.query_heads, attention.query_norm);
    norm_and_rotate(keys, attention.kv_heads, attention.key_norm);
    for (size_t t = 0; t < count; ++t) {
      const size_t slot = (chunk.position + first + t - cache.first_position) % cache.slots;
      for (size_t head = 0; head < attention.kv_heads; ++head) {
        store_key(cache, shape, head, slot, keys + t * stride + head * head_dim);
        store_value(cache, shape, head, slot, values + t * stride + head * head_dim);
      }
    }
  });
}

void BlockOperator::attend_all(const Chunk& chunk, const CacheView& cache,
                               const Workspace& workspace, const ThreadPool& pool) const {
  const Attention& attention = block_->attention;
  const AttentionShape shape = attention_shape(attention);
  const AttentionChunk queries{.queries = workspace.qkv,
                               .query_stride = attention.query_width() + 2 * attention.kv_width(),
                               .outputs = workspace.attended,
                               .output_stride = attention.query_width(),
                               .position = chunk.position,
                               .tokens = chunk.tokens};
  const size_t tiles = (chunk.tokens + kAttentionTokens - 1) / kAttentionTokens;
  pool.parallel_for(tiles * attention.kv_heads, [&](size_t task, size_t thread) {
    const size_t first = task / attention.kv_heads * kAttentionTokens;
    attend(shape, cache, queries, task % attention.kv_heads, first,
           std::min(kAttentionTokens, chunk.tokens - first),
           workspace.attention + thread * workspace.attention_floats);
  });
}

}  // namespace volvelle
