// Extending files whose tables lie: refused in a sentence, or done. Nothing here may crash.

#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "converter/extend.h"
#include "tests/fuzz/container.h"
#include "tests/scratch_folder.h"

namespace volvelle {
namespace {

std::string_view text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST_CASE("a table that lies is extended or refused, never a crash") {
  const ScratchFolder folder;
  const std::string path = folder / "model.vvl", copy = folder / "copy.vvl";
  const ScalingSpec yarn = *parse_scaling_spec("yarn:4"), none;
  // As converted, and after two extensions, when the first header slot is the newest again.
  std::vector<Container> models = {small_model("q4")};
  folder.write("model.vvl", text_of(models[0].bytes));
  REQUIRE(extend({.model = path, .scaling = none}));
  REQUIRE(extend({.model = path, .scaling = yarn}));
  const std::string twice = read_file(path);
  models.push_back({std::vector<std::byte>(twice.size())});
  std::memcpy(models[1].bytes.data(), twice.data(), twice.size());

  std::mt19937 random(5);  // the seed
  size_t done = 0, refused = 0;
  for (const Container& model : models) {
    for (int round = 0; round < 1500; ++round) {
      Container changed = model;
      const std::span<std::byte> table = changed.table();
      // The last kilobyte of an extended table is its rotary scheme.
      const size_t reach = round % 2 == 0 ? table.size() : std::min<size_t>(table.size(), 700);
      for (int i = 0; i < 1 + round % 3; ++i) {
        const size_t at = table.size() - 1 - random() % reach;
        table[at] = round % 5 == 0 ? std::byte(0xff) : table[at] ^ std::byte(1 << random() % 8);
      }
      changed.sign();
      folder.write("model.vvl", text_of(changed.bytes));
      CAPTURE(round);
      // Not longer than this: what a lie makes of the context is not what is tried here.
      for (const std::string& output : {copy, std::string()}) {
        const auto report = extend(
            {.model = path, .output = output, .scaling = yarn, .context = 500, .force = true});
        if (report) {
          ++done;
        } else {
          ++refused;
          CHECK(report.error().message.size() > 20);
        }
      }
    }
  }
  CHECK(done > 100);
  CHECK(refused > 100);
}

}  // namespace
}  // namespace volvelle
