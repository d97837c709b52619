// SmolLM3: Llama's blocks, of which every fourth does not turn its heads. Hugging Face 2025,
// huggingface.co/blog/smollm3; layers without positions: Kazemnejad et al. 2023, arXiv:2305.19466.

#include "converter/families/decoder.h"
#include "converter/families/family.h"

namespace volvelle {

Result<recipe::Model> describe_smollm3(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder,
                            read_decoder(checkpoint, {.rotary_dialect = {.base = 2e6}}));
  if (checkpoint.gguf()) {
    decoder.interleaved_rows = true;
    decoder.rotates = [](uint64_t layer) { return (layer + 1) % 4 != 0; };
    return build(checkpoint, decoder);
  }
  read_attention_bias(config, decoder);
  read_feed_forward_bias(config, decoder);
  read_rotating_layers(config, decoder);
  read_layer_windows(config, decoder);
  return build(checkpoint, decoder);
}

}  // namespace volvelle
