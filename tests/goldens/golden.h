// A golden: a tiny random checkpoint and what its reference implementation computed from it
// (README.md).

#ifndef VOLVELLE_TESTS_GOLDENS_GOLDEN_H_
#define VOLVELLE_TESTS_GOLDENS_GOLDEN_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "runtime/model.h"

namespace volvelle {

struct Golden {
  std::string name;              // of its folder, and of the record in it
  std::filesystem::path source;  // what the converter reads
  std::vector<int32_t> tokens;
  std::vector<int32_t> greedy;  // how the reference goes on
  std::vector<float> logits;    // [tokens, vocabulary]
  size_t vocabulary = 0;
  size_t first_position = 0;
  uint64_t context = 0;  // to convert for; 0: the checkpoint's own

  // Largest minus smallest logit: what differences are measured against.
  float range() const;
};

// All that follow throw where something fails, which ends the test with the reason.

// Every golden under tests/goldens, by name.
std::vector<Golden> read_goldens();

// Converts `source` with `--weights NAME` into a temporary file, maps it and removes the name.
// `context` 0: the checkpoint's own.
std::shared_ptr<const Model> convert_to_model(const std::filesystem::path& source,
                                              const std::string& weights, uint64_t context = 0);

// The bytes of the file that the conversion gives.
std::vector<std::byte> convert_to_bytes(const std::filesystem::path& source,
                                        const std::string& weights, uint64_t context = 0);

}  // namespace volvelle

#endif  // VOLVELLE_TESTS_GOLDENS_GOLDEN_H_
