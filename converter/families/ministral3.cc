// Ministral 3: Mistral's blocks whose queries grow with their position. Mistral AI 2025,
// mistral.ai/news/mistral-3.

#include "converter/families/decoder.h"
#include "converter/families/family.h"

namespace volvelle {

Result<recipe::Model> describe_ministral3(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder, read_decoder(checkpoint));
  config.expect("rope_parameters.max_position_embeddings", decoder.context);  // said twice
  const double strength = config.number("rope_parameters.llama_4_scaling_beta", 0);
  if (strength != 0) {
    const uint64_t period = config.count("rope_parameters.original_max_position_embeddings");
    decoder.temperature = {static_cast<float>(strength), static_cast<uint32_t>(period)};
  }
  slide_every_layer(config.count("sliding_window", 0), decoder);
  return build(checkpoint, decoder);
}

}  // namespace volvelle
