#include "converter/tokenizers/tokenizer_folder.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "converter/sources/json_file.h"
#include "converter/sources/source_file.h"
#include "converter/tokenizers/bert_steps.h"
#include "converter/tokenizers/gguf_vocabulary.h"
#include "converter/tokenizers/piece_orders.h"
#include "converter/tokenizers/sentencepiece.h"
#include "converter/tokenizers/spec_storage.h"
#include "converter/tokenizers/tokenizer_json.h"
#include "runtime/tokenizer/utf8.h"

namespace volvelle {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t kMaxVocabularyBytes = uint64_t{64} << 20;
constexpr uint64_t kMaxVocabulary = (1 << 24) - 1;
constexpr int64_t kMaxExtraIds = 10'000;
constexpr std::string_view kBlank = "\u2581";
constexpr std::string_view kWhiteSpace =  // Unicode's White_Space
    R"([\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}])";
constexpr std::array kModelNames = {"spiece.model", "sentencepiece.bpe.model", "spm.model",
                                    "tokenizer.model", "sentencepiece.model"};

std::string text_or(const json& object, const char* key, std::string_view fallback) {
  if (!object.is_object()) return std::string(fallback);
  const auto found = object.find(key);
  if (found == object.end()) return std::string(fallback);
  const json& value =
      found->is_object() && found->contains("content") ? (*found)["content"] : *found;
  return value.is_string() ? value.get<std::string>() : std::string(fallback);
}

std::optional<bool> flag(const json& object, const char* key) {
  if (!object.is_object()) return std::nullopt;
  const auto found = object.find(key);
  return found != object.end() && found->is_boolean() ? std::optional(found->get<bool>())
                                                      : std::nullopt;
}

class Folder {
 public:
  explicit Folder(std::string path) : path_(std::move(path)) {}

  bool has(const std::string& name) const {
    std::error_code ignored;
    return fs::exists(file(name), ignored);
  }
  std::string file(const std::string& name) const { return (fs::path(path_) / name).string(); }

  // The SentencePiece model that stands alone; "": there is none.
  std::string model() const {
    for (const char* name : kModelNames) {
      if (has(name)) return file(name);
    }
    return {};
  }

  Result<TokenizerSpec> read() {
    if (has("tokenizer.json")) {
      return read_tokenizer_json(file("tokenizer.json"), file("tokenizer_config.json"));
    }
    VOLVELLE_ASSIGN_OR_RETURN(config_, read_json_if_present(file("tokenizer_config.json")));
    VOLVELLE_ASSIGN_OR_RETURN(const json model_config, read_json_if_present(file("config.json")));
    kind_ = text_or(config_, "tokenizer_class", text_or(model_config, "model_type", ""));
    if (has("source.spm") && has("vocab.json")) return read_marian();
    if (!model().empty() && has("vocab.json")) return read_numbered();
    if (!model().empty()) return read_model();
    if (has("vocab.txt")) return read_vocabulary_text();
    return fail(
        "{}: there is no tokenizer.json, source.spm, SentencePiece model or vocab.txt in the "
        "folder",
        path_);
  }

 private:
  bool is(std::string_view name) const {  // the class or the model's type
    std::string kind = kind_;
    std::ranges::transform(kind, kind.begin(), [](unsigned char c) { return std::tolower(c); });
    return kind.starts_with(name);
  }
  // A setting of tokenizer_config.json that counts pieces which a family adds.
  Result<int64_t> count(const char* key, int64_t usual) const {
    if (!config_.is_object() || !config_.contains(key)) return usual;
    const json& value = config_[key];
    if (!value.is_number_integer() || value < 0 || value > kMaxExtraIds) {
      return fail("{}: {} is no number from 0 to {}", file("tokenizer_config.json"), key,
                  kMaxExtraIds);
    }
    return value.get<int64_t>();
  }
  Result<TokenizerSpec> read_vocabulary_text();
  Result<int32_t> piece_of(const char* key, const char* usual, const SentencePieceModel& pieces,
                           const std::string& path) const;
  Result<TokenizerSpec> read_model();
  Result<TokenizerSpec> read_deberta(SentencePieceModel pieces, const std::string& path);
  Result<TokenizerSpec> read_pegasus(SentencePieceModel pieces, const std::string& path);
  Result<TokenizerSpec> read_languages(SentencePieceModel pieces, const std::string& path);
  Result<TokenizerSpec> read_numbered();
  Result<TokenizerSpec> read_marian();

