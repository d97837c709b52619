// Whole conversions of the tiny checkpoints in tests/goldens.

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <format>
#include <fstream>
#include <iterator>
#include <string>
#include <tuple>
#include <vector>

#include "converter/convert.h"
#include "runtime/model.h"

namespace volvelle {
namespace {

namespace fs = std::filesystem;

struct TemporaryFolder {
  fs::path path = fs::temp_directory_path() / std::format("volvelle-convert-{}", ::getpid());
  TemporaryFolder() { fs::create_directories(path); }
  ~TemporaryFolder() { fs::remove_all(path); }
};

Result<ConvertReport> run(ConvertOptions options) {
  ThreadPool pool = *ThreadPool::make(2);
  return convert(options, pool);
}

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST_CASE("an output that exists is replaced only when asked") {
  const TemporaryFolder folder;
  const std::string output = (folder.path / "out.vvl").string();
  std::ofstream(output) << "mine";
  const std::string source = "tests/goldens/llama_grouped_heads";
  const Result<ConvertReport> refused = run({.source = source, .output = output});
  REQUIRE(!refused);
  CHECK(refused.error().message.contains(output));
  CHECK(refused.error().message.contains("--force"));
  CHECK(bytes_of(output) == "mine");
  REQUIRE(run({.source = source, .output = output, .force = true}));
  CHECK(Model::load(output));
}

TEST_CASE(
    "no file of the source is replaced, however it is called, but a model file beside it is") {
  const TemporaryFolder folder;
  const fs::path source = folder.path / "source";
  fs::copy("tests/goldens/llama_grouped_heads", source);
  fs::create_directory(source / "more");
  std::ofstream(source / "more" / "notes.md") << "mine";
  const fs::path gguf = folder.path / "model.gguf";
  fs::copy("tests/goldens/gguf_llama/model.gguf", gguf);
  fs::create_symlink(source, folder.path / "link");
  fs::create_hard_link(gguf, folder.path / "same.gguf");
  const auto check = [&](const fs::path& from, const fs::path& output) {
    CAPTURE(from);
    CAPTURE(output);
    const std::string before = bytes_of(output);
    REQUIRE(!before.empty());
    const Result<ConvertReport> refused =
        run({.source = from.string(), .output = output.string(), .force = true});
    REQUIRE(!refused);
    CHECK(refused.error().message.contains(output.string()));
    CHECK(refused.error().message.contains("source"));
    CHECK(bytes_of(output) == before);
  };
  for (const char* name : {"config.json", "model.safetensors", "more/notes.md"}) {
    check(source, source / name);
    check(folder.path / "link", source / name);
    check(source, folder.path / "link" / name);
    check(source / "model.safetensors", source / name);
  }
  check(gguf, gguf);
  check(gguf, folder.path / "same.gguf");

  const std::string inside = (source / "model.vvl").string();
  for (int time = 0; time < 2; ++time) {
    CHECK(run({.source = source.string(), .output = inside, .force = true}));
  }
  const fs::path beside = folder.path / "other.txt";
  std::ofstream(beside) << "not the source's";
  CHECK(run({.source = gguf.string(), .output = beside.string(), .force = true}));
}

TEST_CASE("the dials reach the context that is asked for") {
  const TemporaryFolder folder;
  const std::string output = (folder.path / "out.vvl").string();
  ConvertOptions options{
      .source = "tests/goldens/llama_grouped_heads", .output = output, .force = true};
  for (const uint64_t context : {10u, 256u, 5000u}) {
    options.context = context;
    const Result<ConvertReport> report = run(options);
    REQUIRE(report);
    const auto model = Model::load(output);
    REQUIRE(model);
    CHECK((*model)->decoder().context == context);
    CHECK((*model)->decoder().trained_context == 256);
    const bool warned = report->notices.size() > 1;  // the other is about the tokenizer
    CHECK(warned == (context > 256));
  }
  options.context = uint64_t{1} << 40;
  CHECK(run(options).error().message.contains("--context"));
}

TEST_CASE("every type of weights loads, with the embedding in at least eight bits") {
  const TemporaryFolder folder;
  const std::string output = (folder.path / "out.vvl").string();
  for (const auto& [weights, linear, rows] :
       {std::tuple{WeightType::kF32, TensorType::kF32, TensorType::kF32},
        {WeightType::kQ8, TensorType::kQ8, TensorType::kQ8},
        {WeightType::kQ4, TensorType::kQ4, TensorType::kQ8}}) {
    for (const char* source : {"llama_odd_widths", "mistral_sliding_window"}) {
      CAPTURE(source);
      REQUIRE(run({.source = std::string("tests/goldens/") + source,
                   .output = output,
                   .weights = weights,
                   .force = true}));
      const auto model = Model::load(output);
      REQUIRE(model);
      const Stack& stack = (*model)->decoder();
      CHECK(stack.blocks[0].attention.qkv.weight->type == linear);
      CHECK(stack.blocks[0].feed_forward.experts[0].down.weight->type == linear);
      CHECK(stack.embedding->type == rows);
      CHECK(stack.head.weight->type == rows);
      for (const Tensor& tensor : (*model)->tensors()) CHECK((*model)->verify_contents(tensor));
    }
  }
}

TEST_CASE("ends of text are taken from the generation settings, as one or as a list") {
  const TemporaryFolder folder;
  const std::string output = (folder.path / "out.vvl").string();
  REQUIRE(run({.source = "tests/goldens/llama_untidy", .output = output}));
  CHECK((*Model::load(output))->generation().eos == std::vector<int32_t>{2, 7, 9});
  REQUIRE(run({.source = "tests/goldens/llama_f16", .output = output, .force = true}));
  CHECK((*Model::load(output))->generation().eos == std::vector<int32_t>{2});
}

TEST_CASE("a source that asks for what no session would load leaves no file") {
  const TemporaryFolder folder;
  const fs::path source = folder.path / "source";
  const std::string output = (folder.path / "out.vvl").string();
  const std::string split = R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
      "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "%"}, "behavior": "Isolated"}})";
  const auto pattern = [&](const char* regex) {
    return std::string(split).replace(split.find('%'), 1, regex);
  };
  const std::vector<std::tuple<const char*, std::string, const char*>> lies = {
      {"generation_config.json", R"({"eos_token_id": 128})", "end token 128"},
      {"generation_config.json", R"({"top_p": -1})", "top_p"},
      {"generation_config.json", R"({"temperature": 1e300})", "temperature"},
      {"tokenizer.json", pattern("(?<"), "regular expression"},
      {"tokenizer.json", pattern("\\\\p{None}"), "regular expression"},
      {"tokenizer.json", R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
      "post_processor": {"type": "RobertaProcessing", "cls": ["a", 9], "sep": ["a", 0]}})",
       "prefix"}};
  const auto convert_with = [&](const char* file, const std::string& text) {
    fs::remove_all(source);
    fs::copy("tests/goldens/llama_grouped_heads", source);
    std::ofstream(source / file) << text;
    return run({.source = source.string(), .output = output});
  };
  for (const auto& [file, text, word] : lies) {
    CAPTURE(text);
    const Result<ConvertReport> report = convert_with(file, text);
    REQUIRE(!report);
    CHECK_MESSAGE(report.error().message.contains(word), report.error().message);
    CHECK(!fs::exists(output));
  }
  CHECK(convert_with("tokenizer.json", pattern("b+")));  // a vocabulary without merges
}

TEST_CASE("a source that is no checkpoint is refused in a sentence") {
  const TemporaryFolder folder;
  const std::string output = (folder.path / "out.vvl").string();
  for (const std::string source : {"no/such/folder", "tests/goldens", "tests/goldens/README.md"}) {
    CAPTURE(source);
    const Result<ConvertReport> report = run({.source = source, .output = output});
    REQUIRE(!report);
    CHECK(report.error().message.contains(source));
  }
  CHECK(!fs::exists(output));
}

}  // namespace
}  // namespace volvelle
