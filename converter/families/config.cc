#include "converter/families/config.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace volvelle {
namespace {

using nlohmann::json;

constexpr uint64_t kCountLimit = uint64_t{1} << 31;
constexpr int kDepthLimit = 8;

// Keys that say how a model was trained, stored or is used, and nothing about what it computes.
// Tokens and generation defaults are read elsewhere.
constexpr std::array<std::string_view, 82> kHarmless = {
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "_from_model_config",
    "_name_or_path",
    "activation_dropout",
    "architectures",
    "attention_dropout",
    "attn_implementation",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "block_count",
    "bos_token_id",
    "cache_implementation",
    "classifier_dropout",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dropout",
    "dtype",
    "early_stopping",
    "embd_pdrop",
    "embedding_dropout",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "gradient_checkpointing",
    "hidden_dropout",
    "hidden_dropout_prob",
    "id2label",
    "init_std",
    "initializer_range",
    "is_llama_config",
    "label2id",
    "layerdrop",
    "length_penalty",
    "max_length",
    "max_new_tokens",
    "max_time",
    "min_length",
    "model_type",
    "name_or_path",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_labels",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "pad_token_id",
    "prefix",
    "problem_type",
    "remove_invalid_values",
    "renormalize_logits",
    "repetition_penalty",
    "resid_pdrop",
    "residual_dropout",
    "return_dict",
    "return_dict_in_generate",
    "rope.scaling.finetuned",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tensor_data_layout",
    "tie_weights_",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "transformers.js_config",
    "transformers_version",
    "typical_p",
    "unk_token_id",
    "unsloth_fixed",
    "unsloth_version",
    "use_cache",
};
static_assert(std::ranges::is_sorted(kHarmless));

// Keys that change nothing as long as they have this value.
struct Neutral {
  std::string_view key;
  std::string_view value;
};
constexpr std::array<Neutral, 16> kNeutral = {{
    {"add_cross_attention", "false"},
    {"attention.causal", "true"},
    {"chunk_size_feed_forward", "0"},
    {"cross_attention_hidden_size", "null"},
    {"expert_count", "0"},
    {"expert_used_count", "0"},
    {"is_decoder", "false"},
    {"is_encoder_decoder", "false"},
    {"pretraining_tp", "1"},
    {"pruned_heads", "{}"},
    {"rope_interleaved", "false"},
    {"tie_encoder_decoder", "false"},
    {"torchscript", "false"},
    {"use_bfloat16", "false"},
    {"use_mrope", "false"},
    {"use_parallel_residual", "false"},
}};

// `path` or one of its outer objects is in the list.
bool harmless(std::string_view path) {
  for (size_t end = path.size(); end != std::string_view::npos; end = path.rfind('.', end - 1)) {
    if (std::ranges::binary_search(kHarmless, path.substr(0, end))) return true;
    if (end == 0) break;
  }
  return false;
}

bool neutral(std::string_view path, const json& value) {
  const auto same = [&](const Neutral& known) {
    return known.key == path && json::parse(known.value, nullptr, false) == value;
  };
  return value.is_null() || std::ranges::any_of(kNeutral, same);
}

bool names(std::string_view ignored, std::string_view prefix, std::string_view path) {
  if (ignored.starts_with(prefix)) ignored.remove_prefix(prefix.size());
  return path == ignored || path.ends_with("." + std::string(ignored));
}

// As it stands in a sentence: short, on one line.
std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

std::optional<uint64_t> whole(const json& value) {
  if (value.is_number_unsigned()) return value.get<uint64_t>();
  if (value.is_number_integer() && value.get<int64_t>() >= 0) return value.get<uint64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const double number = value.get<double>();
  if (!(number >= 0 && number < double{kCountLimit}) || number != std::floor(number)) {
    return std::nullopt;
  }
  return static_cast<uint64_t>(number);
}

}  // namespace

Config::Config(std::string file, std::string prefix, const json& values,
               std::span<const std::string> ignored)
    : file_(std::move(file)), prefix_(std::move(prefix)) {
  if (!values.is_object()) {
    fault_ = Error{std::format("{}: is no object of settings", file_)};
    return;
  }
  for (const auto& [key, value] : values.items()) {
    if (key.starts_with(prefix_)) flatten(key.substr(prefix_.size()), value, ignored, 1);
  }
}

