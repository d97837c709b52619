// GPT-NeoX and Pythia: layer norms, rotary positions of a part of each head, both branches of the
// same input. Black et al. 2022, arXiv:2204.06745.

#include "converter/families/decoder.h"
#include "converter/families/family.h"

namespace volvelle {
namespace {

constexpr DecoderNames kNames = {
    .embedding = "gpt_neox.embed_in",
    .final_norm = "gpt_neox.final_layer_norm",
    .head = "embed_out",
    .block = "gpt_neox.layers",
    .attention_norm = "input_layernorm",
    .qkv = "attention.query_key_value",
    .output = "attention.dense",
    .feed_forward_norm = "post_attention_layernorm",
    .up = "mlp.dense_h_to_4h",
    .down = "mlp.dense_4h_to_h",
};

}  // namespace

Result<recipe::Model> describe_gpt_neox(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(
      Decoder decoder, read_decoder(checkpoint, {.kv_heads = nullptr,
                                                 .norm = file::NormKind::layer,
                                                 .epsilon = "layer_norm_eps",
                                                 .default_epsilon = 1e-5,
                                                 .default_activation = "gelu",
                                                 .head_dim = nullptr,
                                                 .rotary_dialect = {.base_key = "rotary_emb_base",
                                                                    .partial = true,
                                                                    .share = 0.25,
                                                                    .share_key = "rotary_pct"}}));
  decoder.norm_bias = Bias::kRequired;
  decoder.feed_forward_bias = Bias::kRequired;
  decoder.plain_feed_forward = true;
  const bool parallel = config.flag("use_parallel_residual", true);
  decoder.residual = parallel ? file::Residual::parallel : file::Residual::sequential;
  Bias attention = Bias::kRequired;
  if (checkpoint.gguf()) {
    decoder.activation = file::Activation::gelu_erf;
    decoder.names.qkv = "attn_qkv";
  } else {
    if (!config.flag("attention_bias", true)) attention = Bias::kNone;
    decoder.names = kNames;
    decoder.fused_rows = FusedRows::kGroups;
  }
  decoder.query_key_value_bias = attention;
  decoder.output_bias = attention;
  return build(checkpoint, decoder);
}

}  // namespace volvelle
