// Baichuan 1 and 2: Llama's blocks with q, k and v in one matrix. 7B turns its heads, 13B has
// ALiBi; Baichuan 2 divides the head's rows by their lengths. Yang et al. 2023, arXiv:2309.10305,
// section 2.

#include "converter/families/decoder.h"
#include "converter/families/family.h"
#include "converter/positions/alibi.h"

namespace volvelle {
namespace {

// What tells Baichuan 2 from 1, and in GGUF 13B from 7B: no setting does.
constexpr uint64_t kVocabularyOf2 = 125696;
constexpr uint64_t kLayersOf7b = 32, kLayersOf13b = 40;

// GGUF has q, k and v apart, the rows of q and k in interleaved order whether heads turn or not,
// and settings of rotation even where they do not.
Result<Decoder> read_gguf(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  const uint64_t layers = config.count("block_count");
  const bool alibi = layers == kLayersOf13b;
  if (!alibi && layers != kLayersOf7b) {
    config.refuse("block_count",
                  "is {}; heads turn in models of {} layers and have ALiBi in those "
                  "of {}, and of others it is not known",
                  layers, kLayersOf7b, kLayersOf13b);
  }
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder, read_decoder(checkpoint, {.rotary = !alibi}));
  const SourceTensor* embedding = checkpoint.optional("token_embd.weight");
  decoder.vocabulary = embedding != nullptr ? embedding->rows() : 0;
  decoder.interleaved_rows = true;
  if (alibi) {
    for (const char* without_effect : {"rope.dimension_count", "rope.freq_base"}) {
      config.value(without_effect);
    }
  } else if (decoder.rotary->width != decoder.head_dim) {
    config.refuse("rope.dimension_count", "is not the head's {}", decoder.head_dim);
  }
  return decoder;
}

Result<Decoder> read_hugging_face(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  // ALiBi has no limit: 13B states only what its tokenizer is used with.
  const bool alibi = !config.has("max_position_embeddings");
  VOLVELLE_ASSIGN_OR_RETURN(
      Decoder decoder,
      read_decoder(checkpoint, {.kv_heads = nullptr,
                                .context = alibi ? "model_max_length" : "max_position_embeddings",
                                .head_dim = nullptr,
                                .rotary = !alibi}));
  decoder.names.qkv = "self_attn.W_pack";
  for (const char* without_effect : {"model_max_length", "z_loss_weight"}) {
    config.value(without_effect);
  }
  return decoder;
}

}  // namespace

Result<recipe::Model> describe_baichuan(Checkpoint& checkpoint) {
  VOLVELLE_ASSIGN_OR_RETURN(
      Decoder decoder, checkpoint.gguf() ? read_gguf(checkpoint) : read_hugging_face(checkpoint));
  decoder.unit_head = decoder.vocabulary == kVocabularyOf2;
  if (!decoder.rotary) decoder.slopes = bloom_slopes(static_cast<uint32_t>(decoder.query_heads));
  return build(checkpoint, decoder);
}

}  // namespace volvelle