void Config::flatten(const std::string& path, const json& value,
                     std::span<const std::string> ignored, int depth) {
  const auto named = [&](const std::string& key) { return names(key, prefix_, path); };
  if (std::ranges::any_of(ignored, named)) return;
  if (!value.is_object() || value.empty() || depth == kDepthLimit) {
    values_.emplace(path, value);
    return;
  }
  for (const auto& [key, inner] : value.items()) {
    flatten(path + "." + key, inner, ignored, depth + 1);
  }
}

bool Config::mentions(const std::string& key) {
  read_.insert(key);
  return values_.contains(key);
}

const json* Config::value(const std::string& key) {
  read_.insert(key);
  const auto found = values_.find(key);
  if (found == values_.end() || found->second.is_null()) return nullptr;
  return &found->second;
}

bool Config::has(const std::string& key) { return value(key) != nullptr; }

bool Config::has_section(const std::string& key) const {
  const auto found = values_.lower_bound(key + ".");
  return found != values_.end() && found->first.starts_with(key + ".");
}

std::optional<uint64_t> Config::optional_count(const std::string& key) {
  const json* stated = value(key);
  if (stated == nullptr) return std::nullopt;
  if (stated->is_array() && !stated->empty()) {
    for (const json& element : *stated) {
      if (element != stated->front()) {
        refuse(key, "differs from layer to layer, which is not implemented");
        return 0;
      }
    }
    stated = &stated->front();
  }
  const std::optional<uint64_t> number = whole(*stated);
  if (!number || *number == 0 || *number >= kCountLimit) {
    refuse(key, "is {}, not a whole number from 1 to {}", shown(*stated), kCountLimit - 1);
    return 0;
  }
  return number;
}

uint64_t Config::count(const std::string& key) {
  const std::optional<uint64_t> number = optional_count(key);
  if (!number) refuse(key, "is missing");
  return number.value_or(0);
}

uint64_t Config::count(const std::string& key, uint64_t fallback) {
  return optional_count(key).value_or(fallback);
}

double Config::number(const std::string& key) {
  if (!has(key)) refuse(key, "is missing");
  return number(key, 0);
}

double Config::number(const std::string& key, double fallback) {
  const json* stated = value(key);
  if (stated == nullptr) return fallback;
  if (!stated->is_number() || !std::isfinite(stated->get<double>())) {
    refuse(key, "is {}, not a number", shown(*stated));
    return 0;
  }
  return stated->get<double>();
}

bool Config::flag(const std::string& key, bool fallback) {
  const json* stated = value(key);
  if (stated == nullptr) return fallback;
  if (!stated->is_boolean()) {
    refuse(key, "is {}, not true or false", shown(*stated));
    return fallback;
  }
  return stated->get<bool>();
}

std::string Config::text(const std::string& key, const std::string& fallback) {
  const json* stated = value(key);
  if (stated == nullptr) return fallback;
  if (!stated->is_string()) {
    refuse(key, "is {}, not a text", shown(*stated));
    return fallback;
  }
  return stated->get<std::string>();
}

void Config::expect(const std::string& key, const json& only) {
  const json* stated = value(key);
  if (stated != nullptr && *stated != only) {
    refuse(key, "is {}; only {} is implemented", shown(*stated), shown(only));
  }
}

void Config::fault(const std::string& key, const std::string& what) {
  if (!fault_) fault_ = Error{std::format("{}: {}{} {}", file_, prefix_, key, what)};
}

Result<void> Config::status() const {
  if (fault_) return std::unexpected(*fault_);
  return {};
}

Result<void> Config::finish(std::string_view family) const {
  VOLVELLE_RETURN_IF_ERROR(status());
  for (const auto& [key, value] : values_) {
    if (read_.contains(key) || harmless(key) || neutral(key, value)) continue;
    return fail(
        "{}: {}{} is {}, which family {} does not know and which may change what the model "
        "computes; "
        "--ignore-key {} converts as if it were not there",
        file_, prefix_, key, shown(value), family, prefix_ + key);
  }
  return {};
}

}  // namespace volvelle
