// Drafts of what a model may say next, copied from what its context says already: where the last
// tokens have occurred before, what followed them then. A draft costs nothing to make and is
// checked by feeding it at once, so that text which repeats its prompt is written several tokens at
// a time. The idea is Saxena 2023, "Prompt Lookup Decoding".

#ifndef VOLVELLE_RUNTIME_PROMPT_LOOKUP_H_
#define VOLVELLE_RUNTIME_PROMPT_LOOKUP_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace volvelle {

class PromptLookup {
 public:
  // What follows `context`, all tokens so far, which only grows from call to call; at most `most`
  // tokens, and none where nothing repeats or where drafts have not been worth their time lately.
  // Valid while `context` is.
  std::span<const int32_t> draft(std::span<const int32_t> context, size_t most);

  // Tells how many of the last draft's tokens were right.
  void judge(size_t drafted, size_t accepted);

 private:
  static constexpr size_t kLength = 3;  // tokens that must have occurred before
  using Key = std::array<int32_t, kLength>;
  struct Hash {
    size_t operator()(const Key& key) const;
  };

  std::unordered_map<Key, size_t, Hash> after_;  // where the last occurrence of a key ends
  size_t known_ = kLength - 1;                   // tokens of the context that keys were made of
  size_t length_ = kShortest;
  // What drafts may still waste, in tokens that are fed in vain. It is earned by tokens that were
  // right, and slowly by time, so that a text which never repeats loses less than 1 in kPatience.
  double credit_ = kMostCredit / 4;

  static constexpr size_t kShortest = 4, kLongest = 16;
  static constexpr double kMostCredit = 32, kPatience = 48;
};

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_PROMPT_LOOKUP_H_
