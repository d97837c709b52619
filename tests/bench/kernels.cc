// Times each kernel alone, at the sizes of a small decoder (SmolLM2-135M's, unless a benchmark's
// arguments say otherwise) and of a small encoder, on the best instruction set of this machine.
// Counters: floats, operations or bytes a second of what the kernel must do, not of what it does.
//
//   build/bench_kernels --benchmark_filter=attend

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/hadamard.h"
#include "kernels/int8_product.h"
#include "kernels/norm.h"
#include "kernels/quantize.h"
#include "kernels/rotary.h"
#include "kernels/thin_product.h"
#include "platforms/memory.h"

namespace volvelle {
namespace {

std::vector<float> some_floats(size_t count) {
  std::vector<float> x(count);
  for (size_t i = 0; i < count; ++i) x[i] = static_cast<float>(i * 37 % 101) / 50.0f - 1.0f;
  return x;
}

AlignedBuffer aligned(size_t bytes) { return std::move(*AlignedBuffer::make(bytes)); }

void count_rate(benchmark::State& state, const char* name, size_t each) {
  state.counters[name] =
      benchmark::Counter(static_cast<double>(each) * static_cast<double>(state.iterations()),
                         benchmark::Counter::kIsRate);
}

// --- element by element

void rotate_queries(benchmark::State& state, Pairing pairing) {
  const HeadShape shape{.tokens = 64, .heads = 9, .head_dim = 64, .token_stride = 9 * 64};
  std::vector<float> x = some_floats(shape.tokens * shape.token_stride);
  const std::vector<float> rows(shape.tokens * 64, 0.70710678f);
  for (auto _ : state) rotate(x.data(), shape, pairing, 32, rows.data());
  count_rate(state, "floats", x.size());
}
BENCHMARK_CAPTURE(rotate_queries, halves, Pairing::kHalf);
BENCHMARK_CAPTURE(rotate_queries, interleaved, Pairing::kInterleaved);

void normalize(benchmark::State& state, bool layer) {
  const size_t rows = 16, width = 576;
  const std::vector<float> x = some_floats(rows * width), weight = some_floats(width);
  std::vector<float> y(x.size());
  for (auto _ : state) {
    if (layer) {
      layer_norm(x.data(), width, weight.data(), weight.data(), 1e-5f, rows, width, y.data(),
                 width);
    } else {
      rms_norm(x.data(), width, weight.data(), 1e-5f, rows, width, y.data(), width);
    }
  }
  count_rate(state, "floats", x.size());
}
BENCHMARK_CAPTURE(normalize, rms, false);
BENCHMARK_CAPTURE(normalize, layer, true);

void gate_rows(benchmark::State& state, Activation activation) {
  const size_t rows = 4, width = 1536;
  const std::vector<float> gate_up = some_floats(rows * 2 * width);
  std::vector<float> y(rows * width);
  for (auto _ : state) {
    gate(activation, gate_up.data(), 2 * width, rows, width, y.data(), width);
  }
  count_rate(state, "floats", y.size());
}
BENCHMARK_CAPTURE(gate_rows, silu, Activation::kSilu);
BENCHMARK_CAPTURE(gate_rows, gelu_erf, Activation::kGeluErf);
BENCHMARK_CAPTURE(gate_rows, gelu_tanh, Activation::kGeluTanh);

void hadamard_row(benchmark::State& state) {
  std::vector<float> x = some_floats(1536);
  const auto block = static_cast<size_t>(state.range(0));
  for (auto _ : state) hadamard(block, x.size(), x.data());
  count_rate(state, "floats", x.size());
}
BENCHMARK(hadamard_row)->Arg(64)->Arg(128)->Arg(512);

void quantize_activations(benchmark::State& state) {
  const size_t rows = 4, width = 384;
  const std::vector<float> x = some_floats(rows * width);
  std::vector<float> row = x;
  std::vector<uint8_t> codes(x.size());
  RowCode means[rows];
  const auto block = static_cast<size_t>(state.range(0));
  for (auto _ : state) {
    quantize_rows(block, {x.data(), rows, width}, row.data(), codes.data(), width, means);
  }
  count_rate(state, "floats", x.size());
}
BENCHMARK(quantize_activations)->Arg(1)->Arg(128);

// --- products

void int8_product(benchmark::State& state) {
  const auto rows = static_cast<size_t>(state.range(0));
  Int8Matrix matrix{.inputs = 384, .outputs = 1536};
  const AlignedBuffer panels = aligned(matrix.bytes());
  const std::vector<int8_t> weights(matrix.inputs * matrix.outputs, 7);
  const std::vector<float> scales(matrix.outputs, 0.01f);
  pack_int8(matrix, weights.data(), scales.data(), nullptr, panels.bytes().data());
  matrix.panels = panels.bytes().data();
  const std::vector<uint8_t> codes(rows * matrix.inputs, 131);
  const std::vector<RowCode> means(rows, RowCode{128, 0.02f});
  std::vector<float> y(rows * matrix.outputs);
  for (auto _ : state) {
    for (size_t panel = 0; panel < matrix.panel_count(); ++panel) {
      multiply_int8(matrix, panel, codes.data(), means.data(), rows, y.data());
    }
  }
  count_rate(state, "operations", 2 * rows * matrix.inputs * matrix.outputs);
}
BENCHMARK(int8_product)->Arg(1)->Arg(8)->Arg(32)->Arg(128)->Arg(256);

void thin_product(benchmark::State& state) {
  const auto rows = static_cast<size_t>(state.range(0));
  const size_t inputs = 48, outputs = 3072;
  const std::vector<int8_t> codes(inputs * outputs, 3);
  const std::vector<float> scales(outputs, 0.01f), x = some_floats(rows * inputs);
  std::vector<float> y(rows * outputs);
  const ThinWeights weights{codes.data(), scales.data(), inputs, outputs};
  for (auto _ : state) add_thin_product(weights, x.data(), rows, 0, outputs, y.data());
  count_rate(state, "operations", 2 * rows * inputs * outputs);
}
BENCHMARK(thin_product)->Arg(1)->Arg(16);

// --- attention

// The cache of one head group, filled to `slots`.
struct FilledCache {
  AttentionShape shape;
  CacheView view;
  AlignedBuffer keys, values, scales;

