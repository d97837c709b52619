#include "runtime/encoder.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/activation.h"
#include "platforms/memory.h"
#include "runtime/finite.h"
#include "runtime/packed_weights.h"
#include "runtime/stack_operator.h"

namespace volvelle {
namespace {

size_t padded(size_t floats) {
  // XNNPACK may read a few bytes past the rows it is given; parts start on cache lines.
  return (floats + XNN_EXTRA_BYTES / sizeof(float) + 15) / 16 * 16;
}

// Tokens of a sentence from which on its keys and values are worth their codes.
constexpr size_t kLeastCoded = 96;
// Slots of an int8 cache for each of a float cache: both in their whole groups.
constexpr size_t kCodedSlots = kCacheTile / kKeyLanes;
static_assert(kCodedSlots <= sizeof(float));  // so codes fit where floats do

// y [width] of x [rows, width]
void pool_rows(Pooling pooling, const float* x, size_t rows, size_t width, float* y) {
  switch (pooling) {
    case Pooling::kNone:
    case Pooling::kFirst:
      std::copy_n(x, width, y);
      return;
    case Pooling::kLast:
      std::copy_n(x + (rows - 1) * width, width, y);
      return;
    case Pooling::kMax:
      std::copy_n(x, width, y);
      for (size_t row = 1; row < rows; ++row) {
        for (size_t i = 0; i < width; ++i) y[i] = std::max(y[i], x[row * width + i]);
      }
      return;
    case Pooling::kMean:
    case Pooling::kRootMean:
    case Pooling::kWeightedMean: {
      double total = 0;
      std::vector<double> sums(width);
      for (size_t row = 0; row < rows; ++row) {
        const double weight =
            pooling == Pooling::kWeightedMean ? static_cast<double>(row + 1) : 1.0;
        for (size_t i = 0; i < width; ++i) sums[i] += weight * x[row * width + i];
        total += weight;
      }
      if (pooling == Pooling::kRootMean) total = std::sqrt(total);
      for (size_t i = 0; i < width; ++i) y[i] = static_cast<float>(sums[i] / total);
      return;
    }
  }
}

}  // namespace

void to_unit_length(std::span<float> row) {
  double squares = 0;
  for (const float value : row) squares += double{value} * value;
  if (squares == 0) return;
  const double length = std::sqrt(squares);
  for (float& value : row) value = static_cast<float>(value / length);
}

struct Encoder::State {
  std::shared_ptr<const Model> model;
  ThreadPool& pool;
  const Task* task;
  size_t chunk;
  PackedWeights packed;  // outlives the operators below
  std::optional<StackOperator> blocks;
  std::vector<LinearOperator> layers;  // of the task
  AlignedBuffer cache_buffer, scratch;
  CacheView cache;      // which all layers share
  float* rows[2] = {};  // [chunk, widest of the task's rows]
  CacheView view;       // of the sentence that was asked for last
  std::vector<int32_t> tokens, types;
  std::vector<SequenceChunk> sequences;
  std::vector<size_t> first_slots;  // [sequences]
  bool exact = false;               // float linears: keys and values stay floats as well

