// Recorded cases: texts with the ids, decoded texts and stream pieces that the references give for
// them.

#ifndef VOLVELLE_TESTS_TOKENIZER_VECTORS_H_
#define VOLVELLE_TESTS_TOKENIZER_VECTORS_H_

#include <cstddef>
#include <string>
#include <vector>

#include "runtime/tokenizer/tokenizer.h"

namespace volvelle {

inline constexpr const char* kDataFolder = "tests/tokenizer/data/";

// Checks every row of `path` against `tokenizer` (ids, ids_special, decode, decode_skip, stream)
// and returns how many rows there were.
size_t check_vectors(const Tokenizer& tokenizer, const std::string& path);

// The same for rows of one or two texts ("pair") cut to a "limit": ids, "types", "cut".
size_t check_pairs(const Tokenizer& tokenizer, const std::string& path);

// A tokenizer as a model file would hold it.
struct StoredTokenizer {
  std::vector<std::byte>
      table;  // a FlatBuffer whose root is a model with nothing but this tokenizer
  std::vector<std::byte> segments;  // one after the other, each at a multiple of 64
};

StoredTokenizer store(const TokenizerSpec& spec);

// What a loader does: verify the table, view it, make the tokenizer, which `stored` must outlive.
Result<Tokenizer> load(const StoredTokenizer& stored);

}  // namespace volvelle

#endif  // VOLVELLE_TESTS_TOKENIZER_VECTORS_H_
