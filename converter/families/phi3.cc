// Phi 3 and Phi 4 mini: Llama's blocks with q, k and v in one matrix, gate and up in another, heads
// that may turn in part. Abdin et al. 2024, arXiv:2404.14219.

#include "converter/families/decoder.h"
#include "converter/families/family.h"

namespace volvelle {

Result<recipe::Model> describe_phi3(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(
      Decoder decoder,
      read_decoder(checkpoint, {.rotary_dialect = {.partial = true, .yarn_is_longrope = true}}));
  decoder.names.qkv = checkpoint.gguf() ? "attn_qkv" : "self_attn.qkv_proj";
  decoder.names.gate_up = checkpoint.gguf() ? "ffn_up" : "mlp.gate_up_proj";
  if (!checkpoint.gguf()) {
    config.expect("attention_bias", false);
    config.value("original_max_position_embeddings");  // matters to scaled positions alone
    slide_every_layer(config.count("sliding_window", 0), decoder);
  }
  return build(checkpoint, decoder);
}

}  // namespace volvelle
