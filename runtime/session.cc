#include "runtime/session.h"

#include <algorithm>
#include <format>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/activation.h"
#include "kernels/norm.h"
#include "platforms/format_bytes.h"
#include "platforms/memory.h"
#include "runtime/finite.h"
#include "runtime/kv_cache.h"
#include "runtime/linear.h"
#include "runtime/packed_weights.h"
#include "runtime/rotary_tables.h"
#include "runtime/stack_operator.h"

namespace volvelle {
namespace {

// Rows whose logits are computed at a time when all are wanted: enough to reuse the head's weights,
// few enough that a large vocabulary's logits stay small.
constexpr size_t kLogitRows = 32;

// What a process takes besides a session that it opens, at most.
constexpr uint64_t kBesideSession = uint64_t{8} << 20;

// `options` with the context and the chunk that a session will have.
Result<SessionOptions> settle(const Model& model, SessionOptions options) {
  if (!model.generates()) {
    return fail("{}: is an encoder, which makes vectors and no text", model.path());
  }
  const Stack& stack = model.decoder();
  const size_t limit = stack.position_limit;
  if (options.first_position >= limit) {
    return fail("{}: position {} lies past the model's last, {}; {}", model.path(),
                options.first_position, limit - 1, remedy_for_length(stack));
  }
  const size_t reach = limit - options.first_position;
  if (options.context > reach) {
    return fail("{}: a context of {} tokens exceeds the {} that the model's positions reach; {}",
                model.path(), options.context, reach, remedy_for_length(stack));
  }
  if (options.context == 0) options.context = std::min(stack.context, reach);
  options.chunk = std::max(std::clamp<size_t>(options.chunk, 1, options.context), options.lanes);
  return options;
}

// How the logits' scratch is divided, and the widest row that what follows the blocks reads.
struct HeadSizes {
  size_t rows, inputs, projected_floats, floats;

