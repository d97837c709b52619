#include "converter/sources/packed_linears.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <memory>
#include <mutex>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace volvelle {
namespace {

using nlohmann::json;

constexpr std::string_view kCodes = ".qweight", kZeros = ".qzeros", kScales = ".scales",
                           kGroups = ".g_idx", kWeight = ".weight";
// Where in a word of AWQ's the code of an output is that has this remainder by eight.
constexpr std::array<uint32_t, 8> kAwqPlaces = {0, 4, 1, 5, 2, 6, 3, 7};

enum class Method { awq, gptq };

// What quantization_config says.
struct Packing {
  Method method = Method::gptq;
  uint32_t bits = 4;
  uint64_t group = 0;        // inputs; 0: all of a row
  uint32_t zero_offset = 0;  // to be added to stored zero points

  uint64_t per_word() const { return 32 / bits; }
};

// Tensors that make one linear, and its shape.
struct PackedLinear {
  const SourceTensor* codes = nullptr;  // of the source that holds them
  const SourceTensor* zeros = nullptr;
  const SourceTensor* scales = nullptr;
  uint64_t inputs = 0, outputs = 0, groups = 0;
  std::vector<uint32_t> group_of;  // [inputs]
};

class UnpackedSource final : public TensorSource {
 public:
  UnpackedSource(std::unique_ptr<TensorSource> packed, Packing packing)
      : packed_(std::move(packed)), packing_(packing) {}

  // Finds the linears among what is packed. `path` names the checkpoint in errors.
  Result<void> find_linears(const std::string& path);

  const std::vector<SourceTensor>& tensors() const override { return tensors_; }
  Result<void> read(const SourceTensor& tensor, uint64_t first_row, uint64_t rows,
                    std::span<float> values) const override;
  Result<void> read_words(const SourceTensor& tensor, uint64_t first_row, uint64_t rows,
                          std::span<uint32_t> words) const override {
    return packed_->read_words(tensor, first_row, rows, words);
  }
  std::vector<uint32_t> column_order(const SourceTensor& tensor) const override;

 private:
  // All that a linear is made of.
  struct Held {
    const PackedLinear* linear;
    std::vector<uint32_t> codes;
    std::vector<float> zeros, scales;  // [groups, outputs]
  };

  Result<PackedLinear> describe(const std::string& path, const SourceTensor& codes) const;
  Result<std::shared_ptr<const Held>> hold(const PackedLinear& linear) const;

