// XGLM: sinusoids in fairseq's layout, of which the padding token's row is zero and position 0 is
// row 2. Lin et al. 2021, arXiv:2112.10668.

#include <cmath>

#include "converter/families/decoder.h"
#include "converter/families/family.h"

namespace volvelle {

Result<recipe::Model> describe_xglm(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder,
                            read_decoder(checkpoint, {.width = "d_model",
                                                      .layers = "num_layers",
                                                      .query_heads = "attention_heads",
                                                      .kv_heads = nullptr,
                                                      .feed_forward_width = "ffn_dim",
                                                      .norm = file::NormKind::layer,
                                                      .epsilon = nullptr,
                                                      .default_epsilon = 1e-5,
                                                      .activation = "activation_function",
                                                      .default_activation = "gelu",
                                                      .head_dim = nullptr,
                                                      .rotary = false}));
  for (const char* elsewhere : {"dropout", "activation_dropout", "layerdrop", "init_std",
                                "decoder_start_token_id", "num_hidden_layers"}) {
    config.value(elsewhere);
  }
  if (config.flag("scale_embedding", true)) {
    decoder.embedding_scale = std::sqrt(static_cast<double>(decoder.width));
  }
  if (decoder.width < 4) config.refuse("d_model", "is below 4, where these sinusoids end");
  decoder.sinusoids = SinusoidPlan{
      .layout = SinusoidLayout::kSpread,
      .width = static_cast<uint32_t>(decoder.width),
      .row_offset = 2,
      .zero_row = static_cast<uint32_t>(config.number("pad_token_id", 1)),
  };
  decoder.names.final_norm = "model.layer_norm";
  decoder.names.attention_norm = "self_attn_layer_norm";
  decoder.names.output = "self_attn.out_proj";
  decoder.names.feed_forward_norm = "final_layer_norm";
  decoder.names.up = "fc1";
  decoder.names.down = "fc2";
  require_biases(decoder);
  decoder.plain_feed_forward = true;
  return build(checkpoint, decoder);
}

}  // namespace volvelle
