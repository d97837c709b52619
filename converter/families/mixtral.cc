// Mixtral: Mistral's blocks with eight feed-forwards, of which each token goes through two. Jiang
// et al. 2024, arXiv:2401.04088.

#include "converter/families/decoder.h"
#include "converter/families/family.h"

namespace volvelle {

Result<recipe::Model> describe_mixtral(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder,
                            read_decoder(checkpoint, {.rotary_dialect = {.base = 1e6}}));
  decoder.names.router = "block_sparse_moe.gate";
  decoder.names.experts = "block_sparse_moe.experts";
  decoder.names.gate = "w1";
  decoder.names.up = "w3";
  decoder.names.down = "w2";
  decoder.experts = config.count("num_local_experts", 8);
  read_used_experts(config, "num_experts_per_tok", 2, decoder);
  config.number("router_aux_loss_coef", 0);  // of training
  config.number("router_jitter_noise", 0);
  config.flag("output_router_logits", false);
  slide_every_layer(config.count("sliding_window", 0), decoder);
  return build(checkpoint, decoder);
}

}  // namespace volvelle
