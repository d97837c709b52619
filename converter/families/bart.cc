// BART and the models built like it, encoder and decoder or the decoder alone as a language model:
// MBART (norms first), Marian and Pegasus (sinusoids instead of a learned table), M2M-100 and NLLB
// (fairseq's sinusoids). Lewis et al. 2020,
// arXiv:1910.13461; Junczys-Dowmunt et al. 2018, arXiv:1804.00344; Zhang et al. 2020,
// arXiv:1912.08777.

#include <cmath>

#include "converter/families/decoder.h"
#include "converter/families/encoder.h"
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
    .cross_query = "encoder_attn.q_proj",
    .cross_key = "encoder_attn.k_proj",
    .cross_value = "encoder_attn.v_proj",
    .cross_output = "encoder_attn.out_proj",
    .cross_norm = "encoder_attn_layer_norm",
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

enum class Positions { kLearned, kHalves, kSpread };

struct Dialect {
  bool norms_first = false;
  bool embedding_norm = false;
  Positions positions = Positions::kLearned;  // of a table in which position 0 is row 2
  bool scale_embedding = false;
  const char* activation = "gelu";
};

// One stack, "encoder" or "decoder".
Result<Decoder> read_stack(Checkpoint& checkpoint, const Dialect& dialect, bool encodes) {
  Config& config = checkpoint.config;
  const std::string stack = encodes ? "encoder" : "decoder";
  const std::string layers = stack + "_layers", heads = stack + "_attention_heads",
                    inner = stack + "_ffn_dim";
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder,
                            read_decoder(checkpoint, {.width = "d_model",
                                                      .layers = layers.c_str(),
                                                      .query_heads = heads.c_str(),
                                                      .kv_heads = nullptr,
                                                      .feed_forward_width = inner.c_str(),
                                                      .norm = file::NormKind::layer,
                                                      .epsilon = nullptr,
                                                      .default_epsilon = 1e-5,
                                                      .activation = "activation_function",
                                                      .default_activation = dialect.activation,
                                                      .head_dim = nullptr,
                                                      .rotary = false}));
  if (config.flag("scale_embedding", dialect.scale_embedding)) {
    decoder.embedding_scale = std::sqrt(static_cast<double>(decoder.width));
  }
  if (!encodes) decoder.vocabulary = config.count("decoder_vocab_size", decoder.vocabulary);
  decoder.encodes = encodes;
  decoder.names = kNames;
  decoder.names.block = encodes ? "model.encoder.layers" : "model.decoder.layers";
  decoder.names.embedding = encodes ? "model.encoder.embed_tokens" : "model.decoder.embed_tokens";
  // Where both stacks have one embedding, files may keep it once, under any of the names.
  const bool pair = config.flag("is_encoder_decoder", true);
  if (pair && config.flag("share_encoder_decoder_embeddings", true)) {
    for (const char* name :
         {"model.decoder.embed_tokens", "model.encoder.embed_tokens", "model.shared"}) {
      if (checkpoint.optional(std::string(name) + ".weight")) decoder.names.embedding = name;
    }
    if (!checkpoint.optional(std::string(decoder.names.embedding) + ".weight")) {
      decoder.names.embedding = "model.shared";
    }
  }
  decoder.residual = dialect.norms_first ? file::Residual::sequential : file::Residual::post_norm;
  if (dialect.norms_first) {
    decoder.names.final_norm = encodes ? "model.encoder.layer_norm" : "model.decoder.layer_norm";
  }
  if (dialect.embedding_norm) {
    decoder.names.embedding_norm =
        encodes ? "model.encoder.layernorm_embedding" : "model.decoder.layernorm_embedding";
  }
  const char* const table =
      encodes ? "model.encoder.embed_positions" : "model.decoder.embed_positions";
  const auto width = static_cast<uint32_t>(decoder.width);
  switch (dialect.positions) {
    case Positions::kLearned:
      decoder.names.learned_table = table;
      decoder.learned_offset = 2;
      break;
    case Positions::kHalves:
      decoder.sinusoids = SinusoidPlan{.layout = SinusoidLayout::kHalves, .width = width};
      break;
    case Positions::kSpread:
      if (decoder.width < 4) config.refuse("d_model", "is below 4, where these sinusoids end");
      decoder.sinusoids =
          SinusoidPlan{.layout = SinusoidLayout::kSpread,
                       .width = width,
                       .row_offset = 2,
                       .zero_row = static_cast<uint32_t>(config.number("pad_token_id", 1)),
                       .padding = static_cast<int32_t>(config.number("pad_token_id", 1))};
      break;
  }
  if (decoder.sinusoids) {
    checkpoint.optional(std::string(table) + ".weight");  // follows from the layout
    checkpoint.optional(std::string(table) + ".weights");
  }
  require_biases(decoder);
  decoder.plain_feed_forward = true;
  return decoder;
}

Result<recipe::Model> describe_stacks(Checkpoint& checkpoint, const Dialect& dialect) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder, read_stack(checkpoint, dialect, false));
  config.flag("is_decoder", true);
  config.expect("normalize_before", dialect.norms_first);
  config.expect("normalize_embedding", dialect.embedding_norm);
  config.expect("add_final_layer_norm", dialect.norms_first);
  config.expect("static_position_embeddings", dialect.positions != Positions::kLearned);
  for (const char* elsewhere :
       {"encoder_layers", "encoder_ffn_dim", "encoder_attention_heads", "num_hidden_layers",
        "encoder_layerdrop", "decoder_layerdrop", "activation_dropout", "dropout", "init_std",
        "add_bias_logits", "extra_pos_embeddings", "share_encoder_decoder_embeddings",
        "classif_dropout", "max_source_positions", "max_target_positions", "tokenizer_class"}) {
    config.value(elsewhere);
  }
  if (!config.flag("is_encoder_decoder", true)) {
    leave_cross_attention(checkpoint, decoder.layers);
    return build(checkpoint, decoder);
  }
  decoder.cross_heads = decoder.query_heads;
  if (checkpoint.optional("final_logits_bias") != nullptr) {
    decoder.head_bias = Bias::kRequired;
    decoder.names.head_bias = "final_logits_bias";
  }
  VOLVELLE_ASSIGN_OR_RETURN(Decoder encoder, read_stack(checkpoint, dialect, true));
  encoder.tasks.push_back(embed_task());
  return build_pair(checkpoint, encoder, decoder);
}

}  // namespace

Result<recipe::Model> describe_bart(Checkpoint& checkpoint) {
  return describe_stacks(checkpoint, {.embedding_norm = true});
}

Result<recipe::Model> describe_mbart(Checkpoint& checkpoint) {
  return describe_stacks(checkpoint, {.norms_first = true, .embedding_norm = true});
}

Result<recipe::Model> describe_marian(Checkpoint& checkpoint) {
  return describe_stacks(checkpoint, {.positions = Positions::kHalves});
}

Result<recipe::Model> describe_pegasus(Checkpoint& checkpoint) {
  return describe_stacks(checkpoint, {.norms_first = true, .positions = Positions::kHalves});
}

Result<recipe::Model> describe_m2m_100(Checkpoint& checkpoint) {
  return describe_stacks(checkpoint, {.norms_first = true,
                                      .positions = Positions::kSpread,
                                      .scale_embedding = true,
                                      .activation = "relu"});
}

}  // namespace volvelle
