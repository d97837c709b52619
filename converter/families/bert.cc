// BERT, RoBERTa and ELECTRA: norms after the branches, token types, positions by a learned table or
// by rows for every distance. As encoders they fill masks, classify, tag and embed; BERT also
// stands as a causal decoder. Devlin et al. 2019, arXiv:1810.04805; Liu et al. 2019,
// arXiv:1907.11692; Huang et al. 2020, arXiv:2009.13658.

#include "converter/families/decoder.h"
#include "converter/families/encoder.h"
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

constexpr DecoderNames roberta_names() {
  DecoderNames names = kNames;
  names.embedding = "roberta.embeddings.word_embeddings";
  names.token_types = "roberta.embeddings.token_type_embeddings";
  names.embedding_norm = "roberta.embeddings.LayerNorm";
  names.block = "roberta.encoder.layer";
  return names;
}

constexpr DecoderNames electra_names() {
  DecoderNames names = kNames;
  names.embedding = "electra.embeddings.word_embeddings";
  names.token_types = "electra.embeddings.token_type_embeddings";
  names.embedding_norm = "electra.embeddings.LayerNorm";
  names.learned_table = "electra.embeddings.position_embeddings";
  names.block = "electra.encoder.layer";
  names.head_projection = names.head_norm = nullptr;
  return names;
}

constexpr const char* kDistanceTable = "attention.self.distance_embedding";

void read_positions(Checkpoint& checkpoint, const char* table, Decoder& decoder) {
  Config& config = checkpoint.config;
  const std::string type = config.text("position_embedding_type", "absolute");
  if (type == "absolute") {
    decoder.names.learned_table = table;
    return;
  }
  if (type != "relative_key" && type != "relative_key_query") {
    config.refuse("position_embedding_type",
                  "is \"{}\", neither absolute nor relative_key nor relative_key_query", type);
  }
  checkpoint.optional(std::string(table) + ".weight");  // is stored, but not added
  decoder.relative = RelativeShape{
      .clip_distance = decoder.context - 1, .unclipped = true, .query_minus_key = true};
  decoder.names.relative_key = kDistanceTable;
  if (type == "relative_key_query") decoder.names.relative_query = kDistanceTable;
}

Result<Decoder> read_bert(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder, read_decoder(checkpoint, kBertKeys));
  config.number("type_vocab_size", 2);  // the table decides
  config.value("attention_probs_dropout_prob");
  decoder.residual = file::Residual::post_norm;
  require_biases(decoder);
  decoder.plain_feed_forward = true;
  return decoder;
}

Result<recipe::Model> describe_bert_decoder(Checkpoint& checkpoint, Decoder decoder) {
  decoder.head_activation = decoder.activation;
  decoder.head_projection_bias = Bias::kRequired;
  decoder.head_bias = Bias::kRequired;
  checkpoint.optional("cls.predictions.decoder.bias");  // the same as cls.predictions.bias
  return build(checkpoint, decoder);
}

}  // namespace

Result<recipe::Model> describe_jina_bert(Checkpoint& checkpoint);

Result<recipe::Model> describe_bert(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  if (!checkpoint.gguf() && config.text("position_embedding_type", "") == "alibi") {
    return describe_jina_bert(checkpoint);
  }
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder, read_bert(checkpoint));
  if (checkpoint.gguf()) {  // RoBERTa's as well, whose positions begin with the first row there
    read_gguf_encoder(checkpoint, decoder);
    decoder.activation = file::Activation::gelu_erf;
    decoder.names.learned_table = "position_embd";
    return build(checkpoint, decoder);
  }
  decoder.names = kNames;
  read_positions(checkpoint, "bert.embeddings.position_embeddings", decoder);
  if (config.flag("is_decoder", false)) return describe_bert_decoder(checkpoint, decoder);

  decoder.encodes = true;
  decoder.names.head_projection = decoder.names.head_norm = nullptr;
  const uint64_t width = decoder.width;
  add_encoder_tasks(
      checkpoint,
      {.fill = {{.linear = kNames.head_projection,
                 .outputs = width,
                 .activation = decoder.activation,
                 .norm = kNames.head_norm},
                {.bias_name = kNames.head_bias}},
       .fill_copies = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"},
       .pre_training_fills = true,
       .classify = {{.linear = "bert.pooler.dense",
                     .outputs = width,
                     .activation = file::Activation::tanh}}},
      decoder);
  leave(checkpoint, {"bert.pooler.dense.weight", "bert.pooler.dense.bias",
                     "cls.seq_relationship.weight", "cls.seq_relationship.bias"});
  return build(checkpoint, decoder);
}

