#include "converter/sentence_modules.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <format>
#include <memory>
#include <utility>

#include "converter/families/config.h"
#include "converter/sources/json_file.h"
#include "converter/sources/safetensors.h"

namespace volvelle {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t kMostDenseOutputs = 1 << 20;
constexpr uint32_t kMostTokens = 1 << 30;

// By the names of today and by those of the flags "pooling_mode_…" before, in the order in which
// the vectors of several follow each other.
struct Mode {
  std::string_view name, flag;
  file::Pooling pooling;
};
constexpr std::array<Mode, 6> kModes = {{
    {"cls", "cls_token", file::Pooling::first},
    {"max", "max_tokens", file::Pooling::max},
    {"mean", "mean_tokens", file::Pooling::mean},
    {"mean_sqrt_len_tokens", "mean_sqrt_len_tokens", file::Pooling::root_mean},
    {"weightedmean", "weightedmean_tokens", file::Pooling::weighted_mean},
    {"lasttoken", "lasttoken", file::Pooling::last},
}};

class ModuleReader {
 public:
  ModuleReader(recipe::Model& model, recipe::Task& task, uint64_t width)
      : model_(model), task_(task), width_(width) {}

  Result<void> read(const fs::path& folder, std::string_view kind) {
    if ((kind == "Transformer") == begun_) {
      return fail("{}: the first module, and only that, must be a Transformer, not {}",
                  folder.string(), kind);
    }
    begun_ = true;
    if (kind == "Transformer") return read_transformer(folder);
    if (task_.normalize) {
      return fail("{}: a module {} after Normalize is not implemented", folder.string(), kind);
    }
    if (kind == "Normalize") {
      task_.normalize = true;
      return {};
    }
    if (kind != "Pooling" && kind != "Dense") {
      return fail("{}: a module {} is not implemented; Pooling, Dense and Normalize are",
                  folder.string(), kind);
    }
    const std::string path = (folder / "config.json").string();
    VOLVELLE_ASSIGN_OR_RETURN(const json settings, read_json(path));
    Config config(path, "", settings, {});
    VOLVELLE_RETURN_IF_ERROR(config.status());
    if ((kind == "Pooling") == pooled_) {
      return fail("{}: one module Pooling must come before those that read its vectors",
                  folder.string());
    }
    pooled_ = true;
    return kind == "Pooling" ? read_pooling(config) : read_dense(folder, config);
  }

  bool complete() const { return pooled_; }

  // {"default_prompt_name": "query", "prompts": {"query": "query: ", "passage": "passage: "}}
  Result<void> read_prompts(const fs::path& folder) {
    const std::string path = (folder / "config_sentence_transformers.json").string();
    VOLVELLE_ASSIGN_OR_RETURN(const json settings, read_json_if_present(path));
    if (!settings.is_object()) return {};
    const json prompts = settings.value("prompts", json());
    const json usual = settings.value("default_prompt_name", json());
    if (!prompts.is_null() && !prompts.is_object()) return fail("{}: prompts is no map", path);
    for (const auto& [name, text] : prompts.items()) {
      if (!text.is_string()) return fail("{}: prompts.{} is no text", path, name);
      if (usual == name) task_.default_prompt = static_cast<int>(task_.prompts.size());
      task_.prompts.emplace_back(name, text.get<std::string>());
    }
    if (!usual.is_null() && task_.default_prompt < 0) {
      return fail("{}: default_prompt_name {} is not one of prompts", path, usual.dump());
    }
    return {};
  }

 private:
  // The length at which texts are cut. Names of files: those that the package looks for.
  Result<void> read_transformer(const fs::path& folder) {
    for (const char* kind :
         {"bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet"}) {
      const std::string path = (folder / std::format("sentence_{}_config.json", kind)).string();
      VOLVELLE_ASSIGN_OR_RETURN(const json settings, read_json_if_present(path));
      if (settings.is_null()) continue;
      if (!settings.is_object()) return fail("{}: is no map of settings", path);
      const json longest = settings.value("max_seq_length", json());
      if (!longest.is_null()) {
        if (!longest.is_number_integer() || longest < 1 || longest > kMostTokens) {
          return fail("{}: max_seq_length {} is no number of tokens", path, longest.dump());
        }
        task_.max_tokens = longest.get<uint32_t>();
      }
      if (settings.value("do_lower_case", json(false)) != false) {
        return fail("{}: do_lower_case is not implemented beside a tokenizer's own", path);
      }
      return {};
    }
    return {};
  }

