#include "runtime/tokenizer/utf8.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>

namespace volvelle {
namespace {

// How far `text` is ASCII.
size_t ascii_prefix(std::string_view text) {
  size_t at = 0;
  for (; at + 8 <= text.size(); at += 8) {
    uint64_t eight;
    std::memcpy(&eight, text.data() + at, 8);
    if ((eight & 0x8080808080808080u) != 0) break;
  }
  while (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) ++at;
  return at;
}

}  // namespace

Utf8Step next_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {Utf8State::whole, 1, lead};
  if (lead < 0xC2 || lead > 0xF4) return {Utf8State::broken, 1, 0};
  const uint32_t bytes = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte's range excludes overlong forms, surrogates and what lies past U+10FFFF.
  uint32_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  uint32_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  char32_t character = lead & (0xFF >> (bytes + 1));
  for (uint32_t i = 1; i < bytes; ++i) {
    if (i == text.size()) return {Utf8State::cut, i, 0};
    if (byte(i) < low || byte(i) > high) return {Utf8State::broken, i, 0};
    character = character << 6 | (byte(i) & 0x3F);
    low = 0x80, high = 0xBF;
  }
  return {Utf8State::whole, bytes, character};
}

bool is_utf8(std::string_view text) {
  for (;;) {
    text.remove_prefix(ascii_prefix(text));
    if (text.empty()) return true;
    const Utf8Step step = next_character(text);
    if (step.state != Utf8State::whole) return false;
    text.remove_prefix(step.bytes);
  }
}

void append_as_utf8(std::string_view text, std::string& out) {
  while (!text.empty()) {
    const Utf8Step step = next_character(text);
    out += step.state == Utf8State::whole ? text.substr(0, step.bytes) : kReplacementCharacter;
    text.remove_prefix(step.bytes);
  }
}

void append_character(char32_t c, std::string& out) {
  utf8proc_uint8_t bytes[4];
  const auto length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(length));
}

size_t cut_bytes(std::string_view text) {
  for (size_t length = 1; length <= std::min<size_t>(3, text.size()); ++length) {
    const std::string_view tail = text.substr(text.size() - length);
    if (is_continuation(tail[0])) continue;
    return next_character(tail).state == Utf8State::cut ? length : 0;
  }
  return 0;
}

bool is_word_character(char32_t c) {
  if (c == 0x200C || c == 0x200D) return true;  // Join_Control
  // The symbols that count as alphabetic: circled and squared Latin letters.
  if ((c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
      (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189)) {
    return true;
  }
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

}  // namespace volvelle
