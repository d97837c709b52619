#include "converter/source.h"

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <utility>

#include "converter/sources/gguf.h"
#include "converter/sources/hf_folder.h"
#include "converter/sources/packed_linears.h"
#include "converter/tokenizers/gguf_vocabulary.h"
#include "converter/tokenizers/tokenizer_folder.h"

namespace volvelle {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kCommandNotFound = 127;  // a shell's
constexpr uint64_t kMetadataListLimit = 65536;
constexpr uint32_t kDefaultTopK = 50;  // of a generation_config.json that samples and states none

bool hub_name(std::string_view source) {
  const auto part = [](std::string_view text) {
    const auto allowed = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
             c == '.' || c == '_' || c == '-';
    };
    return !text.empty() && text.front() != '-' && text.front() != '.' &&
           std::ranges::all_of(text, allowed);
  };
  const size_t slash = source.find('/');
  return slash != std::string_view::npos && part(source.substr(0, slash)) &&
         part(source.substr(slash + 1));
}

// Fetches with `hf`, which prints the folder last.
Result<std::string> fetch(const std::string& name) {
  std::FILE* pipe =
      popen(("command -v hf >/dev/null || exit 127; exec hf download " + name).c_str(), "r");
  if (pipe == nullptr) return fail("{}: the program hf cannot be started", name);
  std::string last;
  bool ended = false;  // a newline came after `last`
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) {
    if (c == '\n') {
      ended = true;
    } else {
      if (std::exchange(ended, false)) last.clear();
      last += static_cast<char>(c);
    }
  }
  const int status = pclose(pipe);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kCommandNotFound) {
    return fail(
        "{}: there is no such file or folder, and fetching a model of that name from the hub needs "
        "the program hf "
        "(pipx install huggingface_hub)",
        name);
  }
  if (status != 0 || last.empty()) return fail("{}: hf could not fetch the model", name);
  return last;
}

// A tokenizer that cannot be read is no reason to give up the model, but the user must say so.
Result<TokenizerSpec> or_without(Result<TokenizerSpec> tokenizer) {
  if (!tokenizer) {
    return fail("{}; --no-tokenizer converts the model without it", tokenizer.error().message);
  }
  return tokenizer;
}

// The `license:` of the settings that open a model card.
std::string card_licence(const std::string& path) {
  constexpr int kLines = 200;
  constexpr std::string_view kKey = "license:";
  std::ifstream card(path);
  std::string line;
  if (!std::getline(card, line) || !line.starts_with("---")) return {};
  for (int i = 0; i < kLines && std::getline(card, line) && !line.starts_with("---"); ++i) {
    if (!line.starts_with(kKey)) continue;
    const size_t begin = line.find_first_not_of(" \t\"'", kKey.size());
    const size_t end = line.find_last_not_of(" \t\r\"'");
    return begin == std::string::npos || end < begin ? "" : line.substr(begin, end - begin + 1);
  }
  return {};
}

// An id, or a list of ids.
Result<std::vector<uint32_t>> token_ids(const std::string& where, const json& value) {
  std::vector<uint32_t> ids;
  for (const json& id : value.is_array() ? value : json::array({value})) {
    if (!id.is_number_integer() || id < 0 || id > INT32_MAX)
      return fail("{}: is no token id", where);
    ids.push_back(id.get<uint32_t>());
  }
  return ids;
}

// An id, of which a list holds but one; none: -1.
Result<int32_t> one_token_id(const std::string& where, const json& value) {
  if (value.is_null()) return -1;
  VOLVELLE_ASSIGN_OR_RETURN(const std::vector<uint32_t> ids, token_ids(where, value));
  if (ids.size() != 1) return fail("{}: is a list of several ids", where);
  return static_cast<int32_t>(ids[0]);
}

// How a decoder behind an encoder goes on. Old checkpoints say it in config.json.
Result<void> read_beam_search(const HfFolder& folder, recipe::Generation& generation) {
  const auto find = [&](const char* key) -> std::pair<json, std::string> {
    if (folder.generation_config.is_object() && folder.generation_config.contains(key)) {
      return {folder.generation_config[key], folder.file("generation_config.json") + ": " + key};
    }
    return {folder.config.value(key, json()), folder.file("config.json") + ": " + key};
  };
  for (const auto& [key, id] : {std::pair{"decoder_start_token_id", &generation.decoder_start},
                                std::pair{"forced_bos_token_id", &generation.forced_bos},
                                std::pair{"forced_eos_token_id", &generation.forced_eos}}) {
    const auto [value, where] = find(key);
    VOLVELLE_ASSIGN_OR_RETURN(*id, one_token_id(where, value));
  }
  for (const auto& [key, number] : {std::pair{"num_beams", &generation.beams},
                                    std::pair{"no_repeat_ngram_size", &generation.no_repeat_ngram},
                                    std::pair{"min_length", &generation.min_length},
                                    std::pair{"max_length", &generation.max_length}}) {
    const auto [value, where] = find(key);
    if (value.is_null()) continue;
    if (!value.is_number_integer() || value < 0 || value > INT32_MAX) {
      return fail("{}: is no count", where);
    }
    *number = value.get<uint32_t>();
  }
  generation.beams = std::max(generation.beams, 1u);
  const auto [penalty, penalty_where] = find("length_penalty");
  if (!penalty.is_null()) {
    if (!penalty.is_number()) return fail("{}: is no number", penalty_where);
    generation.length_penalty = penalty.get<float>();
  }
  const auto [stopping, stopping_where] = find("early_stopping");
  if (stopping == "never") {
    generation.early_stopping = file::EarlyStopping::never;
  } else if (stopping == true) {
    generation.early_stopping = file::EarlyStopping::yes;
  } else if (!stopping.is_null() && stopping != false) {
    return fail("{}: is neither true nor false nor \"never\"", stopping_where);
  }
  const auto [words, words_where] = find("bad_words_ids");
  for (const json& word : words.is_array() ? words : json::array()) {
    VOLVELLE_ASSIGN_OR_RETURN(std::vector<uint32_t> ids, token_ids(words_where, word));
    generation.bad_words.push_back(std::move(ids));
  }
  return {};
}

