#include "runtime/tokenizer/tokenizer.h"

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <variant>

#include "runtime/tokenizer/added_tokens.h"
#include "runtime/tokenizer/bpe.h"
#include "runtime/tokenizer/character_map.h"
#include "runtime/tokenizer/decoder.h"
#include "runtime/tokenizer/normalizer.h"
#include "runtime/tokenizer/piece_table.h"
#include "runtime/tokenizer/pre_tokenizer.h"
#include "runtime/tokenizer/unigram.h"
#include "runtime/tokenizer/utf8.h"
#include "runtime/tokenizer/wordpiece.h"

namespace volvelle {
namespace {

// Bounds that no real tokenizer comes near.
constexpr size_t kMaxAddedBytes = 4096;
constexpr size_t kMaxAllAddedBytes = 16 << 20;
constexpr double kMaxGrowth = 3000;  // bytes that all steps together may make of one
constexpr size_t kMaxPairParts = 64;

Result<void> check_pieces(const TokenizerSpec& spec) {
  if (spec.vocabulary() > kMaxSlotEntries) {
    return fail("the vocabulary has {} pieces; at most {} are possible", spec.vocabulary(),
                kMaxSlotEntries);
  }
  uint32_t previous = 0;
  bool ordered = true, whole = true;
  for (const uint32_t end : spec.piece_ends) {
    ordered &= end >= previous && end <= spec.piece_bytes.size();
    if (!ordered) break;
    whole &= end == spec.piece_bytes.size() || !is_continuation(spec.piece_bytes[end]);
    previous = end;
  }
  if (!ordered || previous != spec.piece_bytes.size()) {
    return fail("the ends of the vocabulary's pieces do not ascend to its {} bytes",
                spec.piece_bytes.size());
  }
  if (!whole || !is_utf8(spec.piece_bytes)) return fail("the vocabulary's pieces are not UTF-8");
  return {};
}

Result<void> check_ids(const TokenizerSpec& spec) {
  const auto vocabulary = static_cast<uint32_t>(spec.vocabulary());
  if (spec.merges.size() > kMaxSlotEntries) {
    return fail("{} merges are more than the {} possible", spec.merges.size(), kMaxSlotEntries);
  }
  for (const Merge& merge : spec.merges) {
    if (merge.left >= vocabulary || merge.right >= vocabulary || merge.result >= vocabulary) {
      return fail("merge {}: id {}, {} or {} lies outside the vocabulary of {}",
                  &merge - spec.merges.data(), merge.left, merge.right, merge.result, vocabulary);
    }
  }
  const auto check = [&](const char* field, int32_t id, int32_t least) -> Result<void> {
    if (id >= least && id < static_cast<int32_t>(vocabulary)) return {};
    return fail("{}: id {} lies outside the vocabulary of {}", field, id, vocabulary);
  };
  VOLVELLE_RETURN_IF_ERROR(check("unknown", spec.unknown, -1));
  VOLVELLE_RETURN_IF_ERROR(check("bos", spec.bos, -1));
  for (const int32_t id : spec.eos) VOLVELLE_RETURN_IF_ERROR(check("eos", id, 0));
  for (const int32_t id : spec.prefix) VOLVELLE_RETURN_IF_ERROR(check("prefix", id, 0));
  for (const int32_t id : spec.suffix) VOLVELLE_RETURN_IF_ERROR(check("suffix", id, 0));
  for (const int32_t id : spec.languages) VOLVELLE_RETURN_IF_ERROR(check("languages", id, 0));
  for (const AddedToken& token : spec.added) {
    if (token.id() >= vocabulary) {
      return fail("added: id {} lies outside the vocabulary of {}", token.id(), vocabulary);
    }
    if (spec.piece(token.id()).size() > kMaxAddedBytes) {
      return fail("added: token {} is longer than the {} bytes allowed", token.id(),
                  kMaxAddedBytes);
    }
  }
  return {};
}

// A pair's parts: each text once, the first one first, between ids of the vocabulary.
Result<void> check_pair(const TokenizerSpec& spec) {
  if (spec.pair.size() > kMaxPairParts) return fail("pair: more than {} parts", kMaxPairParts);
  int32_t texts = 0;
  for (const PairPart& part : spec.pair) {
    if (part.id() >= 0 && part.id() < static_cast<int32_t>(spec.vocabulary())) continue;
    if (part.id() != (texts == 0 ? kFirstText : kSecondText) || ++texts > 2) {
      return fail("pair: id {} lies outside the vocabulary of {} and is not the text that is next",
                  part.id(), spec.vocabulary());
    }
  }
  if (!spec.pair.empty() && texts != 2) return fail("pair: a text is missing");
  return {};
}

double growth(const NormalizerStep& step, double of_character_map) {
  switch (step.kind) {
    case NormalizerKind::nfc:
    case NormalizerKind::nfd:
      return 3;
    case NormalizerKind::nfkc:
    case NormalizerKind::nfkd:
      return 11;
    case NormalizerKind::lowercase:
      return 1.5;
    case NormalizerKind::prepend:
      return 1.0 + static_cast<double>(step.text.size());
    case NormalizerKind::replace:
      return std::max(1.0, step.literal ? static_cast<double>(step.text.size()) /
                                              static_cast<double>(step.pattern.size())
                                        : 1.0 + static_cast<double>(step.text.size()));
    case NormalizerKind::strip:
      return 1;
    case NormalizerKind::character_map:
    case NormalizerKind::grapheme_map:
      return of_character_map;
  }
  return 1;
}

// There are few steps, and their strings are UTF-8.
Result<void> check_steps(const TokenizerSpec& spec) {
  if (std::max({spec.normalizers.size(), spec.pre_tokenizers.size(), spec.decoders.size()}) >
      kMaxTokenizerSteps) {
    return fail("more than {} steps of one kind", kMaxTokenizerSteps);
  }
  const auto check = [](const char* field, const auto& steps) -> Result<void> {
    for (const auto& step : steps) {
      if (!is_utf8(step.pattern) || !is_utf8(step.text))
        return fail("{}: a text is not UTF-8", field);
    }
    return {};
  };
  if (!is_utf8(spec.code_open) || !is_utf8(spec.code_close)) {
    return fail("code_open, code_close: are not UTF-8");
  }
  VOLVELLE_RETURN_IF_ERROR(check("normalizers", spec.normalizers));
  VOLVELLE_RETURN_IF_ERROR(check("pre_tokenizers", spec.pre_tokenizers));
  return check("decoders", spec.decoders);
}

// Together the steps do not blow a text up. Their patterns are not empty.
Result<void> check_growth(const TokenizerSpec& spec, double of_character_map) {
  double encoding = 1, decoding = 1;
  for (const NormalizerStep& step : spec.normalizers) encoding *= growth(step, of_character_map);
  for (const PreTokenizerStep& step : spec.pre_tokenizers) {
    if (step.kind == PreTokenizerKind::byte_level) encoding *= 2;
    if (step.kind == PreTokenizerKind::prefix_space) encoding *= 2;
    if (step.kind == PreTokenizerKind::metaspace)
      encoding *= 2.0 * static_cast<double>(step.text.size());
  }
  for (const DecoderStep& step : spec.decoders) {
    if (step.kind == DecoderKind::replace) {
      decoding *= std::max(
          1.0, static_cast<double>(step.text.size()) / static_cast<double>(step.pattern.size()));
    } else if (step.kind == DecoderKind::byte_level || step.kind == DecoderKind::byte_fallback) {
      decoding *= 3;  // U+FFFD for a byte
    } else if (step.kind == DecoderKind::wordpiece) {
      decoding *= 2;  // a blank before a piece
    }
  }
  if (encoding > kMaxGrowth) {
    return fail("normalizers and pre_tokenizers: a text could grow beyond measure");
  }
  if (decoding > kMaxGrowth) return fail("decoders: a text could grow beyond measure");
  return {};
}

}  // namespace

struct Tokenizer::Parts {
  TokenizerSpec spec;
  PieceTable pieces;
  std::variant<Bpe, WordPiece, Unigram> model;
  CharacterMap character_map;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  AddedTokens raw_added;         // looked for before normalising
  AddedTokens normalized_added;  // and after
  std::vector<bool> special;     // [vocabulary]
  // Added tokens that are looked for in normalized text decode to their normalized form.
  std::unordered_map<int32_t, std::string> spellings;
  std::optional<Tokenizer> target;

