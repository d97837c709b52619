// Persimmon: layer norms, also on each query and key head; squared ReLU; heads that turn by half.
// Elsen et al. 2023, adept.ai/blog/persimmon-8b.

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
    .qkv = "self_attn.query_key_value",
    .output = "self_attn.dense",
    .feed_forward_norm = "post_attention_layernorm",
    .up = "mlp.dense_h_to_4h",
    .down = "mlp.dense_4h_to_h",
};

}  // namespace

Result<recipe::Model> describe_persimmon(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(
      Decoder decoder,
      read_decoder(checkpoint, {.kv_heads = nullptr,
                                .norm = file::NormKind::layer,
                                .epsilon = "layer_norm_eps",
                                .default_epsilon = 1e-5,
                                .default_activation = "relu2",
                                .head_dim = nullptr,
                                .rotary_dialect = {.partial = true, .share = 0.5}}));
  decoder.names = kNames;
  require_biases(decoder);
  decoder.plain_feed_forward = true;
  decoder.fused_rows = FusedRows::kGroups;
  if (config.flag("qk_layernorm", true)) {
    decoder.names.query_norm = "self_attn.q_layernorm";
    decoder.names.key_norm = "self_attn.k_layernorm";
  }
  return build(checkpoint, decoder);
}

}  // namespace volvelle
