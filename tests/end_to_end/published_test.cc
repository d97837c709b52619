// Published checkpoints, from their files to text. Each runs where its file is at hand: the
// quickstart fetches SmolLM2's; tests/goldens/make_gemma3_270m.py says where Gemma's comes from.

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>

#include "tests/end_to_end/program_run.h"

namespace volvelle {
namespace {

// Empty: it is nowhere.
std::string find_sample(const char* name) {
  std::vector<std::filesystem::path> folders = {".cache/samples"};
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != 0) {
    folders.push_back(std::filesystem::path(cache) / "volvelle");
  } else if (const char* home = std::getenv("HOME"); home != nullptr) {
    folders.push_back(std::filesystem::path(home) / ".cache/volvelle");
  }
  for (const auto& folder : folders) {
    if (std::filesystem::exists(folder / name)) return (folder / name).string();
  }
  return {};
}

const std::string kSmolLm2 = find_sample("SmolLM2-135M-Instruct.Q4_1.gguf");
const std::string kGemma3 = find_sample("gemma-3-270m-q4_k_m.gguf");

// Converts the sample to every type of weights; each completes `prompt` with `word`, and f32 gives
// the reference's ids to the last, past an end token as it recorded them.
void check_sample(const std::string& sample, const std::string& golden, const std::string& prompt,
                  const std::string& word) {
  const auto expected =
      nlohmann::json::parse(read_file("tests/goldens/" + golden + "/expected.json"));
  for (const char* weights : {"f32", "q8", "q4"}) {
    CAPTURE(weights);
    const TemporaryFolder folder;
    const std::string model = folder / "model.vvl";
    const Ran converted = run_program({"convert", sample, "-o", model, "--weights", weights});
    INFO(converted.err);
    REQUIRE(converted.status == 0);
    const Ran ran = run_program({"run", model, "-p", prompt, "-n", "16", "--temperature", "0"});
    CHECK(ran.status == 0);
    CHECK(ran.out.contains(word));
    if (std::string_view(weights) != "f32") continue;
    for (const auto& recorded : expected["prompts"]) {
      CAPTURE(recorded["prompt"]);
      const auto ids = recorded["greedy"].get<std::vector<int32_t>>();
      std::string line;
      for (const int32_t id : ids) line += (line.empty() ? "" : " ") + std::to_string(id);
      CHECK(run_program({"run", model, "-p", recorded["prompt"], "-n", std::to_string(ids.size()),
                         "--ids", "--ignore-eos", "--kv", "f32", "--temperature", "0"})
                .out == line + "\n");
    }
  }
}

TEST_CASE("SmolLM2 knows the capital of France" * doctest::skip(kSmolLm2.empty())) {
  check_sample(kSmolLm2, "smollm2", "The capital of France is", "Paris");
}

TEST_CASE("Gemma 3 knows when water boils" * doctest::skip(kGemma3.empty())) {
  check_sample(kGemma3, "gemma3_270m", "Water boils at", "100 degrees");
}

}  // namespace
}  // namespace volvelle
