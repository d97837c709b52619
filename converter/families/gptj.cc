// GPT-J: one layer norm for both branches, interleaved pairs of a part of each head, a head with a
// bias. Wang and Komatsuzaki 2021, github.com/kingoflolz/mesh-transformer-jax.

#include <algorithm>

#include "converter/families/decoder.h"
#include "converter/families/family.h"

namespace volvelle {
namespace {

constexpr DecoderNames kNames = {
    .embedding = "transformer.wte",
    .final_norm = "transformer.ln_f",
    .head = "lm_head",
    .block = "transformer.h",
    .attention_norm = "ln_1",
    .query = "attn.q_proj",
    .key = "attn.k_proj",
    .value = "attn.v_proj",
    .output = "attn.out_proj",
    .up = "mlp.fc_in",
    .down = "mlp.fc_out",
};

}  // namespace

Result<recipe::Model> describe_gptj(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder, read_decoder(checkpoint, kGpt2Keys));
  decoder.names = kNames;
  decoder.norm_bias = Bias::kRequired;
  decoder.feed_forward_bias = Bias::kRequired;
  decoder.head_bias = Bias::kRequired;
  decoder.plain_feed_forward = true;
  decoder.residual = file::Residual::parallel;
  config.expect("rotary", true);
  const uint64_t width = config.count("rotary_dim", std::min<uint64_t>(64, decoder.head_dim));
  if (width % 2 != 0 || width > decoder.head_dim) {
    config.refuse("rotary_dim", "is not an even part of a head of {}", decoder.head_dim);
  }
  VOLVELLE_RETURN_IF_ERROR(config.status());
  decoder.rotary =
      RotaryPlan{.pairing = Pairing::kInterleaved, .width = static_cast<uint32_t>(width)};
  return build(checkpoint, decoder);
}

}  // namespace volvelle
