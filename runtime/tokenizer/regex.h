// Regular expressions over UTF-8 text (PCRE2 with UTF, UCP and MULTILINE; compiled to machine code
// where the CPU and the system allow it). A pattern comes from a file, so it may be hostile: what
// cannot be compiled is an error, and a search that backtracks without end gives up with one.

#ifndef VOLVELLE_RUNTIME_TOKENIZER_REGEX_H_
#define VOLVELLE_RUNTIME_TOKENIZER_REGEX_H_

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "platforms/error.h"

namespace volvelle {

// A match: bytes [begin, end) of the text.
struct TextRange {
  size_t begin;
  size_t end;
};

class Regex {
 public:
  static Result<Regex> compile(std::string_view pattern);

  // All matches in `text`, which is UTF-8, from left to right, each at or after the end of the one
  // before; an empty match at such an end does not count. Replaces what `matches` held.
  Result<void> find_all(std::string_view text, std::vector<TextRange>& matches) const;

 private:
  struct Free {
    void operator()(void* code) const;
  };
  explicit Regex(void* code) : code_(code) {}
  std::unique_ptr<void, Free> code_;
};

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_TOKENIZER_REGEX_H_