  std::unique_ptr<TensorSource> packed_;
  Packing packing_;
  std::vector<SourceTensor> tensors_;
  std::vector<PackedLinear> linears_;  // of tensors_; without codes where it is no packed one
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Held> held_;  // the linear that was read last
};

// How the linear whose codes these are is made, once its tensors fit each other.
Result<PackedLinear> UnpackedSource::describe(const std::string& path,
                                              const SourceTensor& codes) const {
  const std::string name = codes.name.substr(0, codes.name.size() - kCodes.size());
  const auto matrix = [&](std::string_view part, bool words) -> Result<const SourceTensor*> {
    const SourceTensor* const tensor = packed_->find(name + std::string(part));
    if (tensor == nullptr) return fail("{}: tensor {}{} is missing", path, name, part);
    if (tensor->shape.size() != 2 || tensor->rows() == 0) {
      return fail("{}: tensor {} is no matrix, as a packed linear has it", path, tensor->name);
    }
    if (words && tensor->type != "I32") {
      return fail("{}: tensor {} is of type {}, where packed integers are I32", path, tensor->name,
                  tensor->type);
    }
    return tensor;
  };
  PackedLinear linear;
  VOLVELLE_ASSIGN_OR_RETURN(linear.codes, matrix(kCodes, true));
  VOLVELLE_ASSIGN_OR_RETURN(linear.zeros, matrix(kZeros, true));
  VOLVELLE_ASSIGN_OR_RETURN(linear.scales, matrix(kScales, false));
  // No product overflows: a file has a word for each element of `codes`, and its size fits 63 bits.
  const uint64_t per_word = packing_.per_word();
  const bool along_inputs = packing_.method == Method::gptq;
  linear.inputs = linear.codes->rows() * (along_inputs ? per_word : 1);
  linear.outputs = linear.codes->columns() * (along_inputs ? 1 : per_word);
  linear.groups = linear.scales->rows();
  const uint64_t group = packing_.group == 0 ? linear.inputs : packing_.group;
  const uint64_t groups = linear.inputs / group + (linear.inputs % group != 0);
  if (linear.scales->columns() != linear.outputs || linear.groups != groups) {
    return fail(
        "{}: tensor {} is {} by {}; {} of {} inputs and {} outputs in groups of {} go with {} by "
        "{}",
        path, linear.scales->name, linear.groups, linear.scales->columns(), codes.name,
        linear.inputs, linear.outputs, group, groups, linear.outputs);
  }
  if (linear.zeros->rows() != groups || linear.outputs % per_word != 0 ||
      linear.zeros->columns() != linear.outputs / per_word) {
    return fail(
        "{}: tensor {} is {} by {}; {} groups of {} outputs, {} to a word, go with {} by {}", path,
        linear.zeros->name, linear.zeros->rows(), linear.zeros->columns(), groups, linear.outputs,
        per_word, groups, linear.outputs / per_word);
  }
  linear.group_of.resize(linear.inputs);
  const SourceTensor* const order =
      along_inputs ? packed_->find(name + std::string(kGroups)) : nullptr;
  if (order == nullptr) {
    if (linear.inputs % group != 0) {
      return fail("{}: tensor {} has {} inputs, which are no whole groups of {}", path, codes.name,
                  linear.inputs, group);
    }
    for (uint64_t i = 0; i < linear.inputs; ++i) {
      linear.group_of[i] = static_cast<uint32_t>(i / group);
    }
    return linear;
  }
  if (order->shape.size() != 1 || order->columns() != linear.inputs) {
    return fail("{}: tensor {} has no group for each of {} inputs", path, order->name,
                linear.inputs);
  }
  VOLVELLE_RETURN_IF_ERROR(packed_->read_words(*order, 0, 1, linear.group_of));
  const auto beyond =
      std::ranges::find_if(linear.group_of, [&](uint32_t g) { return g >= groups; });
  if (beyond != linear.group_of.end()) {
    return fail("{}: tensor {}: input {} is of group {}; there are {}", path, order->name,
                beyond - linear.group_of.begin(), static_cast<int32_t>(*beyond), groups);
  }
  return linear;
}

Result<void> UnpackedSource::find_linears(const std::string& path) {
  std::set<std::string> parts;  // of linears
  for (const SourceTensor& tensor : packed_->tensors()) {
    if (!tensor.name.ends_with(kCodes)) continue;
    const std::string name = tensor.name.substr(0, tensor.name.size() - kCodes.size());
    for (const std::string_view part : {kZeros, kScales, kGroups}) {
      parts.insert(name + std::string(part));
    }
    if (packed_->find(name + std::string(kWeight)) != nullptr) {
      return fail("{}: tensors {} and {}{} are the same weights", path, tensor.name, name, kWeight);
    }
  }
  if (parts.empty()) {
    return fail("{}: config.json says that weights are packed, but there is no tensor …{}", path,
                kCodes);
  }
  for (const SourceTensor& tensor : packed_->tensors()) {
    if (parts.contains(tensor.name)) continue;
    if (!tensor.name.ends_with(kCodes)) {
      tensors_.push_back(tensor);
      linears_.emplace_back();
      continue;
    }
    VOLVELLE_ASSIGN_OR_RETURN(PackedLinear linear, describe(path, tensor));
    tensors_.push_back(
        {tensor.name.substr(0, tensor.name.size() - kCodes.size()) + std::string(kWeight),
         packing_.method == Method::awq ? "AWQ" : "GPTQ",
         {linear.outputs, linear.inputs}});
    linears_.push_back(std::move(linear));
  }
  return {};
}

Result<std::shared_ptr<const UnpackedSource::Held>> UnpackedSource::hold(
    const PackedLinear& linear) const {
  const std::lock_guard lock(mutex_);
  if (held_ != nullptr && held_->linear == &linear) return held_;
  held_.reset();  // before the next one takes room
  const auto words_of = [&](const SourceTensor& tensor) -> Result<std::vector<uint32_t>> {
    std::vector<uint32_t> words(tensor.rows() * tensor.columns());
    VOLVELLE_RETURN_IF_ERROR(packed_->read_words(tensor, 0, tensor.rows(), words));
    return words;
  };
  const auto held = std::make_shared<Held>();
  held->linear = &linear;
  VOLVELLE_ASSIGN_OR_RETURN(held->codes, words_of(*linear.codes));
  held->scales.resize(linear.groups * linear.outputs);
  VOLVELLE_RETURN_IF_ERROR(packed_->read(*linear.scales, 0, linear.groups, held->scales));
  VOLVELLE_ASSIGN_OR_RETURN(const std::vector<uint32_t> zeros, words_of(*linear.zeros));
  held->zeros.resize(held->scales.size());
  const uint64_t per_word = packing_.per_word();
  for (uint64_t i = 0; i < held->zeros.size(); ++i) {
    const uint64_t within = i % per_word;  // outputs are a multiple of it
    const uint64_t place = packing_.method == Method::awq ? kAwqPlaces[within] : within;
    const uint32_t zero = (zeros[i / per_word] >> place * packing_.bits) + packing_.zero_offset;
    held->zeros[i] = static_cast<float>(zero & ((1u << packing_.bits) - 1));
  }
  held_ = held;
  return held_;
}

Result<void> UnpackedSource::read(const SourceTensor& tensor, uint64_t first_row, uint64_t rows,
                                  std::span<float> values) const {
  const SourceTensor* const known = find(tensor.name);
  if (known == nullptr) return fail("tensor {} is not in this checkpoint", tensor.name);
  const PackedLinear& linear = linears_[known - tensors_.data()];
  if (linear.codes == nullptr) return packed_->read(tensor, first_row, rows, values);
  if (first_row > linear.outputs || rows > linear.outputs - first_row ||
      values.size() != rows * linear.inputs) {
    return fail("tensor {}: rows {} to {} were asked for of {}", tensor.name, first_row,
                first_row + rows, linear.outputs);
  }
  VOLVELLE_ASSIGN_OR_RETURN(const std::shared_ptr<const Held> held, hold(linear));
  const uint64_t per_word = packing_.per_word();
  const uint32_t mask = (1u << packing_.bits) - 1;
  const auto code = [&](uint64_t input, uint64_t output) {
    if (packing_.method == Method::awq) {
      const uint32_t word = held->codes[input * (linear.outputs / per_word) + output / per_word];
      return word >> kAwqPlaces[output % per_word] * packing_.bits & mask;
    }
    const uint32_t word = held->codes[input / per_word * linear.outputs + output];
    return word >> input % per_word * packing_.bits & mask;
  };
  constexpr uint64_t kBand = 16;  // inputs: words lie along the outputs, values along the inputs
  for (uint64_t first = 0; first < linear.inputs; first += kBand) {
    const uint64_t end = std::min(first + kBand, linear.inputs);
    for (uint64_t row = 0; row < rows; ++row) {
      for (uint64_t input = first; input < end; ++input) {
        const uint64_t output = first_row + row;
        const uint64_t group = linear.group_of[input] * linear.outputs + output;
        values[row * linear.inputs + input] =
            (static_cast<float>(code(input, output)) - held->zeros[group]) * held->scales[group];
      }
    }
  }
  return {};
}

std::vector<uint32_t> UnpackedSource::column_order(const SourceTensor& tensor) const {
  const SourceTensor* const known = find(tensor.name);
  if (known == nullptr) return {};
  const std::vector<uint32_t>& group_of = linears_[known - tensors_.data()].group_of;
  if (std::ranges::is_sorted(group_of)) return {};
  std::vector<uint32_t> order(group_of.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::stable_sort(order, {}, [&](uint32_t column) { return group_of[column]; });
  return order;
}

// A member of the quantisation's settings, of either name; null: it is not there.
json member(const json& settings, const char* name, const char* other) {
  const json value = settings.value(name, json());
  return value.is_null() ? settings.value(other, json()) : value;
}

// What a setting says, for a sentence.
std::string said(const json& value) {
  constexpr size_t kMost = 60;
  const std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  return text.size() > kMost ? text.substr(0, kMost) + "…" : text;
}

Result<Packing> read_packing(const std::string& where, const json& settings) {
  constexpr uint64_t kMostGroup = uint64_t{1} << 31;
  Packing packing;
  const json method = settings.is_object() ? member(settings, "quant_method", "method") : json();
  if (method != "awq" && method != "gptq") {
    return fail(
        "{}: quant_method is {}; weights packed by \"awq\" and \"gptq\" can be read, and such as "
        "are not quantised",
        where, said(method));
  }
  packing.method = method == "awq" ? Method::awq : Method::gptq;
  const bool awq = packing.method == Method::awq;
  const json bits = member(settings, "bits", "w_bit");
  if (bits != 4 && (awq || bits != 8)) {
    return fail("{}: bits is {}; {} can be read", where, said(bits),
                awq ? "4 of awq" : "4 and 8 of gptq");
  }
  packing.bits = bits == 4 ? 4 : 8;
  const json group = member(settings, "group_size", "q_group_size");
  if (!group.is_number_integer() || (group != -1 && (group < 1 || group > kMostGroup))) {
    return fail("{}: group_size is {}; it must be -1 or a number of inputs", where, said(group));
  }
  packing.group = group == -1 ? 0 : group.get<uint64_t>();
  json format =
      awq ? member(settings, "version", "format") : member(settings, "checkpoint_format", "format");
  if (format.is_string()) {
    std::string& text = format.get_ref<std::string&>();
    std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  }
  const bool second = format == "gptq_v2";
  if (!format.is_null() && format != (awq ? "gemm" : "gptq") && (awq || !second)) {
    return fail("{}: the format is {}; {} can be read", where, said(format),
                awq ? "awq's \"gemm\"" : "\"gptq\" and \"gptq_v2\"");
  }
  packing.zero_offset = awq || second ? 0 : 1;
  // Other bits or groups for some linears; and words in an order that only one processor likes.
  for (const char* key : {"dynamic", "is_marlin_format"}) {
    const json value = settings.value(key, json());
    if (value.is_null() || value == false || (value.is_object() && value.empty())) continue;
    return fail("{}: {} is {}; only linears that are packed alike can be read", where, key,
                said(value));
  }
  return packing;
}

}  // namespace

Result<void> unpack_linears(HfFolder& folder) {
  const auto settings = folder.config.find(kQuantizationKey);
  if (settings == folder.config.end() || settings->is_null()) return {};
  const std::string where = folder.file("config.json") + ": " + std::string(kQuantizationKey);
  VOLVELLE_ASSIGN_OR_RETURN(const Packing packing, read_packing(where, *settings));
  auto source = std::make_unique<UnpackedSource>(std::move(folder.tensors), packing);
  VOLVELLE_RETURN_IF_ERROR(source->find_linears(folder.path));
  folder.tensors = std::move(source);
  folder.config.erase(settings);
  return {};
}

}  // namespace volvelle
