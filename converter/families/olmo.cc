// OLMo 1: Llama's blocks with layer norms that have no parameters, and q, k and v clamped.
// Groeneveld et al. 2024, arXiv:2402.00838.

#include "converter/families/decoder.h"
#include "converter/families/family.h"

namespace volvelle {

Result<recipe::Model> describe_olmo(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder,
                            read_decoder(checkpoint, {.norm = file::NormKind::layer,
                                                      .epsilon = "layer_norm_eps",
                                                      .default_epsilon = 1e-5}));
  decoder.norm_parameters = false;
  decoder.qkv_limit = config.number(checkpoint.gguf() ? "attention.clamp_kqv" : "clip_qkv", 0);
  if (checkpoint.gguf()) {
    decoder.interleaved_rows = true;
  } else {
    read_attention_bias(config, decoder);
  }
  return build(checkpoint, decoder);
}

}  // namespace volvelle
