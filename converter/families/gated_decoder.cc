#include "converter/families/gated_decoder.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <format>
#include <initializer_list>
#include <utility>
#include <vector>

#include "converter/families/rotary.h"

namespace volvelle {
namespace {

// Far above any model; keeps products of two sizes within 64 bits.
constexpr uint64_t kSizeLimit = uint64_t{1} << 28;

// Elements of two tensors compared at a time.
constexpr uint64_t kSliceElements = uint64_t{1} << 18;

struct Names {
  const char* embedding;
  const char* final_norm;
  const char* head;
  const char* block;  // before the layer's number
  const char *attention_norm, *query, *key, *value, *output, *query_norm, *key_norm;
  const char *feed_forward_norm, *gate, *up, *down;
};

constexpr Names kHuggingFaceNames = {
    .embedding = "model.embed_tokens",
    .final_norm = "model.norm",
    .head = "lm_head",
    .block = "model.layers",
    .attention_norm = "input_layernorm",
    .query = "self_attn.q_proj",
    .key = "self_attn.k_proj",
    .value = "self_attn.v_proj",
    .output = "self_attn.o_proj",
    .query_norm = "self_attn.q_norm",
    .key_norm = "self_attn.k_norm",
    .feed_forward_norm = "post_attention_layernorm",
    .gate = "mlp.gate_proj",
    .up = "mlp.up_proj",
    .down = "mlp.down_proj",
};

constexpr Names kGgufNames = {
    .embedding = "token_embd",
    .final_norm = "output_norm",
    .head = "output",
    .block = "blk",
    .attention_norm = "attn_norm",
    .query = "attn_q",
    .key = "attn_k",
    .value = "attn_v",
    .output = "attn_output",
    .query_norm = "attn_q_norm",
    .key_norm = "attn_k_norm",
    .feed_forward_norm = "ffn_norm",
    .gate = "ffn_gate",
    .up = "ffn_up",
    .down = "ffn_down",
};

// One source matrix of a linear that may be made of several.
struct Rows {
  const char* name;
  uint64_t outputs;
  uint64_t head_rows = 0;  // as in recipe::Part
};

class Builder {
 public:
  Builder(Checkpoint& checkpoint, const GatedDecoder& decoder)
      : checkpoint_(checkpoint),
        decoder_(decoder),
        names_(checkpoint.gguf() ? kGgufNames : kHuggingFaceNames) {}

  Result<recipe::Model> build() {
    model_.width = static_cast<uint32_t>(decoder_.width);
    model_.trained_context = static_cast<uint32_t>(decoder_.context);
    VOLVELLE_RETURN_IF_ERROR(add_embedding());
    const int full = add_position(decoder_.rotary);
    const int sliding = add_position(decoder_.sliding_rotary);
    bool full_used = false, sliding_used = false;
    for (uint64_t layer = 0; layer < decoder_.layers; ++layer) {
      const bool slides = decoder_.slides && decoder_.slides(layer);
      (slides ? sliding_used : full_used) = true;
      prefix_ = std::format("{}.{}.", names_.block, layer);
      block_ = std::format("block.{}.", layer);
      VOLVELLE_ASSIGN_OR_RETURN(recipe::Block block, add_block());
      block.attention.window = static_cast<uint32_t>(slides ? decoder_.window : 0);
      block.attention.position = slides ? sliding : full;
      model_.blocks.push_back(std::move(block));
    }
    if (full != sliding && !sliding_used) model_.positions.pop_back();
    if (full != sliding && !full_used) drop_first_position();
    prefix_.clear();
    block_.clear();
    VOLVELLE_ASSIGN_OR_RETURN(model_.final_norm,
                              add_norm("final_norm", names_.final_norm, decoder_.width));
    VOLVELLE_RETURN_IF_ERROR(add_head());
    return std::move(model_);
  }

 private:
  int add_tensor(recipe::Tensor tensor) {
    model_.tensors.push_back(std::move(tensor));
    return static_cast<int>(model_.tensors.size()) - 1;
  }

  int add_position(const RotaryPlan& plan) {
    const auto found = std::ranges::find(model_.positions, plan);
    if (found == model_.positions.end()) model_.positions.push_back(plan);
    return static_cast<int>(std::ranges::find(model_.positions, plan) - model_.positions.begin());
  }

  void drop_first_position() {
    model_.positions.erase(model_.positions.begin());
    for (recipe::Block& block : model_.blocks) --block.attention.position;
  }