Result<recipe::Generation> read_generation(const HfFolder& folder) {
  recipe::Generation generation;
  const json& defaults = folder.generation_config;
  const json& fallback = folder.config;
  const bool own = defaults.is_object() && defaults.contains("eos_token_id");
  const json& source = own ? defaults : fallback;
  const std::string file = folder.file(own ? "generation_config.json" : "config.json");
  if (source.contains("eos_token_id") && !source["eos_token_id"].is_null()) {
    VOLVELLE_ASSIGN_OR_RETURN(generation.eos,
                              token_ids(file + ": eos_token_id", source["eos_token_id"]));
  }
  VOLVELLE_RETURN_IF_ERROR(read_beam_search(folder, generation));
  if (!defaults.is_object()) return generation;

  Config config(folder.file("generation_config.json"), "", defaults, {});
  generation.sample = config.flag("do_sample", false);
  generation.temperature = static_cast<float>(config.number("temperature", 1));
  const double top_k = config.number("top_k", generation.sample ? kDefaultTopK : 0);
  generation.top_k = static_cast<uint32_t>(std::clamp(top_k, 0.0, 1e9));
  generation.top_p = static_cast<float>(config.number("top_p", 1));
  generation.min_p = static_cast<float>(config.number("min_p", 0));
  generation.repetition_penalty = static_cast<float>(config.number("repetition_penalty", 1));
  VOLVELLE_RETURN_IF_ERROR(config.status());
  return generation;
}

Result<const Family*> family_of(const HfFolder& folder) {
  const std::string path = folder.file("config.json");
  const json type = folder.config.value("model_type", json());
  VOLVELLE_ASSIGN_OR_RETURN(
      const Family* family,
      find_family(path, Naming::kHuggingFace, type.is_string() ? type.get<std::string>() : ""));
  const json architectures = folder.config.value("architectures", json());
  if (architectures.is_array() && !architectures.empty() && architectures[0].is_string()) {
    const std::string name = architectures[0].get<std::string>();
    constexpr std::array<std::string_view, 10> kKnown = {"ForCausalLM",
                                                         "Model",
                                                         "Stack",
                                                         "ForMaskedLM",
                                                         "ForSequenceClassification",
                                                         "ForTokenClassification",
                                                         "ForConditionalGeneration",
                                                         "ForPreTraining",
                                                         "Decoder",
                                                         "Encoder"};
    if (std::ranges::none_of(kKnown, [&](auto kind) { return name.ends_with(kind); })) {
      return fail(
          "{}: architectures is \"{}\"; only models that predict the next token are implemented",
          path, name);
    }
  }
  return family;
}

Result<OpenedSource> open_folder(const std::string& path, std::span<const std::string> ignored,
                                 bool with_tokenizer) {
  VOLVELLE_ASSIGN_OR_RETURN(HfFolder folder, open_hf_folder(path));
  if (!std::ranges::contains(ignored, kQuantizationKey)) {
    VOLVELLE_RETURN_IF_ERROR(unpack_linears(folder));
  }
  VOLVELLE_ASSIGN_OR_RETURN(const Family* family, family_of(folder));
  VOLVELLE_ASSIGN_OR_RETURN(recipe::Generation generation, read_generation(folder));
  std::optional<TokenizerSpec> tokenizer;
  if (with_tokenizer && has_tokenizer(path)) {
    VOLVELLE_ASSIGN_OR_RETURN(tokenizer, or_without(read_tokenizer_folder(path)));
  }
  const fs::path plain = fs::absolute(path).lexically_normal();
  const std::string name = (plain.has_filename() ? plain : plain.parent_path()).filename().string();
  Config config(folder.file("config.json"), "", folder.config, ignored);
  return OpenedSource{
      .path = path,
      .checkpoint =
          Checkpoint(path, Naming::kHuggingFace, std::move(config), std::move(folder.tensors)),
      .family = family,
      .name = name,
      .origin = name,
      .licence = card_licence(folder.file("README.md")),
      .generation = std::move(generation),
      .tokenizer = std::move(tokenizer),
  };
}

