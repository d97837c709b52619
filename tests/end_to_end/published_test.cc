// Published checkpoints, from their files to text. Each runs where its file is at hand: the
// quickstart fetches SmolLM2's; tests/goldens/make_gemma3_270m.py and make_minilm.py say where the
// others come from.

#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <span>
#include <vector>

#include "converter/sources/float16.h"
#include "tests/end_to_end/program_run.h"
#include "tests/goldens/golden.h"

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
const std::string kMiniLm = find_sample("all-MiniLM-L6-v2");

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

TEST_CASE("SmolLM2 runs in little memory, or says how long a context would fit" *
          doctest::skip(kSmolLm2.empty() || is_emulated())) {
  const TemporaryFolder folder;
  const std::string model = folder / "model.vvl";
  REQUIRE(run_program({"convert", kSmolLm2, "-o", model}).status == 0);
  const auto plan = run_program({"inspect", model, "--memory", "--context", "64", "--json"}).json();
  const size_t packed = plan["memory"]["packed_weights"];
  // As a Pi Zero 2 W has them; ulimit counts the mapped file, libraries and stacks as well.
  for (const size_t megabytes : {size_t{256}, size_t{512}}) {
    CAPTURE(megabytes);
    const Circumstances little{.address_space = megabytes << 20};
    const std::vector<std::string> run = {"run", model, "-p", "The capital of France is",
                                          "-n",  "6",   "-t", "1"};
    const Ran short_run = run_program(run, little);
    INFO(short_run.err);
    if (megabytes == 512) {
      CHECK(short_run.status == 0);
      CHECK(short_run.out.contains("Paris"));
    } else if (short_run.status != 0) {
      CHECK(short_run.err.contains("ulimit -v leaves"));
    }
    std::vector<std::string> longest = run;
    longest.insert(longest.end(), {"--context", "8192", "--kv", "f32"});
    const Ran long_run = run_program(longest, little);
    CHECK(long_run.status == 1);
    CHECK(long_run.err.contains("of memory are needed"));
    const size_t named = long_run.err.find("that fits is ");
    if (named == std::string::npos) {
      CHECK(long_run.err.contains("too little for any context"));
      continue;
    }
    longest[longest.size() - 3] = std::to_string(std::stoul(long_run.err.substr(named + 13)));
    CHECK(run_program(longest, little).status == 0);
  }
  // The plan is what the program then takes.
  const Ran stats = run_program({"run", model, "-p", "Hello", "-n", "2", "--stats"});
  CHECK(packed > 0);
  CHECK(stats.status == 0);
}

#if defined(__x86_64__) && defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__)
constexpr bool kIsQuick = true;
#else
constexpr bool kIsQuick = false;
#endif

TEST_CASE("from a warm page cache SmolLM2 gives its first token within 150 ms" *
          doctest::skip(kSmolLm2.empty() || is_emulated() || !kIsQuick)) {
  const TemporaryFolder folder;
  const std::string model = folder / "model.vvl";
  REQUIRE(run_program({"convert", kSmolLm2, "-o", model}).status == 0);
  // The first also packs weights. Other work on this machine only ever takes time away.
  double least = 0;
  for (int i = 0; i < 12; ++i) {
    const Ran ran = run_program({"run", model, "-p", "The capital of France is", "-n", "1"});
    REQUIRE(ran.status == 0);
    if (i == 1 || (i > 1 && ran.seconds < least)) least = ran.seconds;
  }
  MESSAGE("first token after " << 1000 * least << " ms");
  CHECK(least < 0.15);
}

TEST_CASE("SmolLM2 holds at most 24 MB that no file could give back" *
          doctest::skip(kSmolLm2.empty() || is_emulated())) {
  const TemporaryFolder folder;
  const std::string model = folder / "model.vvl";
  REQUIRE(run_program({"convert", kSmolLm2, "-o", model}).status == 0);
  const std::vector<std::string> run = {
      "run",       model,  "-p",          "The capital of France is", "-n", "64",
      "--context", "1024", "--ignore-eos"};
  REQUIRE(run_program(run).status == 0);  // which packs weights
  const Ran ran = run_program(run, {.watch_memory = true});
  REQUIRE(ran.status == 0);
  MESSAGE("it holds " << ran.own_bytes / 1000 << " kB");
  CHECK(ran.own_bytes > 1'000'000);
  CHECK(ran.own_bytes <= 24'000'000);  // with what the few tokens took of the cache
}

