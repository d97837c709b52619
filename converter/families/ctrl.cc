// CTRL: sinusoids in halves, a head with a bias. Keskar et al. 2019, arXiv:1909.05858.

#include <cmath>

#include "converter/families/decoder.h"
#include "converter/families/family.h"

namespace volvelle {
namespace {

constexpr DecoderNames kNames = {
    .embedding = "transformer.w",
    .final_norm = "transformer.layernorm",
    .head = "lm_head",
    .block = "transformer.h",
    .attention_norm = "layernorm1",
    .query = "multi_head_attention.Wq",
    .key = "multi_head_attention.Wk",
    .value = "multi_head_attention.Wv",
    .output = "multi_head_attention.dense",
    .feed_forward_norm = "layernorm2",
    .up = "ffn.0",
    .down = "ffn.2",
};

}  // namespace

Result<recipe::Model> describe_ctrl(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  DecoderKeys keys = kGpt2Keys;
  keys.feed_forward_width = "dff";
  keys.feed_forward_required = true;
  keys.default_epsilon = 1e-6;
  keys.activation = nullptr;
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder, read_decoder(checkpoint, keys));
  config.count("n_ctx", decoder.context);
  for (const char* training : {"attn_pdrop", "from_tf", "control_codes"}) config.value(training);
  decoder.names = kNames;
  decoder.final_epsilon = decoder.epsilon;  // the setting is that one norm's
  decoder.epsilon = 1e-6;
  decoder.activation = file::Activation::relu;
  decoder.embedding_scale = std::sqrt(static_cast<double>(decoder.width));
  decoder.sinusoids = SinusoidPlan{.layout = SinusoidLayout::kHalves,
                                   .width = static_cast<uint32_t>(decoder.width)};
  require_biases(decoder);
  decoder.head_bias = Bias::kRequired;
  decoder.plain_feed_forward = true;
  return build(checkpoint, decoder);
}

}  // namespace volvelle
