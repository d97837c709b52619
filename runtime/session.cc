#include "runtime/session.h"

#include <algorithm>
#include <format>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/activation.h"
#include "kernels/norm.h"
#include "platforms/memory.h"
#include "runtime/block.h"
#include "runtime/finite.h"
#include "runtime/kv_cache.h"
#include "runtime/linear.h"
#include "runtime/packed_weights.h"
#include "runtime/rotary_tables.h"

namespace volvelle {
namespace {

// Rows whose logits are computed at a time when all are wanted: enough to reuse the head's weights,
// few enough that a large vocabulary's logits stay small.
constexpr size_t kLogitRows = 32;

constexpr size_t kFloatsPerLine = 16;  // parts of the scratch start on cache lines of 64 bytes

// The rows of one dial for the present chunk, shared by all blocks that turn it.
struct DialRows {
  const Rotary* rotary = nullptr;
  float* rows = nullptr;  // [chunk, 2, planes]
  // Dynamic NTK: the session's own dial; without planes where the model's serves.
  std::vector<float> coarse = {}, fine = {};
  Dial own = {};
};

// What helps when positions end.
std::string_view remedy(const Stack& stack) {
  const auto has_learned_rows = [](const Block& block) {
    return block.attention.relative != nullptr && block.attention.relative->unclipped;
  };
  return (stack.additive != nullptr && stack.additive->learned) ||
                 std::ranges::any_of(stack.blocks, has_learned_rows)
             ? "its position table was learned and cannot be extended"
             : "convert again with a larger --context";
}

// What a sequence of `length` positions turns by.
const Dial& dial_for(const DialRows& dial, size_t length) {
  const Rotary& rotary = *dial.rotary;
  if (dial.own.planes > 0) return dial.own;
  return rotary.switch_length > 0 && length > rotary.switch_length ? rotary.long_dial : rotary.dial;
}

// Bakes the session's own dial, with as many rows as the model's, where the scaling is dynamic and
// `length` positions go beyond what was trained. The frequencies follow
// github.com/huggingface/transformers, modeling_rope_utils.py.
void bake_own_dial(DialRows& dial, size_t length) {
  const Rotary& rotary = *dial.rotary;
  if (rotary.dynamic_context == 0 || length <= rotary.dynamic_context) return;
  const auto width = static_cast<uint32_t>(rotary.dial.width());
  const float base =
      dynamic_ntk_base(rotary.base, rotary.scaling.factor, width, rotary.dynamic_context, length);
  const std::vector<float> frequencies = rotary_frequencies(base, width);
  const auto fine_rows = static_cast<uint32_t>(rotary.dial.fine_rows);
  const auto coarse_rows = static_cast<uint32_t>(rotary.dial.coarse_rows);
  dial.fine = dial_rows(frequencies, fine_rows, 1, 1);
  dial.coarse = dial_rows(frequencies, coarse_rows, fine_rows, rotary.amplitude);
  dial.own = rotary.dial;
  dial.own.coarse = dial.coarse.data();
  dial.own.fine = dial.fine.data();
}

}  // namespace

struct Session::State {
  std::shared_ptr<const Model> model;
  ThreadPool& pool;
  SessionOptions options;
  KvCache cache;
  PackedWeights packed;  // outlives the operators below
  std::vector<BlockOperator> blocks;
  LinearOperator embedding_projection, head_projection, head;
  AlignedBuffer scratch;
  Workspace workspace;
  float* x = nullptr;         // [chunk, width]
  float* embedded = nullptr;  // [chunk, embedding width], where it is projected
  float* logits = nullptr;    // [kLogitRows, vocabulary]
  std::vector<DialRows> dials;
  std::vector<uint32_t> positions;  // [chunk]
  size_t tokens = 0;
  size_t length = 0;             // of the sequence that dials are chosen for
  std::vector<int32_t> history;  // what was fed, where a longer sequence turns by another dial

