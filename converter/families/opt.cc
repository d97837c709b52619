// OPT and Galactica: layer norms before the branches, or (350M) after them; learned positions from
// row 2 on; embeddings that may be narrower than the blocks. Zhang et al. 2022, arXiv:2205.01068;
// Taylor et al. 2022, arXiv:2211.09085.

#include "converter/families/decoder.h"
#include "converter/families/family.h"

namespace volvelle {
namespace {

constexpr DecoderNames kNames = {
    .embedding = "model.decoder.embed_tokens",
    .embedding_projection = "model.decoder.project_in",
    .head_projection = "model.decoder.project_out",
    .learned_table = "model.decoder.embed_positions",
    .final_norm = "model.decoder.final_layer_norm",
    .head = "lm_head",
    .block = "model.decoder.layers",
    .attention_norm = "self_attn_layer_norm",
    .query = "self_attn.q_proj",
    .key = "self_attn.k_proj",
    .value = "self_attn.v_proj",
    .output = "self_attn.out_proj",
    .feed_forward_norm = "final_layer_norm",
    .up = "fc1",
    .down = "fc2",
};

// The two rows before that of position 0.
constexpr uint64_t kTableOffset = 2;

}  // namespace

Result<recipe::Model> describe_opt(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder,
                            read_decoder(checkpoint, {.kv_heads = nullptr,
                                                      .feed_forward_width = "ffn_dim",
                                                      .norm = file::NormKind::layer,
                                                      .epsilon = nullptr,
                                                      .default_epsilon = 1e-5,
                                                      .activation = "activation_function",
                                                      .default_activation = "relu",
                                                      .head_dim = nullptr,
                                                      .rotary = false}));
  decoder.names = kNames;
  decoder.embedding_width = config.count("word_embed_proj_dim", decoder.width);
  if (decoder.embedding_width == decoder.width) {
    decoder.names.embedding_projection = nullptr;
    decoder.names.head_projection = nullptr;
  }
  decoder.learned_offset = kTableOffset;
  decoder.plain_feed_forward = true;
  const Bias bias = config.flag("enable_bias", true) ? Bias::kRequired : Bias::kNone;
  decoder.query_key_value_bias = bias;
  decoder.output_bias = bias;
  decoder.feed_forward_bias = bias;
  decoder.norm_parameters = config.flag("layer_norm_elementwise_affine", true);
  decoder.norm_bias = Bias::kRequired;
  const bool norms_first = config.flag("do_layer_norm_before", true);
  if (!norms_first) decoder.residual = file::Residual::post_norm;
  // Checkpoints that older programs wrote may lack the final norm, and say so.
  if (config.flag("_remove_final_layer_norm", false) || !norms_first) {
    decoder.names.final_norm = nullptr;
  }
  return build(checkpoint, decoder);
}

}  // namespace volvelle
