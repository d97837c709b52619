// Ministral 3: Mistral's blocks whose queries grow with their position. Mistral AI 2025,
// mistral.ai/news/mistral-3.

#include "converter/families/decoder.h"
#include "converter/families/family.h"

namespace volvelle {
namespace {

// Queries grow by `strength_key`, in steps of `period_key`.
void read_temperature(Config& config, const char* strength_key, const char* period_key,
                      Decoder& decoder) {
  const double strength = config.number(strength_key, 0);
  if (strength == 0) return;
  const uint64_t period = config.count(period_key);
  decoder.temperature = {static_cast<float>(strength), static_cast<uint32_t>(period)};
}

}  // namespace

Result<recipe::Model> describe_ministral3(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder, read_decoder(checkpoint));
  if (checkpoint.gguf()) {
    decoder.interleaved_rows = true;
    // YaRN's mscale_all_dim, beside an mscale of 1.
    const double mscale = config.number("rope.scaling.yarn_log_multiplier", 0);
    if (mscale < 0) config.refuse("rope.scaling.yarn_log_multiplier", "is below 0");
    if (mscale != 0) {
      config.expect("rope.scaling.type", "yarn");
      config.expect("rope.scaling.attn_factor", 1.0);
      decoder.rotary->scaling.mscale = 1;
      decoder.rotary->scaling.mscale_all_dim = mscale;
      decoder.sliding_rotary = decoder.rotary;
    }
    read_temperature(config, "attention.temperature_scale", "rope.scaling.original_context_length",
                     decoder);
    return build(checkpoint, decoder);
  }
  config.expect("rope_parameters.max_position_embeddings", decoder.context);  // said twice
  read_temperature(config, "rope_parameters.llama_4_scaling_beta",
                   "rope_parameters.original_max_position_embeddings", decoder);
  slide_every_layer(config.count("sliding_window", 0), decoder);
  return build(checkpoint, decoder);
}

}  // namespace volvelle
