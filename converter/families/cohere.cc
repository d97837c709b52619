// Cohere's Command R: one layer norm without bias for both branches, interleaved pairs, scaled
// logits. Command R7B (cohere2) turns its sliding layers only. docs.cohere.com.

#include "converter/families/decoder.h"
#include "converter/families/family.h"

namespace volvelle {
namespace {

Result<Decoder> read_cohere(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder,
                            read_decoder(checkpoint, {.norm = file::NormKind::layer,
                                                      .epsilon = "layer_norm_eps",
                                                      .default_epsilon = 1e-5,
                                                      .head_dim = nullptr,
                                                      .rotary_dialect = {.base = 500000}}));
  decoder.residual = file::Residual::parallel;
  decoder.names.feed_forward_norm = nullptr;
  decoder.logit_scale = config.number("logit_scale", 0.0625);
  decoder.rotary->pairing = Pairing::kInterleaved;
  decoder.sliding_rotary->pairing = Pairing::kInterleaved;
  if (!checkpoint.gguf()) {
    read_attention_bias(config, decoder);
  }
  return decoder;
}

}  // namespace

Result<recipe::Model> describe_cohere(Checkpoint& checkpoint) {
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder, read_cohere(checkpoint));
  const bool gguf = checkpoint.gguf();
  const char* const query_norm = gguf ? "attn_q_norm" : "self_attn.q_norm";
  const std::string first = std::string(decoder.names.block) + ".0." + query_norm + ".weight";
  if (gguf ? checkpoint.optional(first) != nullptr : checkpoint.config.flag("use_qk_norm", false)) {
    name_head_norms(checkpoint, decoder);
    decoder.head_norm_scope = file::HeadNormScope::each_head;
  }
  return build(checkpoint, decoder);
}

Result<recipe::Model> describe_cohere2(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder, read_cohere(checkpoint));
  const bool gguf = checkpoint.gguf();
  decoder.window = config.count(gguf ? "attention.sliding_window" : "sliding_window", 4096);
  const uint64_t pattern = gguf ? 4 : config.count("sliding_window_pattern", 4);
  const auto but_each_last = [pattern](uint64_t layer) { return (layer + 1) % pattern != 0; };
  decoder.slides = but_each_last;
  if (!gguf) {
    config.value("order_of_interleaved_layers");
    config.value("rotary_pct");
    config.count("head_dim", decoder.head_dim);
    read_layer_types(config, decoder, but_each_last);
  }
  decoder.rotary.reset();  // full layers know no positions
  return build(checkpoint, decoder);
}

}  // namespace volvelle