  std::string path_;
  json config_;
  std::string kind_;
};

// Vocabularies of this kind hold their pieces as strings, so that pieces may be added.
struct Vocabulary {
  std::vector<std::string> pieces;
  PieceIndex index;

  Result<void> read_json_map(const std::string& path) {
    VOLVELLE_ASSIGN_OR_RETURN(const json map, read_json(path));
    if (!map.is_object()) return fail("{}: is not a map from pieces to ids", path);
    for (const auto& [piece, id] : map.items()) {
      if (!id.is_number_unsigned() || id > kMaxVocabulary) {
        return fail("{}: \"{}\" has no id below {}", path, piece, kMaxVocabulary);
      }
      const auto at = id.get<size_t>();
      if (at >= pieces.size()) pieces.resize(at + 1);
      pieces[at] = piece;
    }
    return {};
  }

  Result<void> store(SpecStorage& storage) {
    for (uint32_t id = 0; id < pieces.size(); ++id) index.set(pieces[id], id);
    return storage.set_pieces({pieces.begin(), pieces.end()});
  }

  // The id of a special token, which is then found in text.
  Result<int32_t> special(const std::string& piece, const std::string& path, TokenizerSpec& spec) {
    const int64_t id = index.find(piece);
    if (id < 0) return fail("{}: has no piece \"{}\"", path, piece);
    const auto same = [&](const AddedToken& t) { return t.id() == static_cast<uint32_t>(id); };
    if (std::ranges::none_of(spec.added, same)) {
      spec.added.emplace_back(static_cast<uint32_t>(id), true, false, false, false, false);
    }
    return static_cast<int32_t>(id);
  }
};

Result<TokenizerSpec> Folder::read_vocabulary_text() {
  const std::string path = file("vocab.txt");
  VOLVELLE_ASSIGN_OR_RETURN(const SourceFile source, SourceFile::open(path));
  if (source.size() > kMaxVocabularyBytes) return fail("{}: is too long for a vocabulary", path);
  std::string text(source.size(), '\0');
  VOLVELLE_RETURN_IF_ERROR(source.read(0, std::as_writable_bytes(std::span(text))));
  if (!is_utf8(text)) return fail("{}: is not UTF-8", path);

  Vocabulary vocabulary;
  for (std::string_view rest = text; !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    vocabulary.pieces.emplace_back(line);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  TokenizerSpec spec;
  SpecStorage storage;
  VOLVELLE_RETURN_IF_ERROR(vocabulary.store(storage));
  spec.model = TokenizerModel::wordpiece;
  spec.continuing = "##";
  spec.max_word_characters = 100;
  VOLVELLE_RETURN_IF_ERROR(storage.set_trie({vocabulary.pieces.begin(), vocabulary.pieces.end()}));
  const bool lowercase = flag(config_, "do_lower_case").value_or(true);
  VOLVELLE_RETURN_IF_ERROR(append_bert_normalizer(
      {.handle_chinese_chars = flag(config_, "tokenize_chinese_chars").value_or(true),
       .strip_accents = flag(config_, "strip_accents").value_or(lowercase),
       .lowercase = lowercase},
      spec));
  VOLVELLE_RETURN_IF_ERROR(append_bert_pre_tokenizer(spec));
  spec.decoders.push_back({.kind = DecoderKind::wordpiece, .pattern = "##", .cleanup = true});

  const auto special = [&](const char* key, const char* usual) {
    return vocabulary.special(text_or(config_, key, usual), path, spec);
  };
  VOLVELLE_ASSIGN_OR_RETURN(spec.unknown, special("unk_token", "[UNK]"));
  VOLVELLE_ASSIGN_OR_RETURN(const int32_t cls, special("cls_token", "[CLS]"));
  VOLVELLE_ASSIGN_OR_RETURN(const int32_t sep, special("sep_token", "[SEP]"));
  (void)special("pad_token", "[PAD]");  // these may be absent
  (void)special("mask_token", "[MASK]");
  set_bert_processing(cls, sep, is("mpnet"), spec);
  adopt(std::move(storage), spec);
  return spec;
}

SentencePieceText text_of(const SentencePieceModel& model) {
  return {.character_map = !model.character_map.empty(),
          .add_dummy_prefix = model.add_dummy_prefix,
          .remove_extra_whitespaces = model.remove_extra_whitespaces,
          .escape_whitespaces = model.escape_whitespaces};
}

// A model whose pieces have the ids of another vocabulary, where those that it lacks are unknown.
Result<TokenizerSpec> make_numbered(const std::string& path, Vocabulary& vocabulary,
                                    int32_t unknown) {
  VOLVELLE_ASSIGN_OR_RETURN(SentencePieceModel model, read_sentencepiece(path));
  if (model.model_type != 1) {
    return fail("{}: only unigram models can be numbered by a vocab.json", path);
  }
  TokenizerSpec spec;
  SpecStorage storage;
  VOLVELLE_RETURN_IF_ERROR(vocabulary.store(storage));
  spec.unknown = unknown;
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    const int64_t id = vocabulary.index.find(piece.text);
    storage.entry_ids.push_back(static_cast<uint32_t>(id >= 0 ? id : unknown));
  }
  VOLVELLE_RETURN_IF_ERROR(set_sentencepiece_entries(model.pieces, storage, spec));
  append_sentencepiece_steps(text_of(model), false, spec);
  storage.character_map = std::move(model.character_map);
  adopt(std::move(storage), spec);
  return spec;
}

Result<TokenizerSpec> Folder::read_marian() {
  const auto read_side = [&](const std::string& model,
                             const std::string& names) -> Result<TokenizerSpec> {
    Vocabulary vocabulary;
    VOLVELLE_RETURN_IF_ERROR(vocabulary.read_json_map(file(names)));
    for (uint32_t id = 0; id < vocabulary.pieces.size(); ++id) {
      vocabulary.index.set(vocabulary.pieces[id], id);
    }
    TokenizerSpec added;
    const auto special = [&](const char* key, const char* usual) {
      return vocabulary.special(text_or(config_, key, usual), file(names), added);
    };
    VOLVELLE_ASSIGN_OR_RETURN(const int32_t unknown, special("unk_token", "<unk>"));
    VOLVELLE_ASSIGN_OR_RETURN(const int32_t eos, special("eos_token", "</s>"));
    (void)special("pad_token", "<pad>");
    VOLVELLE_ASSIGN_OR_RETURN(TokenizerSpec spec, make_numbered(file(model), vocabulary, unknown));
    spec.added = std::move(added.added);
    spec.suffix = {eos};
    spec.eos = {eos};
    spec.pair = {{kFirstText, 0}, {kSecondText, 0}, {eos, 0}};
    return spec;
  };
  const bool separate = flag(config_, "separate_vocabs").value_or(false);
  VOLVELLE_ASSIGN_OR_RETURN(TokenizerSpec spec, read_side("source.spm", "vocab.json"));
  spec.code_open = ">>";
  spec.code_close = "<<";
  if (has("target.spm")) {
    VOLVELLE_ASSIGN_OR_RETURN(
        TokenizerSpec target,
        read_side("target.spm", separate ? "target_vocab.json" : "vocab.json"));
    target.code_open = spec.code_open;
    target.code_close = spec.code_close;
    spec.target = std::make_shared<const TokenizerSpec>(std::move(target));
  }
  return spec;
}

// M2M100: languages, "__en__" and the like, follow the pieces of vocab.json in the order of the
// special tokens that the configuration lists.
Result<TokenizerSpec> Folder::read_numbered() {
  Vocabulary vocabulary;
  VOLVELLE_RETURN_IF_ERROR(vocabulary.read_json_map(file("vocab.json")));
  const size_t first_language = vocabulary.pieces.size();
  VOLVELLE_ASSIGN_OR_RETURN(const json map, read_json_if_present(file("special_tokens_map.json")));
  for (const json* from : {&std::as_const(config_), &map}) {
    if (!from->is_object() || !from->contains("additional_special_tokens")) continue;
    const json& listed = (*from)["additional_special_tokens"];
    if (!listed.is_array()) continue;
    for (const json& token : listed) {
      const std::string text = text_or({{"token", token}}, "token", "");
      if (!text.starts_with("__") || vocabulary.pieces.size() > kMaxVocabulary) continue;
      if (!std::ranges::contains(vocabulary.pieces.begin() + static_cast<ptrdiff_t>(first_language),
                                 vocabulary.pieces.end(), text)) {
        vocabulary.pieces.push_back(text);
      }
    }
  }
  const std::string path = file("vocab.json");
  if (first_language == vocabulary.pieces.size()) {  // transformers does not save them always
    const bool wmt21 = text_or(config_, "language_codes", "m2m100") == "wmt21";
    for (const std::string& name :
         language_names(wmt21 ? LanguageList::wmt21 : LanguageList::m2m100)) {
      vocabulary.pieces.push_back(std::format("__{}__", name));
    }
  }
  for (uint32_t id = 0; id < vocabulary.pieces.size(); ++id) {
    vocabulary.index.set(vocabulary.pieces[id], id);
  }
  TokenizerSpec added;
  const auto special = [&](const char* key, const char* usual) {
    return vocabulary.special(text_or(config_, key, usual), path, added);
  };
  VOLVELLE_ASSIGN_OR_RETURN(const int32_t unknown, special("unk_token", "<unk>"));
  VOLVELLE_ASSIGN_OR_RETURN(const int32_t eos, special("eos_token", "</s>"));
  (void)special("bos_token", "<s>");
  (void)special("pad_token", "<pad>");
  VOLVELLE_ASSIGN_OR_RETURN(TokenizerSpec spec, make_numbered(model(), vocabulary, unknown));
  std::string language = text_or(config_, "src_lang", "en");
  if (!language.starts_with("__")) language = std::format("__{}__", language);
  VOLVELLE_ASSIGN_OR_RETURN(const int32_t source,
                            vocabulary.special(language, file("tokenizer_config.json"), added));
  for (size_t id = first_language; id < vocabulary.pieces.size(); ++id) {
    spec.languages.push_back(static_cast<int32_t>(id));
    VOLVELLE_RETURN_IF_ERROR(vocabulary.special(vocabulary.pieces[id], path, added));
  }
  spec.added = std::move(added.added);
  spec.prefix = {source};
  spec.suffix = {eos};
  spec.eos = {eos};
  spec.pair = {{source, 0}, {kFirstText, 0}, {kSecondText, 0}, {eos, 0}};
  return spec;
}

// What cuts text: SentencePiece itself, or what transformers makes of its models, where words are
// cut one by one, every piece may be met in text and scores are summed in double. There white space
// is between words, or blanks are, of which several are one.
enum class Manner { sentencepiece, words, blanks };

void append_transformers_steps(bool character_map, Manner manner, TokenizerSpec& spec) {
  if (character_map) spec.normalizers.push_back({.kind = NormalizerKind::grapheme_map});
  if (manner == Manner::words) {
    spec.pre_tokenizers.push_back(
        {.pattern = std::string(kWhiteSpace), .behavior = SplitBehavior::removed});
  } else {
    spec.normalizers.push_back(
        {.kind = NormalizerKind::replace, .pattern = " {2,}", .literal = false, .text = " "});
  }
  spec.pre_tokenizers.push_back({.kind = PreTokenizerKind::metaspace,
                                 .text = std::string(kBlank),
                                 .prepend = PrependScheme::always,
                                 .split = true});
  spec.decoders.push_back({.kind = DecoderKind::metaspace,
                           .text = std::string(kBlank),
                           .prepend = PrependScheme::always});
}

// A model with byte-pair encoding is what GGUF calls "llama".
Result<TokenizerSpec> make_pairs(SentencePieceModel model, Manner manner) {
  GgufVocabulary vocabulary{.model = "llama"};
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    vocabulary.tokens.push_back(piece.text);
    vocabulary.scores.push_back(piece.score);
    vocabulary.types.push_back(piece.type);
  }
  const auto known = [](int32_t id) { return id < 0 ? std::nullopt : std::optional<int64_t>(id); };
  vocabulary.bos = known(model.bos);
  vocabulary.eos = known(model.eos);
  vocabulary.unknown = known(model.unknown);
  vocabulary.add_bos = false;
  VOLVELLE_ASSIGN_OR_RETURN(TokenizerSpec spec, make_spec(vocabulary));
  spec.byte_fallback = model.byte_fallback;
  spec.normalizers.clear();
  spec.decoders.clear();
  if (manner == Manner::sentencepiece) {
    append_sentencepiece_steps(text_of(model), model.byte_fallback, spec);
  } else {
    append_transformers_steps(!model.character_map.empty(), manner, spec);
  }
  auto both = std::make_shared<std::pair<std::shared_ptr<const void>, std::string>>(
      spec.storage, std::move(model.character_map));
  spec.character_map = both->second;
  spec.storage = std::move(both);
  return spec;
}

