// Gemma 1, 2 and 3 (text): norms stored less one, embeddings scaled by the root of the width, tanh
// GELU. 2 and 3 put norms on the branches' outputs as well, 2 caps logits, 3 norms each query and
// key head and turns its sliding layers by a dial of their own. Gemma Team 2024, arXiv:2403.08295
// and arXiv:2408.00118; 2025, arXiv:2503.19786.

#include <bit>
#include <cmath>

#include "converter/families/decoder.h"
#include "converter/families/family.h"

namespace volvelle {
namespace {

// The reference rounds the root to the type of the weights: bfloat16, to nearest even.
double rounded_to_bf16(float exact) {
  const uint32_t bits = std::bit_cast<uint32_t>(exact);
  return std::bit_cast<float>((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u);
}

Result<Decoder> read_gemma(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(
      Decoder decoder, read_decoder(checkpoint, {.activation = nullptr, .default_head_dim = 256}));
  decoder.activation = file::Activation::gelu_tanh;
  const float root = std::sqrt(static_cast<float>(decoder.width));
  decoder.embedding_scale = root;
  if (checkpoint.gguf()) return decoder;

  // Older files say "gelu", and tanh is what every version of the reference computes.
  const std::string older = config.text("hidden_act", "gelu_pytorch_tanh");
  const std::string activation = config.text("hidden_activation", older);
  if (activation != "gelu" && activation != "gelu_pytorch_tanh") {
    config.refuse("hidden_activation", "is \"{}\", which is not implemented", activation);
  }
  const std::string type = config.text("dtype", config.text("torch_dtype", "float32"));
  if (type == "bfloat16") decoder.embedding_scale = rounded_to_bf16(root);
  decoder.norm_plus = 1;
  config.expect("attention_bias", false);
  return decoder;
}

// Norms before and after each branch; GGUF leaves the scale to the head's width.
void join_gemma2(Checkpoint& checkpoint, Decoder& decoder) {
  if (checkpoint.gguf()) {
    decoder.names.attention_output_norm = "post_attention_norm";
    decoder.names.feed_forward_output_norm = "post_ffw_norm";
    return;
  }
  decoder.names.attention_output_norm = "post_attention_layernorm";
  decoder.names.feed_forward_norm = "pre_feedforward_layernorm";
  decoder.names.feed_forward_output_norm = "post_feedforward_layernorm";
  decoder.attention_scale = 1 / std::sqrt(checkpoint.config.number("query_pre_attn_scalar", 256));
}

}  // namespace

Result<recipe::Model> describe_gemma(Checkpoint& checkpoint) {
  VOLVELLE_ASSIGN_OR_RETURN(const Decoder decoder, read_gemma(checkpoint));
  return build(checkpoint, decoder);
}

Result<recipe::Model> describe_gemma2(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder, read_gemma(checkpoint));
  join_gemma2(checkpoint, decoder);
  // null means none, and only silence means the default.
  const auto cap = [&config](const std::string& key, double unstated) {
    return config.number(key, config.mentions(key) ? 0 : unstated);
  };
  decoder.attention_soft_cap = cap("attn_logit_softcapping", 50);
  decoder.logit_soft_cap = cap("final_logit_softcapping", 30);
  decoder.window =
      config.count(checkpoint.gguf() ? "attention.sliding_window" : "sliding_window", 4096);
  const auto even = [](uint64_t layer) { return layer % 2 == 0; };
  decoder.slides = even;
  if (!checkpoint.gguf()) read_layer_types(config, decoder, even);
  decoder.sliding_rotary = decoder.rotary;
  return build(checkpoint, decoder);
}

Result<recipe::Model> describe_gemma3(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder, read_gemma(checkpoint));
  join_gemma2(checkpoint, decoder);
  const bool gguf = checkpoint.gguf();
  name_head_norms(checkpoint, decoder);
  decoder.logit_soft_cap = config.number("final_logit_softcapping", 0);
  decoder.window = config.count(gguf ? "attention.sliding_window" : "sliding_window", 4096);
  const uint64_t pattern =
      config.count(gguf ? "attention.sliding_window_pattern" : "sliding_window_pattern", 6);
  const auto but_each_last = [pattern](uint64_t layer) { return (layer + 1) % pattern != 0; };
  decoder.slides = but_each_last;
  constexpr double kLocalBase = 10000;
  if (gguf) {
    decoder.sliding_rotary->base = config.number("rope.freq_base_swa", kLocalBase);
    decoder.sliding_rotary->scaling = {};
    decoder.sliding_rotary->divisors.clear();
    return build(checkpoint, decoder);
  }
  config.value("attn_logit_softcapping");  // the reference does not apply it here
  config.expect("use_bidirectional_attention", false);
  read_layer_types(config, decoder, but_each_last);
  if (!config.has_section("rope_parameters.sliding_attention")) {
    // The older spelling: a base for sliding layers, whose dial is not scaled.
    decoder.sliding_rotary->base = config.number("rope_local_base_freq", kLocalBase);
    decoder.sliding_rotary->scaling = {};
  }
  return build(checkpoint, decoder);
}

}  // namespace volvelle
