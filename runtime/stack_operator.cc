#include "runtime/stack_operator.h"

#include <algorithm>
#include <utility>

#include "kernels/activation.h"
#include "kernels/norm.h"
#include "runtime/rotary_tables.h"

namespace volvelle {
namespace {

// Parts of the cache whose results for one token there is room for.
constexpr size_t kPartials = 64;
constexpr size_t kFloatsPerLine = 16;  // parts of the scratch start on cache lines of 64 bytes

}  // namespace

// With as many rows as the model's dial, where the scaling is dynamic and `length` positions go
// beyond what was trained. The frequencies follow github.com/huggingface/transformers,
// modeling_rope_utils.py.
void StackOperator::DialRows::bake(size_t length) {
  if (rotary->dynamic_context == 0 || length <= rotary->dynamic_context) return;
  const auto width = static_cast<uint32_t>(rotary->dial.width());
  const float base = dynamic_ntk_base(rotary->base, rotary->scaling.factor, width,
                                      rotary->dynamic_context, length);
  const std::vector<float> frequencies = rotary_frequencies(base, width);
  const auto fine_rows = static_cast<uint32_t>(rotary->dial.fine_rows);
  const auto coarse_rows = static_cast<uint32_t>(rotary->dial.coarse_rows);
  fine = dial_rows(frequencies, fine_rows, 1, 1);
  coarse = dial_rows(frequencies, coarse_rows, fine_rows, rotary->amplitude);
  own = rotary->dial;
  own.coarse = coarse.data();
  own.fine = fine.data();
}

const Dial& StackOperator::DialRows::for_length(size_t length) const {
  if (own.planes > 0) return own;
  return rotary->switch_length > 0 && length > rotary->switch_length ? rotary->long_dial
                                                                     : rotary->dial;
}

Result<StackOperator> StackOperator::make(const Model& model, const Stack& stack, ThreadPool& pool,
                                          PackedWeights& packed, size_t chunk, size_t inputs,
                                          size_t length) {
  StackOperator result(stack, pool, chunk);
  VOLVELLE_RETURN_IF_ERROR(result.reserve(inputs, length));
  result.blocks_.reserve(stack.blocks.size());
  for (const Block& block : stack.blocks) {
    VOLVELLE_ASSIGN_OR_RETURN(BlockOperator operators,
                              BlockOperator::make(model, block, stack.width, packed));
    result.blocks_.push_back(std::move(operators));
  }
  if (stack.embedding_projection) {
    VOLVELLE_ASSIGN_OR_RETURN(result.embedding_projection_,
                              LinearOperator::make(model, *stack.embedding_projection, packed));
  }
  return result;
}

// Memory that is reserved but never touched costs nothing.
Result<size_t> StackOperator::bytes_for(const Stack& stack, ThreadPool& pool, size_t chunk,
                                        size_t inputs, size_t length) {
  StackOperator trial(stack, pool, chunk);
  VOLVELLE_RETURN_IF_ERROR(trial.reserve(inputs, length));
  return trial.bytes();
}

// Lays all scratch out in one buffer: first its parts' sizes, then their places.
Result<void> StackOperator::reserve(size_t inputs, size_t length) {
  const Stack& stack = *stack_;
  size_t qkv = 0, attended = 0, inner = 0, attention = 0, experts = 0, source = 0, kernel = 0;
  size_t partials = 0;
  inputs = std::max(inputs, stack.width);
  const auto reads = [&inputs](const Linear& linear) {
    inputs = std::max(inputs, linear.weight->padded_columns());
  };
  for (const Block& block : stack.blocks) {
    const FeedForward& feed_forward = block.feed_forward;
    qkv = std::max(qkv, block.attention.query_width() + 2 * block.attention.kv_width());
    attended = std::max(attended, block.attention.query_width());
    inner = std::max(inner, feed_forward.inner());
    const AttentionShape shape = attention_shape(block.attention);
    attention = std::max(attention, attention_scratch_floats(shape));
    partials = std::max(partials, block.attention.kv_heads * attention_partial_floats(shape, 1));
    reads(block.attention.qkv);
    reads(block.attention.output);
    if (const auto& cross = block.cross) {
      qkv = std::max(qkv, cross->width());
      attended = std::max(attended, cross->width());
      source = std::max(source, 2 * cross->width());
      attention = std::max(attention, attention_scratch_floats(attention_shape(*cross)));
      reads(cross->query);
      reads(cross->key_value);
      reads(cross->output);
    }
    if (const auto& convolution = block.convolution) {
      kernel = std::max(kernel, convolution->kernel);
      reads(convolution->linear);
    }
    for (const Expert& expert : feed_forward.experts) reads(expert.gate_up), reads(expert.down);
    if (feed_forward.router.weight == nullptr) continue;
    reads(feed_forward.router);
    experts = std::max(experts, feed_forward.experts.size());
  }
  size_t projected = 0;
  if (stack.embedding_projection) {
    reads(*stack.embedding_projection);
    projected = stack.embedding_projection->inputs();
  }
  attention = (attention + kFloatsPerLine - 1) / kFloatsPerLine * kFloatsPerLine;
  workspace_.attention_floats = attention;
  workspace_.partial_floats = pool_->threads() > 1 ? kPartials * partials : 0;

  std::vector<std::pair<float**, size_t>> parts = {
      {&x_, chunk_ * stack.width},
      {&workspace_.normed, chunk_ * stack.width},
      {&workspace_.qkv, chunk_ * qkv},
      {&workspace_.attended, chunk_ * attended},
      {&workspace_.branch, chunk_ * std::max(stack.width, projected)},
      {&workspace_.gate_up, chunk_ * 2 * inner},
      {&workspace_.attention, pool_->threads() * attention},
      {&workspace_.partials, workspace_.partial_floats},
      {&workspace_.source, chunk_ * source},
      {&workspace_.routes, chunk_ * experts},
      {&workspace_.routed, experts > 0 ? chunk_ * stack.width : 0},
      {&embedded_, chunk_ * projected},
      {&workspace_.neighbours, chunk_ * kernel * stack.width},
      {&workspace_.convolved, kernel > 0 ? chunk_ * stack.width : 0},
  };
  for (const Block& block : stack.blocks) {
    const Rotary* rotary = block.attention.rotary;
    if (rotary != nullptr && !std::ranges::contains(dials_, rotary, &DialRows::rotary))
      dials_.push_back({.rotary = rotary});
  }
  for (DialRows& dial : dials_) dial.bake(length);
  for (DialRows& dial : dials_) parts.push_back({&dial.rows, chunk_ * dial.rotary->dial.width()});

  // XNNPACK may read a few bytes past the rows it is given.
  constexpr size_t kExtraFloats = XNN_EXTRA_BYTES / sizeof(float);
  size_t floats = 0;
  std::vector<size_t> offsets;
  for (const auto& [part, count] : parts) {
    offsets.push_back(floats);
    floats += (count + kExtraFloats + kFloatsPerLine - 1) / kFloatsPerLine * kFloatsPerLine;
  }
  VOLVELLE_ASSIGN_OR_RETURN(scratch_, AlignedBuffer::make(floats * sizeof(float)));
  for (size_t i = 0; i < parts.size(); ++i) {
    *parts[i].first = scratch_.as<float>().data() + offsets[i];
  }
  VOLVELLE_ASSIGN_OR_RETURN(workspace_.linear,
                            LinearScratch::make(chunk_, inputs, pool_->threads()));
  positions_.resize(chunk_);
  sequence_of_.resize(chunk_);
  rows_.resize(chunk_);
  tasks_.reserve(chunk_);
  return {};
}

// Where each token stands, and how attention is divided.
void StackOperator::place(const Input& input) {
  const std::span<const SequenceChunk> sequences = input.sequences;
  tasks_.clear();
  for (uint32_t s = 0; s < sequences.size(); ++s) {
    const SequenceChunk& sequence = sequences[s];
    for (size_t t = 0; t < sequence.tokens; ++t) {
      positions_[sequence.first + t] = static_cast<uint32_t>(sequence.position + t);
      sequence_of_[sequence.first + t] = s;
      if (t % kAttentionTokens == 0) tasks_.push_back({s, static_cast<uint32_t>(t)});
    }
  }
  const AdditiveTable* additive = stack_->additive;
  if (additive == nullptr) return;
  const auto offset = static_cast<uint32_t>(additive->row_offset);
  for (const SequenceChunk& sequence : sequences) {
    auto counted = static_cast<uint32_t>(sequence.position - sequence.padding);
    for (size_t t = sequence.first; t < sequence.first + sequence.tokens; ++t) {
      const bool pads = input.tokens[t] == additive->padding;
      rows_[t] = pads ? offset - 1 : offset + counted++;
    }
  }
}

// x [tokens, width] = norm(projection(embedding * scale + type rows) + position rows), or the
// projection of all the rest
Result<void> StackOperator::embed(const Input& input) {
  const Stack& stack = *stack_;
  const size_t columns = stack.embedding->columns;
  const size_t tokens = input.tokens.size();
  float* const rows = stack.embedding_projection ? embedded_ : x_;
  for_rows(*pool_, tokens, [&](size_t first, size_t count, size_t) {
    for (size_t t = first; t < first + count; ++t) {
      float* const row = rows + t * columns;
      read_row(*stack.embedding, input.tokens[t], row);
      if (stack.embedding_scale != 1) multiply(stack.embedding_scale, columns, row);
      if (stack.token_types == nullptr) continue;
      const size_t type = input.types.empty() ? 0 : input.types[t];
      add(stack.token_types->f32() + type * columns, columns, row);
    }
  });
  const auto project = [&] {
    return embedding_projection_.run(rows, tokens, x_, workspace_.linear, *pool_);
  };
  if (stack.embedding_projection && !stack.projects_last) VOLVELLE_RETURN_IF_ERROR(project());
  place_and_norm(tokens, stack.projects_last ? columns : stack.width,
                 stack.projects_last ? rows : x_);
  if (stack.projects_last) VOLVELLE_RETURN_IF_ERROR(project());
  return {};
}

// x [tokens, width] = norm(x + position rows)
void StackOperator::place_and_norm(size_t tokens, size_t width, float* x) {
  const Stack& stack = *stack_;
  if (stack.additive == nullptr && !stack.embedding_norm) return;
  for_rows(*pool_, tokens, [&](size_t first, size_t count, size_t) {
    if (const AdditiveTable* additive = stack.additive) {
      for (size_t t = first; t < first + count; ++t) {
        float* const row = workspace_.branch + t * width;
        read_row(*additive->table, rows_[t], row);
        add(row, width, x + t * width);
      }
    }
    if (!stack.embedding_norm) return;
    float* const rows = x + first * width;
    run_norm(*stack.embedding_norm, rows, width, count, width, rows, width);
  });
}

Result<float*> StackOperator::run(const Input& input, size_t length, const CacheOf& cache_of,
                                  std::span<const SourceView> sources) {
  place(input);
  VOLVELLE_RETURN_IF_ERROR(embed(input));
  const std::span<const uint32_t> positions(positions_.data(), input.tokens.size());
  for (const DialRows& dial : dials_) read_dial(dial.for_length(length), positions, dial.rows);

  const Chunk chunk{.x = x_,
                    .tokens = input.tokens.size(),
                    .sequences = input.sequences,
                    .tasks = tasks_,
                    .sequence_of = sequence_of_,
                    .positions = positions};
  caches_.resize(input.sequences.size());
  for (size_t i = 0; i < blocks_.size(); ++i) {
    for (size_t s = 0; s < caches_.size(); ++s) caches_[s] = cache_of(i, s);
    const Rotary* rotary = stack_->blocks[i].attention.rotary;
    const auto dial = std::ranges::find(dials_, rotary, &DialRows::rotary);
    VOLVELLE_RETURN_IF_ERROR(
        blocks_[i].run(chunk, caches_, sources.empty() ? SourceView() : sources[i],
                       dial == dials_.end() ? nullptr : dial->rows, workspace_, *pool_));
  }
  return x_;
}

Result<void> StackOperator::read_source(std::span<const float> x, size_t rows,
                                        std::span<const CacheView> caches) {
  const size_t width = x.size() / rows;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    for (size_t first = 0; first < rows; first += chunk_) {
      VOLVELLE_RETURN_IF_ERROR(blocks_[i].read_source(x.data() + first * width, first,
                                                      std::min(chunk_, rows - first), caches[i],
                                                      workspace_, *pool_));
    }
  }
  return {};
}

bool StackOperator::dials_change(size_t length, size_t longer) const {
  return std::ranges::any_of(dials_, [&](const DialRows& dial) {
    return &dial.for_length(length) != &dial.for_length(longer);
  });
}

bool StackOperator::has_switch() const {
  return std::ranges::any_of(dials_,
                             [](const DialRows& dial) { return dial.rotary->switch_length > 0; });
}

}  // namespace volvelle
