// T5, encoder and decoder or its decoder alone as a language model: RMS norms, no scale in
// attention, biases by distance that all layers share or, in UMT5, have one table each. Raffel et
// al. 2019, arXiv:1910.10683; Chung et al. 2023, arXiv:2304.09151.

#include <cmath>

#include "converter/families/decoder.h"
#include "converter/families/encoder.h"
#include "converter/families/family.h"
#include "runtime/distance_buckets.h"

namespace volvelle {
namespace {

constexpr DecoderNames kNames = {
    .embedding = "shared",
    .final_norm = "decoder.final_layer_norm",
    .head = "lm_head",
    .block = "decoder.block",
    .attention_norm = "layer.0.layer_norm",
    .query = "layer.0.SelfAttention.q",
    .key = "layer.0.SelfAttention.k",
    .value = "layer.0.SelfAttention.v",
    .output = "layer.0.SelfAttention.o",
    .bucket_table = "layer.0.SelfAttention.relative_attention_bias",
    .cross_query = "layer.1.EncDecAttention.q",
    .cross_key = "layer.1.EncDecAttention.k",
    .cross_value = "layer.1.EncDecAttention.v",
    .cross_output = "layer.1.EncDecAttention.o",
    .cross_norm = "layer.1.layer_norm",
    .feed_forward_norm = "layer.2.layer_norm",
    .gate = "layer.2.DenseReluDense.wi_0",
    .up = "layer.2.DenseReluDense.wi_1",
    .down = "layer.2.DenseReluDense.wo",
};

// The same with a feed-forward branch that comes second, for want of attention to an encoder.
constexpr DecoderNames encoder_names() {
  DecoderNames names = kNames;
  names.final_norm = "encoder.final_layer_norm";
  names.head = nullptr;
  names.block = "encoder.block";
  names.feed_forward_norm = "layer.1.layer_norm";
  names.gate = "layer.1.DenseReluDense.wi_0";
  names.up = "layer.1.DenseReluDense.wi_1";
  names.down = "layer.1.DenseReluDense.wo";
  return names;
}

// "relu", or "gated-" and what the gate goes through.
void read_projection(Config& config, const char* ungated, Decoder& decoder) {
  const std::string projection = config.text("feed_forward_proj", "relu");
  decoder.plain_feed_forward = !projection.starts_with("gated-");
  if (decoder.plain_feed_forward) decoder.names.up = ungated;
  if (projection == "relu") {
    decoder.activation = file::Activation::relu;
  } else if (projection == "gated-gelu") {
    decoder.activation = file::Activation::gelu_tanh;
  } else if (projection == "gated-silu") {
    decoder.activation = file::Activation::silu;
  } else {
    config.refuse("feed_forward_proj", "is \"{}\", which is not implemented", projection);
  }
}

// An encoder's buckets are for both sides, half for each; half of a side's are exact distances.
BucketShape read_buckets(Config& config, bool encodes, bool every_layer) {
  const char *const count = "relative_attention_num_buckets", *const longest =
                                                                  "relative_attention_max_distance";
  const BucketShape shape{.buckets = config.count(count, 32),
                          .max_distance = config.count(longest, 128),
                          .every_layer = every_layer};
  const uint64_t sides = encodes ? 2 : 1;
  if (shape.buckets < 2 * sides || shape.buckets % sides != 0 || shape.buckets > kMaxBuckets) {
    config.refuse(count, "is {}, not {} number from {} to {}", shape.buckets,
                  encodes ? "an even" : "a", 2 * sides, kMaxBuckets);
  } else if (shape.max_distance <= shape.buckets / sides / 2 ||
             shape.max_distance > kMaxBucketDistance) {
    config.refuse(longest, "is {}, not from {} to {}", shape.max_distance,
                  shape.buckets / sides / 2 + 1, kMaxBucketDistance);
  }
  return shape;
}

// What the config says of a stack, whose layers are counted by `layers`.
Result<Decoder> read_stack(Checkpoint& checkpoint, const char* layers, const DecoderNames& names,
                           const char* ungated, bool encodes, bool table_in_every_layer) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder,
                            read_decoder(checkpoint, {.width = "d_model",
                                                      .layers = layers,
                                                      .query_heads = "num_heads",
                                                      .kv_heads = nullptr,
                                                      .feed_forward_width = "d_ff",
                                                      .context = "n_positions",
                                                      .default_context = 512,
                                                      .epsilon = "layer_norm_epsilon",
                                                      .default_epsilon = 1e-6,
                                                      .activation = nullptr,
                                                      .head_dim = "d_kv",
                                                      .default_head_dim = 64,
                                                      .rotary = false}));
  decoder.names = names;
  read_projection(config, ungated, decoder);
  decoder.attention_scale = 1;
  decoder.buckets = read_buckets(config, encodes, table_in_every_layer);
  return decoder;
}

