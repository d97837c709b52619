#include "runtime/tokenizer/unigram.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "runtime/tokenizer/utf8.h"

namespace volvelle {
namespace {

constexpr double kUnknownPenalty = 10;  // below the least score (SentencePiece, unigram_model.cc)

}  // namespace

Result<Unigram> Unigram::make(const TokenizerSpec& spec, const PieceTable& pieces) {
  if (!spec.entry_ids.empty() && spec.entry_ids.size() != spec.scores.size()) {
    return fail("entry_ids: {} ids for {} scores", spec.entry_ids.size(), spec.scores.size());
  }
  if (spec.entry_ids.empty() && spec.scores.size() > spec.vocabulary()) {
    return fail("scores: {} are more than the vocabulary of {}", spec.scores.size(),
                spec.vocabulary());
  }
  for (const uint32_t id : spec.entry_ids) {
    if (id >= spec.vocabulary()) {
      return fail("entry_ids: id {} lies outside the vocabulary of {}", id, spec.vocabulary());
    }
  }
  double least = std::numeric_limits<double>::infinity();
  for (const double score : spec.scores) {
    if (!std::isfinite(score)) return fail("scores: one of them is no finite number");
    least = std::min(least, score);
  }
  Unigram model;
  model.spec_ = &spec;
  model.pieces_ = &pieces;
  model.trie_ = DoubleArray(spec.trie);
  model.unknown_score_ = spec.scores.empty() ? 0 : least - kUnknownPenalty;
  if (spec.float_sums) model.unknown_score_ = static_cast<float>(model.unknown_score_);
  model.byte_pieces_ = pieces.byte_pieces();
  return model;
}

// Without ids of their own, entries that are the unknown piece itself count as unknown text too, as
// in the reference (Hugging Face tokenizers, models/unigram/model.rs).
bool Unigram::is_unknown(int32_t entry) const {
  return entry < 0 || (spec_->entry_ids.empty() && entry == spec_->unknown);
}

// A run of unknown characters is one piece. As such it may be in the vocabulary after all.
void Unigram::append_unknown(std::string_view text, std::vector<int32_t>& ids) const {
  if (const int32_t id = pieces_->find(text); id >= 0) {
    ids.push_back(id);
    return;
  }
  const auto byte_piece = [this](char byte) {
    return byte_pieces_[static_cast<unsigned char>(byte)];
  };
  if (spec_->byte_fallback &&
      std::ranges::all_of(text, [&](char byte) { return byte_piece(byte) >= 0; })) {
    for (const char byte : text) ids.push_back(byte_piece(byte));
  } else if (spec_->unknown >= 0) {
    ids.push_back(spec_->unknown);
  }
}

void Unigram::encode(std::string_view word, std::vector<int32_t>& ids) const {
  struct Best {  // the best way to a place in the word
    double score = 0;
    size_t begin = SIZE_MAX;  // of its last piece; SIZE_MAX: there is no way yet
    int32_t entry = -1;       // -1: an unknown character
  };
  std::vector<Best> best(word.size() + 1);
  const auto offer = [&](size_t begin, size_t end, double score, int32_t entry) {
    score += best[begin].score;
    if (spec_->float_sums) score = static_cast<float>(score);
    if (best[end].begin == SIZE_MAX || score > best[end].score) best[end] = {score, begin, entry};
  };
  for (size_t at = 0; at < word.size(); at += character_bytes(word[at])) {
    const size_t character = character_bytes(word[at]);
    bool alone = false;
    trie_.prefixes(trie_.root(), word.substr(at), [&](size_t bytes, int64_t entry) {
      const size_t end = at + bytes;
      if (entry < static_cast<int64_t>(spec_->scores.size()) &&
          (end == word.size() || !is_continuation(word[end]))) {
        offer(at, end, spec_->scores[static_cast<size_t>(entry)], static_cast<int32_t>(entry));
        alone |= bytes == character;
      }
      return true;
    });
    if (!alone) offer(at, at + character, unknown_score_, -1);
  }
  // The way back, and then along it: runs of unknown characters become one piece.
  std::vector<std::pair<size_t, int32_t>> ends;  // where a piece ends, and its entry
  for (size_t end = word.size(); end > 0; end = best[end].begin) {
    ends.emplace_back(end, best[end].entry);
  }
  size_t begin = 0;
  for (size_t i = ends.size(); i-- > 0;) {
    const auto [end, entry] = ends[i];
    if (!is_unknown(entry)) {
      ids.push_back(spec_->entry_ids.empty()
                        ? entry
                        : static_cast<int32_t>(spec_->entry_ids[static_cast<size_t>(entry)]));
    } else if (i > 0 && is_unknown(ends[i - 1].second)) {
      continue;
    } else {
      append_unknown(word.substr(begin, end - begin), ids);
    }
    begin = end;
  }
}

}  // namespace volvelle
