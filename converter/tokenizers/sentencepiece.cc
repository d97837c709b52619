#include "converter/tokenizers/sentencepiece.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "converter/sources/source_file.h"
#include "runtime/tokenizer/utf8.h"

namespace volvelle {
namespace {

constexpr uint64_t kMaxBytes = uint64_t{64} << 20;  // the largest published ones take 5 MB
constexpr std::string_view kBlank = "\u2581";

// A field of a protobuf message: a number, or bytes.
struct Field {
  uint64_t number = 0;
  uint64_t value = 0;      // varint, fixed32 and fixed64
  std::string_view bytes;  // length-delimited

  float real() const {
    const auto bits = static_cast<uint32_t>(value);
    float result;
    std::memcpy(&result, &bits, sizeof(result));
    return result;
  }
  int32_t integer() const { return static_cast<int32_t>(value); }
};

// Reads fields off the front of `message`. Groups, which protobuf has given up, are an error.
class Fields {
 public:
  explicit Fields(std::string_view message) : rest_(message) {}

  bool next(Field& field) {
    if (rest_.empty() || failed_) return false;
    const uint64_t key = varint();
    field = {.number = key >> 3};
    switch (key & 7) {
      case 0:
        field.value = varint();
        break;
      case 1:
        field.value = fixed(8);
        break;
      case 2:
        field.bytes = take(varint());
        break;
      case 5:
        field.value = fixed(4);
        break;
      default:
        failed_ = true;
    }
    return !failed_;
  }
  bool failed() const { return failed_; }

 private:
  std::string_view take(uint64_t bytes) {
    failed_ |= bytes > rest_.size();
    if (failed_) return {};
    const std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return taken;
  }
  uint64_t fixed(size_t bytes) {
    uint64_t value = 0;
    const std::string_view taken = take(bytes);
    if (!failed_) std::memcpy(&value, taken.data(), bytes);  // both little-endian
    return value;
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const std::string_view byte = take(1);
      if (failed_) return 0;
      value |= static_cast<uint64_t>(byte[0] & 0x7F) << shift;
      if ((byte[0] & 0x80) == 0) return value;
    }
    failed_ = true;
    return 0;
  }

  std::string_view rest_;
  bool failed_ = false;
};

// Numbers of fields: sentencepiece_model.proto of SentencePiece 0.2.
bool read_piece(std::string_view message, SentencePieceModel::Piece& piece) {
  Fields fields(message);
  for (Field field; fields.next(field);) {
    if (field.number == 1) piece.text = field.bytes;
    if (field.number == 2) piece.score = field.real();
    if (field.number == 3) piece.type = field.integer();
  }
  return !fields.failed() && is_utf8(piece.text) && std::isfinite(piece.score);
}

bool read_trainer(std::string_view message, SentencePieceModel& model) {
  Fields fields(message);
  for (Field field; fields.next(field);) {
    if (field.number == 3) model.model_type = field.integer();
    if (field.number == 24) model.blank_after = field.value != 0;
    if (field.number == 35) model.byte_fallback = field.value != 0;
    if (field.number == 40) model.unknown = field.integer();
    if (field.number == 41) model.bos = field.integer();
    if (field.number == 42) model.eos = field.integer();
    if (field.number == 43) model.padding = field.integer();
  }
  return !fields.failed();
}

bool read_normalizer(std::string_view message, SentencePieceModel& model) {
  Fields fields(message);
  for (Field field; fields.next(field);) {
    if (field.number == 2) model.character_map = field.bytes;
    if (field.number == 3) model.add_dummy_prefix = field.value != 0;
    if (field.number == 4) model.remove_extra_whitespaces = field.value != 0;
    if (field.number == 5) model.escape_whitespaces = field.value != 0;
  }
  return !fields.failed();
}

}  // namespace

