// Baichuan 1 and 2: Llama's blocks with q, k and v in one matrix. 7B turns its heads, 13B has
// ALiBi; Baichuan 2 divides the head's rows by their lengths. Yang et al. 2023, arXiv:2309.10305,
// section 2.

#include "converter/families/decoder.h"
#include "converter/families/family.h"
#include "converter/positions/alibi.h"

namespace volvelle {
namespace {

// What tells Baichuan 2 from 1: no setting does.
constexpr uint64_t kVocabularyOf2 = 125696;

}  // namespace

Result<recipe::Model> describe_baichuan(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  // ALiBi has no limit: 13B states only what its tokenizer is used with.
  const bool alibi = !config.has("max_position_embeddings");
  VOLVELLE_ASSIGN_OR_RETURN(
      Decoder decoder,
      read_decoder(checkpoint, {.kv_heads = nullptr,
                                .context = alibi ? "model_max_length" : "max_position_embeddings",
                                .head_dim = false,
                                .rotary = !alibi}));
  decoder.names.qkv = "self_attn.W_pack";
  decoder.unit_head = decoder.vocabulary == kVocabularyOf2;
  if (alibi) decoder.slopes = bloom_slopes(static_cast<uint32_t>(decoder.query_heads));
  for (const char* without_effect : {"model_max_length", "z_loss_weight"}) {
    config.value(without_effect);
  }
  return build(checkpoint, decoder);
}

}  // namespace volvelle
