// StableLM: Llama's blocks with layer norms and heads that turn by a quarter; 2 12B has parallel
// branches and norms the heads of q and k one by one. Bellagente et al. 2024, arXiv:2402.17834.

#include "converter/families/decoder.h"
#include "converter/families/family.h"

namespace volvelle {

Result<recipe::Model> describe_stablelm(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(
      Decoder decoder,
      read_decoder(checkpoint, {.norm = file::NormKind::layer,
                                .epsilon = "layer_norm_eps",
                                .default_epsilon = 1e-5,
                                .head_dim = nullptr,
                                .rotary_dialect = {.partial = true, .share = 0.25}}));
  decoder.norm_bias = Bias::kRequired;
  decoder.head_norm_scope = file::HeadNormScope::each_head;
  decoder.head_norm_bias = false;
  bool parallel = config.flag("use_parallel_residual", false);
  if (checkpoint.gguf()) {
    // Files of sequential models may claim parallel branches; their second norm tells.
    parallel = checkpoint.optional("blk.0.ffn_norm.weight") == nullptr;
    decoder.query_key_value_bias = Bias::kIfPresent;
    if (checkpoint.optional("blk.0.attn_q_norm.weight") != nullptr) {
      name_head_norms(checkpoint, decoder);
    }
  } else {
    const bool biased = config.flag("use_qkv_bias", false);
    decoder.query_key_value_bias = biased ? Bias::kRequired : Bias::kNone;
    if (config.flag("qk_layernorm", false)) {
      decoder.head_norms_apart = true;
      decoder.names.query_norm = "self_attn.q_layernorm.norms";
      decoder.names.key_norm = "self_attn.k_layernorm.norms";
    }
    config.expect("rotary_scaling_factor", 1);
  }
  if (parallel) {
    decoder.residual = file::Residual::parallel;
    decoder.names.feed_forward_norm = nullptr;
  }
  return build(checkpoint, decoder);
}

}  // namespace volvelle
