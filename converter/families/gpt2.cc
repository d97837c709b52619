// GPT-2: layer norms, a learned position table, matrices stored input by output. Radford et al.
// 2019, "Language Models are Unsupervised Multitask Learners".

#include "converter/families/decoder.h"
#include "converter/families/family.h"

namespace volvelle {
namespace {

constexpr DecoderNames kNames = {
    .embedding = "transformer.wte",
    .learned_table = "transformer.wpe",
    .final_norm = "transformer.ln_f",
    .head = "lm_head",
    .block = "transformer.h",
    .attention_norm = "ln_1",
    .qkv = "attn.c_attn",
    .output = "attn.c_proj",
    .feed_forward_norm = "ln_2",
    .up = "mlp.c_fc",
    .down = "mlp.c_proj",
};

}  // namespace

Result<recipe::Model> describe_gpt2(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder, read_decoder(checkpoint, kGpt2Keys));
  require_biases(decoder);
  decoder.plain_feed_forward = true;
  if (checkpoint.gguf()) {
    decoder.activation = file::Activation::gelu_tanh;
    decoder.names.learned_table = "position_embd";
    decoder.names.qkv = "attn_qkv";
    return build(checkpoint, decoder);
  }
  decoder.names = kNames;
  decoder.transposed = true;
  config.count("n_ctx", decoder.context);
  if (!config.flag("scale_attn_weights", true)) decoder.attention_scale = 1;
  decoder.divided_by_layer = config.flag("scale_attn_by_inverse_layer_idx", false);
  config.flag("reorder_and_upcast_attn", false);  // an order of float operations
  return build(checkpoint, decoder);
}

}  // namespace volvelle
