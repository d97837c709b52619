#include "runtime/tokenizer/wordpiece.h"

#include <algorithm>

#include "runtime/tokenizer/utf8.h"

namespace volvelle {
namespace {

constexpr uint32_t kMaxWordCharacters = 4096;  // BERT's limit is 100

}  // namespace

Result<WordPiece> WordPiece::make(const TokenizerSpec& spec) {
  if (spec.max_word_characters > kMaxWordCharacters) {
    return fail("max_word_characters: {} is more than the {} possible", spec.max_word_characters,
                kMaxWordCharacters);
  }
  WordPiece model;
  model.spec_ = &spec;
  model.trie_ = DoubleArray(spec.trie);
  model.continuing_ = model.trie_.root();
  model.can_continue_ = std::ranges::all_of(
      spec.continuing, [&](char byte) { return model.trie_.step(model.continuing_, byte); });
  return model;
}

void WordPiece::encode(std::string_view word, std::vector<int32_t>& ids) const {
  const size_t before = ids.size();
  const auto characters = static_cast<size_t>(
      std::ranges::count_if(word, [](char byte) { return !is_continuation(byte); }));
  bool known = characters <= spec_->max_word_characters;
  DoubleArray::Node from = trie_.root();
  while (known && !word.empty()) {
    size_t longest = 0;
    trie_.prefixes(from, word, [&](size_t bytes, int64_t id) {
      const bool whole = bytes == word.size() || !is_continuation(word[bytes]);
      if (whole && id < static_cast<int64_t>(spec_->vocabulary())) {
        if (longest > 0) ids.pop_back();
        ids.push_back(static_cast<int32_t>(id));
        longest = bytes;
      }
      return true;
    });
    word.remove_prefix(longest);
    from = continuing_;
    known = longest > 0 && (can_continue_ || word.empty());
  }
  if (known) return;
  ids.resize(before);
  if (spec_->unknown >= 0) ids.push_back(spec_->unknown);
}

}  // namespace volvelle
