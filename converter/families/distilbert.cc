// DistilBERT: BERT's blocks under other names, without token types. Sanh et al. 2019,
// arXiv:1910.01108.

#include "converter/families/decoder.h"
#include "converter/families/encoder.h"
#include "converter/families/family.h"

namespace volvelle {
namespace {

constexpr DecoderNames kNames = {
    .embedding = "distilbert.embeddings.word_embeddings",
    .embedding_norm = "distilbert.embeddings.LayerNorm",
    .learned_table = "distilbert.embeddings.position_embeddings",
    .block = "distilbert.transformer.layer",
    .attention_norm = "sa_layer_norm",
    .query = "attention.q_lin",
    .key = "attention.k_lin",
    .value = "attention.v_lin",
    .output = "attention.out_lin",
    .feed_forward_norm = "output_layer_norm",
    .up = "ffn.lin1",
    .down = "ffn.lin2",
};

}  // namespace

Result<recipe::Model> describe_distilbert(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder,
                            read_decoder(checkpoint, {.width = "dim",
                                                      .layers = "n_layers",
                                                      .query_heads = "n_heads",
                                                      .kv_heads = nullptr,
                                                      .feed_forward_width = "hidden_dim",
                                                      .norm = file::NormKind::layer,
                                                      .epsilon = nullptr,
                                                      .default_epsilon = 1e-12,
                                                      .activation = "activation",
                                                      .default_activation = "gelu",
                                                      .head_dim = nullptr,
                                                      .rotary = false}));
  for (const char* training :
       {"dropout", "qa_dropout", "seq_classif_dropout", "sinusoidal_pos_embds"}) {
    config.value(training);  // sinusoids only begin the table that is stored
  }
  decoder.names = kNames;
  decoder.encodes = true;
  decoder.residual = file::Residual::post_norm;
  require_biases(decoder);
  decoder.plain_feed_forward = true;
  const uint64_t width = decoder.width;
  add_encoder_tasks(checkpoint,
                    {.fill = {{.linear = "vocab_transform",
                               .outputs = width,
                               .activation = decoder.activation,
                               .norm = "vocab_layer_norm"},
                              {.bias_name = "vocab_projector.bias"}},
                     .fill_copies = {"vocab_projector.weight"},
                     .classify = {{.linear = "pre_classifier",
                                   .outputs = width,
                                   .activation = file::Activation::relu}}},
                    decoder);
  return build(checkpoint, decoder);
}

}  // namespace volvelle
