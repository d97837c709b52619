// SmolLM3: Llama's blocks, of which every fourth does not turn its heads. Hugging Face 2025,
// huggingface.co/blog/smollm3; layers without positions: Kazemnejad et al. 2023, arXiv:2305.19466.

#include <vector>

#include "converter/families/decoder.h"
#include "converter/families/family.h"

namespace volvelle {

Result<recipe::Model> describe_smollm3(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder,
                            read_decoder(checkpoint, {.rotary_dialect = {.base = 2e6}}));
  constexpr uint64_t kInterval = 4;
  if (checkpoint.gguf()) {
    decoder.interleaved_rows = true;
    decoder.rotates = [](uint64_t layer) { return (layer + 1) % kInterval != 0; };
    return build(checkpoint, decoder);
  }
  read_attention_bias(config, decoder);
  read_feed_forward_bias(config, decoder);
  const uint64_t interval = config.count("no_rope_layer_interval", kInterval);
  decoder.rotates = [interval](uint64_t layer) { return (layer + 1) % interval != 0; };
  // In spite of its name the list says which layers do turn: 1.
  const nlohmann::json* listed = config.value("no_rope_layers");
  if (listed != nullptr && listed->is_array() && !listed->empty()) {
    std::vector<bool> turns;
    for (const nlohmann::json& turn : *listed) {
      if (turn != 0 && turn != 1) config.refuse("no_rope_layers", "holds {}", turn.dump());
      turns.push_back(turn == 1);
    }
    if (turns.size() != decoder.layers) {
      config.refuse("no_rope_layers", "does not speak of {} layers", decoder.layers);
      turns.resize(decoder.layers);
    }
    decoder.rotates = [turns](uint64_t layer) { return turns[layer]; };
  }
  read_layer_windows(config, decoder);
  return build(checkpoint, decoder);
}

}  // namespace volvelle
