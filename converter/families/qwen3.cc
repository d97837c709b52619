// Qwen 3: Llama's blocks, an RMS norm on each query and key head before rotation. Yang et al. 2025,
// arXiv:2505.09388.

#include "converter/families/family.h"
#include "converter/families/gated_decoder.h"

namespace volvelle {
namespace {

// Of a config.json that does not state it; never hidden_size / num_attention_heads.
constexpr uint64_t kDefaultHeadDim = 128;

}  // namespace

Result<recipe::Model> describe_qwen3(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(GatedDecoder decoder, read_gated_decoder(checkpoint, kDefaultHeadDim));
  decoder.head_norms = true;
  if (!checkpoint.gguf()) {
    const Bias attention = config.flag("attention_bias", false) ? Bias::kRequired : Bias::kNone;
    decoder.query_key_value_bias = attention;
    decoder.output_bias = attention;
    read_layer_windows(config, decoder);
  }
  return build(checkpoint, decoder);
}

}  // namespace volvelle
