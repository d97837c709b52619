// Phi 1, 1.5 and 2: layer norms, heads that turn in part, both branches of the same normed input.
// Gunasekar et al. 2023, arXiv:2306.11644.

#include "converter/families/decoder.h"
#include "converter/families/family.h"

namespace volvelle {
namespace {

constexpr DecoderNames kNames = {
    .embedding = "model.embed_tokens",
    .final_norm = "model.final_layernorm",
    .head = "lm_head",
    .block = "model.layers",
    .attention_norm = "input_layernorm",
    .query = "self_attn.q_proj",
    .key = "self_attn.k_proj",
    .value = "self_attn.v_proj",
    .output = "self_attn.dense",
    .up = "mlp.fc1",
    .down = "mlp.fc2",
};

}  // namespace

Result<recipe::Model> describe_phi(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(
      Decoder decoder,
      read_decoder(checkpoint, {.norm = file::NormKind::layer,
                                .epsilon = "layer_norm_eps",
                                .default_epsilon = 1e-5,
                                .default_activation = "gelu_new",
                                .head_dim = nullptr,
                                .rotary_dialect = {.partial = true, .share = 0.5}}));
  require_biases(decoder);
  decoder.head_bias = Bias::kRequired;
  decoder.plain_feed_forward = true;
  decoder.residual = file::Residual::parallel;
  if (checkpoint.gguf()) {
    decoder.activation = file::Activation::gelu_tanh;
    if (checkpoint.optional("blk.0.attn_qkv.weight") != nullptr) decoder.names.qkv = "attn_qkv";
    decoder.names.feed_forward_norm = nullptr;
    return build(checkpoint, decoder);
  }
  decoder.names = kNames;
  if (config.flag("qk_layernorm", false)) {
    decoder.names.query_norm = "self_attn.q_layernorm";
    decoder.names.key_norm = "self_attn.k_layernorm";
  }
  return build(checkpoint, decoder);
}

}  // namespace volvelle
