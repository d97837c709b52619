// StarCoder 2: layer norms, biases, a plain feed-forward, rotary positions. Lozhkov et al. 2024,
// arXiv:2402.19173.

#include "converter/families/decoder.h"
#include "converter/families/family.h"

namespace volvelle {

Result<recipe::Model> describe_starcoder2(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder,
                            read_decoder(checkpoint, {.norm = file::NormKind::layer,
                                                      .epsilon = "norm_epsilon",
                                                      .default_epsilon = 1e-5,
                                                      .default_activation = "gelu_pytorch_tanh"}));
  decoder.norm_bias = Bias::kRequired;
  decoder.plain_feed_forward = true;
  Bias bias = Bias::kRequired;
  if (checkpoint.gguf()) {
    decoder.activation = file::Activation::gelu_tanh;
  } else {
    if (!config.flag("use_bias", true)) bias = Bias::kNone;
    decoder.names.up = "mlp.c_fc";
    decoder.names.down = "mlp.c_proj";
    slide_every_layer(config.count("sliding_window", 0), decoder);
  }
  decoder.query_key_value_bias = bias;
  decoder.output_bias = bias;
  decoder.feed_forward_bias = bias;
  return build(checkpoint, decoder);
}

}  // namespace volvelle
