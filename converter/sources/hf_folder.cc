#include "converter/sources/hf_folder.h"

#include <filesystem>
#include <string_view>
#include <utility>

#include "converter/sources/safetensors.h"

namespace volvelle {
namespace {

// The object in that file, or null when there is none.
Result<nlohmann::json> read_object(const std::string& path) {
  VOLVELLE_ASSIGN_OR_RETURN(nlohmann::json document, read_json_if_present(path));
  if (!document.is_object() && !document.is_null()) return fail("{}: is not a JSON object", path);
  return document;
}

}  // namespace

std::string HfFolder::file(std::string_view name) const {
  return (std::filesystem::path(path) / name).string();
}

Result<HfFolder> open_hf_folder(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) return fail("{}: is not a folder", path);
  HfFolder folder;
  folder.path = path;
  VOLVELLE_ASSIGN_OR_RETURN(folder.config, read_object(folder.file("config.json")));
  if (folder.config.is_null()) {
    return fail("{}: config.json is missing: it is no model folder, or was not fetched whole",
                path);
  }
  VOLVELLE_ASSIGN_OR_RETURN(folder.generation_config,
                            read_object(folder.file("generation_config.json")));
  VOLVELLE_ASSIGN_OR_RETURN(folder.tokenizer_config,
                            read_object(folder.file("tokenizer_config.json")));
  VOLVELLE_ASSIGN_OR_RETURN(folder.tensors, open_safetensors(path));
  return folder;
}

}  // namespace volvelle
