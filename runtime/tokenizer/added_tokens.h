// Finds added tokens in text before the model sees it: leftmost, then longest, with the flags of
// each obeyed.

#ifndef VOLVELLE_RUNTIME_TOKENIZER_ADDED_TOKENS_H_
#define VOLVELLE_RUNTIME_TOKENIZER_ADDED_TOKENS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tokenizer/spec.h"

namespace volvelle {

// A stretch of text: plain, or one added token with the white space that it takes.
struct Section {
  size_t begin;
  size_t end;
  int32_t id;  // -1: plain text
};

class AddedTokens {
 public:
  // `text` is what to look for, which need not be the piece's own spelling; of equal ones the first
  // counts.
  void add(std::string text, const AddedToken& token);
  void seal();  // once all have been added

  // Cuts `text`, which is UTF-8, into sections, none of them empty.
  std::vector<Section> find(std::string_view text) const;

  bool empty() const { return tokens_.empty(); }

 private:
  struct Token {
    std::string text;
    AddedToken token;
  };
  struct Range {
    uint32_t begin = 0;
    uint32_t end = 0;
  };
  const Token* longest_at(std::string_view text) const;

  std::vector<Token> tokens_;  // sorted by text
  std::array<Range, 256> by_first_byte_{};
};

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_TOKENIZER_ADDED_TOKENS_H_