  Result<void> add_embedding() {
    const std::string name = std::string(names_.embedding) + ".weight";
    VOLVELLE_ASSIGN_OR_RETURN(embedding_,
                              checkpoint_.require(name, {decoder_.vocabulary, decoder_.width}));
    const uint64_t rows = embedding_->rows();
    if (rows >= kSizeLimit)
      return fail("{}: tensor {} has {} rows", checkpoint_.path(), name, rows);
    model_.vocabulary = static_cast<uint32_t>(rows);
    model_.embedding = add_tensor(
        {"embedding", recipe::Use::kEmbedding, rows, decoder_.width, {{embedding_, rows}}});
    return {};
  }

  // A head that is absent or equal to the embedding is the embedding, whatever the settings say of
  // tying.
  Result<void> add_head() {
    const std::string name = std::string(names_.head) + ".weight";
    model_.head.weight = model_.embedding;
    if (checkpoint_.optional(name) == nullptr) return {};
    VOLVELLE_ASSIGN_OR_RETURN(const SourceTensor* head,
                              checkpoint_.require(name, {model_.vocabulary, decoder_.width}));
    VOLVELLE_ASSIGN_OR_RETURN(const bool tied, equal(*embedding_, *head));
    if (tied) return {};
    model_.head.weight = add_tensor(
        {"head", recipe::Use::kHead, head->rows(), decoder_.width, {{head, head->rows()}}});
    return {};
  }

  // Whether both hold the same values, bit by bit.
  Result<bool> equal(const SourceTensor& first, const SourceTensor& second) {
    const uint64_t columns = first.columns();
    const uint64_t slice = std::max<uint64_t>(1, kSliceElements / columns);
    std::vector<float> a, b;
    for (uint64_t row = 0; row < first.rows(); row += slice) {
      const uint64_t rows = std::min(slice, first.rows() - row);
      a.resize(rows * columns);
      b.resize(rows * columns);
      VOLVELLE_RETURN_IF_ERROR(checkpoint_.source().read(first, row, rows, a));
      VOLVELLE_RETURN_IF_ERROR(checkpoint_.source().read(second, row, rows, b));
      const auto same = [](float x, float y) {
        return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y);
      };
      if (!std::ranges::equal(a, b, same)) return false;
    }
    return true;
  }

  Result<recipe::Norm> add_norm(const char* name, const char* source, uint64_t width) {
    VOLVELLE_ASSIGN_OR_RETURN(const SourceTensor* weight,
                              checkpoint_.require(prefix_ + source + ".weight", {width}));
    recipe::Tensor tensor{block_ + name, recipe::Use::kVector, 1, width, {{weight, width}}};
    return recipe::Norm{static_cast<float>(decoder_.epsilon), add_tensor(std::move(tensor))};
  }

  // y = x * (rows, one below the other)^T + bias
  Result<recipe::Linear> add_linear(const char* name, uint64_t inputs,
                                    std::initializer_list<Rows> rows, Bias bias) {
    recipe::Tensor weight{block_ + name + ".weight", recipe::Use::kLinear, 0, inputs, {}};
    recipe::Tensor offset{block_ + name + ".bias", recipe::Use::kVector, 1, 0, {}};
    bool biased = false;
    for (const Rows& part : rows) {
      const std::string source = prefix_ + part.name;
      VOLVELLE_ASSIGN_OR_RETURN(const SourceTensor* matrix,
                                checkpoint_.require(source + ".weight", {part.outputs, inputs}));
      weight.parts.push_back({matrix, part.outputs, part.head_rows});
      weight.rows += part.outputs;

      const SourceTensor* vector = nullptr;
      const bool wanted = bias == Bias::kRequired ||
                          (bias == Bias::kIfPresent && checkpoint_.optional(source + ".bias"));
      if (wanted) {
        VOLVELLE_ASSIGN_OR_RETURN(vector, checkpoint_.require(source + ".bias", {part.outputs}));
      }
      biased |= vector != nullptr;
      offset.parts.push_back({vector, part.outputs, part.head_rows});
      offset.columns += part.outputs;
    }
    recipe::Linear linear{.weight = add_tensor(std::move(weight))};
    if (biased) linear.bias = add_tensor(std::move(offset));
    return linear;
  }

