// A character map as SentencePiece compiles them into its models: a trie from strings to their
// normal forms, which lie behind it in one text, each ended by a byte 0.

#ifndef VOLVELLE_RUNTIME_TOKENIZER_CHARACTER_MAP_H_
#define VOLVELLE_RUNTIME_TOKENIZER_CHARACTER_MAP_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "platforms/error.h"
#include "runtime/tokenizer/double_array.h"

namespace volvelle {

class CharacterMap {
 public:
  // `bytes` outlive the map, at an address that is a multiple of 4. Empty: nothing changes.
  static Result<CharacterMap> make(std::string_view bytes);

  // `text`, which is UTF-8, with the longest key at each place replaced (SentencePiece,
  // normalizer.cc).
  std::string map_longest(std::string_view text) const;

  // As Hugging Face tokenizers do it: a grapheme cluster of less than 6 bytes becomes what its
  // shortest prefix among the keys stands for, whatever follows in it; of others each character
  // does.
  std::string map_graphemes(std::string_view text) const;

  double growth() const { return growth_; }  // bytes that may become of one, at least 1

 private:
  // The form of the shortest or longest key that `text` begins with; `bytes`, the key's, is 0 where
  // there is none.
  struct Found {
    size_t bytes = 0;
    std::string_view form;
  };
  Found find(std::string_view text, bool longest) const;
  std::string_view form(int64_t value) const;  // data() is null where there is none
  Result<void> measure_growth(size_t units);

  DoubleArray trie_;
  std::string_view forms_;
  double growth_ = 1;
};

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_TOKENIZER_CHARACTER_MAP_H_
