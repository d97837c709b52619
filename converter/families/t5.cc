// T5's decoder alone as a language model: RMS norms, no scale in attention, biases by distance that
// all layers share or, in UMT5, have one table each. Raffel et al. 2019, arXiv:1910.10683; Chung et
// al. 2023, arXiv:2304.09151.

#include <cmath>

#include "converter/families/decoder.h"
#include "converter/families/family.h"

namespace volvelle {
namespace {

// Layer 1 of a block, where a T5 looks at its encoder, is absent here.
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
    .feed_forward_norm = "layer.2.layer_norm",
    .gate = "layer.2.DenseReluDense.wi_0",
    .up = "layer.2.DenseReluDense.wi_1",
    .down = "layer.2.DenseReluDense.wo",
};

// "relu", or "gated-" and what the gate goes through.
void read_projection(Config& config, Decoder& decoder) {
  const std::string projection = config.text("feed_forward_proj", "relu");
  decoder.plain_feed_forward = !projection.starts_with("gated-");
  if (decoder.plain_feed_forward) decoder.names.up = "layer.2.DenseReluDense.wi";
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

Result<recipe::Model> describe_decoder(Checkpoint& checkpoint, bool table_in_every_layer) {
  Config& config = checkpoint.config;
  DecoderKeys keys{.width = "d_model",
                   .layers = "num_decoder_layers",
                   .query_heads = "num_heads",
                   .kv_heads = nullptr,
                   .feed_forward_width = "d_ff",
                   .context = "n_positions",
                   .default_context = 512,
                   .epsilon = "layer_norm_epsilon",
                   .default_epsilon = 1e-6,
                   .activation = nullptr,
                   .head_dim = false,
                   .rotary = false};
  if (!config.has("num_decoder_layers")) keys.layers = "num_layers";
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder, read_decoder(checkpoint, keys));
  if (config.flag("is_encoder_decoder", true)) {
    config.refuse("is_encoder_decoder",
                  "is not false: only the decoder alone of such a model can be converted");
  }
  config.flag("is_decoder", true);
  for (const char* elsewhere : {"num_layers", "dropout_rate", "initializer_factor", "dense_act_fn",
                                "is_gated_act", "output_past", "decoder_start_token_id"}) {
    config.value(elsewhere);
  }
  decoder.names = kNames;
  read_projection(config, decoder);
  decoder.head_dim = config.count("d_kv", 64);
  decoder.attention_scale = 1;
  // The raw key decides, whatever the tensors say.
  if (config.flag("tie_word_embeddings", true)) {
    decoder.logit_scale = 1 / std::sqrt(static_cast<double>(decoder.width));
  }
  decoder.buckets =
      BucketShape{.buckets = config.count("relative_attention_num_buckets", 32),
                  .max_distance = config.count("relative_attention_max_distance", 128),
                  .every_layer = table_in_every_layer};
  checkpoint.optional("decoder.embed_tokens.weight");  // the same as the shared one
  return build(checkpoint, decoder);
}

}  // namespace

Result<recipe::Model> describe_t5(Checkpoint& checkpoint) {
  return describe_decoder(checkpoint, /*table_in_every_layer=*/false);
}

Result<recipe::Model> describe_umt5(Checkpoint& checkpoint) {
  return describe_decoder(checkpoint, /*table_in_every_layer=*/true);
}

}  // namespace volvelle
