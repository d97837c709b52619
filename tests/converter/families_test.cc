// What families make of settings and tensors. Meanings of keys: the reference's configuration
// classes (transformers 4.57 and 5.24) and the GGUF specification.

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <set>

#include "converter/sources/hf_folder.h"
#include "converter/sources/packed_linears.h"
#include "tests/converter/tiny_checkpoint.h"

namespace volvelle {
namespace {

using nlohmann::json;

std::string refusal(json settings, const std::string& key, const json& value) {
  settings[json::json_pointer("/" + key)] = value;
  return describe_tiny(settings, tiny_tensors()).error();
}

const RotaryPlan& rotary_of(const Described& described, size_t position = 0) {
  return std::get<RotaryPlan>(described.model->positions.at(position));
}

TEST_CASE("an unknown kind of model is answered with those that are known") {
  const std::string error = describe_tiny({{"model_type", "rwkv"}}, tiny_tensors()).error();
  CHECK(error.contains("model_type \"rwkv\" is not known; known are baichuan, "));
  CHECK(error.contains(", bloom, camembert, cohere, cohere2, "));
  CHECK(describe_tiny(json::object(), tiny_tensors()).error().contains("model_type is missing"));
  CHECK(describe_tiny_gguf("mistral", json::object(), tiny_gguf_tensors())
            .error()
            .contains("general.architecture \"mistral\" is not known; known are baichuan, bert, "
                      "bloom, command-r, cohere2, falcon,"));
}

TEST_CASE("positions that are not implemented are refused by name") {
  const json settings = tiny_settings("llama");
  for (const char* type : {"ntk", "mrope", "ntk-by-parts", "dynamic_ntk", "LLAMA3", ""}) {
    CAPTURE(type);
    for (const char* spelling :
         {"rope_scaling/type", "rope_scaling/rope_type", "rope_parameters/rope_type"}) {
      const std::string error = refusal(settings, spelling, type);
      CHECK(error.contains("config.json: "));
      CHECK(error.contains(std::string(spelling).replace(std::string(spelling).find('/'), 1, ".")));
      CHECK(error.contains(std::string("\"") + type + "\""));
    }
  }
  const std::vector<std::pair<const char*, json>> wrong = {
      {"partial_rotary_factor", 0.5},
      {"rope_parameters/partial_rotary_factor", 0.5},
      {"position_embedding_type", "alibi"},
      {"rope_interleaved", true},
      {"alibi", true},
      {"rope_scaling/mrope_section", {1, 1}},
      {"no_rope_layers", {1, 0}},
      {"attention_chunk_size", 8192},
      {"layer_types", {"full_attention", "full_attention"}},
      {"rope_scaling/factor", 2},
      {"rope_theta", 0.0},
      {"rope_theta", "1e4"},
      {"hidden_act", "relu6"},
      {"quantization_config/bits", 4}};
  for (const auto& [key, value] : wrong) {
    CAPTURE(key);
    std::string dotted = key;
    std::ranges::replace(dotted, '/', '.');
    CHECK(refusal(settings, key, value).contains("config.json: " + dotted));
  }
  for (const auto& [key, value] : wrong) {
    json ignoring = settings;
    ignoring[json::json_pointer(std::string("/") + key)] = value;
    std::string dotted = key;
    std::ranges::replace(dotted, '/', '.');
    CAPTURE(dotted);
    CHECK(describe_tiny(ignoring, tiny_tensors(), {dotted}).error().empty());
  }
}

TEST_CASE("rotary settings mean the same in the spellings of transformers 4 and 5") {
  const json llama3 = {{"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 32}};
  json four = tiny_settings("llama");
  four["rope_theta"] = 500.0;
  four["rope_scaling"] = llama3;
  json legacy = four;
  four["rope_scaling"]["rope_type"] = "llama3";
  legacy["rope_scaling"]["type"] = "llama3";
  json five = tiny_settings("llama");
  five.erase("rope_theta");
  five["rope_parameters"] = llama3;
  five["rope_parameters"]["rope_type"] = "llama3";
  five["rope_parameters"]["rope_theta"] = 500.0;
  json nested = five;
  nested["rope_parameters"] = {{"full_attention", five["rope_parameters"]}};
  json outer = five;  // Phi's place for the original length, which wins
  outer["original_max_position_embeddings"] = 32;
  outer["rope_parameters"]["original_max_position_embeddings"] = 16;

  RotaryPlan expected{.width = 4, .base = 500};
  expected.scaling = {.kind = RotaryScalingKind::kLlama3, .factor = 8, .original_context = 32};
  for (const json& settings : {four, legacy, five, nested, outer}) {
    CAPTURE(settings.dump());
    const Described described = describe_tiny(settings, tiny_tensors());
    REQUIRE(described.error() == "");
    REQUIRE(described.model->positions.size() == 1);
    CHECK(rotary_of(described) == expected);
  }
  json plain = tiny_settings("llama");
  plain.erase("rope_theta");
  CHECK(rotary_of(describe_tiny(plain, tiny_tensors())) == RotaryPlan{.width = 4, .base = 10000});
}

// The plan of the tiny llama with rope_scaling `scaling`, and with the same in other spellings.
RotaryPlan scaled_plan(const json& scaling, const json& beside = json::object()) {
  json four = tiny_settings("llama");
  four.update(beside);
  json legacy = four, five = four, nested = four;
  four["rope_scaling"] = scaling;
  legacy["rope_scaling"] = scaling;
  legacy["rope_scaling"]["type"] = scaling.at("rope_type");
  legacy["rope_scaling"].erase("rope_type");
  five["rope_parameters"] = scaling;
  five["rope_parameters"]["rope_theta"] = five["rope_theta"];
  five.erase("rope_theta");
  const Described expected = describe_tiny(four, tiny_tensors());
  REQUIRE(expected.error() == "");
  for (const json& settings : {legacy, five}) {
    CAPTURE(settings.dump());
    const Described described = describe_tiny(settings, tiny_tensors());
    REQUIRE(described.error() == "");
    CHECK(described.model->positions == expected.model->positions);
  }
  if (beside.empty() && !scaling.contains("truncate")) {
    nested["rope_parameters"] = {{"full_attention", scaling}};
    const Described described = describe_tiny(nested, tiny_tensors());
    REQUIRE(described.error() == "");
    CHECK(described.model->positions == expected.model->positions);
  }
  return rotary_of(expected);
}

TEST_CASE("every scaling is read in every spelling") {
  using enum RotaryScalingKind;
  RotaryPlan plan{.width = 4, .base = 10000};
  plan.scaling = {.kind = kLinear, .factor = 2.5};
  CHECK(scaled_plan({{"rope_type", "linear"}, {"factor", 2.5}}) == plan);

  plan.scaling = {.kind = kDynamicNtk, .factor = 4, .original_context = 64};
  CHECK(scaled_plan({{"rope_type", "dynamic"}, {"factor", 4.0}}) == plan);
  CHECK(scaled_plan({{"rope_type", "dynamic"},
                     {"factor", 4.0},
                     {"original_max_position_embeddings", 16}}) == plan);  // which it ignores

  plan.scaling = {.kind = kYarn, .factor = 4, .original_context = 64};
  CHECK(scaled_plan({{"rope_type", "yarn"}, {"factor", 4.0}}) == plan);
  CHECK(scaled_plan({{"rope_type", "yarn"},
                     {"factor", 4.0},
                     {"beta_fast", nullptr},
                     {"beta_slow", 0},
                     {"attention_factor", nullptr}}) == plan);
  plan.scaling.original_context = 32;  // the factor that is stated counts, not the ratio
  CHECK(scaled_plan(
            {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32}}) ==
        plan);
  plan.scaling.factor = 2;  // none stated: the ratio
  CHECK(scaled_plan({{"rope_type", "yarn"}, {"original_max_position_embeddings", 32}}) == plan);
  plan.scaling = {.kind = kYarn,
                  .factor = 40,
                  .original_context = 16,
                  .beta_fast = 16,
                  .beta_slow = 2,
                  .truncate = false,
                  .attention_factor = 1.25,
                  .mscale = 0.5,
                  .mscale_all_dim = 1};
  CHECK(scaled_plan({{"rope_type", "yarn"},
                     {"factor", 40},
                     {"original_max_position_embeddings", 16},
                     {"beta_fast", 16},
                     {"beta_slow", 2},
                     {"truncate", false},
                     {"attention_factor", 1.25},
                     {"mscale", 0.5},
                     {"mscale_all_dim", 1.0}}) == plan);

  plan.scaling = {.kind = kLongRope,
                  .factor = 4,
                  .original_context = 16,
                  .short_factors = {1, 1.5f},
                  .long_factors = {1, 30}};
  json longrope = {{"rope_type", "longrope"},
                   {"short_factor", {1.0, 1.5}},
                   {"long_factor", {1, 30}},
                   {"original_max_position_embeddings", 16}};
  CHECK(scaled_plan(longrope) == plan);
  longrope["rope_type"] = "su";
  CHECK(scaled_plan(longrope) == plan);
  longrope.erase("original_max_position_embeddings");  // Phi's place
  CHECK(scaled_plan(longrope, {{"original_max_position_embeddings", 16}}) == plan);
  longrope["factor"] = 32.0;
  longrope["attention_factor"] = 1.5;
  plan.scaling.factor = 32;
  plan.scaling.attention_factor = 1.5;
  CHECK(scaled_plan(longrope, {{"original_max_position_embeddings", 16}}) == plan);

  plan.scaling = {.kind = kProportional, .turning_planes = 1};
  CHECK(scaled_plan({{"rope_type", "proportional"}, {"partial_rotary_factor", 0.5}}) == plan);
}

TEST_CASE("truncate stands beside the layer types, where the reference looks for it") {
  json settings = tiny_settings("llama");
  const json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}};
  settings["rope_parameters"] = {{"full_attention", yarn}, {"truncate", false}};
  const Described described = describe_tiny(settings, tiny_tensors());
  REQUIRE(described.error() == "");
  CHECK_FALSE(rotary_of(described).scaling.truncate);
  settings["rope_parameters"].erase("truncate");
  settings["rope_parameters"]["full_attention"]["truncate"] = false;
  CHECK(describe_tiny(settings, tiny_tensors())
            .error()
            .contains("rope_parameters.full_attention.truncate"));
}

TEST_CASE("a scaling that cannot be right is refused with its key") {
  struct Wrong {
    json scaling;
    const char* named;
  };
  const json list = {1.0, 2.0};
  const std::vector<Wrong> wrongs = {
      {{{"rope_type", "linear"}}, "rope_scaling.factor is missing"},
      {{{"rope_type", "linear"}, {"factor", 0}}, "rope_scaling.factor"},
      {{{"rope_type", "linear"}, {"factor", -2}}, "rope_scaling.factor"},
      {{{"rope_type", "linear"}, {"factor", 1e9}}, "rope_scaling.factor"},
      {{{"rope_type", "linear"}, {"factor", 2}, {"beta_fast", 3}}, "rope_scaling.beta_fast"},
      {{{"rope_type", "dynamic"}, {"factor", "2"}}, "rope_scaling.factor"},
      {{{"rope_type", "dynamic"}, {"factor", 2}, {"alpha", 1000}}, "rope_scaling.alpha"},
      {{{"rope_type", "yarn"}}, "rope_scaling.factor is missing"},
      {{{"rope_type", "yarn"}, {"factor", 2}, {"beta_fast", 0.5}}, "rope_scaling.beta_fast"},
      {{{"rope_type", "yarn"}, {"factor", 2}, {"beta_slow", -1}}, "rope_scaling.beta_fast"},
      {{{"rope_type", "yarn"}, {"factor", 2}, {"truncate", 1}}, "rope_scaling.truncate"},
      {{{"rope_type", "yarn"}, {"factor", 2}, {"attention_factor", -1}},
       "rope_scaling.attention_factor"},
      {{{"rope_type", "yarn"}, {"factor", 2}, {"mscale", -1}}, "rope_scaling.mscale"},
      {{{"rope_type", "longrope"}, {"factor", 2}, {"long_factor", list}},
       "rope_scaling.short_factor"},
      {{{"rope_type", "longrope"}, {"factor", 2}, {"short_factor", list}, {"long_factor", {1.0}}},
       "rope_scaling.long_factor"},
      {{{"rope_type", "longrope"},
        {"factor", 2},
        {"short_factor", list},
        {"long_factor", {1.0, 0.0}}},
       "rope_scaling.long_factor"},
      {{{"rope_type", "longrope"},
        {"factor", 2},
        {"short_factor", {1.0, "2"}},
        {"long_factor", list}},
       "rope_scaling.short_factor"},
      {{{"rope_type", "longrope"},
        {"factor", 2},
        {"original_max_position_embeddings", 1},
        {"short_factor", list},
        {"long_factor", list}},
       "rope_scaling.original_max_position_embeddings"},
      {{{"rope_type", "proportional"}, {"partial_rotary_factor", 1.5}},
       "rope_scaling.partial_rotary_factor"},
      {{{"rope_type", "llama3"}, {"factor", 2}, {"low_freq_factor", 4}, {"high_freq_factor", 1}},
       "rope_scaling.high_freq_factor"}};
  for (const Wrong& wrong : wrongs) {
    CAPTURE(wrong.scaling.dump());
    CHECK(refusal(tiny_settings("llama"), "rope_scaling", wrong.scaling)
              .contains(std::string("config.json: ") + wrong.named));
  }
}

TEST_CASE("a head is the embedding when it is absent or equal, and its own when it differs") {
  for (const json& stated : {json(), json(false), json(true)}) {
    json settings = tiny_settings("llama");
    if (!stated.is_null()) settings["tie_word_embeddings"] = stated;
    CAPTURE(stated.dump());
    Described absent = describe_tiny(settings, tiny_tensors());
    if (stated == false) {
      CHECK(absent.error() ==
            "tiny: tensor lm_head.weight is missing, and tie_word_embeddings is false");
    } else {
      REQUIRE(absent.error() == "");
      CHECK(absent.model->head.weight == absent.model->embedding);
    }

    auto equal_tensors = tiny_tensors();
    equal_tensors->add("lm_head.weight", {32, 16}, 1);
    Described equal = describe_tiny(settings, std::move(equal_tensors));
    REQUIRE(equal.error() == "");
    CHECK(equal.model->head.weight == equal.model->embedding);

    auto own_tensors = tiny_tensors();
    own_tensors->add("lm_head.weight", {32, 16}, 2);
    Described own = describe_tiny(settings, std::move(own_tensors));
    REQUIRE(own.error() == "");
    CHECK(own.model->head.weight != own.model->embedding);
    CHECK(own.model->tensors[own.model->head.weight].use == recipe::Use::kHead);
  }
}

TEST_CASE("stored tables are passed over, any other tensor that is left is refused by name") {
  auto stray = tiny_tensors(false, false, "");
  stray->add("layers.0.self_attn.rotary_emb.inv_freq", {2});
  stray->add("model.layers.1.self_attn.rotary_emb.inv_freq", {2});
  stray->add("layers.0.attn.bias", {1, 1, 8, 8});
  stray->add("layers.0.self_attn.masked_bias", {});
  stray->add("position_ids", {1, 8});
  CHECK(describe_tiny(tiny_settings("llama"), std::move(stray)).error() == "");

  for (const char* name :
       {"model.layers.0.self_attn.q_proj.bias", "model.layers.2.input_layernorm.weight",
        "model.layers.0.self_attn.q_proj.lora_A.weight", "score.weight"}) {
    CAPTURE(name);
    auto tensors = tiny_tensors();
    tensors->add(name, {16});
    CHECK(describe_tiny(tiny_settings("llama"), std::move(tensors))
              .error()
              .contains(std::string("tensor ") + name));
  }
}

TEST_CASE("a tensor that is missing or has another shape is refused by name") {
  CHECK(refusal(tiny_settings("llama"), "num_hidden_layers", 3)
            .contains("tensor model.layers.2.input_layernorm.weight is missing"));
  CHECK(refusal(tiny_settings("llama"), "vocab_size", 33)
            .contains("tensor model.embed_tokens.weight has the shape [32, 16]; the settings ask "
                      "for [33, 16]"));
  CHECK(refusal(tiny_settings("llama"), "head_dim", 6)
            .contains("self_attn.q_proj.weight has the shape [16, 16]"));
  CHECK(refusal(tiny_settings("llama"), "attention_bias", true)
            .contains("self_attn.q_proj.bias is missing"));
  CHECK(refusal(tiny_settings("llama"), "num_key_value_heads", 3)
            .contains("num_key_value_heads is 3, which 4 query heads cannot share evenly"));
  CHECK(refusal(tiny_settings("llama"), "head_dim", 5)
            .contains("head_dim gives heads of 5 elements"));
}

TEST_CASE("mistral's window is on every layer unless it is null, and 4096 when not mentioned") {
  json settings = tiny_settings("mistral");
  CHECK(describe_tiny(settings, tiny_tensors()).model->blocks[1].attention.window == 4096);
  settings["sliding_window"] = 16;
  CHECK(describe_tiny(settings, tiny_tensors()).model->blocks[0].attention.window == 16);
  settings["sliding_window"] = nullptr;
  CHECK(describe_tiny(settings, tiny_tensors()).model->blocks[0].attention.window == 0);
}

TEST_CASE("qwen's windows follow the layer types, or else the flag and the first layer") {
  const auto windows = [](const json& settings) {
    const Described described = describe_tiny(settings, tiny_tensors(true));
    REQUIRE(described.error() == "");
    return std::pair(described.model->blocks[0].attention.window,
                     described.model->blocks[1].attention.window);
  };
  json settings = tiny_settings("qwen2");
  settings["sliding_window"] = 12;
  settings["max_window_layers"] = 1;
  CHECK(windows(settings) == std::pair(0u, 0u));
  settings["use_sliding_window"] = true;
  CHECK(windows(settings) == std::pair(0u, 12u));
  settings["max_window_layers"] = 0;
  CHECK(windows(settings) == std::pair(12u, 12u));
  settings["layer_types"] = {"sliding_attention", "full_attention"};
  CHECK(windows(settings) == std::pair(12u, 0u));
  settings["use_sliding_window"] = false;
  CHECK(describe_tiny(settings, tiny_tensors(true))
            .error()
            .contains("layer_types names sliding layers"));
  settings["layer_types"] = {"chunked_attention", "full_attention"};
  CHECK(describe_tiny(settings, tiny_tensors(true)).error().contains("chunked_attention"));
}

TEST_CASE("layers of two types may turn by two dials, and a dial that no layer uses is not kept") {
  json settings = tiny_settings("qwen2");
  settings["sliding_window"] = 12;
  settings["use_sliding_window"] = true;
  settings["layer_types"] = {"sliding_attention", "full_attention"};
  settings["rope_parameters"] = {{"full_attention", {{"rope_theta", 1e6}}},
                                 {"sliding_attention", {{"rope_theta", 1e4}}}};
  settings.erase("rope_theta");
  Described both = describe_tiny(settings, tiny_tensors(true));
  REQUIRE(both.error() == "");
  REQUIRE(both.model->positions.size() == 2);
  CHECK(rotary_of(both, both.model->blocks[0].attention.position).base == 1e4);
  CHECK(rotary_of(both, both.model->blocks[1].attention.position).base == 1e6);
  for (const char* type : {"sliding_attention", "full_attention"}) {
    settings["layer_types"] = {type, type};
    Described one = describe_tiny(settings, tiny_tensors(true));
    REQUIRE(one.error() == "");
    REQUIRE(one.model->positions.size() == 1);
    CHECK(one.model->blocks[1].attention.position == 0);
    CHECK(rotary_of(one).base == (std::string(type) == "full_attention" ? 1e6 : 1e4));
  }
}

TEST_CASE("qwen3 norms its heads") {
  Described described = describe_tiny(tiny_settings("qwen3"), tiny_tensors(false, true));
  REQUIRE(described.error() == "");
  CHECK(described.model->blocks[0].attention.query_norm.has_value());
  CHECK(described.model->blocks[0].attention.key_norm.has_value());
  json settings = tiny_settings("qwen3");
  settings.erase("head_dim");  // then 128, not 16 / 4
  CHECK(describe_tiny(settings, tiny_tensors(false, true))
            .error()
            .contains("the settings ask for [512, 16]"));
}

TEST_CASE("GGUF's llama has rows of q and k put in half order, or turns interleaved pairs") {
  json settings = tiny_gguf_settings("llama");
  Described whole = describe_tiny_gguf("llama", settings, tiny_gguf_tensors());
  REQUIRE(whole.error() == "");
  const auto parts = [](const Described& described) {
    return described.model->tensors[described.model->blocks[0].attention.qkv.weight].parts;
  };
  CHECK(parts(whole)[0].head_rows == 4);
  CHECK(parts(whole)[1].head_rows == 4);
  CHECK(parts(whole)[2].head_rows == 0);
  CHECK(rotary_of(whole) == RotaryPlan{.width = 4, .base = 10000});

  settings["llama.rope.dimension_count"] = 2;
  Described part = describe_tiny_gguf("llama", settings, tiny_gguf_tensors());
  REQUIRE(part.error() == "");
  CHECK(parts(part)[0].head_rows == 0);
  CHECK(rotary_of(part) == RotaryPlan{.pairing = Pairing::kInterleaved, .width = 2, .base = 10000});
}

TEST_CASE("GGUF scalings are read from keys and from tensors of divisors") {
  using enum RotaryScalingKind;
  const auto plan = [](const json& more, std::vector<float> short_factors = {},
                       std::vector<float> long_factors = {}) {
    json settings = tiny_gguf_settings("llama");
    settings.update(more);
    auto tensors = tiny_gguf_tensors();
    if (!short_factors.empty()) tensors->add("rope_factors_short.weight", {2}, short_factors);
    if (!long_factors.empty()) tensors->add("rope_factors_long.weight", {2}, long_factors);
    Described described = describe_tiny_gguf("llama", settings, std::move(tensors));
    CAPTURE(more.dump());
    REQUIRE(described.error() == "");
    return rotary_of(described).scaling;
  };
  const RotaryScaling linear{.kind = kLinear, .factor = 4};
  CHECK(plan({{"llama.rope.scaling.type", "linear"}, {"llama.rope.scaling.factor", 4.0}}) ==
        linear);
  CHECK(plan({{"llama.rope.scaling.factor", 4.0}}) == linear);
  CHECK(plan({{"llama.rope.scale_linear", 4.0}}) == linear);
  CHECK(plan({{"llama.rope.scaling.factor", 0.0}}) == RotaryScaling());
  CHECK(plan({{"llama.rope.scaling.type", "none"}, {"llama.rope.scaling.factor", 4.0}}) ==
        RotaryScaling());

  json yarn = {{"llama.rope.scaling.type", "yarn"},
               {"llama.rope.scaling.factor", 4.0},
               {"llama.rope.scaling.original_context_length", 16}};
  RotaryScaling expected{.kind = kYarn, .factor = 4, .original_context = 16};
  CHECK(plan(yarn) == expected);
  // GGML multiplies what is stated by 1 + 0.1 ln(factor).
  yarn["llama.rope.scaling.attn_factor"] = 0.5;
  CHECK(*plan(yarn).attention_factor == doctest::Approx(0.5 * (1 + 0.1 * std::log(4.0))));

  const json longrope = {{"llama.rope.scaling.attn_factor", 1.25},
                         {"llama.rope.scaling.original_context_length", 16}};
  expected = {.kind = kLongRope,
              .original_context = 16,
              .attention_factor = 1.25,  // the whole of it
              .short_factors = {1, 1.5f},
              .long_factors = {1, 30}};
  CHECK(plan(longrope, {1, 1.5f}, {1, 30}) == expected);

  auto half = tiny_gguf_tensors();
  half->add("rope_factors_long.weight", {2}, std::vector<float>{1, 30});
  CHECK(describe_tiny_gguf("llama", tiny_gguf_settings("llama"), std::move(half))
            .error()
            .contains("rope_factors_short.weight"));
}

TEST_CASE("GGUF scalings that are not known are refused by name") {
  const auto refused = [](const char* key, const json& value) {
    json settings = tiny_gguf_settings("llama");
    settings[key] = value;
    return describe_tiny_gguf("llama", settings, tiny_gguf_tensors()).error();
  };
  CHECK(refused("llama.rope.scaling.type", "ntk").contains("tiny.gguf: llama.rope.scaling.type"));
  CHECK(refused("llama.rope.scaling.type", "longrope").contains("llama.rope.scaling.type"));
  CHECK(refused("llama.rope.scaling.factor", -4.0).contains("llama.rope.scaling.factor"));
  CHECK(refused("llama.rope.scale_linear", -2.0).contains("llama.rope.scale_linear"));
  CHECK(refused("llama.rope.scaling.yarn_log_multiplier", 0.1).contains("yarn_log_multiplier"));
  CHECK(refused("llama.rope.scaling.attn_factor", 1.2).contains("llama.rope.scaling.attn_factor"));
  CHECK(refused("llama.rope.freq_base_swa", 1e4).contains("llama.rope.freq_base_swa"));
  CHECK(refused("llama.expert_count", 8).contains("llama.expert_used_count is missing"));
  CHECK(refused("llama.attention.value_length", 8).contains("llama.attention.value_length"));
  CHECK(refused("llama.attention.head_count_kv", {2, 1}).contains("llama.attention.head_count_kv"));
  CHECK(refused("llama.rope.scaling.type", "none") == "");
  CHECK(refused("llama.expert_count", 0) == "");

  auto divided = tiny_gguf_tensors();
  divided->add("rope_freqs.weight", {2}, std::vector<float>{1, 8});
  Described described =
      describe_tiny_gguf("llama", tiny_gguf_settings("llama"), std::move(divided));
  REQUIRE(described.error() == "");
  CHECK(rotary_of(described).divisors == std::vector<float>{1, 8});
  json twice = tiny_gguf_settings("llama");
  twice["llama.rope.scaling.factor"] = 2.0;
  auto divided_again = tiny_gguf_tensors();
  divided_again->add("rope_freqs.weight", {2}, std::vector<float>{1, 8});
  CHECK(describe_tiny_gguf("llama", twice, std::move(divided_again))
            .error()
            .contains("llama.rope.scaling.factor"));
  auto zero = tiny_gguf_tensors();
  zero->add("rope_freqs.weight", {2}, std::vector<float>{1, 0});
  CHECK(describe_tiny_gguf("llama", tiny_gguf_settings("llama"), std::move(zero))
            .error()
            .contains("rope_freqs"));
}

// A golden's settings and tensors in memory, to be altered.
struct Golden {
  std::string name;
  json settings;
  std::vector<std::pair<SourceTensor, std::vector<float>>> tensors;