  const Stack& stack() const { return *model->encoder(); }
  // Of the cache, for floats. Sentences lie in it one after the other, each with all its heads in
  // whole groups of key lanes; many short ones fill it before they are a chunk.
  size_t slots() const { return 2 * cache_slots(CacheType::kF32, chunk); }
  // How a sentence of so many tokens is kept. Codes pay for themselves where each is read often.
  CacheType type_for(size_t count) const {
    return exact || count < kLeastCoded ? CacheType::kF32 : CacheType::kQ8;
  }
  Result<void> reserve();
  Result<void> check(std::span<const Sentence> sentences) const;
  Result<void> run_chunk(std::span<const Sentence> sentences, size_t first, const Sink& sink);
  Result<std::span<const float>> run_task(float* x, size_t tokens);
};

Result<void> Encoder::State::reserve() {
  const Stack& stack = this->stack();
  size_t widest = stack.width, inputs = stack.width;
  if (task != nullptr) {
    widest = std::max(widest, task->pooled(stack.width));
    for (const Layer& layer : task->layers) {
      widest = std::max(widest, layer.linear.outputs());
      inputs = std::max(inputs, layer.linear.weight->padded_columns());
      VOLVELLE_ASSIGN_OR_RETURN(LinearOperator made,
                                LinearOperator::make(*model, layer.linear, packed));
      layers.push_back(std::move(made));
    }
  }
  VOLVELLE_ASSIGN_OR_RETURN(StackOperator made,
                            StackOperator::make(*model, stack, pool, packed, chunk, inputs, chunk));
  blocks = std::move(made);
  exact = true;
  size_t heads = 0, part = 0;  // floats of keys, and of values
  for (const Block& block : stack.blocks) {
    const Attention& attention = block.attention;
    exact = exact && attention.qkv.weight->type == TensorType::kF32;
    heads = std::max(heads, attention.kv_heads);
    part = std::max(part, attention.kv_heads * slots() * cache_row_elements(attention.head_dim));
  }
  const size_t scales = exact ? 0 : heads * slots() * kCodedSlots;
  VOLVELLE_ASSIGN_OR_RETURN(cache_buffer, AlignedBuffer::make(2 * (part + scales) * sizeof(float)));
  float* const keys = cache_buffer.as<float>().data();
  cache.keys = keys;
  cache.values = keys + part;
  cache.key_scales = keys + 2 * part;
  cache.value_scales = cache.key_scales + scales;
  const size_t floats = padded(chunk * widest);
  VOLVELLE_ASSIGN_OR_RETURN(scratch, AlignedBuffer::make(2 * floats * sizeof(float)));
  rows[0] = scratch.as<float>().data();
  rows[1] = rows[0] + floats;
  return {};
}

Result<std::unique_ptr<Encoder>> Encoder::open(std::shared_ptr<const Model> model, ThreadPool& pool,
                                               const Task* task, size_t chunk,
                                               LinearObserver* observer) {
  if (model->encoder() == nullptr) {
    return fail("{}: has no encoder; it makes text and no vectors", model->path());
  }
  const Stack& stack = *model->encoder();
  chunk = std::clamp<size_t>(chunk, 1, std::max<size_t>(1, size_t{1} << 20));
  std::unique_ptr<State> state(
      new State{.model = model, .pool = pool, .task = task, .chunk = chunk});
  if (model->packed_in() == PackedIn::kFile) {
    state->packed.use_file(packed_path(model->path(), model->generates() ? "encoder" : ""),
                           Model::linears_of(stack));
  }
  VOLVELLE_RETURN_IF_ERROR(state->reserve());
  state->blocks->linear_scratch().observe(observer);
  state->blocks->linear_scratch().make_rows_alike();
  if (!state->packed.found()) VOLVELLE_RETURN_IF_ERROR(model->verify_contents(*stack.embedding));
  VOLVELLE_RETURN_IF_ERROR(state->packed.finish());
  return std::unique_ptr<Encoder>(new Encoder(std::move(state)));
}

Encoder::Encoder(std::unique_ptr<State> state) : state_(std::move(state)) {}
Encoder::~Encoder() = default;

Result<void> Encoder::State::check(std::span<const Sentence> sentences) const {
  const Stack& stack = this->stack();
  const size_t types_known = stack.token_types != nullptr ? stack.token_types->rows : 1;
  for (size_t i = 0; i < sentences.size(); ++i) {
    const Sentence& sentence = sentences[i];
    const size_t count = sentence.tokens.size();
    if (count == 0) return fail("text {} has no tokens", i + 1);
    if (count > stack.position_limit) {
      return fail("{}: text {} has {} tokens, and the model's positions end at {}", model->path(),
                  i + 1, count, stack.position_limit);
    }
    if (count > chunk) {
      return fail("{}: text {} has {} tokens, more than the {} that there is room for",
                  model->path(), i + 1, count, chunk);
    }
    VOLVELLE_RETURN_IF_ERROR(model->check_tokens(stack, sentence.tokens));
    if (!sentence.types.empty() && sentence.types.size() != count) {
      return fail("text {} has {} tokens and {} types", i + 1, count, sentence.types.size());
    }
    for (const int32_t type : sentence.types) {
      if (type < 0 || static_cast<size_t>(type) >= types_known) {
        return fail("text {}: type {} is not below the model's {}", i + 1, type, types_known);
      }
    }
  }
  return {};
}

// What the task makes of x [tokens, width]: its rows are in the order of the sentences.
Result<std::span<const float>> Encoder::State::run_task(float* x, size_t tokens) {
  const size_t width = stack().width;
  float* from = x;
  size_t count = tokens, columns = width;
  if (task->pooling != Pooling::kNone) {
    columns = task->pooled(width);
    pool.parallel_for(sequences.size(), [&](size_t s, size_t) {
      const float* const states = x + sequences[s].first * width;
      float* pooled = rows[0] + s * columns;
      pool_rows(task->pooling, states, sequences[s].tokens, width, pooled);
      for (const Pooling further : task->further_poolings) {
        pool_rows(further, states, sequences[s].tokens, width, pooled += width);
      }
    });
    from = rows[0];
    count = sequences.size();
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    const Layer& layer = task->layers[i];
    float* const to = from == rows[0] ? rows[1] : rows[0];
    VOLVELLE_RETURN_IF_ERROR(layers[i].run(from, count, to, blocks->linear_scratch(), pool));
    columns = layer.linear.outputs();
    if (layer.activation) activate(*layer.activation, to, columns, count, columns, to, columns);
    if (layer.norm) run_norm(*layer.norm, to, columns, count, columns, to, columns);
    from = to;
  }
  for (size_t row = 0; task->normalize && row < count; ++row) {
    to_unit_length({from + row * columns, columns});
  }
  return std::span<const float>(from, count * columns);
}

Result<void> Encoder::State::run_chunk(std::span<const Sentence> sentences, size_t first,
                                       const Sink& sink) {
  const Stack& stack = this->stack();
  tokens.clear();
  types.clear();
  sequences.clear();
  first_slots.clear();
  size_t longest = 0, slot = 0;
  for (const Sentence& sentence : sentences) {
    const size_t count = sentence.tokens.size();
    longest = std::max(longest, count);
    sequences.push_back({.first = tokens.size(), .tokens = count, .position = 0, .keys = count});
    first_slots.push_back(slot);
    slot += cache_slots(CacheType::kF32, count);
    tokens.insert(tokens.end(), sentence.tokens.begin(), sentence.tokens.end());
    types.insert(types.end(), sentence.types.begin(), sentence.types.end());
    types.resize(tokens.size());
  }
  const auto cache_of = [&](size_t layer, size_t sequence) -> const CacheView& {
    const Attention& attention = stack.blocks[layer].attention;
    const size_t rows_before = first_slots[sequence] * attention.kv_heads;
    const size_t before = rows_before * cache_row_elements(attention.head_dim);
    view = cache;
    view.slots = sequences[sequence].tokens;
    view.type = type_for(view.slots);
    view.keys = static_cast<float*>(view.keys) + before;
    view.values = static_cast<float*>(view.values) + before;
    if (view.type == CacheType::kQ8) {
      view.key_scales += rows_before * kCodedSlots;
      view.value_scales += rows_before * kCodedSlots;
    }
    return view;
  };
  VOLVELLE_ASSIGN_OR_RETURN(float* const x,
                            blocks->run({.tokens = tokens, .types = types, .sequences = sequences},
                                        longest, cache_of, {}));
  if (stack.final_norm) {
    run_norm(*stack.final_norm, x, stack.width, tokens.size(), stack.width, x, stack.width);
  }
  std::span<const float> values(x, tokens.size() * stack.width);
  if (task != nullptr) {
    VOLVELLE_ASSIGN_OR_RETURN(values, run_task(x, tokens.size()));
  }
  if (!all_finite(values)) {
    return fail(
        "{}: its numbers overflow on these tokens; the checkpoint is damaged, or its parts "
        "do not belong together",
        model->path());
  }
  const bool pooled = task != nullptr && task->pooling != Pooling::kNone;
  const size_t columns = task != nullptr ? task->outputs(stack.width) : stack.width;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const size_t row = pooled ? s : sequences[s].first;
    const size_t count = pooled ? 1 : sequences[s].tokens;
    VOLVELLE_RETURN_IF_ERROR(
        sink(first + s, count, values.subspan(row * columns, count * columns)));
  }
  return {};
}

Result<void> Encoder::run(std::span<const Sentence> sentences, const Sink& sink) {
  VOLVELLE_RETURN_IF_ERROR(state_->check(sentences));
  for (size_t first = 0, end = 0; first < sentences.size(); first = end) {
    size_t tokens = 0, slots = 0;
    for (; end < sentences.size(); ++end) {
      tokens += sentences[end].tokens.size();
      slots += cache_slots(CacheType::kF32, sentences[end].tokens.size());
      if (tokens > state_->chunk || slots > state_->slots()) break;
    }
    VOLVELLE_RETURN_IF_ERROR(state_->run_chunk(sentences.subspan(first, end - first), first, sink));
  }
  return {};
}

size_t Encoder::width() const {
  const size_t width = state_->stack().width;
  return state_->task != nullptr ? state_->task->outputs(width) : width;
}

size_t Encoder::bytes() const {
  return state_->packed.bytes() + state_->blocks->bytes() + state_->cache_buffer.bytes().size() +
         state_->scratch.bytes().size();
}

}  // namespace volvelle
