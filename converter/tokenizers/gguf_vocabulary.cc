#include "converter/tokenizers/gguf_vocabulary.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "converter/tokenizers/bert_steps.h"
#include "converter/tokenizers/oniguruma.h"
#include "converter/tokenizers/sentencepiece.h"
#include "converter/tokenizers/spec_storage.h"
#include "runtime/tokenizer/utf8.h"

namespace volvelle {
namespace {

constexpr size_t kMaxPieceBytes =
    4096;  // of a piece that merges make; every cut of it is looked up
constexpr std::string_view kBlank = "\u2581";

constexpr const char* kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kBloom = R"( ?[^(\s|.,!?…。，、।۔،)]+)";
constexpr const char* kDigit = R"(\p{N})";
constexpr const char* kThreeDigits = "[0-9][0-9][0-9]";
constexpr const char* kFalconPunctuation = R"([\p{P}\$\+<=>\^~\|`]+)";
constexpr const char* kDefaultPunctuation = R"([\p{P}\$\+<=>\^~\|]+)";
constexpr const char* kDigits = R"(\p{N}+)";

// How a `tokenizer.ggml.pre` cuts text: by each expression in turn.
struct Cut {
  std::vector<std::string_view> names;
  std::vector<const char*> expressions;
  bool nfc = false;
  bool ignore_merges = false;
  bool add_bos = false;  // unless the file says otherwise
};

const std::vector<Cut>& cuts() {
  static const std::vector<Cut> cuts = {
      {{"gpt-2", "phi-2", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "gigachat",
        "modern-bert"},
       {kGpt2}},
      {{"mpt", "olmo"}, {kGpt2}, true},
      {{"llama-bpe", "llama3", "llama-v3", "falcon3", "smaug-bpe"}, {kLlama3}, false, true, true},
      {{"dbrx", "pixtral-dbrx"}, {kLlama3}},
      {{"qwen2", "deepseek-r1-qwen"}, {kQwen2}, true},
      {{"stablelm2", "megrez"}, {kQwen2}},
      {{"smollm", "starcoder", "refact", "codeshell", "exaone"}, {kDigit, kGpt2}},
      {{"command-r"}, {kDigit, kGpt2}, true},
      {{"bloom", "poro-chat", "gpt3-finnish"}, {kBloom}},
      {{"falcon"}, {kFalconPunctuation, kGpt2, kThreeDigits}},
      {{"tekken"}, {kTekken}, false, true, true},
      {{"gpt-4o", "llama4"}, {kGpt4o}},
      {{"default", ""}, {kDefaultPunctuation, kGpt2, kDigits, kThreeDigits}},
  };
  return cuts;
}

class Maker {
 public:
  explicit Maker(const GgufVocabulary& vocabulary) : given_(vocabulary) {}

  Result<TokenizerSpec> make() {
    VOLVELLE_RETURN_IF_ERROR(add_pieces());
    if (given_.model == "gpt2") {
      VOLVELLE_RETURN_IF_ERROR(make_byte_level());
    } else if (given_.model == "llama") {
      VOLVELLE_RETURN_IF_ERROR(make_scored());
    } else if (given_.model == "bert") {
      VOLVELLE_RETURN_IF_ERROR(make_wordpiece());
    } else if (given_.model == "t5") {
      VOLVELLE_RETURN_IF_ERROR(make_unigram());
    } else {
      return fail("tokenizer.ggml.model \"{}\" is not supported by this version", given_.model);
    }
    add_special();
    VOLVELLE_RETURN_IF_ERROR(add_chat_templates());
    adopt(std::move(storage_), spec_);
    return std::move(spec_);
  }

 private:
  int32_t type(size_t id) const {
    return id < given_.types.size() ? given_.types[id] : kNormalPiece;
  }

  int32_t checked(std::optional<int64_t> id) const {
    return id.has_value() && *id >= 0 && *id < static_cast<int64_t>(given_.tokens.size())
               ? static_cast<int32_t>(*id)
               : -1;
  }

  Result<void> add_pieces();
  Result<void> make_byte_level();
  Result<void> make_scored();
  Result<void> make_merges_by_score();
  Result<void> make_wordpiece();
  Result<void> make_unigram();
  void add_special();
  Result<void> add_chat_templates();

