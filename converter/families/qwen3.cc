// Qwen 3: Llama's blocks, an RMS norm on each query and key head before rotation. Yang et al. 2025,
// arXiv:2505.09388.

#include "converter/families/decoder.h"
#include "converter/families/family.h"

namespace volvelle {
namespace {

// Of a config.json that does not state it; never hidden_size / num_attention_heads.
constexpr uint64_t kDefaultHeadDim = 128;

}  // namespace

Result<recipe::Model> describe_qwen3(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder,
                            read_decoder(checkpoint, {.default_head_dim = kDefaultHeadDim}));
  name_head_norms(checkpoint, decoder);
  if (!checkpoint.gguf()) {
    read_attention_bias(config, decoder);
    read_layer_windows(config, decoder);
  }
  return build(checkpoint, decoder);
}

}  // namespace volvelle
