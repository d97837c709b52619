// OLMo 2: Llama's blocks with norms on the branches' outputs only, and on q and k whole, before
// they are cut into heads. OLMo Team 2024, arXiv:2501.00656.

#include "converter/families/decoder.h"
#include "converter/families/family.h"

namespace volvelle {

Result<recipe::Model> describe_olmo2(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder, read_decoder(checkpoint));
  const bool gguf = checkpoint.gguf();
  DecoderNames& names = decoder.names;
  names.attention_norm = nullptr;
  names.feed_forward_norm = nullptr;
  names.attention_output_norm = gguf ? "post_attention_norm" : "post_attention_layernorm";
  names.feed_forward_output_norm = gguf ? "post_ffw_norm" : "post_feedforward_layernorm";
  names.query_norm = gguf ? "attn_q_norm" : "self_attn.q_norm";
  names.key_norm = gguf ? "attn_k_norm" : "self_attn.k_norm";
  decoder.head_norm_scope = file::HeadNormScope::all_heads;
  if (!gguf && config.flag("attention_bias", false)) {
    decoder.query_key_value_bias = Bias::kRequired;
    decoder.output_bias = Bias::kRequired;
  }
  return build(checkpoint, decoder);
}

}  // namespace volvelle
