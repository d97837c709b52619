// Byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909): a word starts as one piece per
// character, and of all neighbours that may merge, the best-ranked, leftmost first, merge until
// none may.

#ifndef VOLVELLE_RUNTIME_TOKENIZER_BPE_H_
#define VOLVELLE_RUNTIME_TOKENIZER_BPE_H_

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "platforms/error.h"
#include "runtime/tokenizer/piece_table.h"
#include "runtime/tokenizer/spec.h"

namespace volvelle {

class Bpe {
 public:
  // `spec` has been checked (ids below the vocabulary); both outlive the model.
  static Result<Bpe> make(const TokenizerSpec& spec, const PieceTable& pieces);

  // Appends the ids of `word`, which is UTF-8.
  void encode(std::string_view word, std::vector<int32_t>& ids) const;

  // Merges what `ids` holds from `first` on. The short form looks at every neighbour each time, the
  // long one keeps a heap and takes O(n log n); they give the same.
  void merge_short(std::vector<int32_t>& ids, size_t first) const;
  void merge_long(std::vector<int32_t>& ids, size_t first) const;

 private:
  uint32_t rank(int32_t left, int32_t right) const;  // index of the merge; kNoSlot: none
  int32_t character_id(std::string_view character) const;
  void append_characters(std::string_view word, std::vector<int32_t>& ids) const;
  void append_unknown(size_t count, std::vector<int32_t>& ids) const;

  static constexpr size_t kDirectCharacters = 0x180;  // holds all characters that stand for bytes
  const TokenizerSpec* spec_ = nullptr;
  const PieceTable* pieces_ = nullptr;
  std::vector<uint32_t> slots_;  // indices of merges, hashed by (left, right)
  std::array<int32_t, kDirectCharacters> direct_;
  std::array<int32_t, 256> byte_pieces_;  // ids of "<0xHH>"; -1: none
};

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_TOKENIZER_BPE_H_