  Result<recipe::Block> add_block() {
    const GatedDecoder& shape = decoder_;
    const uint64_t query_rows = shape.query_heads * shape.head_dim;
    const uint64_t kv_rows = shape.kv_heads * shape.head_dim;
    const uint64_t reordered = shape.interleaved_rows ? shape.head_dim : 0;

    recipe::Block block;
    VOLVELLE_ASSIGN_OR_RETURN(block.attention_norm,
                              add_norm("attention_norm", names_.attention_norm, shape.width));
    recipe::Attention& attention = block.attention;
    attention.query_heads = static_cast<uint32_t>(shape.query_heads);
    attention.kv_heads = static_cast<uint32_t>(shape.kv_heads);
    attention.head_dim = static_cast<uint32_t>(shape.head_dim);
    attention.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(shape.head_dim)));
    VOLVELLE_ASSIGN_OR_RETURN(attention.qkv, add_linear("attention.qkv", shape.width,
                                                        {{names_.query, query_rows, reordered},
                                                         {names_.key, kv_rows, reordered},
                                                         {names_.value, kv_rows}},
                                                        shape.query_key_value_bias));
    if (shape.head_norms) {
      VOLVELLE_ASSIGN_OR_RETURN(attention.query_norm, add_norm("attention.query_norm",
                                                               names_.query_norm, shape.head_dim));
      VOLVELLE_ASSIGN_OR_RETURN(attention.key_norm,
                                add_norm("attention.key_norm", names_.key_norm, shape.head_dim));
    }
    VOLVELLE_ASSIGN_OR_RETURN(
        attention.output, add_linear("attention.output", query_rows, {{names_.output, shape.width}},
                                     shape.output_bias));

    VOLVELLE_ASSIGN_OR_RETURN(block.feed_forward_norm,
                              add_norm("feed_forward_norm", names_.feed_forward_norm, shape.width));
    block.feed_forward.activation = shape.activation;
    VOLVELLE_ASSIGN_OR_RETURN(
        block.feed_forward.gate_up,
        add_linear("feed_forward.gate_up", shape.width,
                   {{names_.gate, shape.feed_forward_width}, {names_.up, shape.feed_forward_width}},
                   shape.feed_forward_bias));
    VOLVELLE_ASSIGN_OR_RETURN(block.feed_forward.down,
                              add_linear("feed_forward.down", shape.feed_forward_width,
                                         {{names_.down, shape.width}}, shape.feed_forward_bias));
    return block;
  }

  Checkpoint& checkpoint_;
  const GatedDecoder& decoder_;
  const Names& names_;
  const SourceTensor* embedding_ = nullptr;
  std::string prefix_;  // of source tensors
  std::string block_;   // of the model's
  recipe::Model model_;
};

void read_activation(Config& config, GatedDecoder& decoder) {
  constexpr std::array<std::pair<std::string_view, file::Activation>, 5> kActivations = {{
      {"silu", file::Activation::silu},
      {"swish", file::Activation::silu},
      {"gelu", file::Activation::gelu_erf},
      {"gelu_new", file::Activation::gelu_tanh},
      {"gelu_pytorch_tanh", file::Activation::gelu_tanh},
  }};
  const std::string name = config.text("hidden_act", "silu");
  for (const auto& [known, activation] : kActivations) {
    if (name == known) {
      decoder.activation = activation;
      return;
    }
  }
  config.refuse("hidden_act", "is \"{}\", which is not implemented", name);
}

void read_hugging_face(Config& config, GatedDecoder& decoder, uint64_t default_head_dim) {
  decoder.vocabulary = config.count("vocab_size");
  decoder.width = config.count("hidden_size");
  decoder.layers = config.count("num_hidden_layers");
  decoder.query_heads = config.count("num_attention_heads");
  decoder.kv_heads = config.count("num_key_value_heads", decoder.query_heads);
  decoder.feed_forward_width = config.count("intermediate_size");
  decoder.context = config.count("max_position_embeddings");
  decoder.epsilon = config.number("rms_norm_eps");
  config.flag("tie_word_embeddings", false);  // the tensors decide
  config.expect("position_embedding_type", "rope");
  read_activation(config, decoder);
  const uint64_t heads = std::max<uint64_t>(1, decoder.query_heads);
  decoder.head_dim =
      config.count("head_dim", default_head_dim != 0 ? default_head_dim : decoder.width / heads);
  decoder.rotary = hugging_face_rotary(config, "full_attention", decoder.head_dim);
  decoder.sliding_rotary = hugging_face_rotary(config, "sliding_attention", decoder.head_dim);
}

