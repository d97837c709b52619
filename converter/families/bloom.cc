// BLOOM: layer norms, one of them on the embeddings, and ALiBi. BigScience 2022, arXiv:2211.05100.

#include "converter/families/decoder.h"
#include "converter/families/family.h"
#include "converter/positions/alibi.h"

namespace volvelle {
namespace {

constexpr DecoderNames kNames = {
    .embedding = "transformer.word_embeddings",
    .embedding_norm = "transformer.word_embeddings_layernorm",
    .final_norm = "transformer.ln_f",
    .head = "lm_head",
    .block = "transformer.h",
    .attention_norm = "input_layernorm",
    .qkv = "self_attention.query_key_value",
    .output = "self_attention.dense",
    .feed_forward_norm = "post_attention_layernorm",
    .up = "mlp.dense_h_to_4h",
    .down = "mlp.dense_4h_to_h",
};

// The settings often name none: ALiBi has no limit, and this is what the models were trained on.
constexpr uint64_t kTrainedContext = 2048;

}  // namespace

Result<recipe::Model> describe_bloom(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  DecoderKeys keys{.layers = "n_layer",
                   .query_heads = "n_head",
                   .kv_heads = nullptr,
                   .feed_forward_width = "n_inner",
                   .feed_forward_required = false,
                   .context = "seq_length",
                   .default_context = kTrainedContext,
                   .norm = file::NormKind::layer,
                   .epsilon = "layer_norm_epsilon",
                   .default_epsilon = 1e-5,
                   .activation = nullptr,
                   .head_dim = nullptr,
                   .rotary = false};
  if (!config.has("n_layer")) keys.layers = "num_hidden_layers";
  if (!config.has("n_head")) keys.query_heads = "num_attention_heads";
  if (!config.has("hidden_size")) keys.width = "n_embed";
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder, read_decoder(checkpoint, keys));
  require_biases(decoder);
  decoder.plain_feed_forward = true;
  decoder.activation = file::Activation::gelu_tanh;
  decoder.slopes = bloom_slopes(static_cast<uint32_t>(decoder.query_heads));
  if (checkpoint.gguf()) {
    decoder.names.embedding_norm = "token_embd_norm";
    decoder.names.qkv = "attn_qkv";
    return build(checkpoint, decoder);
  }
  decoder.names = kNames;
  decoder.fused_rows = FusedRows::kGroups;
  if (config.flag("apply_residual_connection_post_layernorm", false)) {
    decoder.residual = file::Residual::normed;
  }
  // Orders of operations, and how the training program went about them.
  for (const char* without_effect :
       {"slow_but_exact", "attention_softmax_in_fp32", "masked_softmax_fusion",
        "bias_dropout_fusion", "pretraining_tp", "offset_alibi", "skip_bias_add",
        "skip_bias_add_qkv"}) {
    config.value(without_effect);
  }
  return build(checkpoint, decoder);
}

}  // namespace volvelle
