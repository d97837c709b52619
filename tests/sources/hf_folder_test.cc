#include "converter/sources/hf_folder.h"

#include <doctest/doctest.h>

#include <string>

#include "tests/scratch_folder.h"
#include "tests/sources/damage.h"

namespace volvelle {
namespace {

std::string error_of(const std::string& path) {
  const auto folder = open_hf_folder(path);
  return folder ? "" : folder.error().message;
}

bool contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

TEST_CASE("a folder's missing or damaged parts are named, with what to do") {
  const ScratchFolder folder;
  CHECK(contains(error_of(folder / "absent"), "is not a folder"));
  CHECK(contains(error_of(folder.path()), "config.json is missing"));
  folder.write("config.json", "[1]");
  CHECK(contains(error_of(folder.path()), "config.json: is not a JSON object"));
  folder.write("config.json", R"({"a":1,"a":2})");
  CHECK(contains(error_of(folder.path()), "model.safetensors is missing"));
  folder.write("pytorch_model-00001-of-00002.bin", "");
  CHECK(contains(error_of(folder.path()), "save it as safetensors"));
  const std::string header = R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  folder.write("model.safetensors", bytes_of(uint64_t{header.size()}) + header + "x");
  const auto whole = open_hf_folder(folder.path());
  REQUIRE(whole.has_value());
  CHECK(whole->config["a"] == 2);  // as Python's json does
  CHECK(whole->generation_config.is_null());
  CHECK(whole->tokenizer_config.is_null());
  CHECK(whole->file("tokenizer.json") == folder / "tokenizer.json");
  folder.write("generation_config.json", R"({"top_k":)");
  CHECK(contains(error_of(folder.path()), "generation_config.json: is not valid JSON at byte"));
}

TEST_CASE("untidy and sharded folders open") {
  // Made by tests/goldens/make.py.
  const auto untidy = open_hf_folder("tests/goldens/llama_untidy");
  REQUIRE(untidy.has_value());
  CHECK(untidy->tensors->find("position_ids")->type == "I64");
  const auto sharded = open_hf_folder("tests/goldens/llama_sharded_bf16");
  REQUIRE(sharded.has_value());
  CHECK(sharded->tensors->tensors().size() == 30);
}

TEST_CASE("JSON is bounded in depth and never throws") {
  const std::string deepest = std::string(kJsonDepthLimit, '[') + std::string(kJsonDepthLimit, ']');
  CHECK(parse_json(deepest, "x").has_value());
  CHECK(!parse_json("[" + deepest + "]", "x").has_value());
  CHECK(!parse_json(std::string(1 << 20, '['), "x").has_value());
  for (const char* text :
       {"", "{", "{\"a\"}", "nul", "1e999999", "\"\\ud800\"", "[1,]", "\"\xc3\""}) {
    CAPTURE(text);
    CHECK(!parse_json(text, "x").has_value());
  }
  const auto value = parse_json(R"({"a":[1,-2,2.5,true,null,"s",{"b":[]}],"c":{}})", "x");
  REQUIRE(value.has_value());
  CHECK(value->dump() == R"({"a":[1,-2,2.5,true,null,"s",{"b":[]}],"c":{}})");
}

}  // namespace
}  // namespace volvelle
