// A published checkpoint, from its file to text. Runs where the sample that the quickstart fetches
// is at hand.

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>

#include "tests/end_to_end/program_run.h"

namespace volvelle {
namespace {

constexpr const char* kSample = "SmolLM2-135M-Instruct.Q4_1.gguf";

// Empty: it is nowhere.
std::string find_sample() {
  std::vector<std::filesystem::path> folders = {".cache/samples"};
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != 0) {
    folders.push_back(std::filesystem::path(cache) / "volvelle");
  } else if (const char* home = std::getenv("HOME"); home != nullptr) {
    folders.push_back(std::filesystem::path(home) / ".cache/volvelle");
  }
  for (const auto& folder : folders) {
    if (std::filesystem::exists(folder / kSample)) return (folder / kSample).string();
  }
  return {};
}

const bool kNoSample = find_sample().empty();

TEST_CASE("SmolLM2 knows the capital of France from f32, q8 and q4 files" *
          doctest::skip(kNoSample)) {
  for (const char* weights : {"f32", "q8", "q4"}) {
    CAPTURE(weights);
    const TemporaryFolder folder;
    const std::string model = folder / "smollm2.vvl";
    const Ran converted =
        run_program({"convert", find_sample(), "-o", model, "--weights", weights});
    INFO(converted.err);
    REQUIRE(converted.status == 0);
    const Ran ran = run_program({"run", model, "-p", "The capital of France is", "-n", "16"});
    CHECK(ran.status == 0);
    CHECK(ran.out.contains("Paris"));
    if (std::string_view(weights) != "f32") continue;

    // The reference's greedy ids (tests/goldens/smollm2), past the end token as it recorded them.
    const auto expected = nlohmann::json::parse(read_file("tests/goldens/smollm2/expected.json"));
    for (const auto& prompt : expected["prompts"]) {
      CAPTURE(prompt["prompt"]);
      const auto ids = prompt["greedy"].get<std::vector<int32_t>>();
      std::string line;
      for (const int32_t id : ids) line += (line.empty() ? "" : " ") + std::to_string(id);
      CHECK(run_program({"run", model, "-p", prompt["prompt"], "-n", std::to_string(ids.size()),
                         "--ids", "--ignore-eos", "--kv", "f32"})
                .out == line + "\n");
    }
  }
}

TEST_CASE("the sample checkpoint is at hand" * doctest::skip(!kNoSample)) {
  MESSAGE("skipped: ", kSample,
          " is neither in .cache/samples nor in the user's cache; platforms/debian/quickstart.sh "
          "fetches it");
}

}  // namespace
}  // namespace volvelle
