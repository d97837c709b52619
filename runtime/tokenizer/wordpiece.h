// WordPiece (Schuster and Nakajima 2012; as BERT has it): from left to right the longest piece of
// the vocabulary, where pieces inside a word are those written with a prefix. A word that cannot be
// cut so is unknown as a whole.

#ifndef VOLVELLE_RUNTIME_TOKENIZER_WORDPIECE_H_
#define VOLVELLE_RUNTIME_TOKENIZER_WORDPIECE_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "platforms/error.h"
#include "runtime/tokenizer/double_array.h"
#include "runtime/tokenizer/spec.h"

namespace volvelle {

class WordPiece {
 public:
  // `spec` outlives the model.
  static Result<WordPiece> make(const TokenizerSpec& spec);

  // Appends the ids of `word`, which is UTF-8.
  void encode(std::string_view word, std::vector<int32_t>& ids) const;

 private:
  const TokenizerSpec* spec_ = nullptr;
  DoubleArray trie_;
  DoubleArray::Node continuing_{};  // where pieces that go on in a word branch off
  bool can_continue_ = false;
};

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_TOKENIZER_WORDPIECE_H_
