// A checkpoint as a Hugging Face folder: configuration, and tensors in safetensors files.

#ifndef VOLVELLE_CONVERTER_SOURCES_HF_FOLDER_H_
#define VOLVELLE_CONVERTER_SOURCES_HF_FOLDER_H_

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "converter/sources/json_file.h"
#include "converter/sources/tensor_source.h"
#include "platforms/error.h"

namespace volvelle {

struct HfFolder {
  std::string path;
  nlohmann::json config;             // config.json, an object
  nlohmann::json generation_config;  // generation_config.json, an object, or null when it is absent
  nlohmann::json tokenizer_config;   // tokenizer_config.json, likewise
  std::unique_ptr<TensorSource> tensors;

  // The path of a file in the folder, whether it is there or not.
  std::string file(std::string_view name) const;
};

// Fails when the folder, its config.json or its weights are missing, or when any of them is
// damaged.
Result<HfFolder> open_hf_folder(const std::string& path);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_SOURCES_HF_FOLDER_H_
