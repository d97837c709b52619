#include "runtime/tokenizer/stored.h"

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "runtime/tokenizer/utf8.h"

namespace volvelle {
namespace {

constexpr size_t kMaxTextBytes = 64 * 1024;  // of a step's pattern or text, or a template's name

template <typename T>
Result<file::Segment> write_all(std::span<const T> items, const SegmentWriter& write) {
  return write(std::as_bytes(items));
}

// The items of a segment; a null segment is empty.
template <typename T>
Result<std::span<const T>> view(const char* field, const file::Segment* segment,
                                const SegmentReader& read) {
  if (segment == nullptr) return std::span<const T>();
  VOLVELLE_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes, read(*segment));
  if (bytes.size() % sizeof(T) != 0 ||
      reinterpret_cast<uintptr_t>(bytes.data()) % alignof(T) != 0) {
    return fail("tokenizer.{}: {} bytes are not whole entries of {}", field, bytes.size(),
                sizeof(T));
  }
  return std::span(reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T));
}

std::string text(const flatbuffers::String* string) {
  return string == nullptr ? std::string() : string->str();
}

Result<void> check_length(const char* field, const flatbuffers::String* text) {
  if (text == nullptr || text->size() <= kMaxTextBytes) return {};
  return fail("tokenizer.{}: a text of {} bytes is longer than the {} possible", field,
              text->size(), kMaxTextBytes);
}

// Steps are few and their texts short: tables may share one long text, and each would be a copy.
template <typename Step>
Result<void> check_size(const char* field,
                        const flatbuffers::Vector<flatbuffers::Offset<Step>>* steps) {
  if (steps == nullptr) return {};
  if (steps->size() > kMaxTokenizerSteps) {
    return fail("tokenizer.{}: {} are more than the {} possible", field, steps->size(),
                kMaxTokenizerSteps);
  }
  for (const Step* step : *steps) {
    if constexpr (std::is_same_v<Step, file::ChatTemplate>) {
      VOLVELLE_RETURN_IF_ERROR(check_length(field, step->name()));
    } else {
      VOLVELLE_RETURN_IF_ERROR(check_length(field, step->pattern()));
      VOLVELLE_RETURN_IF_ERROR(check_length(field, step->text()));
    }
  }
  return {};
}

template <typename Enum>
Result<void> check_enum(const char* field, Enum value, Enum last) {
  if (value <= last) return {};
  return fail(
      "tokenizer.{}: kind {} is unknown to this version; convert again, or use a newer program",
      field, static_cast<int>(value));
}