Result<SentencePieceModel> parse_sentencepiece(std::string_view message, std::string_view path) {
  SentencePieceModel model;
  Fields fields(message);
  bool good = true;
  for (Field field; good && fields.next(field);) {
    if (field.number == 1) good = read_piece(field.bytes, model.pieces.emplace_back());
    if (field.number == 2) good = read_trainer(field.bytes, model);
    if (field.number == 3) good = read_normalizer(field.bytes, model);
  }
  if (!good || fields.failed() || model.pieces.empty()) {
    return fail("{}: is no whole SentencePiece model", path);
  }
  const auto count = static_cast<int32_t>(model.pieces.size());
  for (int32_t* id : {&model.unknown, &model.bos, &model.eos, &model.padding}) {
    if (*id >= count || *id < 0) *id = -1;
  }
  if (model.blank_after) {
    return fail("{}: treat_whitespace_as_suffix is not supported by this version", path);
  }
  return model;
}

Result<SentencePieceModel> read_sentencepiece(const std::string& path) {
  VOLVELLE_ASSIGN_OR_RETURN(const SourceFile file, SourceFile::open(path));
  if (file.size() > kMaxBytes) return fail("{}: is too long for a SentencePiece model", path);
  std::string message(file.size(), '\0');
  VOLVELLE_RETURN_IF_ERROR(file.read(0, std::as_writable_bytes(std::span(message))));
  return parse_sentencepiece(message, path);
}

void append_sentencepiece_steps(const SentencePieceText& settings, bool byte_fallback,
                                TokenizerSpec& spec) {
  if (settings.character_map) spec.normalizers.push_back({.kind = NormalizerKind::character_map});
  const auto replace = [&](std::string pattern, bool literal, std::string_view text) {
    spec.normalizers.push_back({.kind = NormalizerKind::replace,
                                .pattern = std::move(pattern),
                                .literal = literal,
                                .text = std::string(text)});
  };
  if (settings.remove_extra_whitespaces) {
    // At the end SentencePiece takes the blank's sign for a blank too, even one of the text's own.
    replace(settings.escape_whitespaces ? R"(\A +|[ \x{2581}]+\z)" : R"(\A +| +\z)", false, "");
    replace(" {2,}", false, " ");
  }
  const std::string_view blank = settings.escape_whitespaces ? kBlank : " ";
  if (settings.add_dummy_prefix) {
    spec.normalizers.push_back({.kind = NormalizerKind::prepend, .text = std::string(blank)});
  }
  if (settings.escape_whitespaces) replace(" ", true, kBlank);
  spec.decoders.push_back(
      {.kind = DecoderKind::replace, .pattern = std::string(kBlank), .text = " "});
  if (byte_fallback) spec.decoders.push_back({.kind = DecoderKind::byte_fallback});
  spec.decoders.push_back({.kind = DecoderKind::fuse});
  if (settings.add_dummy_prefix) {
    spec.decoders.push_back({.kind = DecoderKind::strip, .text = " ", .start = 1});
  }
}

Result<void> set_sentencepiece_entries(const std::vector<SentencePieceModel::Piece>& pieces,
                                       SpecStorage& storage, TokenizerSpec& spec) {
  // Other pieces cannot be reached; their scores must not count as the least.
  float least = std::numeric_limits<float>::infinity();
  for (const SentencePieceModel::Piece& piece : pieces) {
    if (piece.type == kNormalPiece) least = std::min(least, piece.score);
  }
  if (!std::isfinite(least)) return fail("there is no normal piece with a score");
  std::vector<std::string_view> entries;
  for (const SentencePieceModel::Piece& piece : pieces) {
    const bool normal = piece.type == kNormalPiece;
    entries.push_back(normal ? std::string_view(piece.text) : std::string_view());
    storage.scores.push_back(normal ? piece.score : least);
  }
  spec.model = TokenizerModel::unigram;
  spec.float_sums = true;
  return storage.set_trie(entries);
}

}  // namespace volvelle
