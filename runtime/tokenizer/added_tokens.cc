#include "runtime/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

#include "runtime/tokenizer/utf8.h"

namespace volvelle {
namespace {

char32_t last_character(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && is_continuation(text[begin])) --begin;
  return next_character(text.substr(begin)).character;
}

bool stands_alone(std::string_view text, size_t begin, size_t end) {
  return (begin == 0 || !is_word_character(last_character(text.substr(0, begin)))) &&
         (end == text.size() || !is_word_character(next_character(text.substr(end)).character));
}

size_t skip_space_left(std::string_view text, size_t begin, size_t limit) {
  while (begin > limit && is_white_space(last_character(text.substr(0, begin)))) {
    do --begin;
    while (begin > limit && is_continuation(text[begin]));
  }
  return begin;
}

size_t skip_space_right(std::string_view text, size_t end) {
  while (end < text.size()) {
    const Utf8Step step = next_character(text.substr(end));
    if (!is_white_space(step.character)) break;
    end += step.bytes;
  }
  return end;
}

}  // namespace

void AddedTokens::add(std::string text, const AddedToken& token) {
  if (!text.empty()) tokens_.push_back({std::move(text), token});
}

void AddedTokens::seal() {
  std::ranges::stable_sort(tokens_, {}, &Token::text);
  const auto repeated = std::ranges::unique(tokens_, {}, &Token::text);
  tokens_.erase(repeated.begin(), repeated.end());
  for (uint32_t i = 0; i < tokens_.size(); ++i) {
    Range& range = by_first_byte_[static_cast<unsigned char>(tokens_[i].text[0])];
    if (range.end == 0) range.begin = i;
    range.end = i + 1;
  }
}

// Narrows the sorted tokens byte by byte: those that share a prefix are neighbours, the shortest
// first.
const AddedTokens::Token* AddedTokens::longest_at(std::string_view text) const {
  const Range range = by_first_byte_[static_cast<unsigned char>(text[0])];
  auto begin = tokens_.begin() + range.begin, end = tokens_.begin() + range.end;
  const Token* longest = nullptr;
  for (size_t length = 1; begin != end; ++length) {
    if (begin->text.size() == length) longest = &*begin++;
    if (length == text.size()) break;
    const auto byte = static_cast<unsigned char>(text[length]);
    const auto at = [length](const Token& token) {
      return static_cast<unsigned char>(token.text[length]);
    };
    const auto same = std::ranges::equal_range(begin, end, byte, {}, at);
    begin = same.begin(), end = same.end();
  }
  return longest;
}

std::vector<Section> AddedTokens::find(std::string_view text) const {
  std::vector<Section> sections;
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const Token* found = longest_at(text.substr(at));
    if (found == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + found->text.size();
    at = end;  // the search goes on after the token itself, wherever the white space it takes ends
    if (found->token.single_word() && !stands_alone(text, begin, end)) continue;
    if (found->token.strip_left()) begin = skip_space_left(text, begin, done);
    if (found->token.strip_right()) end = skip_space_right(text, end);
    if (done < begin) sections.push_back({done, begin, -1});
    sections.push_back({begin, end, static_cast<int32_t>(found->token.id())});
    done = end;
  }
  if (done < text.size()) sections.push_back({done, text.size(), -1});
  return sections;
}

}  // namespace volvelle
