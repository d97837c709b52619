// Tokenizers of GGUF checkpoints, from the metadata under `tokenizer.`.

#ifndef VOLVELLE_CONVERTER_TOKENIZERS_GGUF_VOCABULARY_H_
#define VOLVELLE_CONVERTER_TOKENIZERS_GGUF_VOCABULARY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "converter/sources/gguf.h"
#include "platforms/error.h"
#include "runtime/tokenizer/spec.h"

namespace volvelle {

// What the metadata state; absent keys leave the defaults. Views live as long as the metadata.
struct GgufVocabulary {
  std::string_view model;  // tokenizer.ggml.model: llama (BPE by scores), gpt2 (BPE by merges),
                           // bert (WordPiece), t5 (unigram)
  std::string_view pre;    // tokenizer.ggml.pre: how text is cut into words
  std::vector<std::string_view> tokens;
  std::vector<float> scores;
  std::vector<int32_t> types;  // 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte
  std::vector<std::string_view> merges;
  std::optional<int64_t> bos, eos, eot, unknown, padding, cls, sep, mask;
  std::optional<bool> add_bos, add_eos;
  std::optional<bool> add_space_prefix, remove_extra_whitespaces;        // of models with scores
  std::string character_map;                                             // precompiled_charsmap
  std::vector<std::pair<std::string, std::string_view>> chat_templates;  // name, text
};

Result<GgufVocabulary> read_gguf_vocabulary(const GgufMetadata& metadata);

// The tokenizer that `vocabulary` describes; the spec owns its storage. A model or cutting rule
// that this version does not know is refused by name.
Result<TokenizerSpec> make_spec(const GgufVocabulary& vocabulary);

// Both: the tokenizer of a checkpoint. Errors name the key.
Result<TokenizerSpec> read_gguf_tokenizer(const GgufMetadata& metadata);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_TOKENIZERS_GGUF_VOCABULARY_H_