  const GgufVocabulary& given_;
  TokenizerSpec spec_;
  SpecStorage storage_;
  PieceIndex index_;
  bool add_bos_ = false;
  bool add_eos_ = false;
  bool processed_ = false;  // what stands around texts is already known
};

Result<void> Maker::add_pieces() {
  if (given_.tokens.empty()) return fail("tokenizer.ggml.tokens: there is no vocabulary");
  index_.reserve(given_.tokens.size());
  for (uint32_t id = 0; id < given_.tokens.size(); ++id) {
    const std::string_view piece = given_.tokens[id];
    if (!is_utf8(piece)) return fail("tokenizer.ggml.tokens: piece {} is not UTF-8", id);
    index_.set(piece, id);
    if (type(id) == kControlPiece || type(id) == kUnknownPiece || type(id) == kUserPiece) {
      spec_.added.emplace_back(id, type(id) != kUserPiece, false, false, false, false);
    }
  }
  return storage_.set_pieces(given_.tokens);
}

Result<void> Maker::make_byte_level() {
  const auto cut = std::ranges::find_if(
      cuts(), [this](const Cut& c) { return std::ranges::contains(c.names, given_.pre); });
  if (cut == cuts().end())
    return fail("tokenizer.ggml.pre \"{}\" is not supported by this version", given_.pre);
  spec_.ignore_merges = cut->ignore_merges;
  add_bos_ = cut->add_bos;
  if (cut->nfc) spec_.normalizers.push_back({.kind = NormalizerKind::nfc});
  for (const char* expression : cut->expressions) {
    PreTokenizerStep step;
    VOLVELLE_ASSIGN_OR_RETURN(step.pattern, translate_oniguruma(expression));
    spec_.pre_tokenizers.push_back(std::move(step));
  }
  spec_.pre_tokenizers.push_back({.kind = PreTokenizerKind::byte_level});
  spec_.decoders.push_back({.kind = DecoderKind::byte_level});
  storage_.merges.reserve(given_.merges.size());
  for (const std::string_view both : given_.merges) {
    const size_t blank = both.find(' ', 1);  // the left piece is never empty
    if (blank == both.npos) return fail("tokenizer.ggml.merges: \"{}\" is not two pieces", both);
    auto merge = index_.merge(both.substr(0, blank), both.substr(blank + 1));
    if (!merge.has_value()) return fail("tokenizer.ggml.merges: {}", merge.error().message);
    storage_.merges.push_back(*merge);
  }
  return {};
}

Result<void> Maker::make_scored() {
  if (given_.scores.size() != given_.tokens.size()) {
    return fail("tokenizer.ggml.scores: {} scores for {} pieces", given_.scores.size(),
                given_.tokens.size());
  }
  add_bos_ = true;
  spec_.byte_fallback = true;
  spec_.fuse_unknown = true;
  spec_.unknown = checked(given_.unknown);
  const bool prefix = given_.add_space_prefix.value_or(true);
  if (prefix)
    spec_.normalizers.push_back({.kind = NormalizerKind::prepend, .text = std::string(kBlank)});
  spec_.normalizers.push_back({.kind = NormalizerKind::replace,
                               .pattern = " ",
                               .literal = true,
                               .text = std::string(kBlank)});
  spec_.decoders = {{.kind = DecoderKind::replace, .pattern = std::string(kBlank), .text = " "},
                    {.kind = DecoderKind::byte_fallback},
                    {.kind = DecoderKind::fuse}};
  if (prefix) spec_.decoders.push_back({.kind = DecoderKind::strip, .text = " ", .start = 1});
  return make_merges_by_score();
}

// The file spells pieces that begin a word with a blank's sign before them and others as they are;
// BERT marks the others.
Result<void> Maker::make_wordpiece() {
  std::vector<std::string> spelt;
  for (size_t id = 0; id < given_.tokens.size(); ++id) {
    std::string_view piece = given_.tokens[id];
    const bool bracketed = piece.starts_with('[') && piece.ends_with(']') && piece.size() > 2;
    if (piece.starts_with(kBlank)) {
      piece.remove_prefix(kBlank.size());
      spelt.emplace_back(piece);
    } else if (type(id) != kNormalPiece || bracketed || piece.empty()) {
      spelt.emplace_back(piece);
    } else {
      spelt.push_back(std::format("##{}", piece));
    }
  }
  storage_.piece_ends.clear();
  storage_.piece_bytes.clear();
  const std::vector<std::string_view> pieces(spelt.begin(), spelt.end());
  VOLVELLE_RETURN_IF_ERROR(storage_.set_pieces(pieces));
  VOLVELLE_RETURN_IF_ERROR(storage_.set_trie(pieces));
  spec_.model = TokenizerModel::wordpiece;
  spec_.continuing = "##";
  spec_.max_word_characters = 100;
  const auto found = [&](std::optional<int64_t> given, const char* usual) {
    if (const int32_t id = checked(given); id >= 0) return id;
    const auto at = std::ranges::find(pieces, std::string_view(usual));
    return at == pieces.end() ? -1 : static_cast<int32_t>(at - pieces.begin());
  };
  spec_.unknown = found(given_.unknown, "[UNK]");
  const int32_t cls = found(given_.cls.has_value() ? given_.cls : given_.bos, "[CLS]");
  const int32_t sep = found(given_.sep.has_value() ? given_.sep : given_.eos, "[SEP]");
  if (spec_.unknown < 0 || cls < 0 || sep < 0) {
    return fail("tokenizer.ggml.tokens: [UNK], [CLS] or [SEP] is missing");
  }
  for (const int32_t id :
       {spec_.unknown, cls, sep, found(given_.padding, "[PAD]"), found(given_.mask, "[MASK]")}) {
    const auto same = [&](const AddedToken& t) { return static_cast<int32_t>(t.id()) == id; };
    if (id >= 0 && std::ranges::none_of(spec_.added, same)) {
      spec_.added.emplace_back(static_cast<uint32_t>(id), true, false, false, false, false);
    }
  }
  VOLVELLE_RETURN_IF_ERROR(append_bert_normalizer({}, spec_));  // the format knows no cased BERT
  VOLVELLE_RETURN_IF_ERROR(append_bert_pre_tokenizer(spec_));
  spec_.decoders.push_back({.kind = DecoderKind::wordpiece, .pattern = "##", .cleanup = true});
  set_bert_processing(cls, sep, false, spec_);
  processed_ = true;
  return {};
}

Result<void> Maker::make_unigram() {
  if (given_.scores.size() != given_.tokens.size()) {
    return fail("tokenizer.ggml.scores: {} scores for {} pieces", given_.scores.size(),
                given_.tokens.size());
  }
  std::vector<SentencePieceModel::Piece> pieces;
  for (size_t id = 0; id < given_.tokens.size(); ++id) {
    if (!std::isfinite(given_.scores[id])) {
      return fail("tokenizer.ggml.scores: the score of piece {} is not a number", id);
    }
    pieces.push_back({std::string(given_.tokens[id]), given_.scores[id], type(id)});
  }
  auto made = set_sentencepiece_entries(pieces, storage_, spec_);
  if (!made.has_value()) return fail("tokenizer.ggml.tokens: {}", made.error().message);
  storage_.character_map = given_.character_map;
  spec_.unknown = checked(given_.unknown);
  spec_.byte_fallback = std::ranges::contains(pieces, kBytePiece, &SentencePieceModel::Piece::type);
  append_sentencepiece_steps(
      {.character_map = !given_.character_map.empty(),
       .add_dummy_prefix = given_.add_space_prefix.value_or(true),
       .remove_extra_whitespaces = given_.remove_extra_whitespaces.value_or(true)},
      spec_.byte_fallback, spec_);
  add_eos_ = true;
  return {};
}

// Every cut of a piece into two pieces is a merge; the better the piece's score, the better the
// merge (the rule of transformers' convert_slow_tokenizer.py: by score, then the longer left part,
// then the longer right part).
Result<void> Maker::make_merges_by_score() {
  struct Scored {
    float score;
    uint32_t left_characters;
    uint32_t right_characters;
    Merge merge;
  };
  std::vector<Scored> scored;
  for (uint32_t id = 0; id < given_.tokens.size(); ++id) {
    const std::string_view piece = given_.tokens[id];
    if (type(id) != kNormalPiece || index_.find(piece) != id) continue;
    if (piece.size() > kMaxPieceBytes)
      return fail("tokenizer.ggml.tokens: piece {} is too long", id);
    if (std::isnan(given_.scores[id]))
      return fail("tokenizer.ggml.scores: the score of piece {} is not a number", id);
    const auto characters = static_cast<uint32_t>(
        std::ranges::count_if(piece, [](char c) { return !is_continuation(c); }));
    uint32_t left_characters = 0;
    for (size_t cut = 0; cut < piece.size();
         cut += character_bytes(piece[cut]), ++left_characters) {
      if (cut == 0) continue;
      const int64_t left = index_.find(piece.substr(0, cut));
      if (left < 0 || type(static_cast<size_t>(left)) != kNormalPiece) continue;
      const int64_t right = index_.find(piece.substr(cut));
      if (right < 0 || type(static_cast<size_t>(right)) != kNormalPiece) continue;
      scored.push_back({given_.scores[id],
                        left_characters,
                        characters - left_characters,
                        {static_cast<uint32_t>(left), static_cast<uint32_t>(right), id}});
    }
  }
  std::ranges::stable_sort(scored, [](const Scored& a, const Scored& b) {
    return std::tie(a.score, a.left_characters, a.right_characters) >
           std::tie(b.score, b.left_characters, b.right_characters);
  });
  storage_.merges.reserve(scored.size());
  for (const Scored& entry : scored) storage_.merges.push_back(entry.merge);
  return {};
}

void Maker::add_special() {
  spec_.bos = checked(given_.bos);
  for (const int32_t id : {checked(given_.eos), checked(given_.eot)}) {
    if (id >= 0 && !std::ranges::contains(spec_.eos, id)) spec_.eos.push_back(id);
  }
  if (processed_) return;
  if (given_.add_bos.value_or(add_bos_) && spec_.bos >= 0) spec_.prefix.push_back(spec_.bos);
  if (given_.add_eos.value_or(add_eos_) && checked(given_.eos) >= 0)
    spec_.suffix.push_back(checked(given_.eos));
  // Two texts: each as it would be alone.
  for (const auto& [text, type] : {std::pair{kFirstText, 0}, std::pair{kSecondText, 1}}) {
    const auto kind = static_cast<uint8_t>(add_eos_ ? 0 : type);
    for (const int32_t id : spec_.prefix) spec_.pair.emplace_back(id, kind);
    spec_.pair.emplace_back(text, kind);
    for (const int32_t id : spec_.suffix) spec_.pair.emplace_back(id, kind);
  }
}

Result<void> Maker::add_chat_templates() {
  for (const auto& [name, text] : given_.chat_templates) {
    if (!is_utf8(text)) return fail("tokenizer.chat_template: is not UTF-8");
    storage_.texts.emplace_back(text);
    spec_.chat_templates.push_back({name, storage_.texts.back()});
  }
  return {};
}

template <typename T>
Result<std::optional<T>> optional(const GgufMetadata& metadata, std::string_view key,
                                  Result<T> (GgufMetadata::*read)(std::string_view) const) {
  if (!metadata.has(key)) return std::optional<T>();
  VOLVELLE_ASSIGN_OR_RETURN(T value, (metadata.*read)(key));
  return std::optional<T>(value);
}

}  // namespace

Result<GgufVocabulary> read_gguf_vocabulary(const GgufMetadata& metadata) {
  GgufVocabulary vocabulary;
  VOLVELLE_ASSIGN_OR_RETURN(vocabulary.model, metadata.text("tokenizer.ggml.model"));
  if (metadata.has("tokenizer.ggml.pre")) {
    VOLVELLE_ASSIGN_OR_RETURN(vocabulary.pre, metadata.text("tokenizer.ggml.pre"));
  }
  VOLVELLE_ASSIGN_OR_RETURN(const GgufStrings tokens, metadata.strings("tokenizer.ggml.tokens"));
  vocabulary.tokens.assign(tokens.begin(), tokens.end());
  if (metadata.has("tokenizer.ggml.merges")) {
    VOLVELLE_ASSIGN_OR_RETURN(const GgufStrings merges, metadata.strings("tokenizer.ggml.merges"));
    vocabulary.merges.assign(merges.begin(), merges.end());
  }
  if (metadata.has("tokenizer.ggml.scores")) {
    VOLVELLE_ASSIGN_OR_RETURN(const GgufNumbers scores, metadata.numbers("tokenizer.ggml.scores"));
    for (uint64_t i = 0; i < scores.size(); ++i)
      vocabulary.scores.push_back(static_cast<float>(scores.real(i)));
  }
  if (metadata.has("tokenizer.ggml.token_type")) {
    VOLVELLE_ASSIGN_OR_RETURN(const GgufNumbers types,
                              metadata.numbers("tokenizer.ggml.token_type"));
    for (uint64_t i = 0; i < types.size(); ++i)
      vocabulary.types.push_back(static_cast<int32_t>(types.integer(i)));
  }
  for (const auto& [key, id] : {std::pair{"tokenizer.ggml.bos_token_id", &vocabulary.bos},
                                std::pair{"tokenizer.ggml.eos_token_id", &vocabulary.eos},
                                std::pair{"tokenizer.ggml.eot_token_id", &vocabulary.eot},
                                std::pair{"tokenizer.ggml.unknown_token_id", &vocabulary.unknown},
                                std::pair{"tokenizer.ggml.padding_token_id", &vocabulary.padding},
                                std::pair{"tokenizer.ggml.cls_token_id", &vocabulary.cls},
                                std::pair{"tokenizer.ggml.seperator_token_id", &vocabulary.sep},
                                std::pair{"tokenizer.ggml.mask_token_id", &vocabulary.mask}}) {
    VOLVELLE_ASSIGN_OR_RETURN(const auto value,
                              optional(metadata, key, &GgufMetadata::unsigned_integer));
    if (value.has_value()) *id = static_cast<int64_t>(std::min<uint64_t>(*value, INT64_MAX));
  }
  for (const auto& [key, flag] :
       {std::pair{"tokenizer.ggml.add_bos_token", &vocabulary.add_bos},
        std::pair{"tokenizer.ggml.add_eos_token", &vocabulary.add_eos},
        std::pair{"tokenizer.ggml.add_space_prefix", &vocabulary.add_space_prefix},
        std::pair{"tokenizer.ggml.remove_extra_whitespaces",
                  &vocabulary.remove_extra_whitespaces}}) {
    VOLVELLE_ASSIGN_OR_RETURN(*flag, optional(metadata, key, &GgufMetadata::boolean));
  }
  if (constexpr std::string_view kMap = "tokenizer.ggml.precompiled_charsmap"; metadata.has(kMap)) {
    VOLVELLE_ASSIGN_OR_RETURN(const GgufNumbers bytes, metadata.numbers(kMap));
    for (uint64_t i = 0; i < bytes.size(); ++i) {
      vocabulary.character_map += static_cast<char>(bytes.integer(i));
    }
  }
  constexpr std::string_view kTemplate = "tokenizer.chat_template";
  if (metadata.has(kTemplate)) {
    VOLVELLE_ASSIGN_OR_RETURN(const std::string_view text, metadata.text(kTemplate));
    vocabulary.chat_templates.emplace_back("default", text);
  }
  for (const GgufValue& value : metadata.values()) {
    if (value.key.size() <= kTemplate.size() + 1 || !value.key.starts_with(kTemplate) ||
        value.is_array)
      continue;
    if (value.key[kTemplate.size()] != '.' || value.element != GgufType::string) continue;
    VOLVELLE_ASSIGN_OR_RETURN(const std::string_view text, metadata.text(value.key));
    vocabulary.chat_templates.emplace_back(value.key.substr(kTemplate.size() + 1), text);
  }
  return vocabulary;
}

Result<TokenizerSpec> make_spec(const GgufVocabulary& vocabulary) {
  return Maker(vocabulary).make();
}

Result<TokenizerSpec> read_gguf_tokenizer(const GgufMetadata& metadata) {
  VOLVELLE_ASSIGN_OR_RETURN(const GgufVocabulary vocabulary, read_gguf_vocabulary(metadata));
  return make_spec(vocabulary);
}

}  // namespace volvelle
