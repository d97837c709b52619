// UTF-8 as the tokenizer meets it: whole, broken, or cut off in the middle.

#ifndef VOLVELLE_RUNTIME_TOKENIZER_UTF8_H_
#define VOLVELLE_RUNTIME_TOKENIZER_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace volvelle {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

enum class Utf8State : uint8_t {
  whole,   // a character
  broken,  // a maximal part that no character begins with or goes on from (Unicode 16, section 3.9,
           // U+FFFD substitution)
  cut,     // the text ends inside what may yet be a character
};

struct Utf8Step {
  Utf8State state;
  uint32_t bytes;      // at least 1
  char32_t character;  // where whole
};

// What `text` begins with; it is not empty.
Utf8Step next_character(std::string_view text);

bool is_utf8(std::string_view text);

// Appends `text` with U+FFFD for every maximal broken part; a cut end counts as one.
void append_as_utf8(std::string_view text, std::string& out);

void append_character(char32_t character, std::string& out);

// Bytes at the end of `text` that may yet become a character: 0 to 3.
size_t cut_bytes(std::string_view text);

// Bytes of the character that begins with `lead`, in text known to be UTF-8.
inline size_t character_bytes(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

inline bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

// Unicode's White_Space.
constexpr bool is_white_space(char32_t c) {
  return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

// Letters, marks, decimal digits, connectors and joiners: what `\w` means in Unicode's UTS #18.
bool is_word_character(char32_t character);

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_TOKENIZER_UTF8_H_
