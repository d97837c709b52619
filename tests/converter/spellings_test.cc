// One model in every spelling of its settings and names that there has been: the files come out the
// same, byte for byte. What the goldens' own spelling leads to is held against logits elsewhere.

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/goldens/golden.h"

namespace volvelle {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

using Change = std::function<void(json& config)>;

void nothing(json&) {}

std::vector<std::byte> file_of(const std::string& folder, const Change& change = nothing) {
  CAPTURE(folder);
  return convert_to_bytes(AlteredCheckpoint(folder, change).source(), "q8");
}

void check_same(const std::string& folder, const std::vector<Change>& changes) {
  const std::vector<std::byte> as_it_is = file_of(folder);
  REQUIRE(as_it_is.size() > 1000);
  for (const Change& change : changes) CHECK(file_of(folder, change) == as_it_is);
}

std::string text_of(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

json config_of(const std::string& folder) {
  return json::parse(text_of("tests/goldens/" + folder + "/config.json"));
}

// Goldens of Hugging Face folders.
std::vector<std::string> folders() {
  std::vector<std::string> all;
  for (const auto& entry : fs::directory_iterator("tests/goldens")) {
    if (fs::exists(entry.path() / "config.json")) all.push_back(entry.path().filename().string());
  }
  std::ranges::sort(all);
  return all;
}

bool scaled(const json& config) {
  return config.contains("rope_scaling") && config["rope_scaling"].is_object();
}

// Transformers 5: what rotary positions are told stands in one object. `config` is spelled as in
// transformers 4, and its dials are all alike.
void gather_rope_parameters(json& config) {
  json all = scaled(config) ? config["rope_scaling"] : json::object();
  config.erase("rope_scaling");
  if (!all.contains("rope_type")) all["rope_type"] = all.value("type", "default");
  all.erase("type");
  for (const auto& [four, five] : {std::pair{"rope_theta", "rope_theta"},
                                   {"rotary_emb_base", "rope_theta"},
                                   {"partial_rotary_factor", "partial_rotary_factor"},
                                   {"rotary_pct", "partial_rotary_factor"}}) {
    if (!config.contains(four)) continue;
    all[five] = config[four];
    config.erase(four);
  }
  config["rope_parameters"] = all;
}

// The same for each type of layers. The reference then looks for the original context inside, and
// for `truncate` outside.
void gather_by_layer_type(json& config) {
  gather_rope_parameters(config);
  json all = config["rope_parameters"];
  const std::string original = "original_max_position_embeddings";
  if (all["rope_type"] != "default" && config.contains(original)) all[original] = config[original];
  json outside = json::object();
  if (all.contains("truncate")) outside["truncate"] = all["truncate"];
  all.erase("truncate");
  outside["full_attention"] = all;
  outside["sliding_attention"] = all;
  config["rope_parameters"] = outside;
}

// All tensors of the folder's one file under other names.
void rename_tensors(const AlteredCheckpoint& checkpoint,
                    const std::function<std::string(const std::string&)>& rename) {
  const fs::path path = checkpoint.source() / "model.safetensors";
  const std::string file = text_of(path);
  uint64_t bytes;
  std::memcpy(&bytes, file.data(), sizeof bytes);
  const json named = json::parse(file.substr(sizeof bytes, bytes));
  json renamed = json::object();
  for (const auto& [name, value] : named.items()) {
    renamed[name == "__metadata__" ? name : rename(name)] = value;
  }
  std::string header = renamed.dump();
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t header_bytes = header.size();
  std::ofstream stream(path, std::ios::binary);
  stream.write(reinterpret_cast<const char*>(&header_bytes), sizeof header_bytes);
  stream << header << file.substr(sizeof bytes + bytes);
}

TEST_CASE("goldens that are one model in two spellings give the same file") {
  for (const auto& [one, other] : {std::pair{"llama_spelling_4", "llama_spelling_5"},
                                   {"gemma3_spelling_4", "gemma3_spelling_5"},
                                   {"gpt_neox_parallel", "gpt_neox_spelling_5"},
                                   {"phi3_longrope", "phi3_longrope_su"}}) {
    CHECK(file_of(one) == file_of(other));
  }
  CHECK(file_of("llama_spelling_4") != file_of("llama_llama3_scaling"));
}

TEST_CASE("rotary settings gathered as in transformers 5, or by layer type, give the same file") {
  size_t seen = 0;
  for (const std::string& folder : folders()) {
    const json config = config_of(folder);
    const bool rotary = config.contains("rope_theta") || config.contains("rotary_emb_base");
    // Falcon's ALiBi ignores a base; two dials are spelled below.
    if (!rotary || config.value("alibi", false) || config.contains("rope_local_base_freq"))
      continue;
    CAPTURE(folder);
    check_same(folder, {gather_rope_parameters, gather_by_layer_type});
    ++seen;
  }
  CHECK(seen >= 70);
}

TEST_CASE("a scaling's name under type, rope_type or both gives the same file") {
  size_t seen = 0;
  for (const std::string& folder : folders()) {
    json config = config_of(folder);
    if (!scaled(config)) continue;
    CAPTURE(folder);
    json& scaling = config["rope_scaling"];
    const json type = scaling.contains("rope_type") ? scaling["rope_type"] : scaling["type"];
    const auto name = [type](std::vector<const char*> keys) {
      return [=](json& changed) {
        json& section = changed["rope_scaling"];
        section.erase("type");
        section.erase("rope_type");
        for (const char* key : keys) section[key] = type;
      };
    };
    check_same(folder, {name({"type"}), name({"rope_type"}), name({"type", "rope_type"})});
    ++seen;
  }
  CHECK(seen >= 20);
}

TEST_CASE("an original context in the scaling or beside it gives the same file") {
  const std::string key = "original_max_position_embeddings";
  size_t seen = 0;
  for (const std::string& folder : folders()) {
    const json config = config_of(folder);
    if (!scaled(config)) continue;
    CAPTURE(folder);
    if (config["rope_scaling"].contains(key)) {
      check_same(folder, {[&](json& changed) {
                            changed[key] = changed["rope_scaling"][key];
                            changed["rope_scaling"].erase(key);
                          },
                          [&](json& changed) { changed[key] = changed["rope_scaling"][key]; }});
      ++seen;
    } else if (config.contains(key)) {
      check_same(folder, {[&](json& changed) {
                   changed["rope_scaling"][key] = changed[key];
                   changed.erase(key);
                 }});
      ++seen;
    }
  }
  CHECK(seen >= 15);
}

TEST_CASE("LongRoPE by its older names gives the same file") {
  const auto name = [](const char* type) {
    return [type](json& config) { config["rope_scaling"]["type"] = type; };
  };
  check_same("phi3_longrope", {name("longrope"), name("su"), name("yarn")});
}

TEST_CASE("Gemma 3's local base beside the others or in the sliding layers' part gives one file") {
  for (const std::string folder : {"gemma3_spelling_4", "gemma3_seven_layers"}) {
    CAPTURE(folder);
    const auto by_layer_type = [](json& config) {
      json full = scaled(config) ? config["rope_scaling"] : json{{"rope_type", "default"}};
      full["rope_theta"] = config["rope_theta"];
      const json sliding = {{"rope_type", "default"},
                            {"rope_theta", config["rope_local_base_freq"]}};
      for (const char* key : {"rope_scaling", "rope_theta", "rope_local_base_freq"}) {
        config.erase(key);
      }
      config["rope_parameters"] = {{"full_attention", full}, {"sliding_attention", sliding}};
    };
    const auto listed = [](json& config) {
      const uint64_t layers = config["num_hidden_layers"];
      const uint64_t pattern = config.value("sliding_window_pattern", uint64_t{6});
      config.erase("sliding_window_pattern");
      config["layer_types"] = json::array();
      for (uint64_t layer = 1; layer <= layers; ++layer) {
        config["layer_types"].push_back(layer % pattern == 0 ? "full_attention"
                                                             : "sliding_attention");
      }
    };
    check_same(folder, {by_layer_type, listed, [&](json& config) {
                          by_layer_type(config);
                          listed(config);
                        }});
  }
}

TEST_CASE("the type of the weights is read as dtype and as torch_dtype") {
  const auto rename = [](json& config) {
    if (!config.contains("torch_dtype")) return;
    config["dtype"] = config["torch_dtype"];
    config.erase("torch_dtype");
  };
  for (const std::string& folder : folders()) {
    CAPTURE(folder);
    check_same(folder, {rename});
  }
  // Gemma's embeddings are scaled by a root that is rounded to the type.
  for (const std::string folder : {"gemma", "gemma2", "gemma3_spelling_4"}) {
    CAPTURE(folder);
    const auto half = [](json& config) { config["torch_dtype"] = "bfloat16"; };
    const std::vector<std::byte> rounded = file_of(folder, half);
    CHECK(rounded != file_of(folder));
    CHECK(rounded == file_of(folder, [&](json& config) {
            half(config);
            rename(config);
          }));
  }
}

TEST_CASE("a base that is a whole number, or written as one with a fraction, gives the same file") {
  for (const std::string folder : {"llama_grouped_heads", "glm", "stablelm", "cohere"}) {
    check_same(folder, {[](json& config) {
                 config["rope_theta"] = static_cast<int64_t>(config["rope_theta"].get<double>());
               }});
  }
}

// Moves keys to their other names.
Change renamed(std::vector<std::pair<const char*, const char*>> keys) {
  return [keys = std::move(keys)](json& config) {
    for (const auto& [from, to] : keys) {
      if (!config.contains(from)) continue;
      config[to] = config[from];
      config.erase(from);
    }
  };
}

// BloomConfig and FalconConfig with their attribute maps, and the files that are older than they.
TEST_CASE("BLOOM's and Falcon's older names of sizes give the same file") {
  for (const std::string folder : {"bloom", "bloom_residual_after_norm"}) {
    CAPTURE(folder);
    check_same(folder,
               {renamed({{"hidden_size", "n_embed"}}), renamed({{"n_layer", "num_hidden_layers"}}),
                renamed({{"n_head", "num_attention_heads"}}),
                renamed({{"hidden_size", "n_embed"},
                         {"n_layer", "num_hidden_layers"},
                         {"n_head", "num_attention_heads"}}),
                [](json& config) {  // as BLOOM-560m says it
                  renamed({{"hidden_size", "n_embed"}, {"n_head", "num_attention_heads"}})(config);
                  config.update({{"attention_dropout", 0.0},
                                 {"attention_softmax_in_fp32", true},
                                 {"bias_dropout_fusion", true},
                                 {"hidden_dropout", 0.0},
                                 {"initializer_range", 0.02},
                                 {"masked_softmax_fusion", true},
                                 {"n_inner", nullptr},
                                 {"offset_alibi", 100},
                                 {"pad_token_id", 3},
                                 {"pretraining_tp", 2},
                                 {"seq_length", 2048},
                                 {"skip_bias_add", true},
                                 {"skip_bias_add_qkv", false},
                                 {"slow_but_exact", false},
                                 {"unk_token_id", 0},
                                 {"use_cache", true}});
                }});
  }
  for (const std::string folder :
       {"falcon_alibi", "falcon_grouped", "falcon_grouped_one_norm", "falcon_multi_query"}) {
    CAPTURE(folder);
    check_same(folder,
               {renamed({{"hidden_size", "n_embed"}}), renamed({{"hidden_size", "n_embed"},
                                                                {"num_hidden_layers", "n_layer"},
                                                                {"num_attention_heads", "n_head"},
                                                                {"num_kv_heads", "n_head_kv"}})});
  }
}

TEST_CASE("Gemma's activation under either name gives the same file") {
  for (const std::string folder : {"gemma", "gemma2", "gemma3_spelling_4"}) {
    CAPTURE(folder);
    check_same(folder, {renamed({{"hidden_activation", "hidden_act"}}),
                        [](json& config) { config.erase("hidden_activation"); }});
  }
}

TEST_CASE("tensors with and without the model's name in front give the same file") {
  size_t seen = 0;
  for (const std::string& folder : folders()) {
    if (!fs::exists("tests/goldens/" + folder + "/model.safetensors")) continue;
    CAPTURE(folder);
    size_t stripped = 0;
    const AlteredCheckpoint bare(folder, nothing);
    rename_tensors(bare, [&](const std::string& name) {
      for (const std::string_view prefix : {"model.", "transformer.", "gpt_neox."}) {
        if (!name.starts_with(prefix)) continue;
        ++stripped;
        return name.substr(prefix.size());
      }
      return name;
    });
    if (stripped == 0) continue;
    CHECK(convert_to_bytes(bare.source(), "q8") == file_of(folder));
    ++seen;
  }
  CHECK(seen >= 60);
  for (const auto& [folder, prefix] :
       {std::pair{"gpt2", "transformer."}, {"bloom", "transformer."}}) {
    CAPTURE(folder);
    const AlteredCheckpoint named(folder, nothing);
    rename_tensors(named, [&](const std::string& name) {
      return name.starts_with("lm_head") ? name : prefix + name;
    });
    CHECK(convert_to_bytes(named.source(), "q8") == file_of(folder));
  }
}

TEST_CASE("settings that state what is the default, or have no effect, give the same file") {
  check_same("stablelm", {[](json& config) {
               config.erase("partial_rotary_factor");  // a quarter
               config.erase("num_key_value_heads");
               config["use_parallel_residual"] = false;
               config["qk_layernorm"] = false;
               config["rotary_scaling_factor"] = 1.0;
             }});
  check_same("opt", {[](json& config) {
               config.erase("word_embed_proj_dim");
               config.erase("do_layer_norm_before");
               config["_remove_final_layer_norm"] = false;
               config["enable_bias"] = true;
               config["layer_norm_elementwise_affine"] = true;
               config["layerdrop"] = 0.0;
               config["init_std"] = 0.02;
               config["prefix"] = "</s>";
             }});
  check_same("baichuan_7b", {[](json& config) {
               config["model_max_length"] = 4096;  // of the tokenizer, where positions have a limit
               config["z_loss_weight"] = 0;
               config["_from_model_config"] = true;
               config["tokenizer_class"] = "BaichuanTokenizer";
             }});
}

}  // namespace
}  // namespace volvelle
