// The table of a model file, from a recipe and from where its bytes came to lie.

#ifndef VOLVELLE_CONVERTER_TABLE_H_
#define VOLVELLE_CONVERTER_TABLE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "converter/positions/rotary.h"
#include "converter/recipe.h"
#include "converter/weights.h"
#include "schema/volvelle_generated.h"

namespace volvelle {

struct StoredDials {
  RotaryTables tables;
  file::Segment coarse;
  file::Segment fine;
  file::Segment long_coarse;  // of no bytes where there is no long dial
  file::Segment long_fine;
};

struct About {
  std::string name;
  std::string origin;
  std::string family;
  std::string licence;
};

// What was before the first extension, as file::Extension has it.
struct Extension {
  uint64_t file_bytes = 0;
  uint32_t table_bytes = 0;
  uint32_t context = 0;
};

// A rotary scheme. Without `extension`: of a file as it is converted.
flatbuffers::Offset<file::Rotary> add_rotary(flatbuffers::FlatBufferBuilder& builder,
                                             const RotaryPlan& plan, const StoredDials& dials,
                                             const std::optional<Extension>& extension = {});

// Finishes `builder` with the model's table.
//
//   tensors  of the recipe's, in its order
//   dials    of its rotary positions, likewise
void build_table(const About& about, const recipe::Model& model,
                 std::span<const StoredTensor> tensors, std::span<const StoredDials> dials,
                 uint64_t context, const recipe::Generation& generation,
                 flatbuffers::Offset<file::Tokenizer> tokenizer,
                 flatbuffers::FlatBufferBuilder& builder);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_TABLE_H_
