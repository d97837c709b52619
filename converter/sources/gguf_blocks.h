// The block formats of GGUF tensors, each decoded exactly as its reference does: every product and
// sum rounded to float by itself.

#ifndef VOLVELLE_CONVERTER_SOURCES_GGUF_BLOCKS_H_
#define VOLVELLE_CONVERTER_SOURCES_GGUF_BLOCKS_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace volvelle {

struct GgufBlockType {
  uint32_t number;        // in the file
  std::string_view name;  // "Q4_K"
  uint32_t values;        // of a block
  uint32_t bytes;         // of a block
  // Writes blocks * values floats from blocks * bytes bytes (of any alignment); null when the type
  // is known but cannot be read as weights.
  void (*decode)(const uint8_t* bytes, size_t blocks, float* values);
};

// Null for a number that is not known.
const GgufBlockType* find_gguf_block_type(uint32_t number);
const GgufBlockType* find_gguf_block_type(std::string_view name);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_SOURCES_GGUF_BLOCKS_H_
