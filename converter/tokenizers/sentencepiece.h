// Models of SentencePiece (`.spm`, `spiece.model`, `sentencepiece.bpe.model`, `tokenizer.model`): a
// protobuf message, of which what encoding needs is read.

#ifndef VOLVELLE_CONVERTER_TOKENIZERS_SENTENCEPIECE_H_
#define VOLVELLE_CONVERTER_TOKENIZERS_SENTENCEPIECE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "converter/tokenizers/spec_storage.h"
#include "platforms/error.h"
#include "runtime/tokenizer/spec.h"

namespace volvelle {

// Of pieces, in SentencePiece and in GGUF.
enum PieceType : int32_t {
  kNormalPiece = 1,
  kUnknownPiece = 2,
  kControlPiece = 3,
  kUserPiece = 4,
  kUnusedPiece = 5,
  kBytePiece = 6,
};

struct SentencePieceModel {
  struct Piece {
    std::string text;
    float score = 0;
    int32_t type = kNormalPiece;
  };
  std::vector<Piece> pieces;
  int32_t model_type = 1;  // 1 unigram, 2 byte-pair encoding
  int32_t unknown = 0, bos = 1, eos = 2, padding = -1;
  bool byte_fallback = false;
  bool blank_after = false;  // blanks belong to the word before them
  std::string character_map;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
};

// What a message says; `path` names it in errors. Bounded: no list is longer than its bytes allow.
Result<SentencePieceModel> parse_sentencepiece(std::string_view message, std::string_view path);
Result<SentencePieceModel> read_sentencepiece(const std::string& path);

// What a normalizer of SentencePiece does to a text, and its decoder.
struct SentencePieceText {
  bool character_map = false;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
};
void append_sentencepiece_steps(const SentencePieceText& settings, bool byte_fallback,
                                TokenizerSpec& spec);

// A unigram model's entries as SentencePiece cuts text into them: normal pieces alone.
Result<void> set_sentencepiece_entries(const std::vector<SentencePieceModel::Piece>& pieces,
                                       SpecStorage& storage, TokenizerSpec& spec);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_TOKENIZERS_SENTENCEPIECE_H_
