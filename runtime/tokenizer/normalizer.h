// Brings a section of text into the form that the vocabulary was made from: Unicode normal forms,
// case, replacements.

#ifndef VOLVELLE_RUNTIME_TOKENIZER_NORMALIZER_H_
#define VOLVELLE_RUNTIME_TOKENIZER_NORMALIZER_H_

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "platforms/error.h"
#include "runtime/tokenizer/character_map.h"
#include "runtime/tokenizer/regex.h"
#include "runtime/tokenizer/spec.h"

namespace volvelle {

class Normalizer {
 public:
  // `character_map`, which outlives the normalizer, is what steps of that kind go by.
  static Result<Normalizer> make(std::span<const NormalizerStep> steps,
                                 const CharacterMap* character_map = nullptr);

  // `text` is UTF-8, and so is the result.
  Result<std::string> apply(std::string_view text) const;

  bool empty() const { return steps_.empty(); }

 private:
  struct Step {
    NormalizerStep step;
    std::optional<Regex> regex;
  };
  std::vector<Step> steps_;
  const CharacterMap* character_map_ = nullptr;
};

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_TOKENIZER_NORMALIZER_H_
