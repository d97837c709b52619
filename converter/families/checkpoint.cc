#include "converter/families/checkpoint.h"

#include <algorithm>
#include <array>
#include <utility>

namespace volvelle {
namespace {

// What some files leave out in front of their names.
constexpr std::array<std::string_view, 8> kModelPrefixes = {
    "model.",   "transformer.", "gpt_neox.", "bert.",
    "roberta.", "distilbert.",  "electra.",  "deberta."};

// What old files call the weight and the bias of a norm.
std::string legacy_name(const std::string& name) {
  for (const auto& [today, once] :
       {std::pair<std::string_view, std::string_view>{"LayerNorm.weight", "LayerNorm.gamma"},
        {"LayerNorm.bias", "LayerNorm.beta"}}) {
    if (name.ends_with(today)) {
      return name.substr(0, name.size() - today.size()) + std::string(once);
    }
  }
  return {};
}

// Ends of the names of stored tensors that follow from the settings: tables of angles, causal
// masks, indices.
constexpr std::array<std::string_view, 7> kStray = {
    "rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached", ".attn.bias",
    "masked_bias",         "position_ids",          "attention.bias"};

// Whether it is a bias that changes nothing: some programs store one beside every linear.
bool zero_bias(const TensorSource& source, const SourceTensor& tensor) {
  constexpr uint64_t kMost = uint64_t{1} << 20;  // elements
  const uint64_t rows = tensor.rows(), columns = tensor.columns();
  if (!tensor.name.ends_with(".bias") || rows != 1 || columns > kMost) return false;
  std::vector<float> values(columns);
  return source.read(tensor, 0, rows, values) &&
         std::ranges::all_of(values, [](float value) { return value == 0; });
}

}  // namespace

std::string shape_text(const std::vector<uint64_t>& shape) {
  std::string text = "[";
  for (const uint64_t dimension : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(dimension);
  }
  return text + "]";
}

const SourceTensor* Checkpoint::optional(const std::string& name) {
  const SourceTensor* tensor = source_->find(name);
  for (const std::string_view prefix : kModelPrefixes) {
    if (tensor == nullptr && name.starts_with(prefix)) {
      tensor = source_->find(name.substr(prefix.size()));
    }
  }
  if (tensor == nullptr) {
    const std::string legacy = legacy_name(name);
    if (!legacy.empty()) return optional(legacy);
  }
  if (tensor != nullptr) used_.insert(tensor);
  return tensor;
}

Result<const SourceTensor*> Checkpoint::require(const std::string& name,
                                                std::initializer_list<uint64_t> shape) {
  const SourceTensor* tensor = optional(name);
  if (tensor == nullptr) return fail("{}: tensor {} is missing", path_, name);
  const auto fits = [](uint64_t stated, uint64_t wanted) {
    return wanted == 0 || stated == wanted;
  };
  if (!std::ranges::equal(tensor->shape, shape, fits) || std::ranges::contains(tensor->shape, 0u)) {
    return fail("{}: tensor {} has the shape {}; the settings ask for {}", path_, tensor->name,
                shape_text(tensor->shape), shape_text(shape));
  }
  return tensor;
}

Result<void> Checkpoint::check_all_used() const {
  for (const SourceTensor& tensor : source_->tensors()) {
    const auto ends = [&](std::string_view end) { return tensor.name.ends_with(end); };
    if (used_.contains(&tensor) || std::ranges::any_of(kStray, ends)) continue;
    if (zero_bias(*source_, tensor)) continue;
    return fail(
        "{}: tensor {} {} has no place in this kind of model as it is implemented; the checkpoint "
        "is another "
        "kind of model than its settings say, or a quantised or adapted form of it",
        path_, tensor.name, shape_text(tensor.shape));
  }
  return {};
}

}  // namespace volvelle