  Described describe(const json& altered, const std::string& without = "") const {
    auto source = std::make_unique<MemorySource>();
    for (const auto& [tensor, values] : tensors) {
      if (tensor.name != without) source->add(tensor.name, tensor.shape, values);
    }
    return describe_tiny(altered, std::move(source));
  }
};

Golden golden(const std::string& name) {
  HfFolder folder = *open_hf_folder("tests/goldens/" + name);
  REQUIRE(unpack_linears(folder).has_value());
  Golden result{name, folder.config, {}};
  for (const SourceTensor& tensor : folder.tensors->tensors()) {
    std::vector<float> values(tensor.rows() * tensor.columns());
    (void)folder.tensors->read(tensor, 0, tensor.rows(), values);  // stray ones cannot be read
    result.tensors.emplace_back(tensor, std::move(values));
  }
  return result;
}

// A golden's name, a key of its configuration, and what no such key may be.
using WrongSetting = std::tuple<const char*, const char*, json>;

void check_settings_refused(const std::vector<WrongSetting>& wrongs) {
  for (const auto& [name, key, value] : wrongs) {
    CAPTURE(name);
    CAPTURE(key);
    const Golden whole = golden(name);
    json settings = whole.settings;
    settings[key] = value;
    CHECK(whole.describe(settings).error().contains(std::string("config.json: ") + key));
  }
}

std::vector<Golden> golden_folders() {
  std::vector<Golden> all;
  for (const auto& entry : std::filesystem::directory_iterator("tests/goldens")) {
    if (std::filesystem::exists(entry.path() / "config.json")) {
      all.push_back(golden(entry.path().filename().string()));
    }
  }
  return all;
}

// The source tensors that a model is made of, other than its head, without which the embedding is
// the head, and tables of positions, which some families can form themselves.
std::set<std::string> needed_tensors(const recipe::Model& model) {
  std::set<std::string> names;
  for (size_t i = 0; i < model.tensors.size(); ++i) {
    const recipe::Tensor& tensor = model.tensors[i];
    const int index = static_cast<int>(i);
    const bool head = index == model.head.weight || index == model.head.bias;
    if ((head && index != model.embedding) || tensor.use == recipe::Use::kTable) continue;
    for (const recipe::Part& part : tensor.parts) {
      if (part.source != nullptr) names.insert(part.source->name);
    }
  }
  return names;
}

TEST_CASE("every family refuses a setting that it does not know, and a missing tensor, by name") {
  const std::vector<Golden> goldens = golden_folders();
  REQUIRE(goldens.size() >= 60);
  for (const Golden& whole : goldens) {
    CAPTURE(whole.name);
    json settings = whole.settings;
    const Described described = whole.describe(settings);
    REQUIRE(described.error() == "");
    settings["mystery"] = 2;
    CHECK(whole.describe(settings).error().contains("config.json: mystery is 2, which family"));
    for (const std::string& name : needed_tensors(*described.model)) {
      CAPTURE(name);
      std::string today = name;  // of a norm, in old files gamma and beta
      for (const auto& [once, now] : {std::pair{".gamma", ".weight"}, {".beta", ".bias"}}) {
        if (today.ends_with(once)) today.replace(today.size() - std::strlen(once), 9, now);
      }
      CHECK(whole.describe(whole.settings, name).error().contains(today + " is missing"));
    }
  }
  for (const auto& [name, table] : {std::pair{"opt", "model.decoder.embed_positions.weight"},
                                    std::pair{"gpt2_scaled_by_layer", "transformer.wpe.weight"}}) {
    const Golden whole = golden(name);
    CHECK(whole.describe(whole.settings, table)
              .error()
              .contains(std::string("tensor ") + table + " is missing"));
  }
}

TEST_CASE("in every family a head that is missing is refused where the settings untie it") {
  size_t untied = 0;
  for (const Golden& whole : golden_folders()) {
    CAPTURE(whole.name);
    const Described described = whole.describe(whole.settings);
    REQUIRE(described.error() == "");
    const recipe::Model& model = *described.model;
    if (model.encodes || model.head.weight == model.embedding) continue;
    const recipe::Part& head = model.tensors[model.head.weight].parts[0];
    if (head.unit) continue;  // never the embedding
    ++untied;
    json settings = whole.settings;
    settings["tie_word_embeddings"] = false;
    const std::string& name = head.source->name;
    CHECK(whole.describe(settings, name)
              .error()
              .contains("tensor " + name + " is missing, and tie_word_embeddings is false"));
  }
  CHECK(untied >= 20);
}

TEST_CASE("a number that is out of range is at fault, and not the keys that come after it") {
  for (const Golden& whole : golden_folders()) {
    CAPTURE(whole.name);
    for (const auto& [key, value] : whole.settings.items()) {
      if (!value.is_number()) continue;
      CAPTURE(key);
      for (const json& wild : {json(-1), json(1'000'000'007), json(2'147'483'647), json(1e300)}) {
        CAPTURE(wild.dump());
        json settings = whole.settings;
        settings[key] = wild;
        const std::string error = whole.describe(settings).error();
        CHECK((!error.contains("--ignore-key ") || error.contains("--ignore-key " + key)));
      }
    }
  }
  const std::vector<WrongSetting> wrongs = {
      {"opt", "hidden_size", 1'000'000'007},
      {"opt", "num_attention_heads", 1'000'000'007},
      {"opt", "max_position_embeddings", 1'000'000'007},
      {"bert_decoder", "layer_norm_eps", -1},
      {"bert_decoder", "num_hidden_layers", 1'000'000'007},
      {"llama_grouped_heads", "rms_norm_eps", -1},
      {"llama_grouped_heads", "rms_norm_eps", 1},
      {"llama_grouped_heads", "head_dim", 5},
      {"llama_grouped_heads", "head_dim", 1'000'000'006},
      {"llama_grouped_heads", "num_key_value_heads", 1'000'000'007},
      {"llama_grouped_heads", "intermediate_size", 1'000'000'007},
      {"t5_decoder", "d_kv", 1'000'000'007},
      {"t5_decoder", "relative_attention_max_distance", 1'000'000'007},
      {"t5_decoder", "relative_attention_max_distance", 1},
      {"t5_decoder", "relative_attention_num_buckets", 1},
      {"t5_decoder", "relative_attention_num_buckets", 1'000'000'007}};
  check_settings_refused(wrongs);
  for (const char* key : {"attention.key_length", "embedding_length", "attention.head_count",
                          "attention.layer_norm_rms_epsilon", "block_count"}) {
    json settings = tiny_gguf_settings("llama");
    settings[std::string("llama.") + key] = 1'000'000'007;
    CHECK(describe_tiny_gguf("llama", settings, tiny_gguf_tensors())
              .error()
              .contains(std::string("tiny.gguf: llama.") + key));
  }
}

TEST_CASE("settings of one family are refused in another") {
  const std::vector<WrongSetting> wrongs = {
      {"opt", "layer_norm_eps", 1e-12},
      {"opt", "rope_theta", 1e4},
      {"opt", "head_dim", 8},
      {"opt", "activation_function", "relu6"},
      {"stablelm", "rotary_scaling_factor", 2.0},
      {"stablelm", "rms_norm_eps", 1e-5},
      {"stablelm", "head_dim", 8},
      {"baichuan_7b", "num_key_value_heads", 2},
      {"baichuan_13b", "rope_theta", 1e4},
      {"baichuan_13b", "alibi", true},
      {"gpt2_scaled_by_layer", "scale_attn_by_inverse_layer_idx", 1},
      {"modernbert_fill", "classifier_pooling", "max"},
      {"modernbert_fill", "layer_types", json::array({"full_attention"})},
      {"nomic_bert_remote", "prenorm", true},
      {"nomic_bert_remote", "rotary_scaling_factor", 2.0},
      {"nomic_bert_remote", "activation_function", "gelu"},
      {"jina_bert", "feed_forward_type", "original"},
      {"deberta_v3_fill", "pos_att_type", "c2p|p2p"},
      {"deberta_v3_fill", "norm_rel_ebd", "batch_norm"},
      {"deberta_v3_fill", "position_buckets", 100},
      {"deberta_v3_fill", "embedding_size", 16},
      {"deberta_v2_tag", "conv_kernel_size", 4},
      {"electra_tag", "position_embedding_type", "relative_key"}};
  check_settings_refused(wrongs);
  const Golden whole = golden("baichuan_13b");
  json settings = whole.settings;
  settings.erase("model_max_length");
  CHECK(whole.describe(settings).error().contains("model_max_length is missing"));
}

TEST_CASE("OPT's final norm, biases and norms' parameters may be left out") {
  const Golden whole = golden("opt");
  json settings = whole.settings;
  settings["_remove_final_layer_norm"] = true;
  CHECK(whole.describe(settings).error().contains("model.decoder.final_layer_norm"));
  const Described without = [&] {
    Golden less = whole;
    std::erase_if(less.tensors, [](const auto& tensor) {
      return tensor.first.name.starts_with("model.decoder.final_layer_norm");
    });
    return less.describe(settings);
  }();
  REQUIRE(without.error() == "");
  CHECK_FALSE(without.model->final_norm.has_value());

  // Galactica's shape.
  settings = whole.settings;
  settings["enable_bias"] = false;
  settings["layer_norm_elementwise_affine"] = false;
  Golden bare = whole;
  std::erase_if(bare.tensors, [](const auto& tensor) {
    return tensor.first.name.contains("layer_norm") || tensor.first.name.ends_with(".bias");
  });
  const Described plain = bare.describe(settings);
  REQUIRE(plain.error() == "");
  CHECK(plain.model->final_norm->weight == -1);
  CHECK(plain.model->blocks[1].attention_norm->bias == -1);
  CHECK(plain.model->blocks[1].attention.qkv.bias == -1);
}

TEST_CASE("GGUF's experts are slices of a stack, and no more are used than there are") {
  json settings = tiny_gguf_settings("llama");
  settings["llama.expert_count"] = 3;
  settings["llama.expert_used_count"] = 2;
  const auto tensors = [](uint64_t experts) {
    auto source = std::make_unique<MemorySource>();
    const auto plain = tiny_gguf_tensors();
    for (const SourceTensor& tensor : plain->tensors()) {
      const bool stacked = tensor.name.contains("ffn_") && !tensor.name.contains("norm");
      if (!stacked) source->add(tensor.name, tensor.shape);
    }
    for (const std::string block : {"blk.0.", "blk.1."}) {
      source->add(block + "ffn_gate_inp.weight", {3, 16});
      source->add(block + "ffn_gate_exps.weight", {experts, 24, 16});
      source->add(block + "ffn_up_exps.weight", {experts, 24, 16});
      source->add(block + "ffn_down_exps.weight", {experts, 16, 24});
    }
    return source;
  };
  const Described described = describe_tiny_gguf("llama", settings, tensors(3));
  REQUIRE(described.error() == "");
  const recipe::FeedForward& feed_forward = described.model->blocks[1].feed_forward;
  REQUIRE(feed_forward.experts.size() == 3);
  CHECK(feed_forward.used == 2);
  for (uint64_t e = 0; e < 3; ++e) {
    const auto& gate_up = described.model->tensors[feed_forward.experts[e].gate_up.weight];
    REQUIRE(gate_up.parts.size() == 2);
    CHECK(gate_up.parts[0].source->name == "blk.1.ffn_gate_exps.weight");
    CHECK(gate_up.parts[1].source->name == "blk.1.ffn_up_exps.weight");
    for (const recipe::Part& part : gate_up.parts) {
      CHECK(part.first_row == 24 * e);
      CHECK(part.rows == 24);
    }
    const auto& down = described.model->tensors[feed_forward.experts[e].down.weight];
    CHECK(down.parts[0].first_row == 16 * e);
    CHECK(down.columns == 24);
  }
  CHECK(
      describe_tiny_gguf("llama", settings, tensors(2))
          .error()
          .contains("ffn_gate_exps.weight has the shape [2, 24, 16]; the settings ask for [3, 24, "
                    "16]"));
  settings["llama.expert_used_count"] = 4;
  CHECK(describe_tiny_gguf("llama", settings, tensors(3))
            .error()
            .contains("llama.expert_used_count exceeds the 3 experts"));
}

// A converter of such files writes `true` wherever the checkpoint's settings are silent.
TEST_CASE("GGUF's StableLM is sequential where it has a second norm, whatever its key claims") {
  for (const bool second : {true, false}) {
    json settings = tiny_gguf_settings("stablelm");
    settings.erase("stablelm.attention.layer_norm_rms_epsilon");
    settings["stablelm.attention.layer_norm_epsilon"] = 1e-5;
    settings["stablelm.use_parallel_residual"] = true;
    auto source = std::make_unique<MemorySource>();
    const auto plain = tiny_gguf_tensors();
    for (const SourceTensor& tensor : plain->tensors()) {
      if (tensor.name.contains("ffn_norm") && !second) continue;
      source->add(tensor.name, tensor.shape);
      if (tensor.name.contains("norm")) {
        source->add(tensor.name.substr(0, tensor.name.size() - 6) + "bias", tensor.shape);
      }
    }
    const Described described = describe_tiny_gguf("stablelm", settings, std::move(source));
    REQUIRE(described.error() == "");
    CHECK(described.model->blocks[0].residual ==
          (second ? file::Residual::sequential : file::Residual::parallel));
  }
}

TEST_CASE("Baichuan 2's head has rows of unit length and is its own even if it is the embedding") {
  const auto tensors = [](bool head) {
    auto source = std::make_unique<MemorySource>();
    source->add("model.embed_tokens.weight", {125696, 16}, 1);
    const auto apart = tiny_tensors();
    for (const SourceTensor& tensor : apart->tensors()) {
      const std::string& name = tensor.name;
      const size_t query = name.find("q_proj");
      if (query != std::string::npos) {
        source->add(name.substr(0, query) + "W_pack.weight", {48, 16});
      } else if (!name.contains("k_proj") && !name.contains("v_proj") && !name.contains("embed")) {
        source->add(name, tensor.shape);
      }
    }
    if (head) source->add("lm_head.weight", {125696, 16}, 1);
    return source;
  };
  json settings = tiny_settings("baichuan");
  for (const char* key : {"rope_theta", "head_dim", "num_key_value_heads"}) settings.erase(key);
  settings["vocab_size"] = 125696;
  settings["z_loss_weight"] = 0;
  settings["model_max_length"] = 64;
  const Described described = describe_tiny(settings, tensors(true));
  REQUIRE(described.error() == "");
  REQUIRE(described.model->head.weight != described.model->embedding);
  CHECK(described.model->tensors[described.model->head.weight].parts[0].unit);
  CHECK_FALSE(described.model->tensors[described.model->embedding].parts[0].unit);
  CHECK(describe_tiny(settings, tensors(false)).error().contains("lm_head.weight is missing"));
}

TEST_CASE("GGUF's Ministral 3 says how queries grow, and from where, only with YaRN") {
  json settings = tiny_gguf_settings("mistral3");
  settings.update({{"mistral3.rope.scaling.type", "yarn"},
                   {"mistral3.rope.scaling.factor", 4.0},
                   {"mistral3.rope.scaling.original_context_length", 16},
                   {"mistral3.rope.scaling.yarn_log_multiplier", 1.0},
                   {"mistral3.attention.temperature_scale", 0.1}});
  const auto error = [](const json& altered) {
    return describe_tiny_gguf("mistral3", altered, tiny_gguf_tensors()).error();
  };
  const Described described = describe_tiny_gguf("mistral3", settings, tiny_gguf_tensors());
  REQUIRE(described.error() == "");
  const auto& temperature = described.model->blocks[1].attention.temperature;
  REQUIRE(temperature.has_value());
  CHECK(temperature->strength == 0.1f);
  CHECK(temperature->period == 16);
  CHECK(rotary_of(described).scaling.mscale == 1);
  CHECK(rotary_of(described).scaling.mscale_all_dim == 1);

  json wrong = settings;
  wrong["mistral3.rope.scaling.type"] = "linear";
  CHECK(error(wrong).contains("mistral3.rope.scaling.type is \"linear\"; only \"yarn\""));
  wrong = settings;
  wrong["mistral3.rope.scaling.attn_factor"] = 0.5;
  CHECK(error(wrong).contains("mistral3.rope.scaling.attn_factor"));
  wrong = settings;
  wrong["mistral3.rope.scaling.yarn_log_multiplier"] = -1.0;
  CHECK(error(wrong).contains("mistral3.rope.scaling.yarn_log_multiplier is below 0"));
  wrong = settings;
  wrong.erase("mistral3.rope.scaling.original_context_length");
  CHECK(error(wrong).contains("mistral3.rope.scaling.original_context_length is missing"));
}

TEST_CASE("a window of 0 in GGUF is none") {
  json settings = tiny_gguf_settings("llama");
  settings["llama.attention.sliding_window"] = 0;
  const Described none = describe_tiny_gguf("llama", settings, tiny_gguf_tensors());
  REQUIRE(none.error() == "");
  CHECK(none.model->blocks[0].attention.window == 0);
  settings["llama.attention.sliding_window"] = 16;
  const Described some = describe_tiny_gguf("llama", settings, tiny_gguf_tensors());
  REQUIRE(some.error() == "");
  CHECK(some.model->blocks[0].attention.window == 16);
}

TEST_CASE("GGUF's encoders that are causal or rank are refused") {
  for (const auto& [key, value] :
       {std::pair{"attention.causal", json(true)}, std::pair{"pooling_type", json(4)}}) {
    json settings = tiny_gguf_settings("bert");
    settings["bert.attention.layer_norm_epsilon"] = 1e-12;
    settings[std::string("bert.") + key] = value;
    CHECK(describe_tiny_gguf("bert", settings, tiny_gguf_tensors())
              .error()
              .contains(std::string("tiny.gguf: bert.") + key + " is "));
  }
}

TEST_CASE("DeBERTa's scores are divided by the root of the number of their terms") {
  for (const auto& [terms, count] :
       {std::pair{json("c2p"), 2}, std::pair{json("p2c | c2p"), 3}, std::pair{json(), 1}}) {
    CAPTURE(terms.dump());
    const Golden whole = golden("deberta_v3_fill");
    json settings = whole.settings;
    settings["pos_att_type"] = terms;
    const Described described = whole.describe(settings);
    REQUIRE(described.error() == "");
    const recipe::Attention& attention = described.model->blocks[0].attention;
    CHECK(attention.scale == doctest::Approx(1 / std::sqrt(10.0 * count)));
    CHECK((attention.position >= 0) == (count > 1));
  }
}

TEST_CASE("GGUF's Baichuan with layers of neither size is refused") {
  CHECK(describe_tiny_gguf("baichuan", tiny_gguf_settings("baichuan"), tiny_gguf_tensors())
            .error()
            .contains("tiny.gguf: baichuan.block_count is 2; heads turn in models of 32"));
}

}  // namespace
}  // namespace volvelle
