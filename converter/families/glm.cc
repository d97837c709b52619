// GLM-4 9B (glm) and GLM-4 0414 (glm4): Llama's blocks whose heads turn by half in interleaved
// pairs; glm4 norms the branches' outputs as well. Team GLM 2024, arXiv:2406.12793.

#include "converter/families/decoder.h"
#include "converter/families/family.h"

namespace volvelle {
namespace {

Result<Decoder> read_glm(Checkpoint& checkpoint) {
  VOLVELLE_ASSIGN_OR_RETURN(
      Decoder decoder,
      read_decoder(checkpoint, {.rotary_dialect = {.partial = true, .share = 0.5}}));
  decoder.names.gate_up = checkpoint.gguf() ? "ffn_up" : "mlp.gate_up_proj";
  decoder.rotary->pairing = Pairing::kInterleaved;
  decoder.sliding_rotary->pairing = Pairing::kInterleaved;
  if (checkpoint.gguf()) {
    decoder.query_key_value_bias = Bias::kIfPresent;
    if (checkpoint.optional("blk.0.attn_qkv.weight") != nullptr) decoder.names.qkv = "attn_qkv";
    return decoder;
  }
  const bool biased = checkpoint.config.flag("attention_bias", false);
  decoder.query_key_value_bias = biased ? Bias::kRequired : Bias::kNone;
  return decoder;
}

}  // namespace

Result<recipe::Model> describe_glm(Checkpoint& checkpoint) {
  VOLVELLE_ASSIGN_OR_RETURN(const Decoder decoder, read_glm(checkpoint));
  return build(checkpoint, decoder);
}

Result<recipe::Model> describe_glm4(Checkpoint& checkpoint) {
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder, read_glm(checkpoint));
  const bool gguf = checkpoint.gguf();
  decoder.names.attention_output_norm = gguf ? "post_attention_norm" : "post_self_attn_layernorm";
  decoder.names.feed_forward_output_norm = gguf ? "post_ffw_norm" : "post_mlp_layernorm";
  return build(checkpoint, decoder);
}

}  // namespace volvelle