  FilledCache(CacheType type, size_t slots)
      : shape{.query_heads = 3, .kv_heads = 1, .head_dim = 64, .scale = 0.125f} {
    const size_t room = cache_slots(type, slots);
    keys = aligned(room * 64 * cache_element_bytes(type));
    values = aligned(room * 64 * cache_element_bytes(type));
    scales = aligned(2 * room * sizeof(float));
    view = {.type = type,
            .keys = keys.bytes().data(),
            .values = values.bytes().data(),
            .key_scales = scales.as<float>().data(),
            .value_scales = scales.as<float>().data() + room,
            .slots = slots};
    const std::vector<float> rows = some_floats(slots * 64);
    store_keys(view, shape, 0, 0, slots, rows.data(), 64);
    store_values(view, shape, 0, 0, slots, rows.data(), 64);
  }
};

// `tokens` queries behind a full cache: decoding reads the cache once for each, and a prompt's
// chunk once for kAttentionTokens.
void attend_to(benchmark::State& state, CacheType type) {
  const auto tokens = static_cast<size_t>(state.range(0)),
             depth = static_cast<size_t>(state.range(1));
  const FilledCache cache(type, depth);
  const std::vector<float> queries = some_floats(tokens * 3 * 64);
  std::vector<float> outputs(queries.size());
  const AlignedBuffer scratch = aligned(attention_scratch_floats(cache.shape) * sizeof(float));
  const AttentionChunk chunk{.queries = queries.data(),
                             .query_stride = 3 * 64,
                             .outputs = outputs.data(),
                             .output_stride = 3 * 64,
                             .position = depth - tokens,
                             .tokens = tokens};
  for (auto _ : state) {
    attend(cache.shape, cache.view, chunk, 0, 0, tokens, scratch.as<float>().data());
  }
  count_rate(state, "bytes", 2 * depth * 64 * cache_element_bytes(type));
  count_rate(state, "operations", tokens * 3 * 4 * 64 * depth);
}
BENCHMARK_CAPTURE(attend_to, int8, CacheType::kQ8)->Args({1, 4096})->Args({16, 4096});
BENCHMARK_CAPTURE(attend_to, f16, CacheType::kF16)->Args({1, 4096})->Args({16, 4096});
BENCHMARK_CAPTURE(attend_to, f32, CacheType::kF32)->Args({1, 4096})->Args({16, 4096});

void store_tokens(benchmark::State& state, CacheType type) {
  const FilledCache cache(type, 64);
  const std::vector<float> rows = some_floats(64 * 64);
  for (auto _ : state) {
    store_keys(cache.view, cache.shape, 0, 0, 64, rows.data(), 64);
    store_values(cache.view, cache.shape, 0, 0, 64, rows.data(), 64);
  }
  count_rate(state, "floats", 2 * rows.size());
}
BENCHMARK_CAPTURE(store_tokens, int8, CacheType::kQ8);
BENCHMARK_CAPTURE(store_tokens, f32, CacheType::kF32);

}  // namespace
}  // namespace volvelle
