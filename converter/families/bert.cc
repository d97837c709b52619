// BERT as a causal decoder: norms after the branches, token types, a head of a linear and a norm
// before the embedding's transpose; positions by a learned table or by rows for every distance.
// Devlin et al. 2019, arXiv:1810.04805; Huang et al. 2020, arXiv:2009.13658.

#include "converter/families/decoder.h"
#include "converter/families/family.h"

namespace volvelle {
namespace {

constexpr DecoderNames kNames = {
    .embedding = "bert.embeddings.word_embeddings",
    .head_projection = "cls.predictions.transform.dense",
    .head_norm = "cls.predictions.transform.LayerNorm",
    .head_bias = "cls.predictions.bias",
    .token_types = "bert.embeddings.token_type_embeddings",
    .embedding_norm = "bert.embeddings.LayerNorm",
    .head = "cls.predictions.decoder",
    .block = "bert.encoder.layer",
    .attention_norm = "attention.output.LayerNorm",
    .query = "attention.self.query",
    .key = "attention.self.key",
    .value = "attention.self.value",
    .output = "attention.output.dense",
    .feed_forward_norm = "output.LayerNorm",
    .up = "intermediate.dense",
    .down = "output.dense",
};

constexpr const char* kPositionTable = "bert.embeddings.position_embeddings";
constexpr const char* kDistanceTable = "attention.self.distance_embedding";

void read_positions(Checkpoint& checkpoint, Decoder& decoder) {
  Config& config = checkpoint.config;
  const std::string type = config.text("position_embedding_type", "absolute");
  if (type == "absolute") {
    decoder.names.learned_table = kPositionTable;
    return;
  }
  if (type != "relative_key" && type != "relative_key_query") {
    config.refuse("position_embedding_type",
                  "is \"{}\", neither absolute nor relative_key nor relative_key_query", type);
  }
  checkpoint.optional(std::string(kPositionTable) + ".weight");  // is stored, but not added
  decoder.relative = RelativeShape{
      .clip_distance = decoder.context - 1, .unclipped = true, .query_minus_key = true};
  decoder.names.relative_key = kDistanceTable;
  if (type == "relative_key_query") decoder.names.relative_query = kDistanceTable;
}

}  // namespace

Result<recipe::Model> describe_bert(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder,
                            read_decoder(checkpoint, {.kv_heads = nullptr,
                                                      .norm = file::NormKind::layer,
                                                      .epsilon = "layer_norm_eps",
                                                      .default_epsilon = 1e-12,
                                                      .default_activation = "gelu",
                                                      .head_dim = false,
                                                      .rotary = false}));
  if (!config.flag("is_decoder", false)) {
    config.refuse("is_decoder", "is not true: an encoder, which this version does not convert");
  }
  config.count("type_vocab_size", 2);  // the table decides
  config.value("attention_probs_dropout_prob");
  decoder.names = kNames;
  read_positions(checkpoint, decoder);
  decoder.head_activation = decoder.activation;
  decoder.head_projection_bias = Bias::kRequired;
  checkpoint.optional("cls.predictions.decoder.bias");  // the same as cls.predictions.bias
  decoder.residual = file::Residual::post_norm;
  decoder.norm_bias = Bias::kRequired;
  decoder.query_key_value_bias = Bias::kRequired;
  decoder.output_bias = Bias::kRequired;
  decoder.feed_forward_bias = Bias::kRequired;
  decoder.head_bias = Bias::kRequired;
  decoder.plain_feed_forward = true;
  return build(checkpoint, decoder);
}

}  // namespace volvelle