Result<TokenizerSpec> make_scored(SentencePieceModel model, Manner manner) {
  if (model.model_type == 2) return make_pairs(std::move(model), manner);
  if (model.model_type != 1) {
    return fail("a SentencePiece model of type {} is not supported by this version",
                model.model_type);
  }
  TokenizerSpec spec;
  SpecStorage storage;
  std::vector<std::string_view> pieces;
  for (uint32_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePieceModel::Piece& piece = model.pieces[id];
    pieces.push_back(piece.text);
    if (piece.type == kControlPiece || piece.type == kUnknownPiece || piece.type == kUserPiece) {
      spec.added.emplace_back(id, piece.type != kUserPiece, false, false, false, false);
    }
  }
  VOLVELLE_RETURN_IF_ERROR(storage.set_pieces(pieces));
  if (manner != Manner::sentencepiece) {
    spec.model = TokenizerModel::unigram;
    for (const auto& piece : model.pieces) storage.scores.push_back(piece.score);
    VOLVELLE_RETURN_IF_ERROR(storage.set_trie(pieces));
    append_transformers_steps(!model.character_map.empty(), manner, spec);
  } else {
    VOLVELLE_RETURN_IF_ERROR(set_sentencepiece_entries(model.pieces, storage, spec));
    append_sentencepiece_steps(text_of(model), model.byte_fallback, spec);
    spec.byte_fallback = model.byte_fallback;
  }
  spec.unknown = model.unknown;
  spec.bos = model.bos;
  if (model.eos >= 0) spec.eos = {model.eos};
  storage.character_map = std::move(model.character_map);
  adopt(std::move(storage), spec);
  return spec;
}

