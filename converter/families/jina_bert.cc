// Jina's BERT: ALiBi that counts distances to both sides, a gated feed-forward. Checkpoints for
// code have norms on whole queries and keys, a second norm after attention, and the rows of the
// feed-forward's two parts the other way round. Günther et al. 2023, arXiv:2310.19923.

#include "converter/families/decoder.h"
#include "converter/families/encoder.h"
#include "converter/families/family.h"
#include "converter/positions/alibi.h"

namespace volvelle {
namespace {

constexpr DecoderNames kNames = {
    .embedding = "bert.embeddings.word_embeddings",
    .token_types = "bert.embeddings.token_type_embeddings",
    .embedding_norm = "bert.embeddings.LayerNorm",
    .block = "bert.encoder.layer",
    .attention_norm = "attention.output.LayerNorm",
    .query = "attention.self.query",
    .key = "attention.self.key",
    .value = "attention.self.value",
    .output = "attention.output.dense",
    .feed_forward_norm = "mlp.layernorm",
    .gate_up = "mlp.gated_layers",
    .down = "mlp.wo",
};

void read_code_variant(bool gguf, Decoder& decoder) {
  DecoderNames& names = decoder.names;
  decoder.residual = file::Residual::twice_normed;
  decoder.head_norm_scope = file::HeadNormScope::all_heads;
  names.attention_output_norm = names.attention_norm;
  names.attention_norm = gguf ? "attn_norm_2" : "layer_norm_1";
  names.query_norm = gguf ? "attn_q_norm" : "attention.self.layer_norm_q";
  names.key_norm = gguf ? "attn_k_norm" : "attention.self.layer_norm_k";
  if (gguf) return;
  names.feed_forward_norm = "layer_norm_2";
  names.gate_up = "mlp.up_gated_layer";
  names.down = "mlp.down_layer";
  decoder.up_first = true;
}

void read_settings(Checkpoint& checkpoint, Decoder& decoder) {
  Config& config = checkpoint.config;
  config.number("type_vocab_size", 2);  // the table decides
  for (const char* unused : {"attention_probs_dropout_prob", "attn_implementation", "emb_pooler"}) {
    config.value(unused);
  }
  config.expect("position_embedding_type", "alibi");
  const std::string kind = config.text("feed_forward_type", "geglu");
  if (kind == "geglu") {
    decoder.activation = file::Activation::gelu_erf;
  } else if (kind == "reglu") {
    decoder.activation = file::Activation::relu;
  } else {
    config.refuse("feed_forward_type", "is \"{}\", neither geglu nor reglu", kind);
  }
  leave(checkpoint, {"bert.pooler.dense.weight", "bert.pooler.dense.bias"});
}

}  // namespace

Result<recipe::Model> describe_jina_bert(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder, read_decoder(checkpoint, kBertKeys));
  if (checkpoint.gguf()) {
    read_gguf_encoder(checkpoint, decoder);
    decoder.activation = file::Activation::gelu_erf;
    config.expect("attention.max_alibi_bias", 8);
    // Later files keep the rows of the gate before those of the other part.
    if (checkpoint.optional("blk.0.ffn_gate.weight") == nullptr) decoder.names.gate_up = "ffn_up";
    if (checkpoint.optional("blk.0.attn_norm_2.weight") != nullptr) {
      read_code_variant(true, decoder);
    }
  } else {
    read_settings(checkpoint, decoder);
    decoder.names = kNames;
    if (checkpoint.optional("bert.encoder.layer.0.layer_norm_1.weight") != nullptr ||
        checkpoint.optional("bert.encoder.layer.0.mlp.up_gated_layer.weight") != nullptr) {
      read_code_variant(false, decoder);
    } else {
      decoder.residual = file::Residual::post_norm;
    }
    decoder.tasks.push_back(embed_task());
  }
  decoder.encodes = true;
  require_biases(decoder);
  decoder.bare_gate_up = true;
  decoder.slopes = bloom_slopes(static_cast<uint32_t>(decoder.query_heads));
  return build(checkpoint, decoder);
}

}  // namespace volvelle