  const Stack& stack() const { return model->decoder(); }
  Result<void> reserve();
  Result<void> check(std::span<const int32_t> input) const;
  Result<void> embed(std::span<const int32_t> input, size_t position);
  Result<void> run_chunk(std::span<const int32_t> input);
  Result<void> lengthen(std::span<const int32_t> input);
  Result<std::span<const float>> head_rows(size_t first, size_t rows);
  Result<void> check_finite(std::span<const float> numbers) const;
};

// Lays all scratch out in one buffer: first its parts' sizes, then their places.
Result<void> Session::State::reserve() {
  const Stack& stack = this->stack();
  const size_t chunk = options.chunk;
  size_t qkv = 0, attended = 0, inner = 0, inputs = stack.width, attention = 0, experts = 0;
  const auto reads = [&inputs](const Linear& linear) {
    inputs = std::max(inputs, linear.weight->padded_columns());
  };
  for (const Block& block : stack.blocks) {
    const FeedForward& feed_forward = block.feed_forward;
    qkv = std::max(qkv, block.attention.query_width() + 2 * block.attention.kv_width());
    attended = std::max(attended, block.attention.query_width());
    inner = std::max(inner, feed_forward.inner());
    attention = std::max(attention, attention_scratch_floats(attention_shape(block.attention)));
    reads(block.attention.qkv);
    reads(block.attention.output);
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
  if (stack.head_projection) {
    reads(*stack.head_projection);
    projected = std::max(projected, stack.head_projection->outputs());
  }
  reads(stack.head);
  attention = (attention + kFloatsPerLine - 1) / kFloatsPerLine * kFloatsPerLine;
  workspace.attention_floats = attention;

  std::vector<std::pair<float**, size_t>> parts = {
      {&x, chunk * stack.width},
      {&logits, std::min(kLogitRows, chunk) * model->vocabulary()},
      {&workspace.normed, chunk * stack.width},
      {&workspace.qkv, chunk * qkv},
      {&workspace.attended, chunk * attended},
      {&workspace.branch, chunk * stack.width},
      {&workspace.gate_up, chunk * 2 * inner},
      {&workspace.gated, chunk * inner},
      {&workspace.attention, pool.threads() * attention},
      {&workspace.routes, chunk * experts},
      {&workspace.routed, experts > 0 ? chunk * stack.width : 0},
      {&embedded, chunk * projected},
  };
  for (const Block& block : stack.blocks) {
    const Rotary* rotary = block.attention.rotary;
    if (rotary != nullptr && !std::ranges::contains(dials, rotary, &DialRows::rotary))
      dials.push_back({.rotary = rotary});
  }
  for (DialRows& dial : dials) bake_own_dial(dial, options.first_position + options.context);
  for (DialRows& dial : dials) parts.push_back({&dial.rows, chunk * dial.rotary->dial.width()});

  // XNNPACK may read a few bytes past the rows it is given.
  constexpr size_t kExtraFloats = XNN_EXTRA_BYTES / sizeof(float);
  size_t floats = 0;
  std::vector<size_t> offsets;
  for (const auto& [part, count] : parts) {
    offsets.push_back(floats);
    floats += (count + kExtraFloats + kFloatsPerLine - 1) / kFloatsPerLine * kFloatsPerLine;
  }
  VOLVELLE_ASSIGN_OR_RETURN(scratch, AlignedBuffer::make(floats * sizeof(float)));
  for (size_t i = 0; i < parts.size(); ++i) {
    *parts[i].first = scratch.as<float>().data() + offsets[i];
  }
  VOLVELLE_ASSIGN_OR_RETURN(workspace.quantized, QuantizedInput::make(chunk, inputs));
  positions.resize(chunk);
  const auto switches = [](const DialRows& dial) { return dial.rotary->switch_length > 0; };
  if (std::ranges::any_of(dials, switches)) history.reserve(options.context);
  return {};
}

Result<std::unique_ptr<Session>> Session::open(std::shared_ptr<const Model> model, ThreadPool& pool,
                                               const SessionOptions& options) {
  const Stack& stack = model->decoder();
  const size_t limit = stack.position_limit;
  if (options.first_position >= limit) {
    return fail("{}: position {} lies past the model's last, {}; {}", model->path(),
                options.first_position, limit - 1, remedy(stack));
  }
  const size_t reach = limit - options.first_position;
  if (options.context > reach) {
    return fail("{}: a context of {} tokens exceeds the {} that the model's positions reach; {}",
                model->path(), options.context, reach, remedy(stack));
  }
  std::unique_ptr<State> state(new State{.model = model, .pool = pool, .options = options});
  if (options.context == 0) state->options.context = std::min(stack.context, reach);
  state->options.chunk = std::clamp<size_t>(options.chunk, 1, state->options.context);
  VOLVELLE_ASSIGN_OR_RETURN(state->cache,
                            KvCache::make(stack, options.cache, state->options.context,
                                          state->options.chunk, options.first_position));
  VOLVELLE_RETURN_IF_ERROR(state->reserve());
  state->blocks.reserve(stack.blocks.size());
  for (const Block& block : stack.blocks) {
    VOLVELLE_ASSIGN_OR_RETURN(BlockOperator operators,
                              BlockOperator::make(*model, block, stack.width, state->packed));
    state->blocks.push_back(std::move(operators));
  }
  for (const auto& [linear, op] :
       {std::pair{&stack.embedding_projection, &state->embedding_projection},
        std::pair{&stack.head_projection, &state->head_projection}}) {
    if (!*linear) continue;
    VOLVELLE_ASSIGN_OR_RETURN(*op, LinearOperator::make(*model, **linear, state->packed));
  }
  VOLVELLE_ASSIGN_OR_RETURN(state->head, LinearOperator::make(*model, stack.head, state->packed));
  if (stack.embedding != stack.head.weight)
    VOLVELLE_RETURN_IF_ERROR(model->verify_contents(*stack.embedding));
  return std::unique_ptr<Session>(new Session(std::move(state)));
}

Session::Session(std::unique_ptr<State> state) : state_(std::move(state)) {}
Session::~Session() = default;

Result<void> Session::State::check(std::span<const int32_t> input) const {
  if (input.empty()) return fail("there are no tokens to feed: give a prompt of at least one");
  VOLVELLE_RETURN_IF_ERROR(model->check_tokens(input));
  if (input.size() > options.context - tokens) {
    const size_t reach = stack().position_limit - options.first_position;
    if (options.context == reach) {
      return fail(
          "{} tokens do not fit: {} of the {} that the model's positions reach are taken; {}",
          input.size(), tokens, reach, remedy(stack()));
    }
    return fail(
        "{} tokens do not fit: {} of the context's {} are taken; ask for a larger --context, up to "
        "{}",
        input.size(), tokens, options.context, reach);
  }
  return {};
}

// x [tokens, width] = norm(projection(embedding * scale) + position rows)
Result<void> Session::State::embed(std::span<const int32_t> input, size_t position) {
  const Stack& stack = this->stack();
  const size_t columns = stack.embedding->columns, width = stack.width;
  float* const rows = stack.embedding_projection ? embedded : x;
  for_rows(pool, input.size(), [&](size_t first, size_t count) {
    for (size_t t = first; t < first + count; ++t) {
      read_row(*stack.embedding, input[t], rows + t * columns);
    }
  });
  if (stack.embedding_scale != 1) multiply(stack.embedding_scale, input.size() * columns, rows);
  if (stack.token_types != nullptr) {
    for (size_t t = 0; t < input.size(); ++t) {
      add(stack.token_types->f32(), columns, rows + t * columns);
    }
  }
  if (stack.embedding_projection) {
    VOLVELLE_RETURN_IF_ERROR(
        embedding_projection.run(rows, input.size(), x, workspace.quantized, pool));
  }
  if (stack.additive == nullptr && !stack.embedding_norm) return {};
  for_rows(pool, input.size(), [&](size_t first, size_t count) {
    if (const AdditiveTable* additive = stack.additive) {
      for (size_t t = first; t < first + count; ++t) {
        float* const row = workspace.branch + t * width;
        read_row(*additive->table, additive->row_offset + position + t, row);
        add(row, width, x + t * width);
      }
    }
    if (!stack.embedding_norm) return;
    float* const rows = x + first * width;
    run_norm(*stack.embedding_norm, rows, width, count, width, rows, width);
  });
  return {};
}

// Takes `input` (at most a chunk) through the embedding and every block; x [tokens, width] stays.
Result<void> Session::State::run_chunk(std::span<const int32_t> input) {
  const Stack& stack = this->stack();
  const Chunk chunk{x, input.size(), options.first_position + tokens};
  VOLVELLE_RETURN_IF_ERROR(embed(input, chunk.position));
  const std::span<uint32_t> rows(positions.data(), input.size());
  std::iota(rows.begin(), rows.end(), static_cast<uint32_t>(chunk.position));
  for (const DialRows& dial : dials) read_dial(dial_for(dial, length), rows, dial.rows);

  for (size_t i = 0; i < blocks.size(); ++i) {
    const Rotary* rotary = stack.blocks[i].attention.rotary;
    const auto dial = std::ranges::find(dials, rotary, &DialRows::rotary);
    VOLVELLE_RETURN_IF_ERROR(blocks[i].run(
        chunk, cache.layer(i), dial == dials.end() ? nullptr : dial->rows, workspace, pool));
  }
  VOLVELLE_RETURN_IF_ERROR(check_finite({x, input.size() * stack.width}));
  tokens += input.size();
  return {};
}

// Chooses the dials for the sequence that `input` makes longer. Where that changes a dial, the
// cache is computed anew from the tokens that were fed, so that what follows equals a fresh start:
// a cached key keeps the rotation it was stored with.
Result<void> Session::State::lengthen(std::span<const int32_t> input) {
  if (history.size() > tokens) history.resize(tokens);  // a call that failed on the way
  const size_t longer = options.first_position + tokens + input.size();
  const auto changes = [&](const DialRows& dial) {
    return &dial_for(dial, length) != &dial_for(dial, longer);
  };
  const bool anew = tokens > 0 && std::ranges::any_of(dials, changes);
  length = longer;
  if (anew) {
    tokens = 0;
    while (tokens < history.size()) {
      const size_t rows = std::min(options.chunk, history.size() - tokens);
      VOLVELLE_RETURN_IF_ERROR(run_chunk(std::span(history).subspan(tokens, rows)));
    }
  }
  if (history.capacity() > 0) history.insert(history.end(), input.begin(), input.end());
  return {};
}

// Logits [rows, vocabulary] of the last chunk's tokens [first, first + rows).
Result<std::span<const float>> Session::State::head_rows(size_t first, size_t rows) {
  const Stack& stack = this->stack();
  const size_t width = stack.width, vocabulary = model->vocabulary();
  const float* input = x + first * width;
  if (stack.final_norm) {
    run_norm(*stack.final_norm, input, width, rows, width, workspace.normed, width);
    input = workspace.normed;
  }
  if (stack.head_projection) {
    VOLVELLE_RETURN_IF_ERROR(head_projection.run(input, rows, embedded, workspace.quantized, pool));
    const size_t columns = stack.head_projection->outputs();
    if (stack.head_activation) {
      activate(*stack.head_activation, embedded, columns, rows, columns, embedded, columns);
    }
    if (stack.head_norm) {
      run_norm(*stack.head_norm, embedded, columns, rows, columns, embedded, columns);
    }
    input = embedded;
  }
  VOLVELLE_RETURN_IF_ERROR(head.run(input, rows, logits, workspace.quantized, pool));
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
  VOLVELLE_RETURN_IF_ERROR(state_->check(tokens));
  VOLVELLE_RETURN_IF_ERROR(state_->lengthen(tokens));
  size_t rows = 0;
  for (size_t first = 0; first < tokens.size(); first += rows) {
    rows = std::min(state_->options.chunk, tokens.size() - first);
    VOLVELLE_RETURN_IF_ERROR(state_->run_chunk(tokens.subspan(first, rows)));
  }
  return state_->head_rows(rows - 1, 1);
}

Result<void> Session::feed_all(std::span<const int32_t> tokens, const LogitsSink& sink) {
  VOLVELLE_RETURN_IF_ERROR(state_->check(tokens));
  VOLVELLE_RETURN_IF_ERROR(state_->lengthen(tokens));
  size_t rows = 0;
  for (size_t first = 0; first < tokens.size(); first += rows) {
    rows = std::min(state_->options.chunk, tokens.size() - first);
    VOLVELLE_RETURN_IF_ERROR(state_->run_chunk(tokens.subspan(first, rows)));
    size_t count = 0;
    for (size_t row = 0; row < rows; row += count) {
      count = std::min(kLogitRows, rows - row);
      VOLVELLE_ASSIGN_OR_RETURN(const std::span<const float> logits, state_->head_rows(row, count));
      VOLVELLE_RETURN_IF_ERROR(sink(first + row, count, logits));
    }
  }
  return {};
}

void Session::clear() {
  state_->tokens = 0;
  state_->length = 0;
  state_->history.clear();
}

size_t Session::tokens() const { return state_->tokens; }
size_t Session::context() const { return state_->options.context; }
size_t Session::cache_bytes() const { return state_->cache.bytes(); }
size_t Session::scratch_bytes() const {
  return state_->scratch.bytes().size() + state_->workspace.quantized.bytes();
}
size_t Session::packed_bytes() const { return state_->packed.bytes(); }
size_t Session::cache_bytes_per_token() const {
  return state_->cache.bytes_read(state_->stack(), state_->tokens + 1);
}

}  // namespace volvelle