  HeadSizes(const Model& model, const SessionOptions& options) {
    const Stack& stack = model.decoder();
    rows = std::min(std::max(kLogitRows, options.lanes), options.chunk);
    inputs = stack.head.weight->padded_columns();
    size_t width = 0;
    if (stack.head_projection) {
      inputs = std::max(inputs, stack.head_projection->weight->padded_columns());
      width = stack.head_projection->outputs();
    }
    // XNNPACK may read a few bytes past the rows it is given; the rest keeps both parts on lines.
    projected_floats = (rows * width + XNN_EXTRA_BYTES / sizeof(float) + 15) / 16 * 16;
    floats = projected_floats + rows * model.vocabulary();
  }
};

uint64_t cache_bytes(const Model& model, const SessionOptions& options, size_t context) {
  const size_t chunk = std::max(std::min(options.chunk, context), options.lanes);
  return KvCache::bytes_for(model.decoder(), options.cache, context, chunk, options.lanes);
}

// Of settled options.
Result<MemoryPlan> plan_settled(const Model& model, ThreadPool& pool,
                                const SessionOptions& options) {
  MemoryPlan plan{.cache = cache_bytes(model, options, options.context)};
  model.for_each_linear(
      [&](const Linear& linear, double) { plan.packed += packed_bytes_of(*linear.weight); });
  const HeadSizes head(model, options);
  VOLVELLE_ASSIGN_OR_RETURN(
      plan.scratch, StackOperator::bytes_for(model.decoder(), pool, options.chunk, head.inputs,
                                             options.first_position + options.context));
  plan.scratch += head.floats * sizeof(float);
  return plan;
}

// Whether a session of settled options can be had.
Result<void> check_memory(const Model& model, ThreadPool& pool, const SessionOptions& options) {
  const std::optional<MemoryLeft> left = memory_left();
  if (!left) return {};
  VOLVELLE_ASSIGN_OR_RETURN(const MemoryPlan plan, plan_settled(model, pool, options));
  const uint64_t beside =
      kBesideSession + (left->limit == kAddressSpace ? PackedWeights::kPartBytes : 0);
  const uint64_t room = left->bytes > beside ? left->bytes - beside : 0;
  // Weights in a file of their own can be dropped from memory, not from the address space.
  const bool dropped = model.packed_in() == PackedIn::kFile && left->limit != kAddressSpace;
  const uint64_t fixed = (dropped ? 0 : plan.packed) + plan.scratch;
  const auto fits = [&](uint64_t cache) { return fixed <= room && cache <= room - fixed; };
  if (fits(plan.cache)) return {};
  size_t longest = 0;
  for (size_t low = 1, high = options.context; low < high;) {  // the cache grows with the context
    const size_t middle = low + (high - low) / 2;
    if (fits(cache_bytes(model, options, middle))) {
      longest = middle;
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const std::string need = std::format(
      "{}: {} of memory are needed ({} of weights, {} of cache for {} tokens, {} of scratch) and "
      "{} leaves {}",
      model.path(), format_bytes(plan.total() + beside), format_bytes(plan.packed),
      format_bytes(plan.cache), options.context, format_bytes(plan.scratch), left->limit,
      format_bytes(left->bytes));
  if (longest == 0) {
    return fail("{}, too little for any context; take a smaller model or smaller weights", need);
  }
  return fail("{}; the longest --context that fits is {}{}", need, longest,
              options.cache == CacheType::kQ8 ? "" : ", or take a smaller --kv");
}

}  // namespace

std::string_view remedy_for_length(const Stack& stack) {
  const auto has_learned_rows = [](const Block& block) {
    return block.attention.relative != nullptr && block.attention.relative->unclipped;
  };
  const auto rotates = [](const Block& block) { return block.attention.rotary != nullptr; };
  if ((stack.additive != nullptr && stack.additive->learned) ||
      std::ranges::any_of(stack.blocks, has_learned_rows)) {
    return "its position table was learned and cannot be extended";
  }
  if (stack.position_limit >= kMaxContext) return "no model's positions reach farther";
  return std::ranges::any_of(stack.blocks, rotates) && stack.additive == nullptr
             ? "extend it (volvelle extend) or convert again, with a larger --context"
             : "convert again with a larger --context";
}

struct Session::State {
  std::shared_ptr<const Model> model;
  ThreadPool& pool;
  SessionOptions options;
  KvCache cache;
  PackedWeights packed;  // outlives the operators below
  std::optional<StackOperator> blocks;
  LinearOperator head_projection, head;
  AlignedBuffer scratch;
  float* x = nullptr;          // [chunk, width], what came out of the blocks
  float* projected = nullptr;  // [logit rows, head's width], where there is a projection
  float* logits = nullptr;     // [logit rows, vocabulary]
  std::vector<size_t> lanes;   // [lanes]: which of the cache's each sequence has
  std::vector<SequenceChunk> sequences;
  std::vector<size_t> padding;  // [lanes]: tokens of each that do not count
  size_t tokens = 0;
  size_t length = 0;                // of the sequence that dials are chosen for
  std::vector<int32_t> history;     // what was fed, where a longer sequence turns by another dial
  AlignedBuffer source;             // keys and values of what cross-attention attends to
  std::vector<SourceView> sources;  // [layers]

  const Stack& stack() const { return model->decoder(); }
  size_t logit_rows() const { return HeadSizes(*model, options).rows; }
  Result<void> reserve();
  Result<void> check(std::span<const int32_t> input, size_t count) const;
  Result<void> run_chunk(std::span<const int32_t> input);
  Result<void> run_lanes(std::span<const int32_t> input);
  Result<void> run_blocks(std::span<const int32_t> input);
  Result<void> lengthen(std::span<const int32_t> input);
  Result<std::span<const float>> head_rows(size_t first, size_t rows);
  Result<void> check_finite(std::span<const float> numbers) const;
};

Result<void> Session::State::reserve() {
  const Stack& stack = this->stack();
  const HeadSizes head(*model, options);
  VOLVELLE_ASSIGN_OR_RETURN(
      StackOperator made,
      StackOperator::make(*model, stack, pool, packed, options.chunk, head.inputs,
                          options.first_position + options.context));
  blocks = std::move(made);
  blocks->linear_scratch().observe(options.observer);
  VOLVELLE_ASSIGN_OR_RETURN(scratch, AlignedBuffer::make(head.floats * sizeof(float)));
  projected = scratch.as<float>().data();
  logits = projected + head.projected_floats;
  for (size_t lane = 0; lane < options.lanes; ++lane) lanes.push_back(lane);
  sequences.resize(options.lanes);
  padding.resize(options.lanes);
  if (blocks->has_switch()) history.reserve(options.context);
  return {};
}

Result<MemoryPlan> Session::plan(const Model& model, ThreadPool& pool,
                                 const SessionOptions& options) {
  VOLVELLE_ASSIGN_OR_RETURN(const SessionOptions settled, settle(model, options));
  return plan_settled(model, pool, settled);
}

Result<std::unique_ptr<Session>> Session::open(std::shared_ptr<const Model> model, ThreadPool& pool,
                                               const SessionOptions& options) {
  VOLVELLE_ASSIGN_OR_RETURN(const SessionOptions settled, settle(*model, options));
  VOLVELLE_RETURN_IF_ERROR(check_memory(*model, pool, settled));
  const Stack& stack = model->decoder();
  std::unique_ptr<State> state(new State{.model = model, .pool = pool, .options = settled});
  VOLVELLE_ASSIGN_OR_RETURN(
      state->cache, KvCache::make(stack, options.cache, state->options.context,
                                  state->options.chunk, options.first_position, options.lanes));
  if (model->packed_in() == PackedIn::kFile) {
    state->packed.use_file(packed_path(model->path()), Model::linears_of(stack));
  }
  VOLVELLE_RETURN_IF_ERROR(state->reserve());
  if (stack.head_projection) {
    VOLVELLE_ASSIGN_OR_RETURN(state->head_projection,
                              LinearOperator::make(*model, *stack.head_projection, state->packed));
  }
  VOLVELLE_ASSIGN_OR_RETURN(state->head, LinearOperator::make(*model, stack.head, state->packed));
  if (stack.embedding != stack.head.weight && !state->packed.found())
    VOLVELLE_RETURN_IF_ERROR(model->verify_contents(*stack.embedding));
  VOLVELLE_RETURN_IF_ERROR(state->packed.finish());
  return std::unique_ptr<Session>(new Session(std::move(state)));
}

Session::Session(std::unique_ptr<State> state) : state_(std::move(state)) {}
Session::~Session() = default;

// Whether `count` more tokens of every sequence can be fed, of which `input` holds all.
Result<void> Session::State::check(std::span<const int32_t> input, size_t count) const {
  if (input.empty()) return fail("there are no tokens to feed: give a prompt of at least one");
  VOLVELLE_RETURN_IF_ERROR(model->check_tokens(stack(), input));
  if (model->encoder() != nullptr && sources.empty()) {
    return fail("{}: its decoder needs a source first", model->path());
  }
  if (count > options.context - tokens) {
    const size_t reach = stack().position_limit - options.first_position;
    if (count > reach - tokens) {
      return fail(
          "{} tokens do not fit: {} of the {} that the model's positions reach are taken; {}",
          count, tokens, reach, remedy_for_length(stack()));
    }
    return fail(
        "{} tokens do not fit: {} of the context's {} are taken; ask for a larger --context, up to "
        "{}",
        count, tokens, options.context, reach);
  }
  return {};
}

// Takes `input`, whose tokens lie as `sequences` says, through the embedding and every block.
Result<void> Session::State::run_blocks(std::span<const int32_t> input) {
  const auto cache_of = [this](size_t layer, size_t sequence) -> const CacheView& {
    return cache.layer(layer, lanes[sequence]);
  };
  VOLVELLE_ASSIGN_OR_RETURN(x, blocks->run({.tokens = input, .types = {}, .sequences = sequences},
                                           length, cache_of, sources));
  VOLVELLE_RETURN_IF_ERROR(check_finite({x, input.size() * stack().width}));
  if (stack().additive == nullptr) return {};
  for (size_t i = 0; i < sequences.size(); ++i) {
    const auto own = input.subspan(sequences[i].first, sequences[i].tokens);
    padding[i] += static_cast<size_t>(std::ranges::count(own, stack().additive->padding));
  }
  return {};
}

// Takes `input` (at most a chunk) through the stack; x [tokens, width] stays.
Result<void> Session::State::run_chunk(std::span<const int32_t> input) {
  sequences.resize(1);
  sequences[0] = {
      .tokens = input.size(), .position = options.first_position + tokens, .padding = padding[0]};
  VOLVELLE_RETURN_IF_ERROR(run_blocks(input));
  tokens += input.size();
  return {};
}

// The same for the next token of every sequence.
Result<void> Session::State::run_lanes(std::span<const int32_t> input) {
  sequences.resize(input.size());
  for (size_t i = 0; i < input.size(); ++i) {
    sequences[i] = {.first = i,
                    .tokens = 1,
                    .position = options.first_position + tokens,
                    .padding = padding[i]};
  }
  VOLVELLE_RETURN_IF_ERROR(run_blocks(input));
  ++tokens;
  return {};
}

// Chooses the dials for the sequence that `input` makes longer. Where that changes a dial, the
// cache is computed anew from the tokens that were fed, so that what follows equals a fresh start:
// a cached key keeps the rotation it was stored with.
Result<void> Session::State::lengthen(std::span<const int32_t> input) {
  if (history.size() > tokens) history.resize(tokens);  // a call that failed on the way
  const size_t longer = options.first_position + tokens + input.size();
  const bool anew = tokens > 0 && blocks->dials_change(length, longer);
  length = longer;
  if (anew) {
    tokens = 0;
    std::ranges::fill(padding, 0);
    while (tokens < history.size()) {
      const size_t rows = std::min(options.chunk, history.size() - tokens);
      VOLVELLE_RETURN_IF_ERROR(run_chunk(std::span(history).subspan(tokens, rows)));
    }
  }
  if (blocks->has_switch()) history.insert(history.end(), input.begin(), input.end());
  return {};
}

// Logits [rows, vocabulary] of the last chunk's tokens [first, first + rows).
Result<std::span<const float>> Session::State::head_rows(size_t first, size_t rows) {
  const Stack& stack = this->stack();
  const size_t width = stack.width, vocabulary = model->vocabulary();
  const float* input = x + first * width;
  if (stack.final_norm) {
    run_norm(*stack.final_norm, input, width, rows, width, blocks->normed(), width);
    input = blocks->normed();
  }
  if (stack.head_projection) {
    VOLVELLE_RETURN_IF_ERROR(
        head_projection.run(input, rows, projected, blocks->linear_scratch(), pool));
    const size_t columns = stack.head_projection->outputs();
    if (stack.head_activation) {
      activate(*stack.head_activation, projected, columns, rows, columns, projected, columns);
    }
    if (stack.head_norm) {
      run_norm(*stack.head_norm, projected, columns, rows, columns, projected, columns);
    }
    input = projected;
  }
  VOLVELLE_RETURN_IF_ERROR(head.run(input, rows, logits, blocks->linear_scratch(), pool));
  if (stack.logit_scale != 1) multiply(stack.logit_scale, rows * vocabulary, logits);
  if (stack.logit_soft_cap != 0) soft_cap(stack.logit_soft_cap, rows * vocabulary, logits);
  const std::span<const float> result(logits, rows * vocabulary);
  VOLVELLE_RETURN_IF_ERROR(check_finite(result));
  return result;
}

Result<void> Session::State::check_finite(std::span<const float> numbers) const {
  if (all_finite(numbers)) return {};
  return fail(
      "{}: its numbers overflow on these tokens; the checkpoint is damaged, or its parts do not "
      "belong together",
      model->path());
}

Result<std::span<const float>> Session::feed(std::span<const int32_t> tokens) {
  VOLVELLE_RETURN_IF_ERROR(state_->check(tokens, tokens.size()));
  VOLVELLE_RETURN_IF_ERROR(state_->lengthen(tokens));
  size_t rows = 0;
  for (size_t first = 0; first < tokens.size(); first += rows) {
    rows = std::min(state_->options.chunk, tokens.size() - first);
    VOLVELLE_RETURN_IF_ERROR(state_->run_chunk(tokens.subspan(first, rows)));
  }
  return state_->head_rows(rows - 1, 1);
}

Result<void> Session::feed_all(std::span<const int32_t> tokens, const LogitsSink& sink) {
  VOLVELLE_RETURN_IF_ERROR(state_->check(tokens, tokens.size()));
  VOLVELLE_RETURN_IF_ERROR(state_->lengthen(tokens));
  size_t rows = 0;
  for (size_t first = 0; first < tokens.size(); first += rows) {
    rows = std::min(state_->options.chunk, tokens.size() - first);
    VOLVELLE_RETURN_IF_ERROR(state_->run_chunk(tokens.subspan(first, rows)));
    size_t count = 0;
    for (size_t row = 0; row < rows; row += count) {
      count = std::min(state_->logit_rows(), rows - row);
      VOLVELLE_ASSIGN_OR_RETURN(const std::span<const float> logits, state_->head_rows(row, count));
      VOLVELLE_RETURN_IF_ERROR(sink(first + row, count, logits));
    }
  }
  return {};
}

Result<std::span<const float>> Session::feed_each(std::span<const int32_t> tokens) {
  if (tokens.empty() || tokens.size() > state_->options.lanes) {
    return fail("{} tokens for {} sequences", tokens.size(), state_->options.lanes);
  }
  if (state_->blocks->has_switch()) {
    return fail("{}: its positions depend on the length, which several sequences cannot share",
                state_->model->path());
  }
  VOLVELLE_RETURN_IF_ERROR(state_->check(tokens, 1));
  state_->length = state_->options.first_position + state_->tokens + 1;
  VOLVELLE_RETURN_IF_ERROR(state_->run_lanes(tokens));
  return state_->head_rows(0, tokens.size());
}

// A sequence that goes on once keeps its part of the cache; each further one gets a copy.
void Session::follow(std::span<const size_t> parents) {
  std::vector<size_t>& lanes = state_->lanes;
  std::vector<size_t> next(lanes.size(), lanes.size());
  std::vector<bool> taken(lanes.size());
  for (size_t i = 0; i < parents.size(); ++i) {
    const size_t lane = lanes[parents[i]];
    if (taken[lane]) continue;
    taken[lane] = true;
    next[i] = lane;
  }
  for (size_t i = 0; i < next.size(); ++i) {
    if (next[i] != lanes.size()) continue;
    next[i] = static_cast<size_t>(std::ranges::find(taken, false) - taken.begin());
    taken[next[i]] = true;
    if (i < parents.size()) state_->cache.copy_lane(lanes[parents[i]], next[i], state_->tokens);
  }
  lanes = std::move(next);
  const std::vector<size_t> padding = state_->padding;
  for (size_t i = 0; i < parents.size(); ++i) state_->padding[i] = padding[parents[i]];
}

Result<void> Session::read_source(std::span<const float> x, size_t rows) {
  const Stack& stack = state_->stack();
  if (state_->model->encoder() == nullptr || rows == 0 ||
      x.size() != rows * state_->model->encoder()->width) {
    return fail("{}: {} source rows do not fit its decoder", state_->model->path(), rows);
  }
  clear();
  state_->sources.clear();
  size_t floats = 0;
  std::vector<CacheView> caches;
  const size_t slots = cache_slots(CacheType::kF32, rows);
  for (const Block& block : stack.blocks) {
    const size_t part =
        block.cross ? block.cross->heads * slots * cache_row_elements(block.cross->head_dim) : 0;
    floats += 2 * part;
  }
  VOLVELLE_ASSIGN_OR_RETURN(state_->source, AlignedBuffer::make(floats * sizeof(float)));
  float* next = state_->source.as<float>().data();
  for (const Block& block : stack.blocks) {
    CacheView view{.type = CacheType::kF32, .slots = rows};
    if (block.cross) {
      const size_t part = block.cross->heads * slots * cache_row_elements(block.cross->head_dim);
      view.keys = next;
      view.values = next + part;
      next += 2 * part;
    }
    caches.push_back(view);
  }
  VOLVELLE_RETURN_IF_ERROR(state_->blocks->read_source(x, rows, caches));
  for (const CacheView& cache : caches) state_->sources.push_back({cache, rows});
  return {};
}

// A cache that wraps around holds a chunk more than its window, so that nothing which the next
// token sees was overwritten by those taken back. Where dials depend on the length, `length` stays
// until the next call finds that it has changed.
void Session::take_back(std::span<const int32_t> tokens) {
  state_->tokens -= tokens.size();
  if (const AdditiveTable* additive = state_->stack().additive) {
    state_->padding[0] -= static_cast<size_t>(std::ranges::count(tokens, additive->padding));
  }
}

void Session::clear() {
  state_->tokens = 0;
  std::ranges::fill(state_->padding, 0);
  state_->length = 0;
  state_->history.clear();
}

bool Session::length_matters() const { return state_->blocks->has_switch(); }
size_t Session::tokens() const { return state_->tokens; }
size_t Session::context() const { return state_->options.context; }
size_t Session::chunk() const { return state_->options.chunk; }
size_t Session::cache_bytes() const { return state_->cache.bytes(); }
size_t Session::scratch_bytes() const {
  return state_->scratch.bytes().size() + state_->blocks->bytes();
}
size_t Session::packed_bytes() const { return state_->packed.bytes(); }
size_t Session::cache_bytes_per_token() const {
  return state_->cache.bytes_read(state_->stack(), state_->tokens + 1);
}

}  // namespace volvelle