// A scalar, or a short list of numbers; null for what is neither.
json to_json(const GgufMetadata& metadata, const GgufValue& value) {
  if (value.count > kMetadataListLimit) return nullptr;
  if (value.element == GgufType::string) {
    if (value.is_array) return nullptr;
    const auto text = metadata.text(value.key);
    return text ? json(std::string(*text)) : json();
  }
  if (value.element == GgufType::boolean && !value.is_array) {
    const auto flag = metadata.boolean(value.key);
    return flag ? json(*flag) : json();
  }
  const auto numbers = metadata.numbers(value.key);
  if (!numbers) return nullptr;
  json list = json::array();
  for (uint64_t i = 0; i < numbers->size(); ++i) {
    numbers->integral() ? list.push_back(numbers->integer(i)) : list.push_back(numbers->real(i));
  }
  return value.is_array ? list : list[0];
}

std::string text_or_empty(const GgufMetadata& metadata, std::string_view key) {
  const GgufValue* value = metadata.find(key);
  if (value == nullptr || value->is_array || value->element != GgufType::string) return {};
  return std::string(*metadata.text(key));
}

Result<OpenedSource> open_gguf(const std::string& path, std::span<const std::string> ignored,
                               bool with_tokenizer) {
  VOLVELLE_ASSIGN_OR_RETURN(std::unique_ptr<GgufTensorSource> source, GgufTensorSource::open(path));
  const GgufMetadata& metadata = source->metadata();
  const std::string architecture = text_or_empty(metadata, "general.architecture");
  VOLVELLE_ASSIGN_OR_RETURN(const Family* family, find_family(path, Naming::kGguf, architecture));

  json settings = json::object();
  const std::string prefix = architecture + ".";
  for (const GgufValue& value : metadata.values()) {
    if (value.key.starts_with(prefix)) settings[std::string(value.key)] = to_json(metadata, value);
  }
  recipe::Generation generation;
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"}) {
    if (!metadata.has(key)) continue;
    VOLVELLE_ASSIGN_OR_RETURN(const uint64_t id, metadata.unsigned_integer(key));
    const auto token = static_cast<uint32_t>(std::min<uint64_t>(id, INT32_MAX));
    if (!std::ranges::contains(generation.eos, token)) generation.eos.push_back(token);
  }
  if (const std::string start = prefix + "decoder_start_token_id"; metadata.has(start)) {
    VOLVELLE_ASSIGN_OR_RETURN(const uint64_t id, metadata.unsigned_integer(start));
    generation.decoder_start = static_cast<int32_t>(std::min<uint64_t>(id, INT32_MAX));
  }
  std::optional<TokenizerSpec> tokenizer;
  const std::string vocabulary = text_or_empty(metadata, "tokenizer.ggml.model");
  if (with_tokenizer && !vocabulary.empty() && vocabulary != "no_vocab" && vocabulary != "none") {
    VOLVELLE_ASSIGN_OR_RETURN(tokenizer, or_without(read_gguf_tokenizer(metadata)));
  }
  const std::string file = fs::path(path).filename().string();
  const std::string name = text_or_empty(metadata, "general.name");
  const std::string url = text_or_empty(metadata, "general.source.url");
  std::string licence = text_or_empty(metadata, "general.license");
  return OpenedSource{
      .path = path,
      .checkpoint = Checkpoint(path, Naming::kGguf, Config(path, prefix, settings, ignored),
                               std::move(source)),
      .family = family,
      .name = name.empty() ? fs::path(path).stem().string() : name,
      .origin = url.empty() ? file : url,
      .licence = std::move(licence),
      .generation = std::move(generation),
      .tokenizer = std::move(tokenizer),
  };
}

Result<OpenedSource> open_path(const std::string& path, std::span<const std::string> ignored_keys,
                               bool with_tokenizer) {
  std::error_code ignored;
  const fs::path file(path);
  if (fs::is_directory(file, ignored)) return open_folder(path, ignored_keys, with_tokenizer);
  if (file.extension() == ".safetensors" || file.filename() == "config.json") {
    return open_folder(file.has_parent_path() ? file.parent_path().string() : ".", ignored_keys,
                       with_tokenizer);
  }
  if (file.extension() == ".gguf") return open_gguf(path, ignored_keys, with_tokenizer);
  return fail("{}: is neither a folder with config.json nor a .gguf file", path);
}

}  // namespace

Result<OpenedSource> open_source(const std::string& source,
                                 std::span<const std::string> ignored_keys, bool with_tokenizer) {
  std::error_code ignored;
  std::string path = source;
  if (!fs::exists(path, ignored)) {
    if (!hub_name(source)) return fail("{}: there is no such file or folder", source);
    VOLVELLE_ASSIGN_OR_RETURN(path, fetch(source));
  }
  VOLVELLE_ASSIGN_OR_RETURN(OpenedSource opened, open_path(path, ignored_keys, with_tokenizer));
  if (path != source) opened.name = opened.origin = source;
  return opened;
}

}  // namespace volvelle
