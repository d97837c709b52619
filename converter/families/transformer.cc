// The original Transformer, whole or its decoder alone, with its sinusoids (Vaswani et al. 2017,
// arXiv:1706.03762) or with the relative positions of Shaw et al. 2018 (arXiv:1803.02155). No
// library has given this model a configuration; tests/goldens/decoders.py and seq2seq.py state the
// one read here, which calls tensors as CTranslate2 does.

#include <cmath>

#include "converter/families/decoder.h"
#include "converter/families/encoder.h"
#include "converter/families/family.h"

namespace volvelle {
namespace {

constexpr DecoderNames kNames = {
    .embedding = "decoder.embeddings",
    .head = "decoder.projection",
    .block = "decoder.layers",
    .attention_norm = "self_attention.layer_norm",
    .qkv = "self_attention.linear_0",
    .output = "self_attention.linear_1",
    .cross_query = "attention.linear_0",
    .cross_key_value = "attention.linear_1",
    .cross_output = "attention.linear_2",
    .cross_norm = "attention.layer_norm",
    .feed_forward_norm = "ffn.layer_norm",
    .up = "ffn.linear_0",
    .down = "ffn.linear_1",
};

void read_sinusoids(Config& config, Decoder& decoder) {
  const std::string layout = config.text("sinusoid_layout", "interleaved");
  if (layout != "interleaved" && layout != "halves") {
    config.refuse("sinusoid_layout", "is \"{}\", neither interleaved nor halves", layout);
  }
  decoder.sinusoids = SinusoidPlan{
      .layout = layout == "halves" ? SinusoidLayout::kHalves : SinusoidLayout::kInterleaved,
      .width = static_cast<uint32_t>(decoder.width)};
}

void read_relative(Config& config, Decoder& decoder) {
  const double clip = config.number("max_relative_positions");
  if (!(clip >= 0 && clip < 1e6 && clip == std::floor(clip))) {
    config.refuse("max_relative_positions", "is {}, no distance to clip at and not 0", clip);
    return;
  }
  // 0: distances are not clipped, and positions end where the tables do.
  decoder.relative =
      RelativeShape{.clip_distance = clip == 0 ? decoder.context - 1 : static_cast<uint64_t>(clip),
                    .unclipped = clip == 0};
  decoder.names.relative_key = "self_attention.relative_position_keys";
  if (config.flag("relative_position_values", true)) {
    decoder.names.relative_value = "self_attention.relative_position_values";
  }
}

Result<Decoder> read_stack(Checkpoint& checkpoint, bool encodes) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(
      Decoder decoder,
      read_decoder(checkpoint, {.layers = encodes ? "num_encoder_layers" : "num_hidden_layers",
                                .kv_heads = nullptr,
                                .norm = file::NormKind::layer,
                                .epsilon = "layer_norm_eps",
                                .default_epsilon = 1e-5,
                                .default_activation = "relu",
                                .head_dim = nullptr,
                                .rotary = false}));
  decoder.encodes = encodes;
  decoder.names = kNames;
  if (encodes) {
    decoder.names.block = "encoder.layers";
    decoder.names.embedding = "encoder.embeddings";
  }
  const std::string positions = config.text("position_type", "sinusoidal");
  if (positions == "sinusoidal") {
    read_sinusoids(config, decoder);
  } else if (positions == "relative") {
    read_relative(config, decoder);
  } else {
    config.refuse("position_type", "is \"{}\", neither sinusoidal nor relative", positions);
  }
  if (config.flag("pre_norm", false)) {
    decoder.names.final_norm = encodes ? "encoder.layer_norm" : "decoder.layer_norm";
  } else {
    decoder.residual = file::Residual::post_norm;
  }
  if (config.flag("scale_embedding", true)) {
    decoder.embedding_scale = std::sqrt(static_cast<double>(decoder.width));
  }
  require_biases(decoder);
  decoder.head_bias = config.flag("tie_word_embeddings", false) ? Bias::kNone : Bias::kRequired;
  decoder.plain_feed_forward = true;
  return decoder;
}

}  // namespace

Result<recipe::Model> describe_transformer(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder, read_stack(checkpoint, /*encodes=*/false));
  if (!config.flag("is_encoder_decoder", false)) return build(checkpoint, decoder);
  VOLVELLE_ASSIGN_OR_RETURN(Decoder encoder, read_stack(checkpoint, /*encodes=*/true));
  if (config.flag("share_embeddings", false)) {
    decoder.names.embedding = encoder.names.embedding;
    checkpoint.optional("decoder.embeddings.weight");
  }
  decoder.cross_heads = decoder.query_heads;
  encoder.tasks.push_back(embed_task());
  return build_pair(checkpoint, encoder, decoder);
}

}  // namespace volvelle
