#include "runtime/commands/parts.h"

#include <algorithm>
#include <array>
#include <functional>

#include "kernels/activation.h"
#include "kernels/rotary.h"
#include "platforms/clock.h"
#include "platforms/memory.h"
#include "runtime/block.h"
#include "runtime/kv_cache.h"
#include "runtime/linear.h"
#include "runtime/packed_weights.h"

namespace volvelle {
namespace {

// Seconds of one call: the median of several rounds, each long enough for the clock.
template <typename Function>
double seconds_of(const Function& function) {
  constexpr double kRound = 0.02;
  constexpr size_t kRounds = 5;
  function();  // warms up
  size_t calls = 1;
  std::array<double, kRounds> rounds;
  for (size_t round = 0; round < kRounds;) {
    const double start = monotonic_seconds();
    for (size_t call = 0; call < calls; ++call) function();
    const double seconds = monotonic_seconds() - start;
    if (seconds < kRound && round == 0 && calls < (size_t{1} << 24)) {
      calls *= 2;
      continue;
    }
    rounds[round++] = seconds / static_cast<double>(calls);
  }
  std::ranges::sort(rounds);
  return rounds[kRounds / 2];
}

// Linears of the same name in all layers.
struct Linears {
  std::string name;
  std::vector<const Linear*> all;
};

std::vector<Linears> linears_by_name(const Stack& stack) {
  std::vector<Linears> kinds = {
      {"q, k and v", {}}, {"attention's output", {}}, {"gate and up", {}}, {"down", {}}};
  for (const Block& block : stack.blocks) {
    const Expert& expert = block.feed_forward.experts.front();
    kinds[0].all.push_back(&block.attention.qkv);
    kinds[1].all.push_back(&block.attention.output);
    kinds[2].all.push_back(&expert.gate_up);
    kinds[3].all.push_back(&expert.down);
  }
  return kinds;
}

// Rows of small numbers that differ, for every part to read and write.
struct Rows {
  std::vector<float> values;
  float* data() { return values.data(); }