// BERT's blocks on embeddings of a width of their own; the discriminator, or the generator with its
// head. Clark et al. 2020, arXiv:2003.10555.
Result<recipe::Model> describe_electra(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder, read_bert(checkpoint));
  decoder.encodes = true;
  decoder.names = electra_names();
  config.expect("position_embedding_type", "absolute");
  for (const char* unused : {"summary_activation", "summary_last_dropout", "summary_type",
                             "summary_use_proj", "generator_hidden_size"}) {
    config.value(unused);
  }
  const uint64_t width = decoder.width;
  decoder.embedding_width = config.count("embedding_size", 128);
  if (decoder.embedding_width != width) {
    decoder.names.embedding_projection = "electra.embeddings_project";
    decoder.embedding_projection_bias = Bias::kRequired;
    decoder.projects_last = true;
  }
  add_encoder_tasks(checkpoint,
                    {.fill = {{.linear = "generator_predictions.dense",
                               .outputs = decoder.embedding_width,
                               .activation = file::Activation::gelu_erf,
                               .norm = "generator_predictions.LayerNorm"},
                              {.bias_name = "generator_lm_head.bias"}},
                     .fill_copies = {"generator_lm_head.weight"},
                     .classify = {{.linear = "classifier.dense",
                                   .outputs = width,
                                   .activation = file::Activation::gelu_erf}},
                     .classifier = "classifier.out_proj"},
                    decoder);
  leave(checkpoint,
        {"discriminator_predictions.dense.weight", "discriminator_predictions.dense.bias",
         "discriminator_predictions.dense_prediction.weight",
         "discriminator_predictions.dense_prediction.bias"});
  return build(checkpoint, decoder);
}

// Position 0 is the row after the padding token's. XLM-RoBERTa and CamemBERT are the same.
Result<recipe::Model> describe_roberta(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder, read_bert(checkpoint));
  decoder.encodes = true;
  decoder.names = roberta_names();
  decoder.names.head_projection = decoder.names.head_norm = nullptr;
  config.expect("is_decoder", false);
  config.expect("position_embedding_type", "absolute");
  decoder.names.learned_table = "roberta.embeddings.position_embeddings";
  const double pad = config.number("pad_token_id", 1);
  if (!(pad >= 0 && pad + 2 < static_cast<double>(decoder.context))) {
    config.refuse("pad_token_id", "is {}, which leaves no positions", pad);
    return build(checkpoint, decoder);
  }
  decoder.padding = static_cast<int32_t>(pad);
  decoder.learned_offset = static_cast<uint64_t>(pad) + 1;
  decoder.context -= decoder.learned_offset;
  const uint64_t width = decoder.width;
  add_encoder_tasks(checkpoint,
                    {.fill = {{.linear = "lm_head.dense",
                               .outputs = width,
                               .activation = file::Activation::gelu_erf,
                               .norm = "lm_head.layer_norm"},
                              {.bias_name = "lm_head.bias"}},
                     .fill_copies = {"lm_head.decoder.weight", "lm_head.decoder.bias"},
                     .classify = {{.linear = "classifier.dense",
                                   .outputs = width,
                                   .activation = file::Activation::tanh}},
                     .classifier = "classifier.out_proj"},
                    decoder);
  leave(checkpoint, {"roberta.pooler.dense.weight", "roberta.pooler.dense.bias"});
  return build(checkpoint, decoder);
}

}  // namespace volvelle
