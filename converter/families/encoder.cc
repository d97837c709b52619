#include "converter/families/encoder.h"

#include <algorithm>
#include <format>
#include <utility>

namespace volvelle {
namespace {

constexpr size_t kMostLabels = 1 << 16;

// Of GGUF's pooling_type.
constexpr double kGgufNone = 0, kGgufMean = 1, kGgufFirst = 2, kGgufLast = 3;

// A task whose last layer, after `layers`, gives a logit for each label.
TaskShape label_task(Config& config, file::TaskKind kind, file::Pooling pooling,
                     std::vector<LayerShape> layers, const char* classifier) {
  TaskShape task{.kind = kind, .pooling = pooling, .layers = std::move(layers)};
  task.labels = read_labels(config);
  const std::string problem = config.text("problem_type", "");
  task.multi_label = problem == "multi_label_classification";
  task.regression = problem == "regression";
  task.layers.push_back({.linear = classifier, .outputs = task.labels.size()});
  return task;
}

}  // namespace

const DecoderKeys kBertKeys = {.kv_heads = nullptr,
                               .norm = file::NormKind::layer,
                               .epsilon = "layer_norm_eps",
                               .default_epsilon = 1e-12,
                               .default_activation = "gelu",
                               .head_dim = nullptr,
                               .rotary = false};

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

void leave(Checkpoint& checkpoint, std::span<const char* const> tensors) {
  for (const char* tensor : tensors) checkpoint.optional(tensor);
}

void leave(Checkpoint& checkpoint, std::initializer_list<const char*> tensors) {
  leave(checkpoint, std::span(tensors.begin(), tensors.size()));
}

void read_gguf_encoder(Checkpoint& checkpoint, Decoder& decoder) {
  Config& config = checkpoint.config;
  DecoderNames& names = decoder.names = kGgufNames;
  names.token_types = "token_types";
  names.embedding_norm = "token_embd_norm";
  names.final_norm = names.head = nullptr;
  names.attention_norm = "attn_output_norm";
  names.feed_forward_norm = "layer_output_norm";
  if (checkpoint.optional("blk.0.attn_qkv.weight") != nullptr) names.qkv = "attn_qkv";
  decoder.encodes = true;
  decoder.residual = file::Residual::post_norm;
  decoder.norm_bias = Bias::kRequired;
  config.expect("attention.causal", false);

  const double type = config.number("pooling_type", kGgufMean);
  file::Pooling pooling = file::Pooling::mean;
  if (type == kGgufFirst) {
    pooling = file::Pooling::first;
  } else if (type == kGgufLast) {
    pooling = file::Pooling::last;
  } else if (type != kGgufMean && type != kGgufNone) {
    config.refuse("pooling_type",
                  "is {}; only none, mean, first and last token (0 to 3) are "
                  "implemented",
                  type);
  }
  decoder.tasks.push_back(embed_task(pooling));
}

TaskShape embed_task(file::Pooling pooling) {
  return {.kind = file::TaskKind::embed, .pooling = pooling, .layers = {}};
}

void add_encoder_tasks(Checkpoint& checkpoint, EncoderHeads heads, Decoder& decoder) {
  Config& config = checkpoint.config;
  decoder.tasks.push_back(embed_task());
  if (!heads.fill.empty() &&
      (has_architecture(config, "ForMaskedLM") ||
       (heads.pre_training_fills && has_architecture(config, "ForPreTraining")))) {
    decoder.tasks.push_back({.kind = file::TaskKind::fill, .layers = std::move(heads.fill)});
    leave(checkpoint, heads.fill_copies);
  } else if (has_architecture(config, "ForSequenceClassification")) {
    decoder.tasks.push_back(label_task(config, file::TaskKind::classify, heads.pooling,
                                       std::move(heads.classify), heads.classifier));
  } else if (has_architecture(config, "ForTokenClassification")) {
    decoder.tasks.push_back(label_task(config, file::TaskKind::tag, file::Pooling::none,
                                       std::move(heads.tag), "classifier"));
  }
}

}  // namespace volvelle
