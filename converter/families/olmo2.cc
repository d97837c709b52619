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
  name_head_norms(checkpoint, decoder);
  decoder.head_norm_scope = file::HeadNormScope::all_heads;
  if (!gguf) read_attention_bias(config, decoder);
  return build(checkpoint, decoder);
}

}  // namespace volvelle
