// Checkpoints in the safetensors format: one file, or a folder of shards with or without an index.
// A file is a u64 header length, a JSON header {name: {dtype, shape, data_offsets}}, then the data.

#ifndef VOLVELLE_CONVERTER_SOURCES_SAFETENSORS_H_
#define VOLVELLE_CONVERTER_SOURCES_SAFETENSORS_H_

#include <memory>
#include <string>

#include "converter/sources/tensor_source.h"
#include "platforms/error.h"

namespace volvelle {

// Opens a file, or a folder: its model.safetensors, else the shards that
// model.safetensors.index.json names, else all shards that are there. Every extent is checked;
// tensors of a type that is no weight (I64, BOOL, F8_E4M3 …) are listed, and refused by name when
// read. F32, F16 and BF16 can be read.
Result<std::unique_ptr<TensorSource>> open_safetensors(const std::string& path);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_SOURCES_SAFETENSORS_H_
