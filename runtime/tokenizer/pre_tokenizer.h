// Cuts a section of normalised text into words, which the model then encodes one by one.

#ifndef VOLVELLE_RUNTIME_TOKENIZER_PRE_TOKENIZER_H_
#define VOLVELLE_RUNTIME_TOKENIZER_PRE_TOKENIZER_H_

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "platforms/error.h"
#include "runtime/tokenizer/regex.h"
#include "runtime/tokenizer/spec.h"

namespace volvelle {

// Words, none of them empty, one after the other in `text`.
struct Words {
  std::string text;
  std::vector<size_t> ends;

  void add(std::string_view word) {
    if (word.empty()) return;
    text += word;
    ends.push_back(text.size());
  }
  void clear() {
    text.clear();
    ends.clear();
  }
};

class PreTokenizer {
 public:
  static Result<PreTokenizer> make(std::span<const PreTokenizerStep> steps);

  // Replaces what `words` holds by those of `text`, which is UTF-8; `at_start`: the section begins
  // the whole text.
  Result<void> apply(std::string_view text, bool at_start, Words& words) const;

 private:
  struct Step {
    PreTokenizerStep step;
    std::optional<Regex> regex;
  };
  static Result<void> split(const Step& step, std::string_view text,
                            std::vector<TextRange>& ranges);

  std::vector<Step> steps_;
};

// The printable character that stands for a byte (GPT-2: bytes 21-7E, A1-AC and AE-FF stand for
// themselves, the other 68, in order, become U+0100 and on), and back; -1: the character stands for
// no byte.
char32_t character_of_byte(unsigned char byte);
int byte_of_character(char32_t character);

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_TOKENIZER_PRE_TOKENIZER_H_
