// MPT: layer norms without biases, ALiBi, q, k and v clamped where the settings say so. MosaicML
// 2023, databricks.com/blog/mpt-7b.

#include "converter/families/decoder.h"
#include "converter/families/family.h"
#include "converter/positions/alibi.h"

namespace volvelle {
namespace {

constexpr DecoderNames kNames = {
    .embedding = "transformer.wte",
    .final_norm = "transformer.norm_f",
    .head = "lm_head",
    .block = "transformer.blocks",
    .attention_norm = "norm_1",
    .qkv = "attn.Wqkv",
    .output = "attn.out_proj",
    .feed_forward_norm = "norm_2",
    .up = "ffn.up_proj",
    .down = "ffn.down_proj",
};

constexpr double kBiasMax = 8;

}  // namespace

Result<recipe::Model> describe_mpt(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder,
                            read_decoder(checkpoint, {.width = "d_model",
                                                      .layers = "n_layers",
                                                      .query_heads = "n_heads",
                                                      .kv_heads = nullptr,
                                                      .feed_forward_width = "ffn_hidden_size",
                                                      .feed_forward_required = false,
                                                      .context = "max_seq_len",
                                                      .norm = file::NormKind::layer,
                                                      .epsilon = "layer_norm_epsilon",
                                                      .default_epsilon = 1e-5,
                                                      .activation = nullptr,
                                                      .head_dim = nullptr,
                                                      .rotary = false}));
  decoder.activation = file::Activation::gelu_erf;
  decoder.plain_feed_forward = true;
  double bias_max = kBiasMax;
  if (checkpoint.gguf()) {
    bias_max = config.number("attention.max_alibi_bias", kBiasMax);
    if (bias_max <= 0) config.refuse("attention.max_alibi_bias", "of 0 is not implemented");
    decoder.qkv_limit = config.number("attention.clamp_kqv", 0);
    decoder.names.qkv = "attn_qkv";
  } else {
    decoder.names = kNames;
    decoder.qkv_limit = config.number("attn_config.clip_qkv", 0);
    decoder.attention_scale = config.number("attn_config.softmax_scale", 0);
    // The reference always adds ALiBi with a largest bias of 8; a file that asks for else is
    // refused.
    config.expect("attn_config.alibi", true);
    config.expect("attn_config.alibi_bias_max", 8);
    config.expect("attn_config.attn_type", "multihead_attention");
    config.expect("attn_config.attn_uses_sequence_id", false);
    config.expect("attn_config.prefix_lm", false);
    config.expect("attn_config.qk_ln", false);
    config.expect("expansion_ratio", 4);
    config.expect("no_bias", true);
    config.expect("logit_scale", nullptr);
    config.expect("norm_type", "low_precision_layernorm");
    for (const char* without_effect :
         {"learned_pos_emb", "attn_config.attn_impl", "attn_config.attn_pdrop", "emb_pdrop",
          "embedding_fraction", "init_device", "init_config", "verbose", "fc_type",
          "attn_config.model_type"}) {
      config.value(without_effect);
    }
  }
  VOLVELLE_RETURN_IF_ERROR(config.status());
  decoder.slopes = mpt_slopes(static_cast<uint32_t>(decoder.query_heads), bias_max);
  return build(checkpoint, decoder);
}

}  // namespace volvelle