Result<int32_t> Folder::piece_of(const char* key, const char* usual,
                                 const SentencePieceModel& pieces, const std::string& path) const {
  const std::string text = text_or(config_, key, usual);
  const int32_t id = find_piece(pieces, text);
  if (id < 0) return fail("{}: has no piece \"{}\", the configuration's {}", path, text, key);
  return id;
}

// Of masks: the blanks before one are its own.
void let_last_take_blanks(TokenizerSpec& spec) {
  AddedToken& last = spec.added.back();
  last = AddedToken(last.id(), true, false, false, true, false);
}

Result<TokenizerSpec> Folder::read_deberta(SentencePieceModel pieces, const std::string& path) {
  VOLVELLE_ASSIGN_OR_RETURN(const int32_t cls, piece_of("cls_token", "[CLS]", pieces, path));
  VOLVELLE_ASSIGN_OR_RETURN(const int32_t sep, piece_of("sep_token", "[SEP]", pieces, path));
  if (find_piece(pieces, "[MASK]") < 0) pieces.pieces.push_back({"[MASK]", 0, kControlPiece});
  VOLVELLE_ASSIGN_OR_RETURN(TokenizerSpec spec, make_scored(std::move(pieces), Manner::words));
  // Its own way to prepare text, without the map of characters.
  std::erase_if(spec.pre_tokenizers,
                [](const PreTokenizerStep& step) { return step.kind == PreTokenizerKind::split; });
  spec.normalizers.clear();
  if (flag(config_, "do_lower_case").value_or(false)) {
    spec.normalizers.push_back({.kind = NormalizerKind::lowercase});
  }
  spec.normalizers.push_back({.kind = NormalizerKind::replace,
                              .pattern = std::format(R"({}{{2,}}|[\n\r\t])", kWhiteSpace),
                              .literal = false,
                              .text = " "});
  spec.normalizers.push_back({.kind = NormalizerKind::nfc});
  spec.normalizers.push_back({.kind = NormalizerKind::strip, .right = true});
  if (flag(config_, "split_by_punct").value_or(false)) {
    spec.pre_tokenizers.insert(spec.pre_tokenizers.begin(), {.pattern = std::string(kPunctuation)});
  }
  set_bert_processing(cls, sep, false, spec);
  return spec;
}