  Result<void> build();
  Result<void> make_model();
  Result<void> encode_section(std::string_view raw, bool at_start, bool recognise_added,
                              std::vector<int32_t>& ids) const;
  Result<void> encode_words(std::string_view text, bool at_start, std::vector<int32_t>& ids) const;
  Result<int32_t> find_language(std::string_view name) const;
  Result<Encoding> assemble(std::span<const PairPart> parts, std::vector<int32_t> first,
                            std::vector<int32_t> second, const EncodeOptions& options) const;
};

Result<void> Tokenizer::Parts::make_model() {
  switch (spec.model) {
    case TokenizerModel::bpe: {
      VOLVELLE_ASSIGN_OR_RETURN(model, Bpe::make(spec, pieces));
      break;
    }
    case TokenizerModel::wordpiece: {
      VOLVELLE_ASSIGN_OR_RETURN(model, WordPiece::make(spec));
      break;
    }
    case TokenizerModel::unigram: {
      VOLVELLE_ASSIGN_OR_RETURN(model, Unigram::make(spec, pieces));
      break;
    }
  }
  return {};
}

Result<void> Tokenizer::Parts::build() {
  VOLVELLE_RETURN_IF_ERROR(check_pieces(spec));
  VOLVELLE_RETURN_IF_ERROR(check_ids(spec));
  VOLVELLE_RETURN_IF_ERROR(check_steps(spec));
  VOLVELLE_RETURN_IF_ERROR(check_pair(spec));
  VOLVELLE_ASSIGN_OR_RETURN(character_map, CharacterMap::make(spec.character_map));
  VOLVELLE_ASSIGN_OR_RETURN(
      normalizer,
      Normalizer::make(spec.normalizers, spec.character_map.empty() ? nullptr : &character_map));
  VOLVELLE_ASSIGN_OR_RETURN(pre_tokenizer, PreTokenizer::make(spec.pre_tokenizers));
  VOLVELLE_RETURN_IF_ERROR(check_decoders(spec.decoders));
  VOLVELLE_RETURN_IF_ERROR(check_growth(spec, character_map.growth()));
  VOLVELLE_ASSIGN_OR_RETURN(pieces, PieceTable::make(spec));
  VOLVELLE_RETURN_IF_ERROR(make_model());
  special.resize(spec.vocabulary());
  size_t added_bytes = 0;
  for (const bool special_first : {true, false}) {
    for (const AddedToken& token : spec.added) {
      if (token.special() != special_first) continue;
      special[token.id()] = special[token.id()] || token.special();
      const std::string_view text = spec.piece(token.id());
      added_bytes += text.size();
      if (!token.normalized()) {
        raw_added.add(std::string(text), token);
      } else {
        VOLVELLE_ASSIGN_OR_RETURN(std::string normalized, normalizer.apply(text));
        added_bytes += normalized.size();
        if (normalized != text) spellings[static_cast<int32_t>(token.id())] = normalized;
        normalized_added.add(std::move(normalized), token);
      }
      if (added_bytes > kMaxAllAddedBytes)
        return fail("added: its tokens take more than the {} bytes possible", kMaxAllAddedBytes);
    }
  }
  raw_added.seal();
  normalized_added.seal();
  if (spec.target != nullptr) {
    if (spec.target->target != nullptr) return fail("target: has a target of its own");
    auto made = Tokenizer::make(*spec.target);
    if (!made.has_value()) return fail("target: {}", made.error().message);
    target = *std::move(made);
  }
  return {};
}

Result<void> Tokenizer::Parts::encode_words(std::string_view text, bool at_start,
                                            std::vector<int32_t>& ids) const {
  Words words;
  VOLVELLE_RETURN_IF_ERROR(pre_tokenizer.apply(text, at_start, words));
  size_t begin = 0;
  for (const size_t end : words.ends) {
    const std::string_view word = std::string_view(words.text).substr(begin, end - begin);
    std::visit([&](const auto& kind) { kind.encode(word, ids); }, model);
    begin = end;
  }
  return {};
}

Result<void> Tokenizer::Parts::encode_section(std::string_view raw, bool at_start,
                                              bool recognise_added,
                                              std::vector<int32_t>& ids) const {
  if (recognise_added && !spec.code_open.empty() && raw.starts_with(spec.code_open)) {
    if (const size_t close = raw.find(spec.code_close); close != raw.npos) {
      const size_t end = close + spec.code_close.size();
      const int32_t id = pieces.find(raw.substr(0, end));
      if (std::max(id, spec.unknown) >= 0) ids.push_back(id >= 0 ? id : spec.unknown);
      raw.remove_prefix(end);
    }
  }
  std::string changed;
  std::string_view text = raw;
  if (!normalizer.empty()) {
    VOLVELLE_ASSIGN_OR_RETURN(changed, normalizer.apply(raw));
    text = changed;
  }
  if (!recognise_added || normalized_added.empty()) return encode_words(text, at_start, ids);
  for (const Section& section : normalized_added.find(text)) {
    if (section.id >= 0) {
      ids.push_back(section.id);
      continue;
    }
    const bool first = at_start && section.begin == 0;
    VOLVELLE_RETURN_IF_ERROR(
        encode_words(text.substr(section.begin, section.end - section.begin), first, ids));
  }
  return {};
}

Result<int32_t> Tokenizer::Parts::find_language(std::string_view name) const {
  for (const std::string& piece : {std::string(name), std::format("__{}__", name)}) {
    const int32_t id = pieces.find(piece);
    if (std::ranges::contains(spec.languages, id)) return id;
  }
  if (spec.languages.empty()) return fail("language \"{}\": this tokenizer has none", name);
  return fail("language \"{}\": this tokenizer does not have it; it names them like \"{}\"", name,
              spec.piece(static_cast<size_t>(spec.languages[0])));
}

Result<Encoding> Tokenizer::Parts::assemble(std::span<const PairPart> parts,
                                            std::vector<int32_t> first, std::vector<int32_t> second,
                                            const EncodeOptions& options) const {
  std::optional<int32_t> language;
  if (!options.language.empty()) {
    VOLVELLE_ASSIGN_OR_RETURN(language, find_language(options.language));
  }
  Encoding encoding;
  const auto special = static_cast<size_t>(
      std::ranges::count_if(parts, [](PairPart part) { return part.id() >= 0; }));
  if (special > options.limit) {
    return fail("a limit of {} tokens has no room for the {} special ones around every text",
                options.limit, special);
  }
  const size_t whole = first.size() + second.size();
  if (const size_t limit = options.limit - special; whole > limit) {
    auto& shorter = first.size() <= second.size() ? first : second;
    auto& longer = &shorter == &first ? second : first;
    shorter.resize(std::min(shorter.size(), limit / 2));
    longer.resize(limit - shorter.size());
    encoding.cut = whole - limit;
  }
  for (const PairPart& part : parts) {
    if (part.id() >= 0) {
      const bool replaced =
          language.has_value() && std::ranges::contains(spec.languages, part.id());
      encoding.ids.push_back(replaced ? *language : part.id());
    } else {
      const std::vector<int32_t>& text = part.id() == kFirstText ? first : second;
      encoding.ids.insert(encoding.ids.end(), text.begin(), text.end());
    }
    encoding.types.resize(encoding.ids.size(), part.type());
  }
  return encoding;
}

Tokenizer::Tokenizer(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::make(TokenizerSpec spec) {
  auto parts =
      std::make_unique<Parts>();  // the parts point to each other: they stay where they are
  parts->spec = std::move(spec);
  if (auto built = parts->build(); !built.has_value())
    return fail("tokenizer: {}", built.error().message);
  return Tokenizer(std::move(parts));
}

Result<std::vector<int32_t>> Tokenizer::encode_plain(std::string_view text,
                                                     bool recognise_added) const {
  std::string repaired;
  if (!is_utf8(text)) {
    append_as_utf8(text, repaired);
    text = repaired;
  }
  std::vector<int32_t> ids;
  if (!recognise_added || parts_->raw_added.empty()) {
    VOLVELLE_RETURN_IF_ERROR(parts_->encode_section(text, true, recognise_added, ids));
  } else {
    for (const Section& section : parts_->raw_added.find(text)) {
      if (section.id >= 0) {
        ids.push_back(section.id);
        continue;
      }
      const std::string_view plain = text.substr(section.begin, section.end - section.begin);
      VOLVELLE_RETURN_IF_ERROR(parts_->encode_section(plain, section.begin == 0, true, ids));
    }
  }
  return ids;
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  VOLVELLE_ASSIGN_OR_RETURN(Encoding encoding, encode_text(text, options));
  return std::move(encoding.ids);
}

Result<Encoding> Tokenizer::encode_text(std::string_view text, EncodeOptions options) const {
  const TokenizerSpec& spec = parts_->spec;
  std::vector<PairPart> parts;
  if (options.add_special) {
    for (const int32_t id : spec.prefix) parts.emplace_back(id, 0);
  }
  parts.emplace_back(kFirstText, 0);
  if (options.add_special) {
    for (const int32_t id : spec.suffix) parts.emplace_back(id, 0);
  }
  VOLVELLE_ASSIGN_OR_RETURN(std::vector<int32_t> first,
                            encode_plain(text, options.recognise_added));
  return parts_->assemble(parts, std::move(first), {}, options);
}

Result<Encoding> Tokenizer::encode_pair(std::string_view first, std::string_view second,
                                        EncodeOptions options) const {
  const TokenizerSpec& spec = parts_->spec;
  if (spec.no_pair) return fail("this tokenizer has no rule that joins two texts");
  std::vector<PairPart> parts = spec.pair;
  if (parts.empty()) parts = {{kFirstText, 0}, {kSecondText, 1}};
  if (!options.add_special) std::erase_if(parts, [](PairPart part) { return part.id() >= 0; });
  VOLVELLE_ASSIGN_OR_RETURN(std::vector<int32_t> a, encode_plain(first, options.recognise_added));
  VOLVELLE_ASSIGN_OR_RETURN(std::vector<int32_t> b, encode_plain(second, options.recognise_added));
  return parts_->assemble(parts, std::move(a), std::move(b), options);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  PieceDecoder decoder(parts_->spec.decoders, false);
  for (const int32_t id : ids) {
    if (const std::string_view text = shown(id, skip_special); !text.empty()) decoder.push(text);
  }
  decoder.finish();
  return std::move(decoder.text());
}

size_t Tokenizer::vocabulary() const { return parts_->spec.vocabulary(); }

std::string_view Tokenizer::piece(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= vocabulary()) return {};
  return parts_->spec.piece(static_cast<size_t>(id));
}

std::string_view Tokenizer::shown(int32_t id, bool skip_special) const {
  if (skip_special && is_special(id)) return {};
  const auto spelling = parts_->spellings.find(id);
  return spelling == parts_->spellings.end() ? piece(id) : std::string_view(spelling->second);
}

std::optional<int32_t> Tokenizer::find(std::string_view piece) const {
  const int32_t id = parts_->pieces.find(piece);
  return id < 0 ? std::nullopt : std::optional(id);
}

Result<int32_t> Tokenizer::language(std::string_view name) const {
  return parts_->find_language(name);
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && static_cast<size_t>(id) < vocabulary() &&
         parts_->special[static_cast<size_t>(id)];
}

const TokenizerSpec& Tokenizer::spec() const { return parts_->spec; }

const Tokenizer& Tokenizer::target() const {
  return parts_->target.has_value() ? *parts_->target : *this;
}

struct IncrementalDecoder::State {
  const Tokenizer* tokenizer;
  bool skip_special;
  PieceDecoder decoder;
};

IncrementalDecoder::IncrementalDecoder(const Tokenizer& tokenizer, bool skip_special)
    : state_(new State{&tokenizer, skip_special, PieceDecoder(tokenizer.spec().decoders, true)}) {}
IncrementalDecoder::IncrementalDecoder(IncrementalDecoder&&) noexcept = default;
IncrementalDecoder& IncrementalDecoder::operator=(IncrementalDecoder&&) noexcept = default;
IncrementalDecoder::~IncrementalDecoder() = default;

std::string IncrementalDecoder::push(int32_t id) {
  const std::string_view piece = state_->tokenizer->shown(id, state_->skip_special);
  if (piece.empty()) return {};
  PieceDecoder& decoder = state_->decoder;
  decoder.push(piece);
  if (decoder.inside_character() || decoder.text().ends_with(kReplacementCharacter)) return {};
  return std::exchange(decoder.text(), {});
}

std::string IncrementalDecoder::finish() {
  PieceDecoder decoder =
      std::exchange(state_->decoder, PieceDecoder(state_->tokenizer->spec().decoders, true));
  decoder.finish();
  return std::move(decoder.text());
}

}  // namespace volvelle
