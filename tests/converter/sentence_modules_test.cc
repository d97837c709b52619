// Folders of sentence-transformers: what modules.json makes of an encoder's outputs. Meanings of
// keys: the package's documentation. Vectors are compared with the reference's in ../goldens.

#include "converter/sentence_modules.h"

#include <doctest/doctest.h>

#include <format>
#include <nlohmann/json.hpp>

#include "tests/scratch_folder.h"

namespace volvelle {
namespace {

using nlohmann::json;

json module(const std::string& path, const std::string& kind) {
  return {{"path", path}, {"type", "sentence_transformers.models." + kind}};
}

// A folder whose modules are the encoder and those.
struct Folder {
  explicit Folder(const json& modules, const json& pooling = json::object()) {
    json all = json::array({module("", "Transformer")});
    all.insert(all.end(), modules.begin(), modules.end());
    folder.write("modules.json", all.dump());
    folder.write("1_Pooling/config.json", pooling.dump());
  }

  std::string read() {
    const auto status = read_sentence_modules(folder.path(), model);
    return status ? "" : status.error().message;
  }

  ScratchFolder folder;
  recipe::Model model = [] {
    recipe::Model encoder;
    encoder.width = 8;
    encoder.encodes = true;
    encoder.tasks.push_back({.kind = file::TaskKind::embed, .pooling = file::Pooling::last});
    encoder.tasks.push_back({.kind = file::TaskKind::fill});
    return encoder;
  }();
};

TEST_CASE("modules replace the task of vectors and leave the others") {
  Folder folder({module("1_Pooling", "Pooling"), module("2_Normalize", "Normalize")},
                {{"pooling_mode_max_tokens", true}, {"word_embedding_dimension", 8}});
  REQUIRE(folder.read() == "");
  REQUIRE(folder.model.tasks.size() == 2);
  CHECK(folder.model.tasks[0].pooling == file::Pooling::max);
  CHECK(folder.model.tasks[0].normalize);
  CHECK(folder.model.tasks[1].kind == file::TaskKind::fill);
}

TEST_CASE("every way of pooling is read by its flag and by its name") {
  for (const auto& [flag, name, pooling] :
       {std::tuple{"cls_token", "cls", file::Pooling::first},
        std::tuple{"max_tokens", "max", file::Pooling::max},
        std::tuple{"mean_tokens", "mean", file::Pooling::mean},
        std::tuple{"mean_sqrt_len_tokens", "mean_sqrt_len_tokens", file::Pooling::root_mean},
        std::tuple{"weightedmean_tokens", "weightedmean", file::Pooling::weighted_mean},
        std::tuple{"lasttoken", "lasttoken", file::Pooling::last}}) {
    CAPTURE(name);
    for (const json& pooled :
         {json{{std::string("pooling_mode_") + flag, true}}, json{{"pooling_mode", name}}}) {
      Folder folder(json::array({module("1_Pooling", "Pooling")}), pooled);
      REQUIRE(folder.read() == "");
      CHECK(folder.model.tasks[0].pooling == pooling);
    }
  }
}

TEST_CASE("several ways of pooling follow each other in the package's order") {
  Folder folder(json::array({module("1_Pooling", "Pooling")}),
                {{"pooling_mode_lasttoken", true},
                 {"pooling_mode_mean_sqrt_len_tokens", true},
                 {"pooling_mode_cls_token", true}});
  REQUIRE(folder.read() == "");
  CHECK(folder.model.tasks[0].pooling == file::Pooling::first);
  CHECK(folder.model.tasks[0].further_poolings ==
        std::vector{file::Pooling::root_mean, file::Pooling::last});
}

TEST_CASE("a folder says at which length texts are cut, and what stands before them") {
  const json pooling = {{"pooling_mode_cls_token", true}};
  const auto read = [&](const char* file, const std::string& text) {
    Folder folder(json::array({module("1_Pooling", "Pooling")}), pooling);
    folder.folder.write(file, text);
    const std::string error = folder.read();
    return std::pair{error, error.empty() ? folder.model.tasks[0] : recipe::Task{}};
  };
  const auto length = [&](const std::string& text) {
    return read("sentence_bert_config.json", text);
  };
  CHECK(length(R"({"max_seq_length": 256, "do_lower_case": false})").second.max_tokens == 256);
  CHECK(length(R"({"max_seq_length": null})").second.max_tokens == 0);
  CHECK(read("sentence_xlm-roberta_config.json", R"({"max_seq_length": 8})").second.max_tokens ==
        8);
  for (const char* wrong : {"0", "-1", "1.5", "\"8\"", "99999999999"}) {
    CAPTURE(wrong);
    CHECK(
        length(std::format(R"({{"max_seq_length": {}}})", wrong)).first.contains("max_seq_length"));
  }
  CHECK(length(R"({"do_lower_case": true})").first.contains("do_lower_case"));
  CHECK(length("[]").first.contains("no map"));

  const auto prompts = [&](const std::string& text) {
    return read("config_sentence_transformers.json", text);
  };
  const recipe::Task task =
      prompts(R"({"prompts": {"passage": "p: ", "query": "q: "}, "default_prompt_name": "query"})")
          .second;
  REQUIRE(task.prompts.size() == 2);
  CHECK(task.prompts[static_cast<size_t>(task.default_prompt)] ==
        std::pair<std::string, std::string>("query", "q: "));
  CHECK(prompts(R"({"prompts": {}, "default_prompt_name": null})").second.default_prompt == -1);
  CHECK(prompts(R"({"prompts": {}, "default_prompt_name": "query"})").first.contains("query"));
  CHECK(prompts(R"({"prompts": {"query": 3}})").first.contains("prompts.query"));
  CHECK(prompts(R"({"prompts": 3})").first.contains("no map"));
}

TEST_CASE("modules that are not understood are refused by name") {
  const auto error = [](const json& modules, const json& pooling = json::object()) {
    return Folder(modules, pooling).read();
  };
  const json pooling = json::array({module("1_Pooling", "Pooling")});
  CHECK(error(pooling).contains("names no way of pooling"));
  CHECK(error(pooling, {{"pooling_mode", "attention"}}).contains("pooling_mode is \"attention\""));
  CHECK(error(pooling, {{"pooling_mode_cls_token", true}, {"mystery", 1}})
            .contains("mystery is 1, which family Pooling does not know"));
  CHECK(error(json::array({module("2_CNN", "CNN")})).contains("a module CNN is not implemented"));
  CHECK(error({module("2_Normalize", "Normalize"), module("1_Pooling", "Pooling")})
            .contains("a module Pooling after Normalize"));
  CHECK(
      error(json::array({module("../elsewhere", "Pooling")})).contains("leads out of the folder"));
  CHECK(error(json::array({json{{"path", 3}}})).contains("a module has no type or no path"));
  CHECK(error(json::array({module("2_Dense", "Dense")})).contains("2_Dense"));

  // An order that the package does not run, and modules that make no vector.
  const json mean = {{"pooling_mode_mean_tokens", true}};
  CHECK(error(json::array()).contains("has no module Pooling"));
  CHECK(error({module("", "Transformer"), module("1_Pooling", "Pooling")}, mean)
            .contains("must be a Transformer"));
  CHECK(error({module("1_Pooling", "Pooling"), module("1_Pooling", "Pooling")}, mean)
            .contains("one module Pooling"));
  CHECK(error({module("1_Pooling", "Dense"), module("1_Pooling", "Pooling")}, mean)
            .contains("one module Pooling"));
}

}  // namespace
}  // namespace volvelle
