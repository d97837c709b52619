#include "converter/families/family.h"

#include <array>

namespace volvelle {

Result<recipe::Model> describe_llama(Checkpoint& checkpoint);
Result<recipe::Model> describe_mistral(Checkpoint& checkpoint);
Result<recipe::Model> describe_qwen2(Checkpoint& checkpoint);
Result<recipe::Model> describe_qwen3(Checkpoint& checkpoint);

std::span<const Family> families() {
  static constexpr std::array<Family, 4> kFamilies = {{
      {"llama", "llama", "llama", describe_llama},  // in GGUF also Mistral's
      {"mistral", "mistral", "", describe_mistral},
      {"qwen2", "qwen2", "qwen2", describe_qwen2},
      {"qwen3", "qwen3", "qwen3", describe_qwen3},
  }};
  return kFamilies;
}

Result<const Family*> find_family(const std::string& path, Naming naming,
                                  std::string_view declared) {
  std::string known;
  for (const Family& family : families()) {
    const std::string_view name =
        naming == Naming::kGguf ? family.gguf_architecture : family.model_type;
    if (name.empty()) continue;
    if (name == declared) return &family;
    known += (known.empty() ? "" : ", ") + std::string(name);
  }
  const char* key = naming == Naming::kGguf ? "general.architecture" : "model_type";
  if (declared.empty()) return fail("{}: {} is missing; known are {}", path, key, known);
  return fail("{}: {} \"{}\" is not known; known are {}", path, key, declared, known);
}

Result<recipe::Model> describe(const Family& family, Checkpoint& checkpoint) {
  Result<recipe::Model> model = family.describe(checkpoint);
  VOLVELLE_RETURN_IF_ERROR(checkpoint.config.finish(family.name));
  VOLVELLE_RETURN_IF_ERROR(model);
  VOLVELLE_RETURN_IF_ERROR(checkpoint.check_all_used());
  return model;
}

}  // namespace volvelle
