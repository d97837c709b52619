// Falcon in its three shapes: 7B (all queries share one key/value head), 40B and 11B (groups), and
// RW (a key/value head for each query, ALiBi). Almazrouei et al. 2023, arXiv:2311.16867.

#include "converter/families/decoder.h"
#include "converter/families/family.h"
#include "converter/positions/alibi.h"

namespace volvelle {
namespace {

constexpr DecoderNames kNames = {
    .embedding = "transformer.word_embeddings",
    .final_norm = "transformer.ln_f",
    .head = "lm_head",
    .block = "transformer.h",
    .attention_norm = "input_layernorm",
    .qkv = "self_attention.query_key_value",
    .output = "self_attention.dense",
    .up = "mlp.dense_h_to_4h",
    .down = "mlp.dense_4h_to_h",
};

constexpr uint64_t kTrainedContext = 2048;

// Always parallel; a second norm, where there is one, is attention's.
Result<recipe::Model> describe_gguf(Checkpoint& checkpoint) {
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder,
                            read_decoder(checkpoint, {.norm = file::NormKind::layer}));
  decoder.names.qkv = "attn_qkv";
  decoder.names.feed_forward_norm = nullptr;
  if (checkpoint.optional("blk.0.attn_norm_2.weight") != nullptr) {
    decoder.names.attention_norm = "attn_norm_2";
    decoder.names.feed_forward_norm = "attn_norm";
  }
  decoder.norm_bias = Bias::kRequired;
  decoder.residual = file::Residual::parallel;
  decoder.activation = file::Activation::gelu_erf;
  decoder.plain_feed_forward = true;
  return build(checkpoint, decoder);
}

}  // namespace

Result<recipe::Model> describe_falcon(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  if (checkpoint.gguf()) return describe_gguf(checkpoint);
  const bool alibi = config.flag("alibi", false);
  DecoderKeys keys{.kv_heads = nullptr,
                   .feed_forward_width = "ffn_hidden_size",
                   .feed_forward_required = false,
                   .default_context = kTrainedContext,
                   .norm = file::NormKind::layer,
                   .epsilon = "layer_norm_epsilon",
                   .default_epsilon = 1e-5,
                   .activation = "activation",
                   .default_activation = "gelu",
                   .head_dim = nullptr,
                   .rotary = !alibi};
  // Older names, of the time when the family was called RefinedWeb.
  if (!config.has("hidden_size")) keys.width = "n_embed";
  if (!config.has("num_hidden_layers")) keys.layers = "n_layer";
  if (!config.has("num_attention_heads")) keys.query_heads = "n_head";
  const char* const kv_heads_key = config.has("num_kv_heads") ? "num_kv_heads" : "n_head_kv";
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder, read_decoder(checkpoint, keys));
  decoder.names = kNames;
  decoder.norm_bias = Bias::kRequired;
  if (alibi) config.value("rope_theta");  // has no effect then
  const Bias bias = config.flag("bias", false) ? Bias::kRequired : Bias::kNone;
  decoder.query_key_value_bias = bias;
  decoder.output_bias = bias;
  decoder.feed_forward_bias = bias;
  decoder.plain_feed_forward = true;
  decoder.fused_rows = FusedRows::kGroups;
  const bool grouped = config.flag("new_decoder_architecture", false);
  const bool shared = config.flag("multi_query", true);
  const bool parallel = config.flag("parallel_attn", true);
  const uint64_t kv_heads = config.count(kv_heads_key, decoder.query_heads);
  const uint64_t norms = config.count("num_ln_in_parallel_attn", 2);
  if (grouped) {
    decoder.kv_heads = kv_heads;
  } else if (shared) {
    decoder.kv_heads = 1;
  }
  if (decoder.kv_heads == 0 || decoder.query_heads % decoder.kv_heads != 0) {
    config.refuse(kv_heads_key, "does not divide the {} query heads", decoder.query_heads);
  }
  decoder.residual = grouped || parallel ? file::Residual::parallel : file::Residual::sequential;
  if (grouped && norms == 2) {
    decoder.names.attention_norm = "ln_attn";
    decoder.names.feed_forward_norm = "ln_mlp";
  } else if (decoder.residual == file::Residual::sequential) {
    decoder.names.feed_forward_norm = "post_attention_layernorm";
  }
  VOLVELLE_RETURN_IF_ERROR(config.status());
  if (alibi) {
    decoder.slopes = falcon_slopes(static_cast<uint32_t>(decoder.query_heads),
                                   static_cast<uint32_t>(decoder.head_dim));
  }
  return build(checkpoint, decoder);
}

}  // namespace volvelle
