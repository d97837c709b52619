// Folders of sentence-transformers: what modules.json makes of an encoder's outputs. Meanings of
// keys: the package's documentation. Vectors are compared with the reference's in ../goldens.

#include "converter/sentence_modules.h"

#include <doctest/doctest.h>

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

TEST_CASE("modules that are not understood are refused by name") {
  const auto error = [](const json& modules, const json& pooling = json::object()) {
    return Folder(modules, pooling).read();
  };
  const json pooling = json::array({module("1_Pooling", "Pooling")});
  CHECK(error(pooling, {{"pooling_mode_cls_token", true}, {"pooling_mode_mean_tokens", true}})
            .contains("it asks for 2 ways of pooling at once; one is implemented"));
  CHECK(error(pooling).contains("it asks for 0 ways of pooling"));
  CHECK(error(pooling, {{"pooling_mode_mean_sqrt_len_tokens", true}})
            .contains("pooling_mode_mean_sqrt_len_tokens is true; only false"));
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
}

}  // namespace
}  // namespace volvelle