Result<TokenizerSpec> Folder::read_pegasus(SentencePieceModel pieces, const std::string& path) {
  VOLVELLE_ASSIGN_OR_RETURN(const int64_t offset, count("offset", 103));
  if (offset < 2 || (config_.is_object() && config_.contains("mask_token_sent") &&
                     text_or(config_, "mask_token_sent", "") != "<mask_1>")) {
    return fail("{}: offset {} and mask_token_sent number other pieces than Pegasus has",
                file("tokenizer_config.json"), offset);
  }
  const auto ordered = order_as_pegasus(static_cast<int32_t>(offset), pieces);
  if (!ordered.has_value()) return fail("{}: {}", path, ordered.error().message);
  const int32_t eos = pieces.eos;
  VOLVELLE_ASSIGN_OR_RETURN(TokenizerSpec spec, make_scored(std::move(pieces), Manner::blanks));
  spec.suffix = {eos};
  spec.pair = {{kFirstText, 0}, {kSecondText, 0}, {eos, 0}};
  return spec;
}

// mBART has the language behind a text, mBART-50 and NLLB before it.
Result<TokenizerSpec> Folder::read_languages(SentencePieceModel pieces, const std::string& path) {
  const bool fifty = is("mbart50"), first = is("mbart") && !fifty;
  const std::vector<std::string> names = language_names(first   ? LanguageList::mbart
                                                        : fifty ? LanguageList::mbart50
                                                                : LanguageList::nllb);
  const auto ordered = order_as_fairseq(names, pieces);
  if (!ordered.has_value()) return fail("{}: {}", path, ordered.error().message);
  const auto end = static_cast<int32_t>(pieces.pieces.size()) - 1;  // of languages, where <mask> is
  const int32_t begin = end - static_cast<int32_t>(names.size()), eos = pieces.eos;
  const std::string source = text_or(config_, "src_lang", first || fifty ? "en_XX" : "eng_Latn");
  const auto at = std::ranges::find(names, source);
  if (at == names.end()) {
    return fail("{}: src_lang \"{}\" is no language of this tokenizer",
                file("tokenizer_config.json"), source);
  }
  VOLVELLE_ASSIGN_OR_RETURN(TokenizerSpec spec,
                            make_scored(std::move(pieces), first ? Manner::words : Manner::blanks));
  let_last_take_blanks(spec);
  for (int32_t id = begin; id < end; ++id) spec.languages.push_back(id);
  const int32_t language = begin + static_cast<int32_t>(at - names.begin());
  const bool behind = first || flag(config_, "legacy_behaviour").value_or(false);
  spec.prefix.clear();
  if (!behind) spec.prefix = {language};
  spec.suffix = behind ? std::vector{eos, language} : std::vector{eos};
  spec.pair.clear();
  for (const int32_t id : spec.prefix) spec.pair.emplace_back(id, 0);
  spec.pair.emplace_back(kFirstText, 0);
  spec.pair.emplace_back(kSecondText, 0);
  for (const int32_t id : spec.suffix) spec.pair.emplace_back(id, 0);
  return spec;
}

