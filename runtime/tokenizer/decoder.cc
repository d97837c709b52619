#include "runtime/tokenizer/decoder.h"

#include <algorithm>
#include <utility>

#include "runtime/tokenizer/pre_tokenizer.h"
#include "runtime/tokenizer/utf8.h"

namespace volvelle {
namespace {

bool is_one_character(std::string_view text) {
  return !text.empty() && text.size() == character_bytes(text[0]);
}

// The byte of a piece "<0xHH>"; -1: it is another piece.
int byte_of_piece(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return -1;
  int value = 0;
  for (const char digit : piece.substr(3, 2)) {
    const int lower = digit | 0x20;
    if (digit >= '0' && digit <= '9') {
      value = value * 16 + (digit - '0');
    } else if (lower >= 'a' && lower <= 'f') {
      value = value * 16 + (lower - 'a' + 10);
    } else {
      return -1;
    }
  }
  return value;
}

// Bytes that the characters of `piece` stand for; its own bytes if one of them stands for none.
void append_bytes(std::string_view piece, std::string& bytes) {
  const size_t before = bytes.size();
  for (std::string_view rest = piece; !rest.empty();) {
    const Utf8Step step = next_character(rest);
    const int byte = byte_of_character(step.character);
    if (byte < 0) {
      bytes.resize(before);
      bytes += piece;
      return;
    }
    bytes += static_cast<char>(byte);
    rest.remove_prefix(step.bytes);
  }
}

std::string replace(std::string_view piece, std::string_view pattern, std::string_view with) {
  std::string out;
  for (;;) {
    const size_t found = piece.find(pattern);
    out += piece.substr(0, found);
    if (found == piece.npos) return out;
    out += with;
    piece.remove_prefix(found + pattern.size());
  }
}

// BERT's way to write English text together (Hugging Face tokenizers, decoders/wordpiece.rs).
std::string clean_up(std::string text) {
  constexpr std::pair<std::string_view, std::string_view> kChanges[] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kChanges) {
    if (text.contains(from)) text = replace(text, from, to);
  }
  return text;
}

}  // namespace

Result<void> check_decoders(std::span<const DecoderStep> steps) {
  for (const DecoderStep& step : steps) {
    if (step.kind == DecoderKind::replace && step.pattern.empty()) {
      return fail("decoders: a replacement has an empty pattern");
    }
    if ((step.kind == DecoderKind::strip || step.kind == DecoderKind::metaspace) &&
        !is_one_character(step.text)) {
      return fail("decoders: strip and metaspace act on one character, not on \"{}\"", step.text);
    }
  }
  return {};
}

PieceDecoder::PieceDecoder(std::span<const DecoderStep> steps, bool streaming)
    : steps_(steps), streaming_(streaming), states_(steps.size()) {
  bool joined = false;
  for (size_t i = 0; i < steps.size(); ++i) {
    states_[i].joined = joined;
    joined |= streaming &&
              (steps[i].kind == DecoderKind::byte_level || steps[i].kind == DecoderKind::fuse);
  }
}

void PieceDecoder::push(std::string_view piece) {
  if (steps_.empty() && !std::exchange(first_, false)) text_ += ' ';
  give(0, piece);
}

void PieceDecoder::finish() {
  for (size_t step = 0; step < steps_.size(); ++step) flush(step);
}

bool PieceDecoder::inside_character() const {
  for (size_t step = 0; step < steps_.size(); ++step) {
    const DecoderKind kind = steps_[step].kind;
    if ((kind == DecoderKind::byte_level || kind == DecoderKind::byte_fallback) &&
        !states_[step].held.empty()) {
      return true;
    }
  }
  return false;
}

void PieceDecoder::give(size_t index, std::string_view piece) {
  if (index == steps_.size()) {
    text_ += piece;
    return;
  }
  const DecoderStep& step = steps_[index];
  State& state = states_[index];
  switch (step.kind) {
    case DecoderKind::byte_level: {
      append_bytes(piece, state.held);
      if (!streaming_) return;
      const size_t whole = state.held.size() - cut_bytes(state.held);
      std::string text;
      append_as_utf8(std::string_view(state.held).substr(0, whole), text);
      state.held.erase(0, whole);
      return give(index + 1, text);
    }
    case DecoderKind::replace:
      return give(index + 1, replace(piece, step.pattern, step.text));
    case DecoderKind::byte_fallback:
      if (const int byte = byte_of_piece(piece); byte >= 0) {
        state.held += static_cast<char>(byte);
        if (streaming_ && is_utf8(state.held)) give_bytes(index);
        return;
      }
      give_bytes(index);
      return give(index + 1, piece);
    case DecoderKind::fuse:
      if (streaming_) return give(index + 1, piece);
      state.held += piece;
      return;
    case DecoderKind::strip:
      if (state.joined) return strip_joined(index, piece);
      for (uint32_t i = 0; i < step.start && piece.starts_with(step.text); ++i)
        piece.remove_prefix(step.text.size());
      for (uint32_t i = 0; i < step.stop && piece.ends_with(step.text); ++i)
        piece.remove_suffix(step.text.size());
      return give(index + 1, piece);
    case DecoderKind::metaspace: {
      const bool first = !std::exchange(state.begun, true) && step.prepend != PrependScheme::never;
      return give(index + 1, replace(piece, step.text, first ? "" : " "));
    }
    case DecoderKind::wordpiece: {
      std::string text(piece);
      if (std::exchange(state.begun, true)) {
        if (piece.starts_with(step.pattern)) {
          text.erase(0, step.pattern.size());
        } else {
          text.insert(0, " ");
        }
      }
      return give(index + 1, step.cleanup ? clean_up(std::move(text)) : text);
    }
  }
}

// The run of bytes held: text if it is UTF-8, otherwise one U+FFFD for each byte.
void PieceDecoder::give_bytes(size_t index) {
  if (states_[index].held.empty()) return;
  const std::string bytes = std::exchange(states_[index].held, {});
  if (is_utf8(bytes)) return give(index + 1, bytes);
  for (size_t i = 0; i < bytes.size(); ++i) give(index + 1, kReplacementCharacter);
}

// Strips a stream: at its start at once, at its end by holding back what may turn out to be the
// end.
void PieceDecoder::strip_joined(size_t index, std::string_view piece) {
  const DecoderStep& step = steps_[index];
  State& state = states_[index];
  while (!state.begun && state.stripped < step.start && piece.starts_with(step.text)) {
    piece.remove_prefix(step.text.size());
    ++state.stripped;
  }
  if (piece.empty()) return;
  state.begun = true;
  if (step.stop == 0) return give(index + 1, piece);
  state.held += piece;
  size_t kept = state.held.size();
  for (uint32_t i = 0;
       i < step.stop && std::string_view(state.held).substr(0, kept).ends_with(step.text); ++i) {
    kept -= step.text.size();
  }
  const std::string out = state.held.substr(0, kept);
  state.held.erase(0, kept);
  give(index + 1, out);
}

void PieceDecoder::flush(size_t index) {
  State& state = states_[index];
  switch (steps_[index].kind) {
    case DecoderKind::byte_level: {
      std::string text;
      append_as_utf8(std::exchange(state.held, {}), text);
      return give(index + 1, text);
    }
    case DecoderKind::byte_fallback:
      return give_bytes(index);
    case DecoderKind::fuse:
      if (!streaming_) give(index + 1, std::exchange(state.held, {}));
      return;
    default:
      return;  // what a strip holds at the end is what it strips
  }
}

}  // namespace volvelle
