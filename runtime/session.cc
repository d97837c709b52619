#include "runtime/session.h"

#include <algorithm>
#include <format>
#include <numeric>
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

namespace volvelle {
namespace {

// Rows whose logits are computed at a time when all are wanted: enough to reuse the head's weights,
// few enough that a large vocabulary's logits stay small.
constexpr size_t kLogitRows = 32;

constexpr size_t kFloatsPerLine = 16;  // parts of the scratch start on cache lines of 64 bytes

// The rows of one dial for the present chunk, shared by all blocks that turn it.
struct DialRows {
  const Rotary* rotary;
  float* rows;  // [chunk, 2, planes]
};

}  // namespace

struct Session::State {
  std::shared_ptr<const Model> model;
  ThreadPool& pool;
  SessionOptions options;
  KvCache cache;
  PackedWeights packed;  // outlives the operators below
  std::vector<BlockOperator> blocks;
  LinearOperator head;
  AlignedBuffer scratch;
  Workspace workspace;
  float* x = nullptr;       // [chunk, width]
  float* logits = nullptr;  // [kLogitRows, vocabulary]
  std::vector<DialRows> dials;
  std::vector<uint32_t> positions;  // [chunk]
  size_t tokens = 0;

  const Stack& stack() const { return model->decoder(); }
  Result<void> reserve();
  Result<void> check(std::span<const int32_t> input) const;
  Result<void> run_chunk(std::span<const int32_t> input);
  Result<std::span<const float>> head_rows(size_t first, size_t rows);
  Result<void> check_finite(std::span<const float> numbers) const;
};

// Lays all scratch out in one buffer: first its parts' sizes, then their places.
Result<void> Session::State::reserve() {
  const Stack& stack = this->stack();
  const size_t chunk = options.chunk;
  size_t qkv = 0, attended = 0, inner = 0, inputs = stack.width, attention = 0;
  for (const Block& block : stack.blocks) {
    qkv = std::max(qkv, block.attention.query_width() + 2 * block.attention.kv_width());
    attended = std::max(attended, block.attention.query_width());
    inner = std::max(inner, block.feed_forward.down.weight->columns);
    attention = std::max(attention, attention_scratch_floats(attention_shape(block.attention)));
    for (const Linear* linear : {&block.attention.qkv, &block.attention.output,
                                 &block.feed_forward.gate_up, &block.feed_forward.down}) {
      inputs = std::max(inputs, linear->weight->padded_columns());
    }
  }
  inputs = std::max(inputs, stack.head.weight->padded_columns());
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
  };
  for (const Block& block : stack.blocks) {
    const Rotary* rotary = block.attention.rotary;
    if (rotary != nullptr && !std::ranges::contains(dials, rotary, &DialRows::rotary))
      dials.push_back({rotary, nullptr});
  }
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
  return {};
}

Result<std::unique_ptr<Session>> Session::open(std::shared_ptr<const Model> model, ThreadPool& pool,
                                               const SessionOptions& options) {
  const Stack& stack = model->decoder();
  if (options.first_position >= stack.context) {
    return fail(
        "{}: position {} lies past the model's last, {}; convert again with a larger --context",
        model->path(), options.first_position, stack.context - 1);
  }
  const size_t reach = stack.context - options.first_position;
  std::unique_ptr<State> state(new State{.model = model, .pool = pool, .options = options});
  if (options.context > reach) {
    return fail(
        "{}: a context of {} tokens exceeds the {} that the model's positions reach; convert again "
        "with a "
        "larger --context",
        model->path(), options.context, reach);
  }
  if (options.context == 0) state->options.context = reach;
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
    const size_t most = stack().context - options.first_position;
    return fail("{} tokens do not fit: {} of the context's {} are taken; {}", input.size(), tokens,
                options.context,
                options.context < most
                    ? std::format("ask for a larger --context, up to {}", most)
                    : "the model's positions end there, so convert again with a larger --context");
  }
  return {};
}

// Takes `input` (at most a chunk) through the embedding and every block; x [tokens, width] stays.
Result<void> Session::State::run_chunk(std::span<const int32_t> input) {
  const Stack& stack = this->stack();
  const Chunk chunk{x, input.size(), options.first_position + tokens};
  for_rows(pool, input.size(), [&](size_t first, size_t count) {
    for (size_t t = first; t < first + count; ++t)
      read_row(*stack.embedding, input[t], x + t * stack.width);
  });
  if (stack.embedding_scale != 1) multiply(stack.embedding_scale, input.size() * stack.width, x);

  const std::span<uint32_t> rows(positions.data(), input.size());
  std::iota(rows.begin(), rows.end(), static_cast<uint32_t>(chunk.position));
  for (const DialRows& dial : dials) read_dial(dial.rotary->dial, rows, dial.rows);

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

// Logits [rows, vocabulary] of the last chunk's tokens [first, first + rows).
Result<std::span<const float>> Session::State::head_rows(size_t first, size_t rows) {
  const Stack& stack = this->stack();
  const size_t width = stack.width, vocabulary = model->vocabulary();
  rms_norm(x + first * width, width, stack.final_norm.weight, stack.final_norm.epsilon, rows, width,
           workspace.normed, width);
  VOLVELLE_RETURN_IF_ERROR(head.run(workspace.normed, rows, logits, workspace.quantized, pool));
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
  size_t rows = 0;
  for (size_t first = 0; first < tokens.size(); first += rows) {
    rows = std::min(state_->options.chunk, tokens.size() - first);
    VOLVELLE_RETURN_IF_ERROR(state_->run_chunk(tokens.subspan(first, rows)));
  }
  return state_->head_rows(rows - 1, 1);
}

Result<void> Session::feed_all(std::span<const int32_t> tokens, const LogitsSink& sink) {
  VOLVELLE_RETURN_IF_ERROR(state_->check(tokens));
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

void Session::clear() { state_->tokens = 0; }

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