TEST_CASE("Gemma 3 knows what is cold" * doctest::skip(kGemma3.empty())) {
  check_sample(kGemma3, "gemma3_270m", "The opposite of hot is", "cold");
}

// The elements of a .npy file of float16.
std::vector<float> read_halves(const std::string& path) {
  const std::string bytes = read_file(path);
  REQUIRE(bytes.size() > 10);
  uint16_t header = 0;
  std::memcpy(&header, bytes.data() + 8, sizeof(header));
  std::vector<float> values;
  for (size_t at = 10 + header; at + 2 <= bytes.size(); at += 2) {
    uint16_t half = 0;
    std::memcpy(&half, bytes.data() + at, sizeof(half));
    values.push_back(float_from_f16(half));
  }
  return values;
}

double dot(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * b[i];
  return sum;
}

// Vectors of texts, as `embed` makes them of the lines of a file.
std::vector<std::vector<float>> embed_lines(const TemporaryFolder& folder, const std::string& model,
                                            const nlohmann::json& texts) {
  std::string lines;
  for (const auto& text : texts) lines += text.get<std::string>() + "\n";
  const std::string out = folder / "vectors.npy";
  const Ran ran =
      run_program({"embed", model, "--lines", folder.write("lines.txt", lines), "-o", out});
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  const std::vector<float> all = read_floats(out);
  const size_t width = all.size() / texts.size();
  std::vector<std::vector<float>> rows;
  for (size_t i = 0; i < texts.size(); ++i) {
    rows.emplace_back(all.begin() + static_cast<ptrdiff_t>(i * width),
                      all.begin() + static_cast<ptrdiff_t>((i + 1) * width));
  }
  return rows;
}

TEST_CASE("MiniLM's vectors are the reference's, and rank what is alike as those do" *
          doctest::skip(kMiniLm.empty())) {
  const auto expected = nlohmann::json::parse(read_file("tests/goldens/minilm/expected.json"));
  const std::vector<float> vectors = read_halves("tests/goldens/minilm/vectors.npy");
  // `least`: cosine with the reference. `apart`: how far two candidates are from each other for
  // which the order is to be kept.
  for (const auto& [weights, least, apart] :
       {std::tuple{"f32", 0.9999, 0.0}, std::tuple{"q8", 0.995, 0.03}}) {
    CAPTURE(weights);
    const TemporaryFolder folder;
    const std::string model = folder / "model.vvl";
    const Ran converted = run_program({"convert", kMiniLm, "-o", model, "--weights", weights});
    INFO(converted.err);
    REQUIRE(converted.status == 0);
    const auto rows = embed_lines(folder, model, expected["sentences"]);
    const size_t width = vectors.size() / rows.size();
    REQUIRE(rows[0].size() == width);
    for (size_t i = 0; i < rows.size(); ++i) {
      CAPTURE(expected["sentences"][i]);
      const std::span reference(vectors.data() + i * width, width);
      CHECK(dot(rows[i], reference) >=
            least * std::sqrt(dot(rows[i], rows[i]) * dot(reference, reference)));
    }
    const auto queries = embed_lines(folder, model, expected["queries"]);
    const auto candidates = embed_lines(folder, model, expected["candidates"]);
    for (size_t q = 0; q < queries.size(); ++q) {
      CAPTURE(expected["queries"][q]);
      const auto reference = expected["cosines"][q].get<std::vector<double>>();
      for (size_t a = 0; a < candidates.size(); ++a) {
        for (size_t b = 0; b < candidates.size(); ++b) {
          if (reference[a] - reference[b] <= apart) continue;
          CAPTURE(expected["candidates"][a]);
          CAPTURE(expected["candidates"][b]);
          CHECK(dot(queries[q], candidates[a]) > dot(queries[q], candidates[b]));
        }
      }
    }
  }
}

}  // namespace
}  // namespace volvelle
