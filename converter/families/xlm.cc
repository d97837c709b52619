// XLM as a causal language model: norms after the branches, and the paper's interleaved sinusoids
// or a learned table. Lample and Conneau 2019, arXiv:1901.07291.

#include "converter/families/decoder.h"
#include "converter/families/family.h"

namespace volvelle {
namespace {

constexpr DecoderNames kNames = {
    .embedding = "transformer.embeddings",
    .embedding_norm = "transformer.layer_norm_emb",
    .head = "pred_layer.proj",
    .attention_norm = "transformer.layer_norm1.#",
    .query = "transformer.attentions.#.q_lin",
    .key = "transformer.attentions.#.k_lin",
    .value = "transformer.attentions.#.v_lin",
    .output = "transformer.attentions.#.out_lin",
    .feed_forward_norm = "transformer.layer_norm2.#",
    .up = "transformer.ffns.#.lin1",
    .down = "transformer.ffns.#.lin2",
};

}  // namespace

Result<recipe::Model> describe_xlm(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  DecoderKeys keys{.width = "emb_dim",
                   .layers = "n_layers",
                   .query_heads = "n_heads",
                   .kv_heads = nullptr,
                   .feed_forward_width = nullptr,
                   .default_context = 512,
                   .norm = file::NormKind::layer,
                   .epsilon = "layer_norm_eps",
                   .default_epsilon = 1e-12,
                   .activation = nullptr,
                   .head_dim = nullptr,
                   .rotary = false};
  if (!config.has("vocab_size")) keys.vocabulary = "n_words";
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder, read_decoder(checkpoint, keys));
  if (!config.flag("causal", false)) {
    config.refuse("causal", "is not true: an encoder, which this version does not convert");
  }
  config.expect("is_encoder", true);
  config.expect("asm", false);
  for (const char* elsewhere : {"dropout",
                                "bos_index",
                                "eos_index",
                                "pad_index",
                                "unk_index",
                                "mask_index",
                                "mask_token_id",
                                "lang_id",
                                "lang2id",
                                "id2lang",
                                "embed_init_std",
                                "init_std",
                                "summary_type",
                                "summary_use_proj",
                                "summary_activation",
                                "summary_proj_to_labels",
                                "summary_first_dropout",
                                "start_n_top",
                                "end_n_top",
                                "max_vocab",
                                "min_count"}) {
    config.value(elsewhere);
  }
  // Embeddings of languages are added only where a caller names one.
  config.value("n_langs");
  config.value("use_lang_emb");
  checkpoint.optional("transformer.lang_embeddings.weight");
  decoder.names = kNames;
  if (config.flag("sinusoidal_embeddings", false)) {
    decoder.sinusoids = SinusoidPlan{.layout = SinusoidLayout::kInterleaved,
                                     .width = static_cast<uint32_t>(decoder.width)};
    checkpoint.optional("transformer.position_embeddings.weight");  // follows from the layout
  } else {
    decoder.names.learned_table = "transformer.position_embeddings";
  }
  decoder.activation =
      config.flag("gelu_activation", true) ? file::Activation::gelu_erf : file::Activation::relu;
  decoder.residual = file::Residual::post_norm;
  require_biases(decoder);
  decoder.head_bias = Bias::kRequired;
  decoder.plain_feed_forward = true;
  return build(checkpoint, decoder);
}

}  // namespace volvelle
