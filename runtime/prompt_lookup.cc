#include "runtime/prompt_lookup.h"

#include <algorithm>

namespace volvelle {

size_t PromptLookup::Hash::operator()(const Key& key) const {
  uint64_t hash = 0;
  for (const int32_t token : key) {
    hash = (hash ^ static_cast<uint32_t>(token)) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 32;
  }
  return hash;
}

std::span<const int32_t> PromptLookup::draft(std::span<const int32_t> context, size_t most) {
  const auto key_before = [&](size_t end) {
    Key key;
    std::copy_n(context.begin() + static_cast<ptrdiff_t>(end - kLength), kLength, key.begin());
    return key;
  };
  // The last key stays out: it would only find itself.
  for (; known_ + 1 < context.size(); ++known_) after_[key_before(known_ + 1)] = known_ + 1;
  credit_ = std::min(kMostCredit, credit_ + 1 / kPatience);
  if (context.size() < kLength || credit_ < static_cast<double>(kShortest)) return {};
  const auto place = after_.find(key_before(context.size()));
  if (place == after_.end()) return {};
  const auto rest = context.subspan(place->second);
  return rest.first(std::min({rest.size(), most, length_}));
}

void PromptLookup::judge(size_t drafted, size_t accepted) {
  // A token that is right saves reading all weights; one that is wrong costs about a quarter of it.
  constexpr double kWorth = 3;
  credit_ += kWorth * static_cast<double>(accepted) - static_cast<double>(drafted - accepted);
  credit_ = std::min(credit_, kMostCredit);
  length_ = accepted == drafted ? std::min(2 * length_, kLongest) : kShortest;
}

}  // namespace volvelle
