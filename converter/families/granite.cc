// Granite 3: Llama's blocks with multipliers on embeddings, attention, branches and logits. Granite
// Team 2024, github.com/ibm-granite/granite-3.0-language-models.

#include "converter/families/decoder.h"
#include "converter/families/family.h"

namespace volvelle {

Result<recipe::Model> describe_granite(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder, read_decoder(checkpoint));
  if (checkpoint.gguf()) {
    decoder.attention_scale = config.number("attention.scale", 0);
    decoder.embedding_scale = config.number("embedding_scale", 1);
    decoder.branch_scale = config.number("residual_scale", 1);
    decoder.logit_scale = 1 / config.number("logit_scale", 1);
    decoder.interleaved_rows = true;
    return build(checkpoint, decoder);
  }
  read_attention_bias(config, decoder);
  read_feed_forward_bias(config, decoder);
  decoder.attention_scale = config.number("attention_multiplier", 1);
  decoder.embedding_scale = config.number("embedding_multiplier", 1);
  decoder.branch_scale = config.number("residual_multiplier", 1);
  decoder.logit_scale = 1 / config.number("logits_scaling", 1);
  return build(checkpoint, decoder);
}

}  // namespace volvelle
