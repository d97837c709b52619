// A trie of byte strings in a file, walked where it lies (the schema says how its units are made).
// The file may be hostile: every step is checked, and no walk takes more than `kMaxKeyBytes` steps.

#ifndef VOLVELLE_RUNTIME_TOKENIZER_DOUBLE_ARRAY_H_
#define VOLVELLE_RUNTIME_TOKENIZER_DOUBLE_ARRAY_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace volvelle {

class DoubleArray {
 public:
  static constexpr size_t kMaxKeyBytes = 1024;  // no real piece comes near
  static constexpr uint32_t kLabelBits = 0x800000FF;
  static constexpr uint32_t kEndsHere = 1 << 8;
  static constexpr uint32_t kFarOffset = 1 << 9;
  static constexpr uint32_t kOffsetShift = 10;
  static constexpr uint32_t kValueBits = 0x7FFFFFFF;

  struct Node {
    uint32_t children;  // its children's units are this ^ label
    bool ends;          // a key ends here
  };

  DoubleArray() = default;
  explicit DoubleArray(std::span<const uint32_t> units) : units_(units) {}

  Node root() const { return units_.empty() ? Node{0, false} : node(0); }

  // Moves to the child for `byte`; false: there is none.
  bool step(Node& at, char byte) const {
    const auto label = static_cast<unsigned char>(byte);
    const uint32_t position = at.children ^ label;
    if (label == 0 || position >= units_.size() || (units_[position] & kLabelBits) != label) {
      return false;
    }
    at = node(position);
    return true;
  }

  // The value of the key that ends at `at`; -1: none does.
  int64_t value(Node at) const {
    if (!at.ends || at.children >= units_.size()) return -1;
    return units_[at.children] & kValueBits;
  }

  // Calls `found(bytes, value)` for the keys that `text` goes on with after `from`, the shortest
  // first, while it returns true.
  template <typename Found>
  void prefixes(Node from, std::string_view text, Found found) const {
    const size_t limit = std::min(text.size(), kMaxKeyBytes);
    for (size_t i = 0; i < limit && step(from, text[i]); ++i) {
      if (const int64_t key = value(from); key >= 0 && !found(i + 1, key)) return;
    }
  }

 private:
  Node node(uint32_t position) const {
    const uint32_t unit = units_[position];
    const uint32_t offset = (unit & kValueBits) >> kOffsetShift;
    return {position ^ ((unit & kFarOffset) != 0 ? offset << 8 : offset), (unit & kEndsHere) != 0};
  }

  std::span<const uint32_t> units_;
};

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_TOKENIZER_DOUBLE_ARRAY_H_
