// ModernBERT: an encoder with norms first, rotary positions of two bases, and attention that sees
// all in every third layer, and close neighbours on both sides in the others. Warner et al. 2024,
// arXiv:2412.13663.

#include "converter/families/decoder.h"
#include "converter/families/encoder.h"
#include "converter/families/family.h"

namespace volvelle {
namespace {

constexpr DecoderNames kNames = {
    .embedding = "model.embeddings.tok_embeddings",
    .embedding_norm = "model.embeddings.norm",
    .final_norm = "model.final_norm",
    .block = "model.layers",
    .attention_norm = "attn_norm",
    .qkv = "attn.Wqkv",
    .output = "attn.Wo",
    .feed_forward_norm = "mlp_norm",
    .gate_up = "mlp.Wi",
    .down = "mlp.Wo",
};

Bias bias_if(bool stated) { return stated ? Bias::kRequired : Bias::kNone; }

void read_positions(Config& config, Decoder& decoder) {
  decoder.rotary = hugging_face_rotary(config, "full_attention", decoder.head_dim,
                                       {.base = 160000, .base_key = "global_rope_theta"});
  const bool one_base = config.mentions("local_rope_theta") && !config.has("local_rope_theta");
  decoder.sliding_rotary = one_base
                               ? decoder.rotary
                               : hugging_face_rotary(config, "sliding_attention", decoder.head_dim,
                                                     {.base_key = "local_rope_theta"});
  // As many keys on either side as half of the number says, and the query's own.
  decoder.window = config.count("local_attention", 128) / 2 + 1;
  const uint64_t interval = config.count("global_attn_every_n_layers", 3);
  read_layer_types(config, decoder, [interval](uint64_t layer) { return layer % interval != 0; });
}

void read_tasks(Checkpoint& checkpoint, Decoder& decoder) {
  Config& config = checkpoint.config;
  const std::string pooling = config.text("classifier_pooling", "cls");
  if (pooling != "cls" && pooling != "mean") {
    config.refuse("classifier_pooling", "is \"{}\", neither cls nor mean", pooling);
  }
  Decoder classifier;
  read_activation(config, "classifier_activation", "gelu", classifier);
  const LayerShape head = {.linear = "head.dense",
                           .outputs = decoder.width,
                           .bias = bias_if(config.flag("classifier_bias", false)),
                           .activation = classifier.activation,
                           .norm = "head.norm"};
  const bool decoder_bias = config.flag("decoder_bias", true);
  add_encoder_tasks(checkpoint,
                    {.fill = {head, {.bias_name = decoder_bias ? "decoder.bias" : nullptr}},
                     .fill_copies = {"decoder.weight"},
                     .classify = {head},
                     .pooling = pooling == "cls" ? file::Pooling::first : file::Pooling::mean,
                     .tag = {head}},
                    decoder);
}

}  // namespace

Result<recipe::Model> describe_modernbert(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder,
                            read_decoder(checkpoint, {.kv_heads = nullptr,
                                                      .norm = file::NormKind::layer,
                                                      .epsilon = "norm_eps",
                                                      .default_epsilon = 1e-5,
                                                      .activation = "hidden_activation",
                                                      .default_activation = "gelu",
                                                      .head_dim = nullptr,
                                                      .rotary = false}));
  for (const char* unused :
       {"cls_token_id", "deterministic_flash_attn", "initializer_cutoff_factor", "layer_norm_eps",
        "mlp_dropout", "position_embedding_type", "reference_compile", "repad_logits_with_grad",
        "sparse_pred_ignore_index", "sparse_prediction"}) {
    config.value(unused);
  }
  decoder.names = kNames;
  decoder.encodes = true;
  decoder.bare_first_layer = true;
  decoder.norm_bias = bias_if(config.flag("norm_bias", false));
  read_attention_bias(config, decoder);
  read_feed_forward_bias(config, decoder);
  read_positions(config, decoder);
  read_tasks(checkpoint, decoder);
  return build(checkpoint, decoder);
}

}  // namespace volvelle