Result<std::vector<int32_t>> ids(const char* field, const flatbuffers::Vector<uint32_t>* stored) {
  std::vector<int32_t> ids;
  if (stored == nullptr) return ids;
  for (const uint32_t id : *stored) {
    if (id > INT32_MAX) return fail("tokenizer.{}: id {} is out of range", field, id);
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

}  // namespace

Result<flatbuffers::Offset<file::Tokenizer>> store_tokenizer(
    const TokenizerSpec& spec, flatbuffers::FlatBufferBuilder& builder,
    const SegmentWriter& write) {
  flatbuffers::Offset<file::Tokenizer> target;
  if (spec.target != nullptr) {
    VOLVELLE_ASSIGN_OR_RETURN(target, store_tokenizer(*spec.target, builder, write));
  }
  VOLVELLE_ASSIGN_OR_RETURN(const file::Segment trie, write_all(spec.trie, write));
  VOLVELLE_ASSIGN_OR_RETURN(const file::Segment scores, write_all(spec.scores, write));
  VOLVELLE_ASSIGN_OR_RETURN(const file::Segment entry_ids, write_all(spec.entry_ids, write));
  VOLVELLE_ASSIGN_OR_RETURN(const file::Segment character_map,
                            write_all(std::span(spec.character_map), write));
  VOLVELLE_ASSIGN_OR_RETURN(const file::Segment piece_ends, write_all(spec.piece_ends, write));
  VOLVELLE_ASSIGN_OR_RETURN(const file::Segment piece_bytes,
                            write_all(std::span(spec.piece_bytes), write));
  VOLVELLE_ASSIGN_OR_RETURN(const file::Segment merges, write_all(spec.merges, write));

  std::vector<flatbuffers::Offset<file::NormalizerStep>> normalizers;
  for (const NormalizerStep& step : spec.normalizers) {
    normalizers.push_back(file::CreateNormalizerStep(
        builder, step.kind, builder.CreateString(step.pattern), step.literal,
        builder.CreateString(step.text), step.left, step.right));
  }
  std::vector<flatbuffers::Offset<file::PreTokenizerStep>> pre_tokenizers;
  for (const PreTokenizerStep& step : spec.pre_tokenizers) {
    pre_tokenizers.push_back(file::CreatePreTokenizerStep(
        builder, step.kind, builder.CreateString(step.pattern), step.literal, step.invert,
        step.behavior, builder.CreateString(step.text), step.prepend, step.split));
  }
  std::vector<flatbuffers::Offset<file::DecoderStep>> decoders;
  for (const DecoderStep& step : spec.decoders) {
    decoders.push_back(file::CreateDecoderStep(
        builder, step.kind, builder.CreateString(step.pattern), builder.CreateString(step.text),
        step.start, step.stop, step.prepend, step.cleanup));
  }
  std::vector<flatbuffers::Offset<file::ChatTemplate>> chat_templates;
  for (const ChatTemplate& chat_template : spec.chat_templates) {
    VOLVELLE_ASSIGN_OR_RETURN(const file::Segment text,
                              write_all(std::span(chat_template.text), write));
    chat_templates.push_back(
        file::CreateChatTemplate(builder, builder.CreateString(chat_template.name), &text));
  }
  const auto store_ids = [&](const std::vector<int32_t>& ids) {
    return builder.CreateVector(std::vector<uint32_t>(ids.begin(), ids.end()));
  };
  const auto stored_normalizers = builder.CreateVector(normalizers);
  const auto stored_pre_tokenizers = builder.CreateVector(pre_tokenizers);
  const auto stored_decoders = builder.CreateVector(decoders);
  const auto stored_chat_templates = builder.CreateVector(chat_templates);
  const auto added = builder.CreateVectorOfStructs(spec.added);
  const auto prefix = store_ids(spec.prefix), suffix = store_ids(spec.suffix),
             eos = store_ids(spec.eos), languages = store_ids(spec.languages);
  const auto pair = builder.CreateVectorOfStructs(spec.pair);
  const auto continuing = builder.CreateString(spec.continuing),
             code_open = builder.CreateString(spec.code_open),
             code_close = builder.CreateString(spec.code_close);
  // Segments that another kind of model has are left out, not empty.
  const auto present = [](const file::Segment& segment) {
    return segment.bytes() == 0 ? nullptr : &segment;
  };
  return file::CreateTokenizer(
      builder, spec.model, &piece_ends, &piece_bytes, &merges, spec.byte_fallback,
      spec.ignore_merges, spec.fuse_unknown, spec.unknown, stored_normalizers,
      stored_pre_tokenizers, stored_decoders, added, prefix, suffix, spec.bos, eos,
      stored_chat_templates, present(trie), present(scores), present(entry_ids), spec.float_sums,
      continuing, spec.max_word_characters, present(character_map), pair, spec.no_pair, code_open,
      code_close, languages, target);
}

Result<TokenizerSpec> view_tokenizer(const file::Tokenizer& table, const SegmentReader& read) {
  TokenizerSpec spec;
  VOLVELLE_RETURN_IF_ERROR(check_enum("model", table.model(), TokenizerModel::MAX));
  spec.model = table.model();
  VOLVELLE_ASSIGN_OR_RETURN(spec.piece_ends,
                            view<uint32_t>("piece_ends", table.piece_ends(), read));
  VOLVELLE_ASSIGN_OR_RETURN(const auto piece_bytes,
                            view<char>("piece_bytes", table.piece_bytes(), read));
  spec.piece_bytes = {piece_bytes.data(), piece_bytes.size()};
  VOLVELLE_ASSIGN_OR_RETURN(spec.merges, view<Merge>("merges", table.merges(), read));
  spec.byte_fallback = table.byte_fallback();
  spec.ignore_merges = table.ignore_merges();
  spec.fuse_unknown = table.fuse_unknown();
  spec.unknown = table.unknown();
  spec.bos = table.bos();
  VOLVELLE_ASSIGN_OR_RETURN(spec.eos, ids("eos", table.eos()));
  VOLVELLE_ASSIGN_OR_RETURN(spec.prefix, ids("prefix", table.prefix()));
  VOLVELLE_ASSIGN_OR_RETURN(spec.suffix, ids("suffix", table.suffix()));
  VOLVELLE_ASSIGN_OR_RETURN(spec.trie, view<uint32_t>("trie", table.trie(), read));
  VOLVELLE_ASSIGN_OR_RETURN(spec.scores, view<double>("scores", table.scores(), read));
  VOLVELLE_ASSIGN_OR_RETURN(spec.entry_ids, view<uint32_t>("entry_ids", table.entry_ids(), read));
  VOLVELLE_ASSIGN_OR_RETURN(const auto character_map,
                            view<char>("character_map", table.character_map(), read));
  spec.character_map = {character_map.data(), character_map.size()};
  spec.float_sums = table.float_sums();
  spec.max_word_characters = table.max_word_characters();
  for (const auto& [field, stored, target] :
       {std::tuple{"continuing", table.continuing(), &spec.continuing},
        std::tuple{"code_open", table.code_open(), &spec.code_open},
        std::tuple{"code_close", table.code_close(), &spec.code_close}}) {
    VOLVELLE_RETURN_IF_ERROR(check_length(field, stored));
    *target = text(stored);
  }
  spec.no_pair = table.no_pair();
  if (table.pair() != nullptr) {
    for (const PairPart* part : *table.pair()) spec.pair.push_back(*part);
  }
  VOLVELLE_ASSIGN_OR_RETURN(spec.languages, ids("languages", table.languages()));
  if (table.target() != nullptr) {
    if (table.target()->target() != nullptr) {
      return fail("tokenizer.target: has a target of its own");
    }
    VOLVELLE_ASSIGN_OR_RETURN(TokenizerSpec target, view_tokenizer(*table.target(), read));
    spec.target = std::make_shared<const TokenizerSpec>(std::move(target));
  }
  VOLVELLE_RETURN_IF_ERROR(check_size("normalizers", table.normalizers()));
  VOLVELLE_RETURN_IF_ERROR(check_size("pre_tokenizers", table.pre_tokenizers()));
  VOLVELLE_RETURN_IF_ERROR(check_size("decoders", table.decoders()));
  VOLVELLE_RETURN_IF_ERROR(check_size("chat_templates", table.chat_templates()));
  if (table.normalizers() != nullptr) {
    for (const file::NormalizerStep* step : *table.normalizers()) {
      VOLVELLE_RETURN_IF_ERROR(check_enum("normalizers", step->kind(), NormalizerKind::MAX));
      spec.normalizers.push_back({step->kind(), text(step->pattern()), step->literal(),
                                  text(step->text()), step->left(), step->right()});
    }
  }
  if (table.pre_tokenizers() != nullptr) {
    for (const file::PreTokenizerStep* step : *table.pre_tokenizers()) {
      VOLVELLE_RETURN_IF_ERROR(check_enum("pre_tokenizers", step->kind(), PreTokenizerKind::MAX));
      VOLVELLE_RETURN_IF_ERROR(
          check_enum("pre_tokenizers.behavior", step->behavior(), SplitBehavior::MAX));
      VOLVELLE_RETURN_IF_ERROR(
          check_enum("pre_tokenizers.prepend", step->prepend(), PrependScheme::MAX));
      spec.pre_tokenizers.push_back({step->kind(), text(step->pattern()), step->literal(),
                                     step->invert(), step->behavior(), text(step->text()),
                                     step->prepend(), step->split()});
    }
  }
  if (table.decoders() != nullptr) {
    for (const file::DecoderStep* step : *table.decoders()) {
      VOLVELLE_RETURN_IF_ERROR(check_enum("decoders", step->kind(), DecoderKind::MAX));
      VOLVELLE_RETURN_IF_ERROR(check_enum("decoders.prepend", step->prepend(), PrependScheme::MAX));
      spec.decoders.push_back({step->kind(), text(step->pattern()), text(step->text()),
                               step->start(), step->stop(), step->prepend(), step->cleanup()});
    }
  }
  if (table.added() != nullptr) {
    for (const AddedToken* token : *table.added()) spec.added.push_back(*token);
  }
  if (table.chat_templates() != nullptr) {
    for (const file::ChatTemplate* stored : *table.chat_templates()) {
      VOLVELLE_ASSIGN_OR_RETURN(const auto bytes,
                                view<char>("chat_templates", stored->text(), read));
      const std::string_view template_text(bytes.data(), bytes.size());
      if (!is_utf8(template_text) || !is_utf8(text(stored->name())))
        return fail("tokenizer.chat_templates: a template is not UTF-8");
      spec.chat_templates.push_back({text(stored->name()), template_text});
    }
  }
  return spec;
}

}  // namespace volvelle
