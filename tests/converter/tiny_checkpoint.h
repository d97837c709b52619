// Checkpoints that lie in memory: a list of tensors with made-up values, and settings to go with
// them.

#ifndef VOLVELLE_TESTS_CONVERTER_TINY_CHECKPOINT_H_
#define VOLVELLE_TESTS_CONVERTER_TINY_CHECKPOINT_H_

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "converter/families/family.h"
#include "converter/sources/tensor_source.h"

namespace volvelle {

class MemorySource : public TensorSource {
 public:
  void add(std::string name, std::vector<uint64_t> shape, std::vector<float> values) {
    tensors_.push_back({std::move(name), "F32", std::move(shape)});
    values_.push_back(std::move(values));
  }

  // Values that differ from element to element, and from seed to seed.
  void add(std::string name, std::vector<uint64_t> shape, int seed = 0) {
    uint64_t count = 1;
    for (const uint64_t dimension : shape) count *= dimension;
    std::vector<float> values(count);
    for (uint64_t i = 0; i < count; ++i) {
      values[i] = static_cast<float>((i * 37 + 11 * seed) % 101) - 50;
    }
    add(std::move(name), std::move(shape), std::move(values));
  }

  const std::vector<SourceTensor>& tensors() const override { return tensors_; }

  Result<void> read(const SourceTensor& tensor, uint64_t first_row, uint64_t rows,
                    std::span<float> values) const override {
    const std::vector<float>& all = values_[&tensor - tensors_.data()];
    const uint64_t columns = tensor.columns();
    if (values.size() != rows * columns || (first_row + rows) * columns > all.size()) {
      return fail("{}: read out of bounds", tensor.name);
    }
    std::copy_n(all.begin() + first_row * columns, rows * columns, values.begin());
    return {};
  }

 private:
  std::vector<SourceTensor> tensors_;
  std::vector<std::vector<float>> values_;
};

// Two layers of width 16, four query heads and two key/value heads of 4, feed-forward 24,
// vocabulary 32.
inline nlohmann::json tiny_settings(const std::string& family) {
  return {{"model_type", family},          {"vocab_size", 32},       {"hidden_size", 16},
          {"intermediate_size", 24},       {"num_hidden_layers", 2}, {"num_attention_heads", 4},
          {"num_key_value_heads", 2},      {"head_dim", 4},          {"hidden_act", "silu"},
          {"max_position_embeddings", 64}, {"rms_norm_eps", 1e-5},   {"rope_theta", 10000.0}};
}

// The tensors of such a model, without a head.
inline std::unique_ptr<MemorySource> tiny_tensors(bool biases = false, bool head_norms = false,
                                                  const std::string& prefix = "model.") {
  auto source = std::make_unique<MemorySource>();
  source->add(prefix + "embed_tokens.weight", {32, 16}, 1);
  for (int layer = 0; layer < 2; ++layer) {
    const std::string block = prefix + "layers." + std::to_string(layer) + ".";
    source->add(block + "input_layernorm.weight", {16});
    for (const auto& [name, rows] : {std::pair{"q_proj", 16}, {"k_proj", 8}, {"v_proj", 8}}) {
      source->add(block + "self_attn." + name + ".weight", {static_cast<uint64_t>(rows), 16},
                  layer);
      if (biases) source->add(block + "self_attn." + name + ".bias", {static_cast<uint64_t>(rows)});
    }
    source->add(block + "self_attn.o_proj.weight", {16, 16});
    if (head_norms) {
      source->add(block + "self_attn.q_norm.weight", {4});
      source->add(block + "self_attn.k_norm.weight", {4});
    }
    source->add(block + "post_attention_layernorm.weight", {16});
    source->add(block + "mlp.gate_proj.weight", {24, 16});
    source->add(block + "mlp.up_proj.weight", {24, 16});
    source->add(block + "mlp.down_proj.weight", {16, 24});
  }
  source->add(prefix + "norm.weight", {16});
  return source;
}

// The same as GGUF has it.
inline nlohmann::json tiny_gguf_settings(const std::string& architecture) {
  return {{architecture + ".context_length", 64},
          {architecture + ".embedding_length", 16},
          {architecture + ".block_count", 2},
          {architecture + ".feed_forward_length", 24},
          {architecture + ".attention.head_count", 4},
          {architecture + ".attention.head_count_kv", 2},
          {architecture + ".attention.layer_norm_rms_epsilon", 1e-5},
          {architecture + ".rope.freq_base", 10000.0}};
}

inline std::unique_ptr<MemorySource> tiny_gguf_tensors() {
  auto source = std::make_unique<MemorySource>();
  source->add("token_embd.weight", {32, 16});
  for (int layer = 0; layer < 2; ++layer) {
    const std::string block = "blk." + std::to_string(layer) + ".";
    source->add(block + "attn_norm.weight", {16});
    source->add(block + "attn_q.weight", {16, 16});
    source->add(block + "attn_k.weight", {8, 16});
    source->add(block + "attn_v.weight", {8, 16});
    source->add(block + "attn_output.weight", {16, 16});
    source->add(block + "ffn_norm.weight", {16});
    source->add(block + "ffn_gate.weight", {24, 16});
    source->add(block + "ffn_up.weight", {24, 16});
    source->add(block + "ffn_down.weight", {16, 24});
  }
  source->add("output_norm.weight", {16});
  return source;
}

struct Described {
  std::unique_ptr<Checkpoint> checkpoint;
  Result<recipe::Model> model;

  std::string error() const { return model ? "" : model.error().message; }
};

inline Described describe_tiny(const nlohmann::json& settings, std::unique_ptr<MemorySource> source,
                               std::vector<std::string> ignored = {}) {
  const std::string family = settings.value("model_type", "");
  const Result<const Family*> found = find_family("config.json", Naming::kHuggingFace, family);
  auto checkpoint =
      std::make_unique<Checkpoint>("tiny", Naming::kHuggingFace,
                                   Config("config.json", "", settings, ignored), std::move(source));
  if (!found) return {std::move(checkpoint), std::unexpected(found.error())};
  Result<recipe::Model> model = describe(**found, *checkpoint);
  return {std::move(checkpoint), std::move(model)};
}

inline Described describe_tiny_gguf(const std::string& architecture, const nlohmann::json& settings,
                                    std::unique_ptr<MemorySource> source,
                                    std::vector<std::string> ignored = {}) {
  const Result<const Family*> found = find_family("tiny.gguf", Naming::kGguf, architecture);
  auto checkpoint = std::make_unique<Checkpoint>(
      "tiny.gguf", Naming::kGguf, Config("tiny.gguf", architecture + ".", settings, ignored),
      std::move(source));
  if (!found) return {std::move(checkpoint), std::unexpected(found.error())};
  Result<recipe::Model> model = describe(**found, *checkpoint);
  return {std::move(checkpoint), std::move(model)};
}

}  // namespace volvelle

#endif  // VOLVELLE_TESTS_CONVERTER_TINY_CHECKPOINT_H_
