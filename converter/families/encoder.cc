#include "converter/families/encoder.h"

#include <algorithm>
#include <format>

namespace volvelle {
namespace {

constexpr size_t kMostLabels = 1 << 16;

}  // namespace

bool has_architecture(Config& config, std::string_view ending) {
  const nlohmann::json* names = config.value("architectures");
  return names != nullptr && names->is_array() && !names->empty() && names->front().is_string() &&
         names->front().get_ref<const std::string&>().ends_with(ending);
}

std::vector<std::string> read_labels(Config& config) {
  std::vector<std::string> labels;
  while (labels.size() < kMostLabels) {
    const std::string key = std::format("id2label.{}", labels.size());
    if (!config.has(key)) break;
    labels.push_back(config.text(key, ""));
  }
  if (!labels.empty()) return labels;
  const uint64_t count = std::min<uint64_t>(config.count("num_labels", 2), kMostLabels);
  for (uint64_t i = 0; i < count; ++i) labels.push_back(std::format("LABEL_{}", i));
  return labels;
}

TaskShape embed_task(file::Pooling pooling) {
  return {.kind = file::TaskKind::embed, .pooling = pooling, .layers = {}};
}

TaskShape label_task(Config& config, file::TaskKind kind, file::Pooling pooling,
                     std::vector<LayerShape> layers, const char* classifier) {
  TaskShape task{.kind = kind, .pooling = pooling, .layers = std::move(layers)};
  task.labels = read_labels(config);
  task.multi_label = config.text("problem_type", "") == "multi_label_classification";
  task.layers.push_back({.linear = classifier, .outputs = task.labels.size()});
  return task;
}

}  // namespace volvelle
