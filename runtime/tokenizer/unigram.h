// Unigram language models (Kudo 2018, arXiv:1804.10959): of all ways to cut a word into pieces, the
// one whose scores (logarithms of probabilities) sum to the most, found by Viterbi's algorithm.
// Where no piece covers a character alone it may be unknown, at a price.

#ifndef VOLVELLE_RUNTIME_TOKENIZER_UNIGRAM_H_
#define VOLVELLE_RUNTIME_TOKENIZER_UNIGRAM_H_

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "platforms/error.h"
#include "runtime/tokenizer/double_array.h"
#include "runtime/tokenizer/piece_table.h"
#include "runtime/tokenizer/spec.h"

namespace volvelle {

class Unigram {
 public:
  // Both outlive the model. Scores must be finite.
  static Result<Unigram> make(const TokenizerSpec& spec, const PieceTable& pieces);

  // Appends the ids of `word`, which is UTF-8.
  void encode(std::string_view word, std::vector<int32_t>& ids) const;

 private:
  bool is_unknown(int32_t entry) const;
  void append_unknown(std::string_view text, std::vector<int32_t>& ids) const;

  const TokenizerSpec* spec_ = nullptr;
  const PieceTable* pieces_ = nullptr;
  DoubleArray trie_;
  double unknown_score_ = 0;
  std::array<int32_t, 256> byte_pieces_;  // ids of "<0xHH>"; -1: none
};

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_TOKENIZER_UNIGRAM_H_
