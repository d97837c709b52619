// Opens what the user names: a folder, a file, or a model of the Hugging Face hub.

#ifndef VOLVELLE_CONVERTER_SOURCE_H_
#define VOLVELLE_CONVERTER_SOURCE_H_

#include <optional>
#include <span>
#include <string>

#include "converter/families/checkpoint.h"
#include "converter/families/family.h"
#include "converter/recipe.h"
#include "platforms/error.h"
#include "runtime/tokenizer/spec.h"

namespace volvelle {

struct OpenedSource {
  std::string path;  // of the file or folder
  Checkpoint checkpoint;
  const Family* family = nullptr;
  std::string name;
  std::string origin;
  std::string licence;
  recipe::Generation generation;
  std::optional<TokenizerSpec> tokenizer;  // none: the checkpoint has none, or none was wanted
};

// `source` is a folder with config.json, a .safetensors file in one, a .gguf file, or OWNER/NAME,
// which the program `hf` then fetches.
Result<OpenedSource> open_source(const std::string& source,
                                 std::span<const std::string> ignored_keys, bool with_tokenizer);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_SOURCE_H_
