// What readers of tokenizers build: the bytes behind the views of a `TokenizerSpec`, and an index
// of pieces for numbering merges and names.

#ifndef VOLVELLE_CONVERTER_TOKENIZERS_SPEC_STORAGE_H_
#define VOLVELLE_CONVERTER_TOKENIZERS_SPEC_STORAGE_H_

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "platforms/error.h"
#include "runtime/tokenizer/spec.h"

namespace volvelle {

struct SpecStorage {
  std::vector<uint32_t> piece_ends;
  std::string piece_bytes;
  std::vector<Merge> merges;
  std::vector<uint32_t> trie;
  std::vector<double> scores;
  std::vector<uint32_t> entry_ids;
  std::string character_map;
  std::deque<std::string> texts;  // of chat templates; a deque, so that they stay where they are

  // Makes `pieces`, in the order of their ids, the vocabulary. Fails past 4 GiB.
  Result<void> set_pieces(const std::vector<std::string_view>& pieces);

  // Makes `entries` what the model cuts words into, by their places in the list; empty ones count
  // for nothing.
  Result<void> set_trie(const std::vector<std::string_view>& entries);
};

// Lets `spec` view what `storage` holds, and own it.
void adopt(SpecStorage storage, TokenizerSpec& spec);

// Ids by piece. The pieces' bytes outlive it.
class PieceIndex {
 public:
  void reserve(size_t pieces) { ids_.reserve(pieces); }
  void set(std::string_view piece, uint32_t id) { ids_[piece] = id; }
  int64_t find(std::string_view piece) const;  // -1: none

  // The merge of two pieces by text; fails where one of them or their join is no piece.
  Result<Merge> merge(std::string_view left, std::string_view right) const;

 private:
  std::unordered_map<std::string_view, uint32_t> ids_;
};

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_TOKENIZERS_SPEC_STORAGE_H_
