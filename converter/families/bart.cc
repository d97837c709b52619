// BART and the models built like it, of which the decoder alone is a language model: MBART (norms
// first), Marian and Pegasus (sinusoids instead of a learned table). Lewis et al. 2020,
// arXiv:1910.13461; Junczys-Dowmunt et al. 2018, arXiv:1804.00344; Zhang et al. 2020,
// arXiv:1912.08777.

#include <cmath>

#include "converter/families/decoder.h"
#include "converter/families/family.h"

namespace volvelle {
namespace {

constexpr DecoderNames kNames = {
    .embedding = "model.decoder.embed_tokens",
    .head = "lm_head",
    .block = "model.decoder.layers",
    .attention_norm = "self_attn_layer_norm",
    .query = "self_attn.q_proj",
    .key = "self_attn.k_proj",
    .value = "self_attn.v_proj",
    .output = "self_attn.out_proj",
    .feed_forward_norm = "final_layer_norm",
    .up = "fc1",
    .down = "fc2",
};

// Cross-attention that a decoder alone has no use for.
void leave_cross_attention(Checkpoint& checkpoint, uint64_t layers) {
  for (uint64_t layer = 0; layer < layers; ++layer) {
    for (const char* part : {"encoder_attn.q_proj", "encoder_attn.k_proj", "encoder_attn.v_proj",
                             "encoder_attn.out_proj", "encoder_attn_layer_norm"}) {
      for (const char* kind : {"weight", "bias"}) {
        checkpoint.optional(std::format("{}.{}.{}.{}", kNames.block, layer, part, kind));
      }
    }
  }
}

struct Dialect {
  bool norms_first = false;
  bool embedding_norm = false;
  bool sinusoids = false;  // otherwise a learned table, in which position 0 is row 2
  const char* activation = "gelu";
};

Result<recipe::Model> describe_decoder(Checkpoint& checkpoint, const Dialect& dialect) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder,
                            read_decoder(checkpoint, {.width = "d_model",
                                                      .layers = "decoder_layers",
                                                      .query_heads = "decoder_attention_heads",
                                                      .kv_heads = nullptr,
                                                      .feed_forward_width = "decoder_ffn_dim",
                                                      .norm = file::NormKind::layer,
                                                      .epsilon = nullptr,
                                                      .default_epsilon = 1e-5,
                                                      .activation = "activation_function",
                                                      .default_activation = dialect.activation,
                                                      .head_dim = false,
                                                      .rotary = false}));
  if (config.flag("is_encoder_decoder", true)) {
    config.refuse("is_encoder_decoder",
                  "is not false: only the decoder alone of such a model can be converted");
  }
  config.flag("is_decoder", true);
  config.expect("normalize_before", dialect.norms_first);
  config.expect("normalize_embedding", dialect.embedding_norm);
  config.expect("add_final_layer_norm", dialect.norms_first);
  config.expect("add_bias_logits", false);
  config.expect("static_position_embeddings", dialect.sinusoids);
  config.expect("decoder_vocab_size", decoder.vocabulary);
  for (const char* elsewhere :
       {"encoder_layers", "encoder_ffn_dim", "encoder_attention_heads", "num_hidden_layers",
        "encoder_layerdrop", "decoder_layerdrop", "activation_dropout", "dropout", "init_std",
        "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id",
        "extra_pos_embeddings", "share_encoder_decoder_embeddings", "classif_dropout"}) {
    config.value(elsewhere);
  }
  if (config.flag("scale_embedding", false)) {
    decoder.embedding_scale = std::sqrt(static_cast<double>(decoder.width));
  }
  decoder.names = kNames;
  decoder.residual = dialect.norms_first ? file::Residual::sequential : file::Residual::post_norm;
  if (dialect.norms_first) decoder.names.final_norm = "model.decoder.layer_norm";
  if (dialect.embedding_norm) decoder.names.embedding_norm = "model.decoder.layernorm_embedding";
  if (dialect.sinusoids) {
    decoder.sinusoids = SinusoidPlan{.layout = SinusoidLayout::kHalves,
                                     .width = static_cast<uint32_t>(decoder.width)};
    checkpoint.optional("model.decoder.embed_positions.weight");  // follows from the layout
  } else {
    decoder.names.learned_table = "model.decoder.embed_positions";
    decoder.learned_offset = 2;
  }
  decoder.norm_bias = Bias::kRequired;
  decoder.query_key_value_bias = Bias::kRequired;
  decoder.output_bias = Bias::kRequired;
  decoder.feed_forward_bias = Bias::kRequired;
  decoder.plain_feed_forward = true;
  leave_cross_attention(checkpoint, decoder.layers);
  return build(checkpoint, decoder);
}

}  // namespace

Result<recipe::Model> describe_bart(Checkpoint& checkpoint) {
  return describe_decoder(checkpoint, {.embedding_norm = true});
}

Result<recipe::Model> describe_mbart(Checkpoint& checkpoint) {
  return describe_decoder(checkpoint, {.norms_first = true, .embedding_norm = true});
}

Result<recipe::Model> describe_marian(Checkpoint& checkpoint) {
  return describe_decoder(checkpoint, {.sinusoids = true});
}

Result<recipe::Model> describe_pegasus(Checkpoint& checkpoint) {
  return describe_decoder(checkpoint, {.norms_first = true, .sinusoids = true});
}

}  // namespace volvelle