// What families of checkpoints add to their models, as transformers does.
Result<TokenizerSpec> Folder::read_model() {
  const std::string path = model();
  VOLVELLE_ASSIGN_OR_RETURN(SentencePieceModel pieces, read_sentencepiece(path));
  if (is("t5") || is("mt5") || is("umt5")) {
    VOLVELLE_ASSIGN_OR_RETURN(const int64_t extra, count("extra_ids", 100));
    for (int64_t i = extra; i-- > 0;) {
      pieces.pieces.push_back({std::format("<extra_id_{}>", i), 0, kControlPiece});
    }
    VOLVELLE_ASSIGN_OR_RETURN(const int32_t eos, piece_of("eos_token", "</s>", pieces, path));
    VOLVELLE_ASSIGN_OR_RETURN(TokenizerSpec spec, make_scored(std::move(pieces), Manner::words));
    spec.suffix = {eos};
    spec.pair = {{kFirstText, 0}, {eos, 0}, {kSecondText, 0}, {eos, 0}};
    return spec;
  }
  if (is("xlmroberta") || is("xlm-roberta") || is("camembert")) {
    const auto ordered =
        is("camembert") ? order_as_camembert(pieces) : order_as_fairseq({}, pieces);
    if (!ordered.has_value()) return fail("{}: {}", path, ordered.error().message);
    const int32_t bos = pieces.bos, eos = pieces.eos;
    VOLVELLE_ASSIGN_OR_RETURN(TokenizerSpec spec, make_scored(std::move(pieces), Manner::words));
    if (bos < 0 || eos < 0) return fail("{}: has no pieces <s> and </s>", path);
    set_bert_processing(bos, eos, true, spec);
    let_last_take_blanks(spec);
    return spec;
  }
  if (is("deberta")) return read_deberta(std::move(pieces), path);
  if (is("pegasus")) return read_pegasus(std::move(pieces), path);
  if (is("mbart") || is("nllb") || is("m2m")) return read_languages(std::move(pieces), path);
  for (const char* other : {"albert", "xlnet", "rembert"}) {
    if (is(other)) {
      return fail(
          "{}: the pieces that \"{}\" adds to it are not known to this version; save the folder "
          "again with a tokenizer.json",
          path, kind_);
    }
  }
  VOLVELLE_ASSIGN_OR_RETURN(TokenizerSpec spec,
                            make_scored(std::move(pieces), Manner::sentencepiece));
  const bool llama = is("llama") || is("mistral") || is("gemma");
  if (flag(config_, "add_bos_token").value_or(llama) && spec.bos >= 0) spec.prefix = {spec.bos};
  if (flag(config_, "add_eos_token").value_or(false) && !spec.eos.empty()) spec.suffix = spec.eos;
  return spec;
}

}  // namespace

bool has_tokenizer(const std::string& path) {
  const Folder folder(path);
  return folder.has("tokenizer.json") || folder.has("source.spm") || !folder.model().empty() ||
         folder.has("vocab.txt");
}

Result<TokenizerSpec> read_tokenizer_folder(const std::string& folder) {
  return Folder(folder).read();
}

Result<TokenizerSpec> read_sentencepiece_tokenizer(const std::string& path) {
  VOLVELLE_ASSIGN_OR_RETURN(SentencePieceModel model, read_sentencepiece(path));
  return make_scored(std::move(model), Manner::sentencepiece);
}

}  // namespace volvelle
