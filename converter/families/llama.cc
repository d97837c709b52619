// Llama 1 to 3 and what is shaped like it (SmolLM2, TinyLlama, Yi …); in GGUF also Mistral and, by
// its experts, Mixtral. Touvron et al. 2023, arXiv:2302.13971; Grattafiori et al. 2024,
// arXiv:2407.21783.
//
// GGUF stores the rows of q and k in interleaved order. Where the whole head turns they are put
// back, so that a file comes out the same from either source; where a part of it turns, the file
// keeps the order and says so.

#include "converter/families/decoder.h"
#include "converter/families/family.h"

namespace volvelle {

Result<recipe::Model> describe_llama(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder, read_decoder(checkpoint));
  if (checkpoint.gguf()) {
    decoder.query_key_value_bias = Bias::kIfPresent;
    decoder.output_bias = Bias::kIfPresent;
    decoder.feed_forward_bias = Bias::kIfPresent;
    decoder.interleaved_rows = decoder.rotary->width == decoder.head_dim;
    if (!decoder.interleaved_rows) decoder.rotary->pairing = Pairing::kInterleaved;
    decoder.sliding_rotary = decoder.rotary;
    if (config.number("expert_count", 0) != 0) {
      decoder.experts = config.count("expert_count");
      read_used_experts(config, "expert_used_count", 0, decoder);
      decoder.names.router = "ffn_gate_inp";
      decoder.names.gate = "ffn_gate_exps";
      decoder.names.up = "ffn_up_exps";
      decoder.names.down = "ffn_down_exps";
    }
  } else {
    read_attention_bias(config, decoder);
    read_feed_forward_bias(config, decoder);
  }
  return build(checkpoint, decoder);
}

}  // namespace volvelle