  Result<void> read_pooling(Config& config) {
    std::vector<file::Pooling> poolings;
    const std::string name = config.text("pooling_mode", "");
    for (const Mode& mode : kModes) {
      const std::string flag = "pooling_mode_" + std::string(mode.flag);
      if (config.flag(flag, false) || name == mode.name) poolings.push_back(mode.pooling);
    }
    config.expect("include_prompt", true);
    for (const char* known : {"word_embedding_dimension", "embedding_dimension"}) {
      config.value(known);
    }
    if (!name.empty() && poolings.empty()) {
      config.refuse("pooling_mode", "is \"{}\", which is not implemented", name);
    }
    VOLVELLE_RETURN_IF_ERROR(config.finish("Pooling"));
    if (poolings.empty()) return fail("{}: names no way of pooling", config.file());
    task_.pooling = poolings.front();
    task_.further_poolings.assign(poolings.begin() + 1, poolings.end());
    width_ *= poolings.size();
    return {};
  }

  Result<void> read_dense(const fs::path& folder, Config& config) {
    const uint64_t inputs = config.count("in_features"), outputs = config.count("out_features");
    const bool biased = config.flag("bias", true);
    const std::string activation = config.text("activation_function", "");
    recipe::Layer layer;
    if (activation.ends_with(".Tanh")) {
      layer.activation = file::Activation::tanh;
    } else if (!activation.ends_with(".Identity")) {
      config.refuse("activation_function", "is \"{}\", neither Tanh nor Identity", activation);
    }
    if (inputs != width_ || outputs > kMostDenseOutputs) {
      config.refuse("in_features", "and out_features are {} and {}, after a width of {}", inputs,
                    outputs, width_);
    }
    VOLVELLE_RETURN_IF_ERROR(config.finish("Dense"));
    VOLVELLE_ASSIGN_OR_RETURN(std::unique_ptr<TensorSource> opened,
                              open_safetensors(folder.string()));
    const std::shared_ptr<const TensorSource> source = std::move(opened);
    VOLVELLE_ASSIGN_OR_RETURN(layer.linear.weight,
                              add(folder, source, "linear.weight", outputs, inputs));
    if (biased) {
      VOLVELLE_ASSIGN_OR_RETURN(layer.linear.bias, add(folder, source, "linear.bias", 1, outputs));
    }
    task_.layers.push_back(layer);
    width_ = outputs;
    return {};
  }

  // The weights lie in a file of the module's own.
  Result<int> add(const fs::path& folder, const std::shared_ptr<const TensorSource>& source,
                  const char* name, uint64_t rows, uint64_t columns) {
    const SourceTensor* tensor = source->find(name);
    if (tensor == nullptr || tensor->rows() != rows || tensor->columns() != columns) {
      return fail("{}: tensor {} [{}, {}] is missing", folder.string(), name, rows, columns);
    }
    const auto read = [source, tensor](const TensorSource&,
                                       const ThreadPool&) -> Result<std::vector<float>> {
      std::vector<float> values(tensor->rows() * tensor->columns());
      VOLVELLE_RETURN_IF_ERROR(source->read(*tensor, 0, tensor->rows(), values));
      return values;
    };
    model_.tensors.push_back({"sentence." + std::to_string(task_.layers.size()) + "." + name,
                              recipe::Use::kVector,
                              rows,
                              columns,
                              {},
                              read});
    return static_cast<int>(model_.tensors.size()) - 1;
  }

  recipe::Model& model_;
  recipe::Task& task_;
  uint64_t width_;  // of what the next module reads
  bool begun_ = false, pooled_ = false;
};

}  // namespace

Result<void> read_sentence_modules(const std::string& folder, recipe::Model& model) {
  const std::string path = (fs::path(folder) / "modules.json").string();
  VOLVELLE_ASSIGN_OR_RETURN(const json modules, read_json_if_present(path));
  recipe::Stack* const encoder = model.encoder ? &*model.encoder : &model;
  if (modules.is_null() || (!model.encoder && !model.encodes)) return {};
  if (!modules.is_array()) return fail("{}: is no list of modules", path);
  const auto embeds = [](const recipe::Task& task) { return task.kind == file::TaskKind::embed; };
  std::erase_if(encoder->tasks, embeds);
  recipe::Task task{.kind = file::TaskKind::embed, .pooling = file::Pooling::mean};
  ModuleReader reader(model, task, encoder->width);
  VOLVELLE_RETURN_IF_ERROR(reader.read_prompts(folder));
  for (const json& module : modules) {
    const json type = module.is_object() ? module.value("type", json()) : json();
    const json place = module.is_object() ? module.value("path", json()) : json();
    if (!type.is_string() || !place.is_string()) {
      return fail("{}: a module has no type or no path", path);
    }
    const fs::path inner(place.get<std::string>());
    if (inner.is_absolute() || std::ranges::contains(inner, fs::path(".."))) {
      return fail("{}: the path \"{}\" leads out of the folder", path, inner.string());
    }
    const std::string kind = type.get<std::string>();
    VOLVELLE_RETURN_IF_ERROR(
        reader.read(fs::path(folder) / inner, std::string_view(kind).substr(kind.rfind('.') + 1)));
  }
  if (!reader.complete()) return fail("{}: has no module Pooling, which makes a vector", path);
  encoder->tasks.insert(encoder->tasks.begin(), std::move(task));
  return {};
}

}  // namespace volvelle
