#include "converter/tokenizers/spec_storage.h"

#include <memory>
#include <utility>

#include "converter/tokenizers/double_array_builder.h"

namespace volvelle {

Result<void> SpecStorage::set_pieces(const std::vector<std::string_view>& pieces) {
  size_t bytes = 0;
  for (const std::string_view piece : pieces) bytes += piece.size();
  if (bytes > UINT32_MAX) return fail("the vocabulary's text takes {} bytes, too many", bytes);
  piece_bytes.reserve(bytes);
  piece_ends.reserve(pieces.size());
  for (const std::string_view piece : pieces) {
    piece_bytes += piece;
    piece_ends.push_back(static_cast<uint32_t>(piece_bytes.size()));
  }
  return {};
}

Result<void> SpecStorage::set_trie(const std::vector<std::string_view>& entries) {
  std::vector<std::pair<std::string_view, uint32_t>> keys;
  keys.reserve(entries.size());
  for (uint32_t i = 0; i < entries.size(); ++i) keys.emplace_back(entries[i], i);
  VOLVELLE_ASSIGN_OR_RETURN(trie, build_double_array(std::move(keys)));
  return {};
}

void adopt(SpecStorage storage, TokenizerSpec& spec) {
  auto owned = std::make_shared<SpecStorage>(std::move(storage));
  spec.piece_ends = owned->piece_ends;
  spec.piece_bytes = owned->piece_bytes;
  spec.merges = owned->merges;
  spec.trie = owned->trie;
  spec.scores = owned->scores;
  spec.entry_ids = owned->entry_ids;
  spec.character_map = owned->character_map;
  spec.storage = std::move(owned);
}

int64_t PieceIndex::find(std::string_view piece) const {
  const auto found = ids_.find(piece);
  return found == ids_.end() ? -1 : static_cast<int64_t>(found->second);
}

Result<Merge> PieceIndex::merge(std::string_view left, std::string_view right) const {
  std::string joined(left);
  joined += right;
  const int64_t ids[] = {find(left), find(right), find(joined)};
  for (const int64_t id : ids) {
    if (id < 0) {
      return fail("the merge of \"{}\" and \"{}\" needs a piece that the vocabulary lacks", left,
                  right);
    }
  }
  return Merge{static_cast<uint32_t>(ids[0]), static_cast<uint32_t>(ids[1]),
               static_cast<uint32_t>(ids[2])};
}

}  // namespace volvelle
