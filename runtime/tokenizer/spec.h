// What a tokenizer is, as plain data: everything `Tokenizer::make` needs and everything a model
// file keeps. The bulk (pieces, merges, chat templates) is viewed, not held, so that loading a
// mapped file copies no vocabulary; whoever makes a spec from other sources puts the bytes behind
// the views into `storage`.

#ifndef VOLVELLE_RUNTIME_TOKENIZER_SPEC_H_
#define VOLVELLE_RUNTIME_TOKENIZER_SPEC_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "schema/volvelle_generated.h"

namespace volvelle {

// The kinds are the schema's, which also says what each means.
using file::AddedToken;
using file::DecoderKind;
using file::NormalizerKind;
using file::PairPart;
using file::PrependScheme;
using file::PreTokenizerKind;
using file::SplitBehavior;
using file::TokenizerModel;

// Normalizers, pre-tokenizers, decoders or chat templates that a tokenizer may have: a bound that
// no real one comes near.
inline constexpr size_t kMaxTokenizerSteps = 32;

// `PairPart::id()` of the texts themselves.
inline constexpr int32_t kFirstText = -1;
inline constexpr int32_t kSecondText = -2;

// Two neighbouring pieces and what they become.
struct Merge {
  uint32_t left;
  uint32_t right;
  uint32_t result;
};

struct NormalizerStep {
  NormalizerKind kind = NormalizerKind::nfc;
  std::string pattern;
  bool literal = true;
  std::string text;
  bool left = false;
  bool right = false;
};

struct PreTokenizerStep {
  PreTokenizerKind kind = PreTokenizerKind::split;
  std::string pattern;
  bool literal = false;
  bool invert = false;
  SplitBehavior behavior = SplitBehavior::isolated;
  std::string text;
  PrependScheme prepend = PrependScheme::never;
  bool split = false;
};

struct DecoderStep {
  DecoderKind kind = DecoderKind::byte_level;
  std::string pattern;
  std::string text;
  uint32_t start = 0;
  uint32_t stop = 0;
  PrependScheme prepend = PrependScheme::never;
  bool cleanup = false;
};

struct ChatTemplate {
  std::string name;
  std::string_view text;
};

struct TokenizerSpec {
  TokenizerModel model = TokenizerModel::bpe;
  std::span<const uint32_t> piece_ends;  // [vocabulary]
  std::string_view piece_bytes;
  std::span<const Merge> merges;  // best first
  bool byte_fallback = false;
  bool ignore_merges = false;
  bool fuse_unknown = false;
  int32_t unknown = -1;  // -1: none, as for `bos`
  std::vector<NormalizerStep> normalizers;
  std::vector<PreTokenizerStep> pre_tokenizers;
  std::vector<DecoderStep> decoders;
  std::vector<AddedToken> added;
  std::vector<int32_t> prefix;
  std::vector<int32_t> suffix;
  int32_t bos = -1;
  std::vector<int32_t> eos;
  std::vector<ChatTemplate> chat_templates;
  std::span<const uint32_t> trie;
  std::span<const double> scores;
  std::span<const uint32_t> entry_ids;
  bool float_sums = false;
  std::string continuing;
  uint32_t max_word_characters = 0;
  std::string_view character_map;
  std::vector<PairPart> pair;
  bool no_pair = false;
  std::string code_open;
  std::string code_close;
  std::vector<int32_t> languages;
  std::shared_ptr<const TokenizerSpec> target;

  std::shared_ptr<const void> storage;  // keeps what is viewed alive; null where a mapped file does

  size_t vocabulary() const { return piece_ends.size(); }

  // Text of a piece; `id` is below vocabulary(). An unused id has none.
  std::string_view piece(size_t id) const {
    const size_t begin = id == 0 ? 0 : piece_ends[id - 1];
    return piece_bytes.substr(begin, piece_ends[id] - begin);
  }
};

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_TOKENIZER_SPEC_H_