Result<void> read_gguf(Checkpoint& checkpoint, GatedDecoder& decoder) {
  Config& config = checkpoint.config;
  config.optional_count("vocab_size");  // the embedding decides
  decoder.width = config.count("embedding_length");
  decoder.layers = config.count("block_count");
  decoder.query_heads = config.count("attention.head_count");
  decoder.kv_heads = config.count("attention.head_count_kv", decoder.query_heads);
  decoder.feed_forward_width = config.count("feed_forward_length");
  decoder.context = config.count("context_length");
  decoder.epsilon = config.number("attention.layer_norm_rms_epsilon");
  const uint64_t heads = std::max<uint64_t>(1, decoder.query_heads);
  decoder.head_dim = config.count("attention.key_length", decoder.width / heads);
  if (config.count("attention.value_length", decoder.head_dim) != decoder.head_dim) {
    config.refuse("attention.value_length", "differs from the keys', which is not implemented");
  }
  if (const auto window = config.optional_count("attention.sliding_window")) {
    decoder.window = *window;
    decoder.slides = [](uint64_t) { return true; };
  }
  VOLVELLE_RETURN_IF_ERROR(config.status());
  VOLVELLE_ASSIGN_OR_RETURN(decoder.rotary, gguf_rotary(checkpoint, decoder.head_dim));
  decoder.sliding_rotary = decoder.rotary;
  return {};
}

}  // namespace

Result<GatedDecoder> read_gated_decoder(Checkpoint& checkpoint, uint64_t default_head_dim) {
  Config& config = checkpoint.config;
  GatedDecoder decoder;
  if (checkpoint.gguf()) {
    VOLVELLE_RETURN_IF_ERROR(read_gguf(checkpoint, decoder));
  } else {
    read_hugging_face(config, decoder, default_head_dim);
  }
  VOLVELLE_RETURN_IF_ERROR(config.status());

  const std::string& file = config.file();
  if (decoder.head_dim == 0 || decoder.head_dim % 2 != 0) {
    return fail("{}: a head of {} elements cannot be rotated", file, decoder.head_dim);
  }
  if (decoder.query_heads % decoder.kv_heads != 0) {
    return fail("{}: {} query heads cannot share {} key/value heads evenly", file,
                decoder.query_heads, decoder.kv_heads);
  }
  if (!(decoder.epsilon > 0 && decoder.epsilon < 1)) {
    return fail("{}: the norms' epsilon is {}", file, decoder.epsilon);
  }
  for (const uint64_t size : {decoder.width, decoder.feed_forward_width, decoder.context,
                              decoder.query_heads * decoder.head_dim}) {
    if (size > kSizeLimit) return fail("{}: a size of {} is beyond what is supported", file, size);
  }
  return decoder;
}

void read_layer_windows(Config& config, GatedDecoder& decoder) {
  const bool used = config.flag("use_sliding_window", false);
  const uint64_t window = config.count("sliding_window", 0);
  const double stated_first = config.number("max_window_layers", 0);
  const uint64_t first = static_cast<uint64_t>(std::clamp(stated_first, 0.0, 1e9));
  const nlohmann::json* types = config.value("layer_types");
  if (types == nullptr) {
    if (used && window == 0)
      config.refuse("sliding_window", "is missing though use_sliding_window is set");
    decoder.window = window;
    if (used) decoder.slides = [first](uint64_t layer) { return layer >= first; };
    return;
  }

  if (!types->is_array() || types->size() != decoder.layers) {
    config.refuse("layer_types", "does not name the type of {} layers", decoder.layers);
    return;
  }
  std::vector<bool> slides;
  for (const nlohmann::json& type : *types) {
    if (type != "full_attention" && type != "sliding_attention") {
      config.refuse("layer_types", "names a type of layer that is not implemented: {}",
                    type.dump());
      return;
    }
    slides.push_back(type == "sliding_attention");
  }
  if (!std::ranges::contains(slides, true)) return;
  if (!used || window == 0) {
    config.refuse("layer_types",
                  "names sliding layers, but use_sliding_window or sliding_window is not set");
    return;
  }
  decoder.window = window;
  decoder.slides = [slides](uint64_t layer) { return slides[layer]; };
}

Result<recipe::Model> build(Checkpoint& checkpoint, const GatedDecoder& decoder) {
  VOLVELLE_RETURN_IF_ERROR(checkpoint.config.status());
  return Builder(checkpoint, decoder).build();
}

}  // namespace volvelle
