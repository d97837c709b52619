// Llama 4's text model without its experts: most layers rotate and see their own stretch of
// positions, every fourth sees all without positions, its queries growing with theirs. Meta 2025,
// github.com/meta-llama/llama-models.

#include "converter/families/decoder.h"
#include "converter/families/family.h"

namespace volvelle {

Result<recipe::Model> describe_llama4(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder,
                            read_decoder(checkpoint, {.feed_forward_width = "intermediate_size_mlp",
                                                      .rotary_dialect = {.base = 500000}}));
  read_attention_bias(config, decoder);
  const nlohmann::json* experts = config.value("moe_layers");
  const uint64_t step = config.count("interleave_moe_layer_step", 1);
  if (experts != nullptr ? !experts->empty() : step <= decoder.layers) {
    config.refuse("moe_layers", "names layers of experts, which are not implemented");
  }
  for (const char* of_experts :
       {"intermediate_size", "num_local_experts", "num_experts_per_tok", "router_aux_loss_coef",
        "output_router_logits", "router_jitter_noise"}) {
    config.value(of_experts);
  }
  decoder.names.gate = "feed_forward.gate_proj";
  decoder.names.up = "feed_forward.up_proj";
  decoder.names.down = "feed_forward.down_proj";
  read_rotating_layers(config, decoder);
  if (decoder.rotary) decoder.rotary->pairing = Pairing::kInterleaved;
  decoder.window = config.count("attention_chunk_size", 8192);
  decoder.chunked = true;
  decoder.slides = decoder.rotates;
  decoder.sliding_rotary = decoder.rotary;
  if (config.value("layer_types") != nullptr) {
    config.refuse("layer_types", "is stated beside no_rope_layers, which is not implemented");
  }
  decoder.plain_head_norms = config.flag("use_qk_norm", true);
  if (config.flag("attn_temperature_tuning", true)) {
    const double strength = config.number("attn_scale", 0.1);
    decoder.temperature = {.strength = static_cast<float>(strength),
                           .period = static_cast<uint32_t>(config.count("floor_scale", 8192)),
                           .offset = 1};
    decoder.tempered = [rotates = decoder.rotates](uint64_t layer) { return !rotates(layer); };
  }
  return build(checkpoint, decoder);
}

}  // namespace volvelle
