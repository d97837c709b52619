// Builds the tries that the runtime walks (runtime/tokenizer/double_array.h).

#ifndef VOLVELLE_CONVERTER_TOKENIZERS_DOUBLE_ARRAY_BUILDER_H_
#define VOLVELLE_CONVERTER_TOKENIZERS_DOUBLE_ARRAY_BUILDER_H_

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "platforms/error.h"

namespace volvelle {

// The units of a trie with a value below 2^31 for each key. Of equal keys the last counts; empty
// ones are left out. Fails for a key with a byte 0 or more than DoubleArray::kMaxKeyBytes.
Result<std::vector<uint32_t>> build_double_array(
    std::vector<std::pair<std::string_view, uint32_t>> keys);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_TOKENIZERS_DOUBLE_ARRAY_BUILDER_H_
