// Mistral: Llama's blocks without biases, heads of any width, a window on every layer. Jiang et al.
// 2023, arXiv:2310.06825.

#include "converter/families/decoder.h"
#include "converter/families/family.h"

namespace volvelle {
namespace {

// Of a config.json that does not mention the window; null means none.
constexpr uint64_t kDefaultWindow = 4096;

}  // namespace

Result<recipe::Model> describe_mistral(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder, read_decoder(checkpoint));
  const uint64_t unstated = config.mentions("sliding_window") ? 0 : kDefaultWindow;
  slide_every_layer(config.count("sliding_window", unstated), decoder);
  return build(checkpoint, decoder);
}

}  // namespace volvelle
