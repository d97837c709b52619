// Qwen 2 and 2.5: Llama's blocks with biases on q, k and v. Yang et al. 2024, arXiv:2407.10671.

#include "converter/families/decoder.h"
#include "converter/families/family.h"

namespace volvelle {

Result<recipe::Model> describe_qwen2(Checkpoint& checkpoint) {
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder, read_decoder(checkpoint));
  decoder.query_key_value_bias = Bias::kRequired;
  if (!checkpoint.gguf()) read_layer_windows(checkpoint.config, decoder);
  return build(checkpoint, decoder);
}

}  // namespace volvelle