// GGUF has the stacks' names in front of its own, the table of distances in the first layer of
// each, and the head where it is not the embedding; logits are not scaled there.
Result<Decoder> read_gguf_stack(Checkpoint& checkpoint, bool encodes) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder, read_decoder(checkpoint, {.rotary = false}));
  DecoderNames& names = decoder.names;
  names.output = "attn_o";
  names.bucket_table = "attn_rel_b";
  names.block = encodes ? "enc.blk" : "dec.blk";
  names.final_norm = encodes ? "enc.output_norm" : "dec.output_norm";
  names.cross_query = "cross_attn_q";
  names.cross_key = "cross_attn_k";
  names.cross_value = "cross_attn_v";
  names.cross_output = "cross_attn_o";
  names.cross_norm = "cross_attn_norm";
  if (!encodes) decoder.layers = config.count("decoder_block_count", decoder.layers);
  const std::string block = names.block;
  decoder.plain_feed_forward = checkpoint.optional(block + ".0.ffn_gate.weight") == nullptr;
  decoder.activation =
      decoder.plain_feed_forward ? file::Activation::relu : file::Activation::gelu_tanh;
  decoder.attention_scale = 1;
  decoder.buckets =
      BucketShape{.buckets = config.count("attention.relative_buckets_count", 32),
                  .max_distance = 128,
                  .every_layer = checkpoint.optional(block + ".1.attn_rel_b.weight") != nullptr};
  decoder.encodes = encodes;
  return decoder;
}

Result<recipe::Model> describe_gguf_stacks(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder, read_gguf_stack(checkpoint, false));
  decoder.cross_heads = decoder.query_heads;
  // These play no part, or are read with the settings of generation.
  checkpoint.optional("dec.blk.0.cross_attn_rel_b.weight");
  config.value("attention.layer_norm_epsilon");
  config.value("decoder_start_token_id");
  VOLVELLE_ASSIGN_OR_RETURN(Decoder encoder, read_gguf_stack(checkpoint, true));
  encoder.tasks.push_back(embed_task());
  return build_pair(checkpoint, encoder, decoder);
}

Result<recipe::Model> describe_gguf_encoder(Checkpoint& checkpoint) {
  checkpoint.config.value("attention.layer_norm_epsilon");
  VOLVELLE_ASSIGN_OR_RETURN(Decoder encoder, read_gguf_stack(checkpoint, true));
  encoder.names.head = nullptr;
  encoder.tasks.push_back(embed_task());
  return build(checkpoint, encoder);
}

struct Dialect {
  bool table_in_every_layer = false;
  bool scales_logits = true;  // where the embedding is the head
};

// What no stack's shape depends on, or what is read with the settings of generation.
void read_elsewhere(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  config.flag("is_decoder", true);
  for (const char* elsewhere :
       {"num_layers", "num_decoder_layers", "dropout_rate", "initializer_factor", "dense_act_fn",
        "is_gated_act", "output_past", "decoder_start_token_id", "tokenizer_class",
        "scalable_attention"}) {
    config.value(elsewhere);
  }
  for (const char* same : {"decoder.embed_tokens.weight", "encoder.embed_tokens.weight"}) {
    checkpoint.optional(same);  // as the shared one
  }
}

Result<Decoder> read_encoder(Checkpoint& checkpoint, const Dialect& dialect) {
  VOLVELLE_ASSIGN_OR_RETURN(
      Decoder encoder, read_stack(checkpoint, "num_layers", encoder_names(),
                                  "layer.1.DenseReluDense.wi", true, dialect.table_in_every_layer));
  encoder.encodes = true;
  encoder.tasks.push_back(embed_task());
  return encoder;
}

Result<recipe::Model> describe_stacks(Checkpoint& checkpoint, const Dialect& dialect) {
  Config& config = checkpoint.config;
  if (checkpoint.gguf()) return describe_gguf_stacks(checkpoint);
  read_elsewhere(checkpoint);
  if (has_architecture(config, "EncoderModel")) {
    for (const char* unused : {"tie_word_embeddings", "is_encoder_decoder"}) config.value(unused);
    VOLVELLE_ASSIGN_OR_RETURN(const Decoder encoder, read_encoder(checkpoint, dialect));
    return build(checkpoint, encoder);
  }
  const char* const layers = config.has("num_decoder_layers") ? "num_decoder_layers" : "num_layers";
  VOLVELLE_ASSIGN_OR_RETURN(
      Decoder decoder, read_stack(checkpoint, layers, kNames, "layer.2.DenseReluDense.wi", false,
                                  dialect.table_in_every_layer));
  // The raw key decides, whatever the tensors say.
  if (config.flag("tie_word_embeddings", dialect.scales_logits) && dialect.scales_logits) {
    decoder.logit_scale = 1 / std::sqrt(static_cast<double>(decoder.width));
  }
  if (!config.flag("is_encoder_decoder", true)) return build(checkpoint, decoder);

  decoder.cross_heads = decoder.query_heads;
  // Some files keep a table there that plays no part.
  checkpoint.optional("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight");
  VOLVELLE_ASSIGN_OR_RETURN(const Decoder encoder, read_encoder(checkpoint, dialect));
  return build_pair(checkpoint, encoder, decoder);
}

}  // namespace

Result<recipe::Model> describe_t5(Checkpoint& checkpoint) {
  return describe_stacks(checkpoint, {});
}

Result<recipe::Model> describe_t5_encoder(Checkpoint& checkpoint) {
  return describe_gguf_encoder(checkpoint);
}

Result<recipe::Model> describe_mt5(Checkpoint& checkpoint) {
  return describe_stacks(checkpoint, {.scales_logits = false});
}

Result<recipe::Model> describe_umt5(Checkpoint& checkpoint) {
  return describe_stacks(checkpoint, {.table_in_every_layer = true});
}

}  // namespace volvelle
