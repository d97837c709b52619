#include "runtime/block.h"

#include <algorithm>
#include <cmath>

#include "kernels/activation.h"
#include "kernels/norm.h"
#include "kernels/rotary.h"

namespace volvelle {
namespace {

// Tasks of attention that a thread should have for its share to be even.
constexpr size_t kUnitsPerThread = 4;

}  // namespace

AttentionShape attention_shape(const Attention& attention) {
  const auto rows = [](const Tensor* table) { return table ? table->f32() : nullptr; };
  LinearBias linear_bias;
  if (const Slopes* slopes = attention.slopes) {
    linear_bias = {slopes->values.data(), slopes->symmetric};
  }
  DistanceBias distance_bias;
  if (const BucketedBias* buckets = attention.buckets) {
    distance_bias = {buckets->biases.data(), buckets->reach};
  }
  RelativeRows relative;
  if (const ClippedRelative* tables = attention.relative) {
    relative = {.key = rows(tables->key),
                .query = rows(tables->query),
                .value = rows(tables->value),
                .clip = tables->clip_distance,
                .row_of = tables->row_of.empty() ? nullptr : tables->row_of.data(),
                .head_stride = tables->heads > 1 ? tables->rows * attention.head_dim : 0};
  }
  return {.query_heads = attention.query_heads,
          .kv_heads = attention.kv_heads,
          .head_dim = attention.head_dim,
          .scale = attention.scale,
          .soft_cap = attention.soft_cap,
          .window = attention.window,
          .bidirectional = attention.bidirectional,
          .stretch = attention.stretch,
          .linear_bias = linear_bias,
          .distance_bias = distance_bias,
          .relative = relative};
}

AttentionShape attention_shape(const CrossAttention& attention) {
  return {.query_heads = attention.heads,
          .kv_heads = attention.heads,
          .head_dim = attention.head_dim,
          .scale = attention.scale,
          .bidirectional = true};
}

void run_norm(const Norm& norm, const float* x, size_t x_stride, size_t rows, size_t width,
              float* y, size_t y_stride) {
  switch (norm.kind) {
    case NormKind::kRms:
      return rms_norm(x, x_stride, norm.weight, norm.epsilon, rows, width, y, y_stride);
    case NormKind::kLayer:
      return layer_norm(x, x_stride, norm.weight, norm.bias, norm.epsilon, rows, width, y,
                        y_stride);
  }
}

namespace {

// x += scale * branch; `branch` is lost.
void add_scaled(float* branch, float scale, size_t count, float* x) {
  if (scale != 1) multiply(scale, count, branch);
  add(branch, count, x);
}

auto maker(const BranchInput& input) {
  return [&input](size_t first, size_t count, float* to) { return input.make(first, count, to); };
}

// All rows of `input`, to [tokens, width].
void make_rows(const BranchInput& input, size_t tokens, float* to, const ThreadPool& pool) {
  for_rows(pool, tokens, [&](size_t first, size_t count, size_t) {
    float* const own = to + first * input.width;
    const float* const made = input.make(first, count, own);
    if (made != own) std::copy_n(made, count * input.width, own);
  });
}

}  // namespace

Result<BlockOperator> BlockOperator::make(const Model& model, const Block& block, size_t width,
                                          PackedWeights& packed) {
  const auto pack = [&](const Linear& linear) {
    return LinearOperator::make(model, linear, packed);
  };
  BlockOperator result(block, width);
  VOLVELLE_ASSIGN_OR_RETURN(result.qkv_, pack(block.attention.qkv));
  VOLVELLE_ASSIGN_OR_RETURN(result.output_, pack(block.attention.output));
  if (block.cross) {
    VOLVELLE_ASSIGN_OR_RETURN(result.cross_query_, pack(block.cross->query));
    VOLVELLE_ASSIGN_OR_RETURN(result.cross_key_value_, pack(block.cross->key_value));
    VOLVELLE_ASSIGN_OR_RETURN(result.cross_output_, pack(block.cross->output));
  }
  if (block.convolution) {
    VOLVELLE_ASSIGN_OR_RETURN(result.convolution_, pack(block.convolution->linear));
  }
  if (block.feed_forward.router.weight != nullptr) {
    VOLVELLE_ASSIGN_OR_RETURN(result.router_, pack(block.feed_forward.router));
  }
  for (const Expert& expert : block.feed_forward.experts) {
    ExpertOperator operators;
    VOLVELLE_ASSIGN_OR_RETURN(operators.gate_up, pack(expert.gate_up));
    VOLVELLE_ASSIGN_OR_RETURN(operators.down, pack(expert.down));
    result.experts_.push_back(std::move(operators));
  }
  return result;
}

Result<void> BlockOperator::run(const Chunk& chunk, std::span<const CacheView> caches,
                                const SourceView& source, const float* rotary_rows,
                                const Workspace& workspace, const ThreadPool& pool) {
  const Block& block = *block_;
  const Workspace& w = workspace;
  const auto norm_rows = [&](const std::optional<Norm>& norm, float* from, float* to) {
    if (!norm) return;
    for_rows(pool, chunk.tokens, [&](size_t first, size_t count, size_t) {
      run_norm(*norm, from + first * width_, width_, count, width_, to + first * width_, width_);
    });
  };
  // x = norm(x + branch), or without a norm the sum.
  const auto add_branch = [&](const std::optional<Norm>& norm = std::nullopt) {
    for_rows(pool, chunk.tokens, [&](size_t first, size_t count, size_t) {
      const size_t together = rows_at_hand(width_);
      for (const size_t end = first + count; first < end; first += together) {
        const size_t some = std::min(together, end - first);
        float* const x = chunk.x + first * width_;
        add_scaled(w.branch + first * width_, block.branch_scale, some * width_, x);
        if (norm) run_norm(*norm, x, width_, some, width_, x, width_);
      }
    });
  };
  const auto norm_of = [](const std::optional<Norm>& norm) { return norm ? &*norm : nullptr; };
  const auto reading = [&](const Norm* norm) -> BranchInput {
    return {.x = chunk.x, .width = width_, .norm = norm};
  };
  const auto reading_sum = [&](const Norm* norm) {
    BranchInput input = reading(norm);
    input.branch = w.branch, input.branch_scale = block.branch_scale;
    return input;
  };

  if (block.convolution) VOLVELLE_RETURN_IF_ERROR(convolve(chunk, w, pool));
  if (block.residual == Residual::kNormed) norm_rows(block.attention_norm, chunk.x, chunk.x);
  const bool norm_first =
      block.residual == Residual::kSequential || block.residual == Residual::kParallel;
  BranchInput input = reading(norm_first ? norm_of(block.attention_norm) : nullptr);
  const BranchInput beside{.x = w.normed, .width = width_};  // what a parallel feed-forward reads
  if (block.residual == Residual::kParallel) {
    const BranchInput own =
        reading(norm_of(block.feed_forward_norm ? block.feed_forward_norm : block.attention_norm));
    make_rows(own, chunk.tokens, w.normed, pool);
    if (!block.feed_forward_norm) input = beside;  // both branches read it
  }
  VOLVELLE_RETURN_IF_ERROR(attention_branch(input, chunk, caches, rotary_rows, w, pool));
  if (block.residual == Residual::kTwiceNormed) {
    for_rows(pool, chunk.tokens, [&](size_t first, size_t count, size_t) {
      add(chunk.x + first * width_, count * width_, w.branch + first * width_);
    });
  }
  norm_rows(block.attention_output_norm, w.branch, w.branch);

  switch (block.residual) {
    case Residual::kSequential:
      if (block.cross) {
        VOLVELLE_RETURN_IF_ERROR(
            cross_branch(reading_sum(norm_of(block.cross_norm)), chunk, source, w, pool));
      }
      input = reading_sum(norm_of(block.feed_forward_norm));
      break;
    case Residual::kParallel:
      add_branch();
      input = beside;
      break;
    case Residual::kPostNorm:
    case Residual::kTwiceNormed:
      add_branch(block.attention_norm);
      if (block.cross) {
        VOLVELLE_RETURN_IF_ERROR(cross_branch(reading(nullptr), chunk, source, w, pool));
        add_branch(block.cross_norm);
      }
      break;
    case Residual::kNormed:
      add_branch(block.feed_forward_norm);
      break;
  }
  VOLVELLE_RETURN_IF_ERROR(feed_forward_branch(input, chunk.tokens, w, pool));
  norm_rows(block.feed_forward_output_norm, w.branch, w.branch);
  const bool norm_last =
      block.residual == Residual::kPostNorm || block.residual == Residual::kTwiceNormed;
  add_branch(norm_last ? block.feed_forward_norm : std::nullopt);
  if (!block.convolution) return {};
  add(w.convolved, chunk.tokens * width_, chunk.x);
  norm_rows(block.convolution->norm, chunk.x, chunk.x);
  return {};
}

const float* BranchInput::make(size_t first, size_t count, float* to) const {
  float* const rows = x + first * width;
  if (branch != nullptr) add_scaled(branch + first * width, branch_scale, count * width, rows);
  if (norm == nullptr) return rows;
  run_norm(*norm, rows, width, count, width, to, width);
  return to;
}

// convolved = activation(linear(neighbours of x)); sequences are in the chunk from end to end.
Result<void> BlockOperator::convolve(const Chunk& chunk, const Workspace& workspace,
                                     const ThreadPool& pool) {
  const Convolution& convolution = *block_->convolution;
  const size_t kernel = convolution.kernel, half = kernel / 2;
  float* to = workspace.neighbours;
  for (const SequenceChunk& sequence : chunk.sequences) {
    for (size_t t = 0; t < sequence.tokens; ++t) {
      for (size_t i = 0; i < kernel; ++i, to += width_) {
        if (t + i < half || t + i - half >= sequence.tokens) {
          std::fill_n(to, width_, 0.0f);
        } else {
          std::copy_n(chunk.x + (sequence.first + t + i - half) * width_, width_, to);
        }
      }
    }
  }
  VOLVELLE_RETURN_IF_ERROR(convolution_.run(workspace.neighbours, chunk.tokens, workspace.convolved,
                                            workspace.linear, pool));
  if (!convolution.activation) return {};
  for_rows(pool, chunk.tokens, [&](size_t first, size_t count, size_t) {
    float* const rows = workspace.convolved + first * width_;
    activate(*convolution.activation, rows, width_, count, width_, rows, width_);
  });
  return {};
}

// branch = output(attention(qkv(input)))
Result<void> BlockOperator::attention_branch(const BranchInput& input, const Chunk& chunk,
                                             std::span<const CacheView> caches,
                                             const float* rotary_rows, const Workspace& workspace,
                                             const ThreadPool& pool) {
  const Workspace& w = workspace;
  VOLVELLE_RETURN_IF_ERROR(qkv_.run_made(chunk.tokens, maker(input), w.qkv, w.linear, pool));
  prepare_heads(chunk, caches, rotary_rows, w, pool);
  attend_all(chunk, caches, w, pool);
  return output_.run(w.attended, chunk.tokens, w.branch, w.linear, pool);
}

// branch = output(attention(query(input)) to the source)
Result<void> BlockOperator::cross_branch(const BranchInput& input, const Chunk& chunk,
                                         const SourceView& source, const Workspace& workspace,
                                         const ThreadPool& pool) {
  const CrossAttention& cross = *block_->cross;
  const Workspace& w = workspace;
  VOLVELLE_RETURN_IF_ERROR(
      cross_query_.run_made(chunk.tokens, maker(input), w.qkv, w.linear, pool));
  const AttentionShape shape = attention_shape(cross);
  const size_t tasks = (chunk.tokens + kAttentionTokens - 1) / kAttentionTokens;
  const AttentionChunk queries{.queries = w.qkv,
                               .query_stride = cross.width(),
                               .outputs = w.attended,
                               .output_stride = cross.width(),
                               .tokens = chunk.tokens,
                               .keys = source.tokens};
  pool.parallel_for(tasks * cross.heads, [&](size_t task, size_t thread) {
    const size_t first = task / cross.heads * kAttentionTokens;
    attend(shape, source.cache, queries, task % cross.heads, first,
           std::min(kAttentionTokens, chunk.tokens - first),
           w.attention + thread * w.attention_floats);
  });
  return cross_output_.run(w.attended, chunk.tokens, w.branch, w.linear, pool);
}

Result<void> BlockOperator::read_source(const float* x, size_t first, size_t rows,
                                        const CacheView& cache, const Workspace& workspace,
                                        const ThreadPool& pool) {
  const CrossAttention& cross = *block_->cross;
  VOLVELLE_RETURN_IF_ERROR(cross_key_value_.run(x, rows, workspace.source, workspace.linear, pool));
  const AttentionShape shape = attention_shape(cross);
  for_rows(pool, rows, [&](size_t start, size_t count, size_t) {
    const size_t stride = 2 * cross.width();
    const float* keys = workspace.source + start * stride;
    for (size_t head = 0; head < cross.heads; ++head, keys += cross.head_dim) {
      store_keys(cache, shape, head, first + start, count, keys, stride);
      store_values(cache, shape, head, first + start, count, keys + cross.width(), stride);
    }
  });
  return {};
}

// branch = down(activation(gate(input)) * up(input)), of one expert or of several
Result<void> BlockOperator::feed_forward_branch(const BranchInput& input, size_t tokens,
                                                const Workspace& workspace,
                                                const ThreadPool& pool) {
  const Workspace& w = workspace;
  if (block_->feed_forward.router.weight != nullptr) {
    make_rows(input, tokens, w.normed, pool);
    return run_experts(w.normed, tokens, w, pool);
  }
  ExpertOperator& only = experts_.front();
  VOLVELLE_RETURN_IF_ERROR(only.gate_up.run_made(tokens, maker(input), w.gate_up, w.linear, pool));
  return finish_expert(only, tokens, w.branch, w, pool);
}

Result<void> BlockOperator::finish_expert(ExpertOperator& expert, size_t tokens, float* output,
                                          const Workspace& workspace, const ThreadPool& pool) {
  const FeedForward& feed_forward = block_->feed_forward;
  const Workspace& w = workspace;
  const size_t inner = feed_forward.inner();
  const auto gated = [&](size_t first, size_t count, float* to) -> const float* {
    if (feed_forward.gated) {
      gate(feed_forward.activation, w.gate_up + first * 2 * inner, 2 * inner, count, inner, to,
           inner);
    } else {
      const auto function = expert.down.quantises() ? activate_coarsely : activate;
      function(feed_forward.activation, w.gate_up + first * inner, inner, count, inner, to, inner);
    }
    return to;
  };
  return expert.down.run_made(tokens, gated, output, w.linear, pool);
}

// Each expert takes the rows of those tokens that chose it, and its outputs go back weighted by the
// router's softmax. Shazeer et al. 2017, arXiv:1701.06538; Jiang et al. 2024, arXiv:2401.04088,
// section 2.1.
Result<void> BlockOperator::run_experts(const float* input, size_t tokens,
                                        const Workspace& workspace, const ThreadPool& pool) {
  const FeedForward& feed_forward = block_->feed_forward;
  const Workspace& w = workspace;
  const size_t experts = experts_.size();
  VOLVELLE_RETURN_IF_ERROR(router_.run(input, tokens, w.routes, w.linear, pool));
  for (size_t t = 0; t < tokens; ++t) {
    choose_experts({w.routes + t * experts, experts}, feed_forward.used, feed_forward.normalize);
  }
  std::fill_n(w.branch, tokens * width_, 0.0f);
  for (size_t e = 0; e < experts; ++e) {
    size_t rows = 0;
    for (size_t t = 0; t < tokens; ++t) {
      if (w.routes[t * experts + e] == 0) continue;
      std::copy_n(input + t * width_, width_, w.routed + rows++ * width_);
    }
    if (rows == 0) continue;
    VOLVELLE_RETURN_IF_ERROR(experts_[e].gate_up.run(w.routed, rows, w.gate_up, w.linear, pool));
    VOLVELLE_RETURN_IF_ERROR(finish_expert(experts_[e], rows, w.routed, w, pool));
    rows = 0;
    for (size_t t = 0; t < tokens; ++t) {
      const float worth = w.routes[t * experts + e];
      if (worth == 0) continue;
      float* const row = w.routed + rows++ * width_;
      multiply(worth, width_, row);
      add(row, width_, w.branch + t * width_);
    }
  }
  return {};
}

void choose_experts(std::span<float> scores, size_t used, bool normalize) {
  // NaN would break the order below; such a token's outputs are NaN whatever is chosen.
  for (float& score : scores) score = std::isnan(score) ? -INFINITY : score;
  const float largest = std::ranges::max(scores);
  double sum = 0;
  for (float& score : scores) sum += score = std::isinf(largest) ? 1 : std::exp(score - largest);
  double kept = 0;
  size_t left = used;
  // `used` times the largest that is left, marked by its sign; a tie takes the first.
  for (; left > 0; --left) {
    float& best = *std::ranges::max_element(scores);
    kept += best;
    best = -best;
    if (best == 0) break;  // nothing is left that counts
  }
  const double total = normalize ? kept : sum;
  for (float& score : scores) score = score < 0 ? static_cast<float>(-score / total) : 0;
}

// Clamps q, k and v, normalises and rotates q and k in place, and moves k and v into the cache.
void BlockOperator::prepare_heads(const Chunk& chunk, std::span<const CacheView> caches,
                                  const float* rotary_rows, const Workspace& workspace,
                                  const ThreadPool& pool) const {
  const Attention& attention = block_->attention;
  const AttentionShape shape = attention_shape(attention);
  const size_t head_dim = attention.head_dim;
  const size_t stride = attention.query_width() + 2 * attention.kv_width();
  for_rows(pool, chunk.tokens, [&](size_t first, size_t count, size_t) {
    float* const queries = workspace.qkv + first * stride;  // [count, query_heads, head_dim]
    float* const keys = queries + attention.query_width();  // [count, kv_heads, head_dim]
    float* const values = keys + attention.kv_width();      // [count, kv_heads, head_dim]
    if (attention.qkv_limit != 0) clamp(attention.qkv_limit, count * stride, queries);

    const auto norm_heads = [&](float* heads, size_t head_count, const std::optional<Norm>& norm) {
      if (!norm) return;
      for (size_t t = 0; t < count; ++t) {
        float* const row = heads + t * stride;
        switch (attention.norm_scope) {
          case HeadNormScope::kHead:
            run_norm(*norm, row, head_dim, head_count, head_dim, row, head_dim);
            break;
          case HeadNormScope::kEachHead:
            for (size_t head = 0; head < head_count; ++head) {
              Norm own = *norm;
              if (own.weight != nullptr) own.weight += head * head_dim;
              if (own.bias != nullptr) own.bias += head * head_dim;
              float* const x = row + head * head_dim;
              run_norm(own, x, head_dim, 1, head_dim, x, head_dim);
            }
            break;
          case HeadNormScope::kAllHeads:
            run_norm(*norm, row, stride, 1, head_count * head_dim, row, stride);
            break;
        }
      }
    };
    const auto rotate_heads = [&](float* heads, size_t head_count) {
      if (attention.rotary == nullptr) return;
      const size_t planes = attention.rotary->dial.planes;
      rotate(heads, {count, head_count, head_dim, stride}, attention.rotary->pairing, planes,
             rotary_rows + first * 2 * planes);
    };
    const auto prepare = [&](float* heads, size_t head_count, const std::optional<Norm>& norm) {
      if (!attention.norm_after_rotation) norm_heads(heads, head_count, norm);
      rotate_heads(heads, head_count);
      if (attention.norm_after_rotation) norm_heads(heads, head_count, norm);
    };
    prepare(queries, attention.query_heads, attention.query_norm);
    prepare(keys, attention.kv_heads, attention.key_norm);
    if (const auto& temperature = attention.temperature) {
      for (size_t t = 0; t < count; ++t) {
        const size_t position = chunk.positions[first + t];
        const double periods =
            static_cast<double>((position + temperature->offset) / temperature->period);
        multiply(static_cast<float>(1 + temperature->strength * std::log1p(periods)),
                 attention.query_width(), queries + t * stride);
      }
    }
    // Tokens of one sequence whose slots follow each other, head by head: neighbouring slots of a
    // head share cache lines.
    for (size_t t = 0, run = 0; t < count; t += run) {
      const uint32_t sequence = chunk.sequence_of[first + t];
      const CacheView& cache = caches[sequence];
      const size_t slot = (chunk.positions[first + t] - cache.first_position) % cache.slots;
      const size_t most = std::min(count - t, cache.slots - slot);
      for (run = 1; run < most && chunk.sequence_of[first + t + run] == sequence;) ++run;
      for (size_t head = 0; head < attention.kv_heads; ++head) {
        const size_t at = t * stride + head * head_dim;
        store_keys(cache, shape, head, slot, run, keys + at, stride);
        store_values(cache, shape, head, slot, run, values + at, stride);
      }
    }
  });
}

void BlockOperator::attend_all(const Chunk& chunk, std::span<const CacheView> caches,
                               const Workspace& workspace, const ThreadPool& pool) const {
  const Attention& attention = block_->attention;
  const AttentionShape shape = attention_shape(attention);
  const size_t query_stride = attention.query_width() + 2 * attention.kv_width();
  const size_t heads = attention.kv_heads;
  const auto queries_of = [&](const AttentionTask& task) {
    const SequenceChunk& sequence = chunk.sequences[task.sequence];
    return AttentionChunk{.queries = workspace.qkv + sequence.first * query_stride,
                          .query_stride = query_stride,
                          .outputs = workspace.attended + sequence.first * attention.query_width(),
                          .output_stride = attention.query_width(),
                          .position = sequence.position,
                          .tokens = sequence.tokens,
                          .keys = sequence.keys};
  };
  const auto tokens_of = [&](const AttentionTask& task) {
    return std::min(kAttentionTokens, chunk.sequences[task.sequence].tokens - task.first);
  };
  const auto scratch_of = [&](size_t thread) {
    return workspace.attention + thread * workspace.attention_floats;
  };

  // With heads enough for all threads, each task goes over its whole cache.
  const size_t units = chunk.tasks.size() * heads;
  size_t parts = 0, floats = 0;  // of a task, at most
  if (units < kUnitsPerThread * pool.threads() && pool.threads() > 1) {
    for (const AttentionTask& task : chunk.tasks) {
      const size_t tokens = tokens_of(task);
      parts = std::max(parts, attention_parts(shape, caches[task.sequence], queries_of(task),
                                              task.first, tokens));
      floats = std::max(floats, attention_partial_floats(shape, tokens));
    }
  }
  // Partial results of the parts at hand, after that of all before them.
  const size_t room = parts > 1 ? workspace.partial_floats / (units * floats) : 0;
  if (room < 3) {
    return pool.parallel_for(units, [&](size_t index, size_t thread) {
      const AttentionTask& task = chunk.tasks[index / heads];
      attend(shape, caches[task.sequence], queries_of(task), index % heads, task.first,
             tokens_of(task), scratch_of(thread));
    });
  }
  const auto partial_of = [&](size_t unit, size_t tokens, size_t part) {
    return workspace.partials + unit * room * floats +
           part * attention_partial_floats(shape, tokens);
  };
  const size_t at_once = room - 1;
  for (size_t first = 0; first < parts; first += at_once) {
    pool.parallel_for(units * at_once, [&](size_t index, size_t thread) {
      const size_t unit = index / at_once, part = index % at_once;
      const AttentionTask& task = chunk.tasks[unit / heads];
      const AttentionChunk queries = queries_of(task);
      const size_t tokens = tokens_of(task);
      const CacheView& cache = caches[task.sequence];
      if (first + part >= attention_parts(shape, cache, queries, task.first, tokens)) return;
      attend_part(shape, cache, queries, unit % heads, task.first, tokens, first + part,
                  scratch_of(thread), partial_of(unit, tokens, 1 + part));
    });
    for (size_t unit = 0; unit < units; ++unit) {
      const AttentionTask& task = chunk.tasks[unit / heads];
      const AttentionChunk queries = queries_of(task);
      const size_t tokens = tokens_of(task);
      const CacheView& cache = caches[task.sequence];
      const size_t all = attention_parts(shape, cache, queries, task.first, tokens);
      float* const merged = partial_of(unit, tokens, 0);
      if (first == 0) clear_partial(shape, tokens, merged);
      if (first < all) {
        merge_parts(shape, tokens, partial_of(unit, tokens, 1), std::min(at_once, all - first),
                    merged);
      }
      if (first + at_once < parts) continue;
      write_merged(shape, cache.type, queries, unit % heads, task.first, tokens, merged);
    }
  }
}

}  // namespace volvelle
