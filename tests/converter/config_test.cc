// What settings are refused for. Expected sentences are this project's own.

#include <doctest/doctest.h>

#include "converter/families/config.h"

namespace volvelle {
namespace {

using nlohmann::json;

std::string finish(const json& values, std::vector<std::string> ignored = {}) {
  const Config config("config.json", "", values, ignored);
  const Result<void> result = config.finish("llama");
  return result ? "" : result.error().message;
}

TEST_CASE("a setting that nobody reads is refused by name, unless it is harmless or ignored") {
  CHECK(finish({{"torch_dtype", "float32"}, {"use_cache", true}, {"id2label", {{"0", "A"}}}})
            .empty());
  const std::string error = finish({{"use_cache", true}, {"alibi", true}});
  CHECK(error.contains("config.json: alibi is true"));
  CHECK(error.contains("--ignore-key alibi"));
  CHECK(finish({{"alibi", true}}, {"alibi"}).empty());
  CHECK(finish({{"alibi", nullptr}}).empty());
}

TEST_CASE(
    "a setting within an object is named with the object and can be ignored with it or alone") {
  const json values = {{"quantization_config", {{"bits", 4}}}};
  CHECK(finish(values).contains("quantization_config.bits is 4"));
  CHECK(finish(values, {"quantization_config"}).empty());
  CHECK(finish(values, {"quantization_config.bits"}).empty());
  CHECK(finish(values, {"bits"}).empty());
}

TEST_CASE("some settings are harmless with one value only") {
  CHECK(finish({{"pretraining_tp", 1}}).empty());
  CHECK(finish({{"pretraining_tp", 2}}).contains("pretraining_tp is 2"));
  CHECK(finish({{"use_mrope", false}}).empty());
  CHECK(finish({{"use_mrope", true}}).contains("use_mrope"));
  CHECK(finish({{"pruned_heads", json::object()}}).empty());
  CHECK(finish({{"pruned_heads", {{"0", {1}}}}}).contains("pruned_heads.0"));
}

TEST_CASE("numbers of the wrong kind are refused and the first fault is kept") {
  for (const json& wrong : {json(0), json(-1), json(1.5), json("8"), json(true), json(1e300),
                            json(4294967296u), json::array(), json::array({1, 2})}) {
    CAPTURE(wrong.dump());
    Config config("config.json", "", {{"heads", wrong}}, {});
    config.count("heads");
    config.count("missing");
    REQUIRE(!config.status());
    CHECK(config.status().error().message.contains("config.json: heads"));
  }
  Config config("config.json", "", {{"a", 8}, {"b", 8.0}, {"c", {8, 8}}, {"d", int64_t{8}}}, {});
  for (const char* key : {"a", "b", "c", "d"}) CHECK(config.count(key) == 8);
  CHECK(config.count("absent", 3) == 3);
  CHECK(config.status());
  config.count("absent");
  CHECK(config.status().error().message == "config.json: absent is missing");
}

TEST_CASE("only keys below the prefix are seen, and errors name them whole") {
  Config config("m.gguf", "llama.", {{"llama.block_count", 2}, {"qwen2.x", 1}, {"llama.odd", 1}},
                {});
  CHECK(config.count("block_count") == 2);
  CHECK(config.finish("llama").error().message.contains("m.gguf: llama.odd is 1"));
  const std::vector<std::string> ignored = {"llama.odd"};
  CHECK(Config("m.gguf", "llama.", {{"llama.odd", 1}}, ignored).finish("llama"));
}

TEST_CASE("settings that are no object, or nested without end, are no trouble") {
  CHECK(finish(json::array()).contains("no object"));
  json deep = 1;
  for (int i = 0; i < 60; ++i) deep = {{"x", deep}};
  CHECK(finish(deep).contains("x.x"));
}

}  // namespace
}  // namespace volvelle