  explicit Rows(size_t count) : values(count + 16) {
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(i * 37 % 101) / 50.0f - 1.0f;
  }
};

}  // namespace

Result<std::vector<PartTime>> time_parts(const Model& model, CacheType cache_type, size_t depth,
                                         size_t chunk) {
  const Stack& stack = model.decoder();
  if (!model.generates() || model.encoder() != nullptr) {
    return fail("{}: is no decoder alone, whose parts these are", model.path());
  }
  for (const Block& block : stack.blocks) {
    if (block.feed_forward.router.weight != nullptr)
      return fail("{}: has experts, which are not timed alone", model.path());
  }
  if (depth + chunk > stack.position_limit) {
    return fail("{}: {} tokens reach past its {} positions", model.path(), depth + chunk,
                stack.position_limit);
  }
  VOLVELLE_ASSIGN_OR_RETURN(const ThreadPool pool, ThreadPool::make(1));

  size_t widest = stack.head.weight->padded_columns(), outputs = stack.width, attended = 0, qkv = 0;
  for (const Block& block : stack.blocks) {
    const Attention& attention = block.attention;
    const Expert& expert = block.feed_forward.experts.front();
    widest = std::max(
        {widest, attention.qkv.weight->padded_columns(), attention.output.weight->padded_columns(),
         expert.gate_up.weight->padded_columns(), expert.down.weight->padded_columns()});
    qkv = std::max(qkv, attention.qkv.outputs());
    attended = std::max(attended, attention.query_width());
    outputs = std::max({outputs, qkv, expert.gate_up.outputs()});
  }
  VOLVELLE_ASSIGN_OR_RETURN(const LinearScratch scratch, LinearScratch::make(chunk, widest, 1));
  Rows x(chunk * std::max(widest, outputs)), y(std::max(chunk * outputs, model.vocabulary()));
  std::vector<PartTime> parts;
  const double one = 1.0 / static_cast<double>(chunk);

  PackedWeights packed;
  Result<void> ran;  // what the last linear that failed says
  for (const Linears& kind : linears_by_name(stack)) {
    std::vector<LinearOperator> operators;
    PartTime part{kind.name};
    for (const Linear* linear : kind.all) {
      VOLVELLE_ASSIGN_OR_RETURN(LinearOperator made, LinearOperator::make(model, *linear, packed));
      operators.push_back(std::move(made));
      part.bytes += static_cast<double>(linear->weight->bytes());
      part.operations +=
          2 * static_cast<double>(linear->outputs()) * static_cast<double>(linear->inputs());
    }
    const auto run = [&](size_t rows) {
      return seconds_of([&] {
        for (LinearOperator& linear : operators) {
          if (auto result = linear.run(x.data(), rows, y.data(), scratch, pool); !result)
            ran = result;
        }
      });
    };
    part.decode = run(1);
    part.prefill = run(chunk) * one;
    parts.push_back(part);
  }
  VOLVELLE_ASSIGN_OR_RETURN(LinearOperator head, LinearOperator::make(model, stack.head, packed));
  parts.push_back({.name = "head",
                   .decode = seconds_of([&] {
                     if (auto result = head.run(x.data(), 1, y.data(), scratch, pool); !result)
                       ran = result;
                   }),
                   .bytes = static_cast<double>(stack.head.weight->bytes())});
  VOLVELLE_RETURN_IF_ERROR(ran);

  // Calls function(block, layer) for every layer, of one token and of a chunk.
  const auto time_layers = [&](std::string name, const auto& function) {
    const auto all = [&](size_t rows) {
      return seconds_of([&] {
        for (size_t layer = 0; layer < stack.blocks.size(); ++layer)
          function(stack.blocks[layer], layer, rows);
      });
    };
    const double decode = all(1);
    parts.push_back({.name = std::move(name), .decode = decode, .prefill = all(chunk) * one});
  };

  VOLVELLE_ASSIGN_OR_RETURN(const KvCache cache,
                            KvCache::make(stack, cache_type, depth + chunk, chunk, 0));
  for (size_t layer = 0; layer < stack.blocks.size(); ++layer) {
    const Attention& attention = stack.blocks[layer].attention;
    const AttentionShape shape = attention_shape(attention);
    const CacheView& view = cache.layer(layer);
    for (size_t kv_head = 0; kv_head < attention.kv_heads; ++kv_head) {
      for (size_t slot = 0; slot < std::min(view.slots, depth + chunk); ++slot) {
        store_keys(view, shape, kv_head, slot, 1, x.data() + slot % 64, 0);
        store_values(view, shape, kv_head, slot, 1, x.data() + slot % 61, 0);
      }
    }
  }
  size_t scratch_floats = 0;
  for (const Block& block : stack.blocks) {
    scratch_floats =
        std::max(scratch_floats, attention_scratch_floats(attention_shape(block.attention)));
  }
  VOLVELLE_ASSIGN_OR_RETURN(const AlignedBuffer attention_scratch,
                            AlignedBuffer::make(scratch_floats * sizeof(float)));
  time_layers("attention", [&](const Block& block, size_t layer, size_t rows) {
    const Attention& attention = block.attention;
    const AttentionChunk queries{.queries = x.data(),
                                 .query_stride = attention.qkv.outputs(),
                                 .outputs = y.data(),
                                 .output_stride = attention.query_width(),
                                 .position = depth,
                                 .tokens = rows};
    for (size_t first = 0; first < rows; first += kAttentionTokens) {
      for (size_t kv_head = 0; kv_head < attention.kv_heads; ++kv_head) {
        attend(attention_shape(attention), cache.layer(layer), queries, kv_head, first,
               std::min(kAttentionTokens, rows - first), attention_scratch.as<float>().data());
      }
    }
  });
  parts.back().bytes = static_cast<double>(cache.bytes_read(stack, depth + 1));

  time_layers("storing keys and values", [&](const Block& block, size_t layer, size_t rows) {
    const AttentionShape shape = attention_shape(block.attention);
    const CacheView& view = cache.layer(layer);
    const size_t stride = block.attention.qkv.outputs(), slot = depth % view.slots;
    const size_t before_end = std::min(rows, view.slots - slot);  // of a ring
    for (size_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
      const float* const rest = x.data() + before_end * stride;
      store_keys(view, shape, kv_head, slot, before_end, x.data(), stride);
      store_values(view, shape, kv_head, slot, before_end, x.data(), stride);
      store_keys(view, shape, kv_head, 0, rows - before_end, rest, stride);
      store_values(view, shape, kv_head, 0, rows - before_end, rest, stride);
    }
  });
  const bool rotates = std::ranges::any_of(
      stack.blocks, [](const Block& block) { return block.attention.rotary != nullptr; });
  if (rotates) {
    size_t planes = 0;
    for (const Block& block : stack.blocks) {
      if (block.attention.rotary) planes = std::max(planes, block.attention.rotary->dial.planes);
    }
    Rows turns(chunk * 2 * planes);
    time_layers("rotating q and k", [&](const Block& block, size_t, size_t rows) {
      const Attention& attention = block.attention;
      if (attention.rotary == nullptr) return;
      rotate(y.data(),
             {rows, attention.query_heads + attention.kv_heads, attention.head_dim,
              attention.qkv.outputs()},
             attention.rotary->pairing, attention.rotary->dial.planes, turns.data());
    });
  }
  time_layers("norms", [&](const Block& block, size_t, size_t rows) {
    for (const auto& norm : {block.attention_norm, block.feed_forward_norm}) {
      if (norm) {
        run_norm(*norm, x.data(), stack.width, rows, stack.width, y.data(), stack.width);
      }
    }
  });
  time_layers("activation", [&](const Block& block, size_t, size_t rows) {
    const FeedForward& feed_forward = block.feed_forward;
    const size_t inner = feed_forward.inner();
    if (feed_forward.gated) {
      gate(feed_forward.activation, x.data(), 2 * inner, rows, inner, y.data(), inner);
    } else {
      activate(feed_forward.activation, x.data(), inner, rows, inner, y.data(), inner);
    }
  });
  return parts;
}

}  // namespace volvelle
