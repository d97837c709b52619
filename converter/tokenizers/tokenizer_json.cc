#include "converter/tokenizers/tokenizer_json.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "converter/sources/json_file.h"
#include "converter/sources/source_file.h"
#include "converter/tokenizers/bert_steps.h"
#include "converter/tokenizers/oniguruma.h"
#include "converter/tokenizers/spec_storage.h"
#include "runtime/tokenizer/base64.h"
#include "runtime/tokenizer/utf8.h"

namespace volvelle {
namespace {

using nlohmann::json;

constexpr int64_t kMaxId = (1 << 24) - 1;
constexpr uint64_t kMaxTemplateBytes = 1 << 20;

// The regular expression that a ByteLevel pre-tokenizer splits by (GPT-2's encoder.py).
constexpr std::string_view kGpt2Split =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kNmtDropped = R"([\x{1}-\x{8}\x{B}\x{E}-\x{1F}\x{7F}\x{8F}\x{9F}])";
constexpr std::string_view kNmtBlank =
    R"([\t\n\f\r\x{1680}\x{200B}-\x{200F}\x{2028}\x{2029}\x{2581}\x{FEFF}\x{FFFD}])";
constexpr std::string_view kDigit = R"(\p{N})";

// Typed members of a JSON object, null where absent or null.
const json* member(const json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

const std::string* text_member(const json& object, const char* key) {
  const json* value = member(object, key);
  return value == nullptr ? nullptr : value->get_ptr<const json::string_t*>();
}

std::string text_or(const json& object, const char* key, std::string_view fallback) {
  const std::string* text = text_member(object, key);
  return text == nullptr ? std::string(fallback) : *text;
}

bool flag(const json& object, const char* key, bool fallback) {
  const json* value = member(object, key);
  return value != nullptr && value->is_boolean() ? value->get<bool>() : fallback;
}

int64_t integer(const json& object, const char* key, int64_t fallback) {
  const json* value = member(object, key);
  return value != nullptr && value->is_number_integer() ? value->get<int64_t>() : fallback;
}

class Reader {
 public:
  explicit Reader(std::string path) : path_(std::move(path)) {}

  Result<TokenizerSpec> read(const std::optional<std::string>& config_path);

 private:
  template <typename... Args>
  std::unexpected<Error> refuse(std::format_string<Args...> format, Args&&... args) const {
    return fail("{}: {}", path_, std::format(format, std::forward<Args>(args)...));
  }
  std::unexpected<Error> unknown(std::string_view what, std::string_view type) const {
    return refuse("{} \"{}\" is not supported by this version", what, type);
  }

  Result<void> read_model(const json& model);
  Result<void> read_vocabulary(const json& vocabulary, const json* added);
  Result<void> read_merges(const json& merges);
  Result<void> read_normalizer(const json& normalizer);
  Result<void> read_character_map(const json& step);
  Result<void> read_pre_tokenizer(const json& pre_tokenizer);
  Result<void> read_decoder(const json& decoder);
  Result<void> read_post_processor(const json& processor);
  Result<std::vector<PairPart>> read_parts(const json& processor, const char* key) const;
  Result<void> read_template(const json& processor);
  void read_config(const json& config);
  Result<void> find_languages(const json& config);
  Result<void> read_chat_templates(const json& config);
  Result<std::string> read_template_file(const std::filesystem::path& path) const;

  struct Pattern {
    std::string text;
    bool literal;
  };
  Result<Pattern> read_pattern(const json& step, const char* section) const;
  Result<SplitBehavior> read_behavior(const json& step, std::string_view fallback) const;
  Result<PrependScheme> read_prepend(const json& step) const;
  Result<int32_t> id_of_pair(const json& processor, const char* key) const;
  void add_template(std::string name, std::string text);

  // Calls `read` on the members of a sequence, or on the component itself.
  template <typename Read>
  Result<void> each(const json& component, const char* members, const char* section, Read read) {
    const std::string* type = text_member(component, "type");
    if (type == nullptr) return refuse("{}: a component has no type", section);
    if (*type != "Sequence") return read(component, std::string_view(*type));
    const json* list = member(component, members);
    if (list == nullptr || !list->is_array())
      return refuse("{}: a sequence has no \"{}\"", section, members);
    for (const json& part : *list) VOLVELLE_RETURN_IF_ERROR(each(part, members, section, read));
    return {};
  }

  std::string path_;
  TokenizerSpec spec_;
  SpecStorage storage_;
  PieceIndex index_;
};

Result<TokenizerSpec> Reader::read(const std::optional<std::string>& config_path) {
  VOLVELLE_ASSIGN_OR_RETURN(const json root, read_json(path_));
  const json* model = member(root, "model");
  if (model == nullptr || !model->is_object()) return refuse("there is no \"model\"");
  VOLVELLE_RETURN_IF_ERROR(read_model(*model));
  VOLVELLE_RETURN_IF_ERROR(read_vocabulary(*member(*model, "vocab"), member(root, "added_tokens")));
  if (const json* merges = member(*model, "merges")) VOLVELLE_RETURN_IF_ERROR(read_merges(*merges));
  if (const json* unknown = member(*model, "unk_id")) {
    if (!unknown->is_number_integer() || *unknown < 0 || *unknown >= storage_.scores.size()) {
      return refuse("model.unk_id: is not in the vocabulary");
    }
    spec_.unknown = unknown->get<int32_t>();
  }
  if (const std::string* unknown = text_member(*model, "unk_token")) {
    spec_.unknown = static_cast<int32_t>(index_.find(*unknown));
    if (spec_.unknown < 0)
      return refuse("model.unk_token: \"{}\" is not in the vocabulary", *unknown);
  }
  if (const json* part = member(root, "normalizer"))
    VOLVELLE_RETURN_IF_ERROR(read_normalizer(*part));
  if (const json* part = member(root, "pre_tokenizer"))
    VOLVELLE_RETURN_IF_ERROR(read_pre_tokenizer(*part));
  if (const json* part = member(root, "decoder")) VOLVELLE_RETURN_IF_ERROR(read_decoder(*part));
  if (const json* part = member(root, "post_processor"))
    VOLVELLE_RETURN_IF_ERROR(read_post_processor(*part));
  json config;
  if (config_path.has_value()) {
    VOLVELLE_ASSIGN_OR_RETURN(config, read_json_if_present(*config_path));
    read_config(config);
  }
  VOLVELLE_RETURN_IF_ERROR(find_languages(config));
  VOLVELLE_RETURN_IF_ERROR(read_chat_templates(config));
  adopt(std::move(storage_), spec_);
  return std::move(spec_);
}

Result<void> Reader::read_model(const json& model) {
  const std::string type = text_or(model, "type", model.contains("merges") ? "BPE" : "");
  const json* vocabulary = member(model, "vocab");
  if (vocabulary == nullptr ||
      !(type == "Unigram" ? vocabulary->is_array() : vocabulary->is_object())) {
    return refuse("model.vocab: there is no vocabulary");
  }
  if (type == "WordPiece") {
    spec_.model = TokenizerModel::wordpiece;
    spec_.continuing = text_or(model, "continuing_subword_prefix", "##");
    spec_.max_word_characters = static_cast<uint32_t>(
        std::clamp<int64_t>(integer(model, "max_input_chars_per_word", 100), 0, UINT32_MAX));
    return {};
  }
  if (type == "Unigram") {
    spec_.model = TokenizerModel::unigram;
    spec_.byte_fallback = flag(model, "byte_fallback", false);
    return {};
  }
  if (type != "BPE") return unknown("model", type);
  if (const json* dropout = member(model, "dropout"); dropout != nullptr && *dropout != 0.0) {
    return refuse(
        "model.dropout: a tokenizer that drops merges at random is for training only; set it to "
        "null");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!text_or(model, key, "").empty()) return unknown("model", std::format("BPE with {}", key));
  }
  spec_.model = TokenizerModel::bpe;
  spec_.byte_fallback = flag(model, "byte_fallback", false);
  spec_.ignore_merges = flag(model, "ignore_merges", false);
  spec_.fuse_unknown = flag(model, "fuse_unk", false);
  return {};
}

Result<void> Reader::read_vocabulary(const json& vocabulary, const json* added) {
  std::vector<std::string_view> pieces;
  const auto set = [&](const std::string& piece, const json& id,
                       std::string_view field) -> Result<void> {
    if (!id.is_number_integer() || id < 0 || id > kMaxId) {
      return refuse("{}: \"{}\" has no id between 0 and {}", field, piece, kMaxId);
    }
    const auto at = id.get<uint32_t>();
    if (at >= pieces.size()) pieces.resize(at + 1);
    if (!pieces[at].empty() && pieces[at] != piece) {
      return refuse("{}: \"{}\" and \"{}\" both have id {}", field, pieces[at], piece, at);
    }
    pieces[at] = piece;
    index_.set(piece, at);
    return {};
  };
  index_.reserve(vocabulary.size());
  if (vocabulary.is_array()) {
    for (const json& entry : vocabulary) {
      const bool whole =
          entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_number();
      const size_t id = storage_.scores.size();
      if (!whole) return refuse("model.vocab: entry {} is not a piece and its score", id);
      VOLVELLE_RETURN_IF_ERROR(set(*entry[0].get_ptr<const json::string_t*>(), id, "model.vocab"));
      storage_.scores.push_back(entry[1].get<double>());
    }
  } else {
    for (const auto& [piece, id] : vocabulary.items())
      VOLVELLE_RETURN_IF_ERROR(set(piece, id, "model.vocab"));
  }
  if (spec_.model != TokenizerModel::bpe) {
    auto made = storage_.set_trie(pieces);  // of the model's own pieces, without added tokens
    if (!made.has_value()) return refuse("model.vocab: {}", made.error().message);
  }
  if (added != nullptr) {
    if (!added->is_array()) return refuse("added_tokens: is not a list");
    for (const json& token : *added) {
      const std::string* content = text_member(token, "content");
      const json* id = member(token, "id");
      if (content == nullptr || id == nullptr)
        return refuse("added_tokens: a token lacks its content or id");
      if (content->empty()) continue;
      VOLVELLE_RETURN_IF_ERROR(set(*content, *id, "added_tokens"));
      const bool special = flag(token, "special", false);
      spec_.added.emplace_back(id->get<uint32_t>(), special, flag(token, "normalized", !special),
                               flag(token, "single_word", false), flag(token, "lstrip", false),
                               flag(token, "rstrip", false));
    }
  }
  return storage_.set_pieces(pieces);
}

Result<void> Reader::read_merges(const json& merges) {
  if (!merges.is_array()) return refuse("model.merges: is not a list");
  storage_.merges.reserve(merges.size());
  for (const json& entry : merges) {
    std::string_view left, right;
    if (const std::string* both = entry.get_ptr<const json::string_t*>()) {
      const size_t blank = both->find(' ');
      if (blank == both->npos || both->find(' ', blank + 1) != both->npos) {
        return refuse("model.merges: \"{}\" is not two pieces", *both);
      }
      left = std::string_view(*both).substr(0, blank);
      right = std::string_view(*both).substr(blank + 1);
    } else if (entry.is_array() && entry.size() == 2 && entry[0].is_string() &&
               entry[1].is_string()) {
      left = *entry[0].get_ptr<const json::string_t*>();
      right = *entry[1].get_ptr<const json::string_t*>();
    } else {
      return refuse("model.merges: entry {} is not two pieces", storage_.merges.size());
    }
    auto merge = index_.merge(left, right);
    if (!merge.has_value()) return refuse("model.merges: {}", merge.error().message);
    storage_.merges.push_back(*merge);
  }
  return {};
}

Result<Reader::Pattern> Reader::read_pattern(const json& step, const char* section) const {
  const json* pattern = member(step, "pattern");
  if (pattern != nullptr) {
    if (const std::string* literal = text_member(*pattern, "String"))
      return Pattern{*literal, true};
    if (const std::string* regex = text_member(*pattern, "Regex")) {
      auto translated = translate_oniguruma(*regex);
      if (!translated.has_value()) return refuse("{}: {}", section, translated.error().message);
      return Pattern{*std::move(translated), false};
    }
  }
  return refuse("{}: a component has no pattern", section);
}

Result<SplitBehavior> Reader::read_behavior(const json& step, std::string_view fallback) const {
  const std::string name = text_or(step, "behavior", fallback);
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  return unknown("pre_tokenizer.behavior", name);
}

Result<PrependScheme> Reader::read_prepend(const json& step) const {
  const std::string name =
      text_or(step, "prepend_scheme", flag(step, "add_prefix_space", true) ? "always" : "never");
  if (name == "never") return PrependScheme::never;
  if (name == "first") return PrependScheme::first;
  if (name == "always") return PrependScheme::always;
  return unknown("prepend_scheme", name);
}

Result<void> Reader::read_normalizer(const json& normalizer) {
  return each(normalizer, "normalizers", "normalizer",
              [this](const json& step, std::string_view type) -> Result<void> {
                NormalizerStep made;
                if (type == "NFC") {
                  made.kind = NormalizerKind::nfc;
                } else if (type == "NFD") {
                  made.kind = NormalizerKind::nfd;
                } else if (type == "NFKC") {
                  made.kind = NormalizerKind::nfkc;
                } else if (type == "NFKD") {
                  made.kind = NormalizerKind::nfkd;
                } else if (type == "Lowercase") {
                  made.kind = NormalizerKind::lowercase;
                } else if (type == "Prepend") {
                  made.kind = NormalizerKind::prepend;
                  made.text = text_or(step, "prepend", "");
                } else if (type == "Replace") {
                  made.kind = NormalizerKind::replace;
                  VOLVELLE_ASSIGN_OR_RETURN(Pattern pattern, read_pattern(step, "normalizer"));
                  made.pattern = std::move(pattern.text);
                  made.literal = pattern.literal;
                  made.text = text_or(step, "content", "");
                } else if (type == "Strip") {
                  made.kind = NormalizerKind::strip;
                  made.left = flag(step, "strip_left", true);
                  made.right = flag(step, "strip_right", true);
                } else if (type == "StripAccents") {
                  made.kind = NormalizerKind::replace;
                  made.pattern = kMarks;
                  made.literal = false;
                } else if (type == "BertNormalizer") {
                  const bool lowercase = flag(step, "lowercase", true);
                  return append_bert_normalizer(
                      {.clean_text = flag(step, "clean_text", true),
                       .handle_chinese_chars = flag(step, "handle_chinese_chars", true),
                       .strip_accents = flag(step, "strip_accents", lowercase),
                       .lowercase = lowercase},
                      spec_);
                } else if (type == "Precompiled") {
                  return read_character_map(step);
                } else if (type == "Nmt") {
                  made.kind = NormalizerKind::replace;
                  made.literal = false;
                  made.pattern = kNmtDropped;
                  spec_.normalizers.push_back(made);
                  made.pattern = kNmtBlank;
                  made.text = " ";
                } else {
                  return unknown("normalizer", type);
                }
                spec_.normalizers.push_back(std::move(made));
                return {};
              });
}

Result<void> Reader::read_character_map(const json& step) {
  const std::string* text = text_member(step, "precompiled_charsmap");
  if (text == nullptr || text->empty()) return {};
  std::optional<std::string> bytes = decode_base64(*text);
  if (!bytes.has_value()) return refuse("normalizer.precompiled_charsmap: is not base64");
  if (!storage_.character_map.empty() && storage_.character_map != *bytes) {
    return refuse("normalizer: two different character maps are not supported by this version");
  }
  storage_.character_map = *std::move(bytes);
  spec_.normalizers.push_back({.kind = NormalizerKind::grapheme_map});
  return {};
}

Result<void> Reader::read_pre_tokenizer(const json& pre_tokenizer) {
  return each(pre_tokenizer, "pretokenizers", "pre_tokenizer",
              [this](const json& step, std::string_view type) -> Result<void> {
                std::vector<PreTokenizerStep>& steps = spec_.pre_tokenizers;
                PreTokenizerStep made;
                if (type == "ByteLevel") {
                  if (flag(step, "add_prefix_space", true)) {
                    made.kind = PreTokenizerKind::prefix_space;
                    steps.push_back(std::exchange(made, {}));
                  }
                  if (flag(step, "use_regex", true)) {
                    VOLVELLE_ASSIGN_OR_RETURN(made.pattern, translate_oniguruma(kGpt2Split));
                    steps.push_back(std::exchange(made, {}));
                  }
                  made.kind = PreTokenizerKind::byte_level;
                } else if (type == "Split") {
                  VOLVELLE_ASSIGN_OR_RETURN(Pattern pattern, read_pattern(step, "pre_tokenizer"));
                  made.pattern = std::move(pattern.text);
                  made.literal = pattern.literal;
                  made.invert = flag(step, "invert", false);
                  VOLVELLE_ASSIGN_OR_RETURN(made.behavior, read_behavior(step, "Isolated"));
                } else if (type == "Digits") {
                  made.pattern = kDigit;
                  made.behavior = flag(step, "individual_digits", false)
                                      ? SplitBehavior::isolated
                                      : SplitBehavior::contiguous;
                } else if (type == "Punctuation") {
                  made.pattern = kPunctuation;
                  VOLVELLE_ASSIGN_OR_RETURN(made.behavior, read_behavior(step, "Isolated"));
                } else if (type == "WhitespaceSplit") {
                  VOLVELLE_ASSIGN_OR_RETURN(made.pattern, translate_oniguruma(R"(\s)"));
                  made.behavior = SplitBehavior::removed;
                } else if (type == "Whitespace") {
                  VOLVELLE_ASSIGN_OR_RETURN(made.pattern, translate_oniguruma(R"(\w+|[^\w\s]+)"));
                  made.invert = true;
                  made.behavior = SplitBehavior::removed;
                } else if (type == "BertPreTokenizer") {
                  return append_bert_pre_tokenizer(spec_);
                } else if (type == "Metaspace") {
                  made.kind = PreTokenizerKind::metaspace;
                  made.text = text_or(step, "replacement", "\u2581");
                  VOLVELLE_ASSIGN_OR_RETURN(made.prepend, read_prepend(step));
                  made.split = flag(step, "split", true);
                } else {
                  return unknown("pre_tokenizer", type);
                }
                steps.push_back(std::move(made));
                return {};
              });
}

Result<void> Reader::read_decoder(const json& decoder) {
  return each(
      decoder, "decoders", "decoder",
      [this](const json& step, std::string_view type) -> Result<void> {
        DecoderStep made;
        if (type == "ByteLevel") {
          made.kind = DecoderKind::byte_level;
        } else if (type == "Replace") {
          made.kind = DecoderKind::replace;
          VOLVELLE_ASSIGN_OR_RETURN(Pattern pattern, read_pattern(step, "decoder"));
          if (!pattern.literal) return unknown("decoder", "Replace with a Regex");
          made.pattern = std::move(pattern.text);
          made.text = text_or(step, "content", "");
        } else if (type == "ByteFallback") {
          made.kind = DecoderKind::byte_fallback;
        } else if (type == "Fuse") {
          made.kind = DecoderKind::fuse;
        } else if (type == "Strip") {
          made.kind = DecoderKind::strip;
          made.text = text_or(step, "content", "");
          made.start =
              static_cast<uint32_t>(std::clamp<int64_t>(integer(step, "start", 0), 0, UINT32_MAX));
          made.stop =
              static_cast<uint32_t>(std::clamp<int64_t>(integer(step, "stop", 0), 0, UINT32_MAX));
        } else if (type == "Metaspace") {
          made.kind = DecoderKind::metaspace;
          made.text = text_or(step, "replacement", "\u2581");
          VOLVELLE_ASSIGN_OR_RETURN(made.prepend, read_prepend(step));
        } else if (type == "WordPiece") {
          made.kind = DecoderKind::wordpiece;
          made.pattern = text_or(step, "prefix", "##");
          made.cleanup = flag(step, "cleanup", true);
        } else {
          return unknown("decoder", type);
        }
        spec_.decoders.push_back(std::move(made));
        return {};
      });
}

Result<int32_t> Reader::id_of_pair(const json& processor, const char* key) const {
  const json* pair = member(processor, key);
  if (pair == nullptr || !pair->is_array() || pair->size() != 2 ||
      !(*pair)[1].is_number_integer() || (*pair)[1] < 0 || (*pair)[1] > kMaxId) {
    return refuse("post_processor.{}: is not a token and its id", key);
  }
  return (*pair)[1].get<int32_t>();
}

// Of several processors the later ones act on what the earlier ones made.
Result<void> Reader::read_post_processor(const json& processor) {
  bool adds = false;
  const auto read = [&](const json& step, std::string_view type) -> Result<void> {
    if (type == "ByteLevel") return {};  // moves offsets only
    spec_.no_pair = spec_.no_pair || std::exchange(adds, true);
    if (type == "TemplateProcessing") return read_template(step);
    if (type == "RobertaProcessing" || type == "BertProcessing") {
      VOLVELLE_ASSIGN_OR_RETURN(const int32_t cls, id_of_pair(step, "cls"));
      VOLVELLE_ASSIGN_OR_RETURN(const int32_t sep, id_of_pair(step, "sep"));
      set_bert_processing(cls, sep, type == "RobertaProcessing", spec_);
      return {};
    }
    return unknown("post_processor", type);
  };
  return each(processor, "processors", "post_processor", read);
}

// The parts of a template: "single" has the first text, "pair" both.
Result<std::vector<PairPart>> Reader::read_parts(const json& processor, const char* key) const {
  const json* list = member(processor, key);
  if (list == nullptr || !list->is_array()) return refuse("post_processor.{}: is not a list", key);
  std::vector<PairPart> parts;
  for (const json& part : *list) {
    const json* text = member(part, "Sequence");
    const json* token = member(part, "SpecialToken");
    const json* object = text != nullptr ? text : token;
    const int64_t type = object == nullptr ? -1 : integer(*object, "type_id", 0);
    if (type < 0 || type > UINT8_MAX) {
      return refuse("post_processor.{}: a part is neither a text nor a special token", key);
    }
    if (text != nullptr) {
      parts.emplace_back(text_or(*text, "id", "A") == "A" ? kFirstText : kSecondText,
                         static_cast<uint8_t>(type));
      continue;
    }
    const std::string* name = text_member(*token, "id");
    const json* tokens = member(processor, "special_tokens");
    const json* entry =
        name == nullptr || tokens == nullptr ? nullptr : member(*tokens, name->c_str());
    const json* ids = entry == nullptr ? nullptr : member(*entry, "ids");
    if (ids == nullptr || !ids->is_array())
      return refuse("post_processor.{}: a special token has no ids", key);
    for (const json& id : *ids) {
      if (!id.is_number_integer() || id < 0 || id > kMaxId)
        return refuse("post_processor: \"{}\" has a bad id", *name);
      parts.emplace_back(id.get<int32_t>(), static_cast<uint8_t>(type));
    }
  }
  return parts;
}

Result<void> Reader::read_template(const json& processor) {
  VOLVELLE_ASSIGN_OR_RETURN(const std::vector<PairPart> single, read_parts(processor, "single"));
  const auto is_text = [](PairPart part) { return part.id() < 0; };
  const auto text = std::ranges::find_if(single, is_text);
  if (text == single.end()) return refuse("post_processor.single: the text does not stand in it");
  if (std::ranges::count_if(single, is_text) > 1)
    return refuse("post_processor.single: the text stands in it twice");
  std::vector<int32_t> prefix;
  for (auto part = single.begin(); part != text; ++part) prefix.push_back(part->id());
  spec_.prefix.insert(spec_.prefix.begin(), prefix.begin(), prefix.end());
  for (auto part = text + 1; part != single.end(); ++part) spec_.suffix.push_back(part->id());

  if (member(processor, "pair") == nullptr) {
    spec_.no_pair = true;
    return {};
  }
  VOLVELLE_ASSIGN_OR_RETURN(spec_.pair, read_parts(processor, "pair"));
  std::vector<int32_t> texts;
  for (const PairPart part : spec_.pair) {
    if (is_text(part)) texts.push_back(part.id());
  }
  if (texts != std::vector{kFirstText, kSecondText}) {
    spec_.no_pair = true;
    spec_.pair.clear();
  }
  return {};
}

void Reader::add_template(std::string name, std::string text) {
  for (const ChatTemplate& known : spec_.chat_templates) {
    if (known.name == name) return;
  }
  storage_.texts.push_back(std::move(text));
  spec_.chat_templates.push_back({std::move(name), storage_.texts.back()});
}

void Reader::read_config(const json& config) {
  const auto id = [&](const char* key) -> int32_t {
    const json* token = member(config, key);
    if (token == nullptr) return -1;
    const std::string* text = token->is_object() ? text_member(*token, "content")
                                                 : token->get_ptr<const json::string_t*>();
    return text == nullptr ? -1 : static_cast<int32_t>(index_.find(*text));
  };
  spec_.bos = id("bos_token");
  if (const int32_t eos = id("eos_token"); eos >= 0) spec_.eos.push_back(eos);
}

// The forms that pieces which name languages have: deu_Latn (NLLB), de_DE (mBART), __de__ (M2M100);
// 0: it has none of them.
int language_form(std::string_view piece) {
  const auto spelt = [](std::string_view text, std::string_view form) {
    return std::ranges::equal(text, form, [](char c, char kind) {
      return kind == 'a' ? c >= 'a' && c <= 'z' : kind == 'A' ? c >= 'A' && c <= 'Z' : c == kind;
    });
  };
  if (spelt(piece, "aaa_Aaaa")) return 1;
  if (spelt(piece, "aa_AA")) return 2;
  if (spelt(piece, "__aa__") || spelt(piece, "__aaa__")) return 3;
  return 0;
}

// A language around texts may be replaced by any other special token of its form. The configuration
// may name another one than the file has, and another place.
Result<void> Reader::find_languages(const json& config) {
  const auto piece = [&](int32_t id) {
    const size_t begin = id == 0 ? 0 : storage_.piece_ends[static_cast<size_t>(id) - 1];
    return std::string_view(storage_.piece_bytes)
        .substr(begin, storage_.piece_ends[static_cast<size_t>(id)] - begin);
  };
  std::optional<int32_t> language;
  for (const auto* ids : {&spec_.prefix, &spec_.suffix}) {
    for (const int32_t id : *ids) {
      if (static_cast<size_t>(id) < storage_.piece_ends.size() && language_form(piece(id)) != 0) {
        language = id;
      }
    }
  }
  if (!language.has_value()) return {};
  for (const AddedToken& token : spec_.added) {
    const auto id = static_cast<int32_t>(token.id());
    if (token.special() && language_form(piece(id)) == language_form(piece(*language))) {
      spec_.languages.push_back(id);
    }
  }
  if (const std::string* source = text_member(config, "src_lang")) {
    const int64_t id = index_.find(*source);
    if (!std::ranges::contains(spec_.languages, id)) {
      return refuse("tokenizer_config.json: src_lang \"{}\" is no language of this tokenizer",
                    *source);
    }
    std::ranges::replace(spec_.prefix, *language, static_cast<int32_t>(id));
    std::ranges::replace(spec_.suffix, *language, static_cast<int32_t>(id));
    for (PairPart& part : spec_.pair) {
      if (part.id() == *language) part = PairPart(static_cast<int32_t>(id), part.type());
    }
    language = static_cast<int32_t>(id);
  }
  // Files from before transformers 4.33 have NLLB's language behind the text; it belongs before it.
  if (text_or(config, "tokenizer_class", "").starts_with("Nllb") &&
      !flag(config, "legacy_behaviour", false) && spec_.prefix.empty() &&
      spec_.suffix.size() == 2 && spec_.suffix[1] == *language) {
    spec_.suffix.pop_back();
    spec_.prefix = {*language};
    const int32_t eos = spec_.suffix[0];
    spec_.pair = {{*language, 0}, {kFirstText, 0}, {kSecondText, 0}, {eos, 0}};
  }
  return {};
}

Result<std::string> Reader::read_template_file(const std::filesystem::path& path) const {
  VOLVELLE_ASSIGN_OR_RETURN(const SourceFile file, SourceFile::open(path.string()));
  if (file.size() > kMaxTemplateBytes)
    return fail("{}: is too long for a chat template", path.string());
  std::string text(file.size(), '\0');
  VOLVELLE_RETURN_IF_ERROR(file.read(0, std::as_writable_bytes(std::span(text))));
  if (!is_utf8(text)) return fail("{}: is not UTF-8", path.string());
  return text;
}

// Where a template stands in several places the file of its own wins, then the configuration, then
// the older chat_template.json.
Result<void> Reader::read_chat_templates(const json& config) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(path_).parent_path();
  std::error_code ignored;
  if (const fs::path path = folder / "chat_template.jinja"; fs::exists(path, ignored)) {
    VOLVELLE_ASSIGN_OR_RETURN(std::string text, read_template_file(path));
    add_template("default", std::move(text));
  }
  const auto add_all = [this](const json* value) {
    if (value == nullptr) return;
    if (const std::string* text = value->get_ptr<const json::string_t*>())
      add_template("default", *text);
    if (!value->is_array()) return;
    for (const json& entry : *value) {
      const std::string* text = text_member(entry, "template");
      if (text != nullptr) add_template(text_or(entry, "name", "default"), *text);
    }
  };
  add_all(member(config, "chat_template"));
  VOLVELLE_ASSIGN_OR_RETURN(const json older,
                            read_json_if_present((folder / "chat_template.json").string()));
  add_all(member(older, "chat_template"));
  std::vector<fs::path> more;
  for (fs::directory_iterator entry(folder / "additional_chat_templates", ignored), end;
       !ignored && entry != end; entry.increment(ignored)) {
    if (entry->path().extension() == ".jinja") more.push_back(entry->path());
  }
  std::ranges::sort(more);
  for (const fs::path& path : more) {
    VOLVELLE_ASSIGN_OR_RETURN(std::string text, read_template_file(path));
    add_template(path.stem().string(), std::move(text));
  }
  // The default comes first.
  std::ranges::stable_partition(spec_.chat_templates,
                                [](const ChatTemplate& t) { return t.name == "default"; });
  return {};
}

}  // namespace

Result<TokenizerSpec> read_tokenizer_json(const std::string& path,
                                          const std::optional<std::string>& config_path) {
  return Reader(path).read(config_path);
}

}  // namespace volvelle
