// Nomic's BERT: rotary positions, a gated feed-forward, norms after the branches, no biases but the
// norms'. Nussbaum et al. 2024, arXiv:2402.01613.

#include <cmath>
#include <string>

#include "converter/families/decoder.h"
#include "converter/families/encoder.h"
#include "converter/families/family.h"

namespace volvelle {
namespace {

constexpr DecoderNames kNames = {
    .embedding = "bert.embeddings.word_embeddings",
    .token_types = "bert.embeddings.token_type_embeddings",
    .embedding_norm = "bert.emb_ln",
    .block = "bert.encoder.layers",
    .attention_norm = "norm1",
    .qkv = "attn.Wqkv",
    .output = "attn.out_proj",
    .feed_forward_norm = "norm2",
    .gate = "mlp.fc12",
    .up = "mlp.fc11",
    .down = "mlp.fc2",
};

// transformers' own prefix.
constexpr DecoderNames later_names() {
  DecoderNames names = kNames;
  names.embedding = "nomic_bert.embeddings.word_embeddings";
  names.token_types = "nomic_bert.embeddings.token_type_embeddings";
  names.embedding_norm = "nomic_bert.emb_ln";
  names.block = "nomic_bert.encoder.layers";
  return names;
}

constexpr double kBase = 1000;

const DecoderKeys kKeys = {.kv_heads = nullptr,
                           .norm = file::NormKind::layer,
                           .epsilon = "layer_norm_eps",
                           .default_epsilon = 1e-12,
                           .default_activation = "silu",
                           .rotary = false};

// The keys of the code that came with the checkpoints, after GPT-2's.
DecoderKeys first_keys() {
  DecoderKeys keys = kGpt2Keys;
  keys.activation = nullptr;
  return keys;
}

void read_first_spelling(Config& config, Decoder& decoder) {
  const std::string activation = config.text("activation_function", "swiglu");
  if (activation == "swiglu") {
    decoder.activation = file::Activation::silu;
  } else if (activation == "geglu") {
    decoder.activation = file::Activation::gelu_erf;
  } else {
    config.refuse("activation_function", "is \"{}\", neither swiglu nor geglu", activation);
  }
  for (const char* off :
       {"causal", "prenorm", "parallel_block", "use_rms_norm", "mlp_fc1_bias", "mlp_fc2_bias",
        "rotary_emb_interleaved", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"}) {
    config.expect(off, false);
  }
  config.expect("scale_attn_weights", true);
  config.expect("rotary_emb_fraction", 1);
  config.expect("rotary_emb_scale_base", nullptr);
  config.expect("rotary_scaling_factor", nullptr);
  if (config.flag("qkv_proj_bias", false)) {
    decoder.query_key_value_bias = decoder.output_bias = Bias::kRequired;
  }
  for (const char* unused : {"attn_pdrop", "dense_seq_output", "fused_bias_fc",
                             "fused_dropout_add_ln", "last_layer_subset", "max_trained_positions",
                             "pad_vocab_size_multiple", "sequence_parallel", "summary_activation",
                             "summary_first_dropout", "summary_proj_to_labels", "summary_type",
                             "summary_use_proj", "use_flash_attn", "use_xentropy"}) {
    config.value(unused);
  }
}

// Heads as transformers has them; in the first code's their biases depend on a setting, and what is
// stored decides.
void read_heads(Checkpoint& checkpoint, bool first, bool later, Decoder& decoder) {
  const char* bias = "cls.predictions.bias";
  if (first && checkpoint.optional(bias) == nullptr) {
    bias = "cls.predictions.decoder.bias";
    if (checkpoint.optional(bias) == nullptr) bias = nullptr;
  }
  const char* const pooler = later ? "nomic_bert.pooler.dense" : "bert.pooler.dense";
  add_encoder_tasks(
      checkpoint,
      {.fill = {{.linear = "cls.predictions.transform.dense",
                 .outputs = decoder.width,
                 .bias = first ? Bias::kIfPresent : Bias::kRequired,
                 .activation = decoder.activation,
                 .norm = "cls.predictions.transform.layer_norm"},
                {.bias_name = bias}},
       .fill_copies = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"},
       .pre_training_fills = true,
       .classify = {{.linear = pooler,
                     .outputs = decoder.width,
                     .activation = file::Activation::tanh}}},
      decoder);
  for (const char* end : {".weight", ".bias"}) checkpoint.optional(std::string(pooler) + end);
}

}  // namespace

Result<recipe::Model> describe_nomic_bert(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  const bool first = !checkpoint.gguf() && config.has("n_embd");
  DecoderKeys keys = first ? first_keys() : kKeys;
  keys.rotary = checkpoint.gguf();
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder, read_decoder(checkpoint, keys));
  if (decoder.head_dim % 2 != 0) {
    return fail("{}: a head of {} elements cannot be rotated", config.file(), decoder.head_dim);
  }
  if (checkpoint.gguf()) {
    read_gguf_encoder(checkpoint, decoder);
    return build(checkpoint, decoder);
  }
  config.number("type_vocab_size", 2);  // the table decides
  config.value("attention_probs_dropout_prob");
  if (first) read_first_spelling(config, decoder);
  const RotaryDialect dialect = {.base = kBase,
                                 .base_key = first ? "rotary_emb_base" : "rope_theta"};
  decoder.rotary = hugging_face_rotary(config, "full_attention", decoder.head_dim, dialect);
  hugging_face_rotary(config, "sliding_attention", decoder.head_dim, dialect);  // no layer slides
  bool later = false;
  for (const char* part : {"embeddings.word_embeddings.weight", "emb_ln.weight"}) {
    later |= checkpoint.optional(std::string("nomic_bert.") + part) != nullptr;
  }
  decoder.names = later ? later_names() : kNames;
  decoder.encodes = true;
  decoder.residual = file::Residual::post_norm;
  decoder.norm_bias = Bias::kRequired;
  read_heads(checkpoint, first, later, decoder);
  return build(checkpoint, decoder);
}

}  // namespace volvelle
