// Exit status, sentences, streams and results of every command, on tiny checkpoints that are
// converted here.

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <format>
#include <map>

#include "tests/end_to_end/program_run.h"
#include "tests/goldens/golden.h"

namespace volvelle {
namespace {

using nlohmann::json;

constexpr size_t kVocabulary = 128;  // of the golden below

const Golden& golden() {
  static const Golden found = [] {
    for (Golden& golden : read_goldens()) {
      if (golden.source.filename() == "llama_grouped_heads") return golden;
    }
    return Golden{};
  }();
  return found;
}

std::string join(const std::vector<int32_t>& ids, const char* separator) {
  std::string text;
  for (const int32_t id : ids) text += (text.empty() ? "" : separator) + std::to_string(id);
  return text;
}

// A byte-level tokenizer of 128 pieces: an end token, a merge, the two bytes of "é" and printable
// ASCII.
json tokenizer_json() {
  json vocabulary = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}, {"Ġ", 3},
                     {"Ã", 4},     {"©", 5},   {"th", 6},   {"Ċ", 7}};
  for (int c = '!'; c <= '~'; ++c) vocabulary[std::string(1, static_cast<char>(c))] = 8 + (c - '!');
  for (int id = static_cast<int>(vocabulary.size()); id < static_cast<int>(kVocabulary); ++id) {
    vocabulary["unused" + std::to_string(id)] = id;
  }
  const auto special = [](const char* text, int id) {
    return json{{"id", id},        {"content", text},     {"single_word", false}, {"lstrip", false},
                {"rstrip", false}, {"normalized", false}, {"special", true}};
  };
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", {special("<unk>", 0), special("<s>", 1), special("</s>", 2)}},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "ByteLevel"},
            {"add_prefix_space", false},
            {"trim_offsets", true},
            {"use_regex", true}}},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single",
             {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
              {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
            {"pair", json::array()},
            {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {1}}, {"tokens", {"<s>"}}}}}}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", vocabulary},
            {"merges", {"t h"}}}}};
}

// The golden without a tokenizer, and with the one above; f32.
struct Models {
  TemporaryFolder folder;
  std::string plain = folder / "plain.vvl";
  std::string text = folder / "text.vvl";

  Models() {
    REQUIRE(run_program({"convert", golden().source.string(), "-o", plain, "--weights", "f32"})
                .status == 0);
    for (const auto& entry : std::filesystem::directory_iterator(golden().source)) {
      folder.write("checkpoint/" + entry.path().filename().string(),
                   read_file(entry.path().string()));
    }
    folder.write("checkpoint/tokenizer.json", tokenizer_json().dump());
    const Ran ran = run_program({"convert", folder / "checkpoint", "-o", text, "--weights", "f32"});
    INFO(ran.err);
    REQUIRE(ran.status == 0);
  }
};

const Models& models() {
  static const Models made;
  return made;
}

// One sentence for a person, on standard error, and nothing on standard output.
void check_refused(const Ran& ran, int status, std::string_view names) {
  CAPTURE(ran.err);
  CHECK(ran.status == status);
  CHECK(ran.out == "");
  CHECK(ran.err.starts_with("volvelle: "));
  CHECK(std::ranges::count(ran.err, '\n') == 1);
  CHECK(ran.err.ends_with('\n'));
  CHECK(ran.err.contains(names));
}

struct Matrix {
  size_t rows = 0, columns = 0;
  std::vector<float> values;
};

// An .npy file of float32, read as numpy.lib.format says.
Matrix read_npy(const std::string& bytes) {
  REQUIRE(bytes.size() > 10);
  REQUIRE(bytes.starts_with(std::string_view("\x93NUMPY\x01\x00", 8)));
  const size_t header =
      static_cast<unsigned char>(bytes[8]) + 256 * static_cast<unsigned char>(bytes[9]);
  CHECK((10 + header) % 64 == 0);
  const std::string fields = bytes.substr(10, header);
  CHECK(fields.ends_with('\n'));
  Matrix matrix;
  REQUIRE(std::sscanf(fields.c_str(),
                      "{'descr': '<f4', 'fortran_order': False, 'shape': (%zu, %zu), }",
                      &matrix.rows, &matrix.columns) == 2);
  REQUIRE(bytes.size() == 10 + header + matrix.rows * matrix.columns * sizeof(float));
  matrix.values.resize(matrix.rows * matrix.columns);
  std::memcpy(matrix.values.data(), bytes.data() + 10 + header,
              matrix.values.size() * sizeof(float));
  return matrix;
}

// ---- The program --------------------------------------------------------------------------------

TEST_CASE("without a command, help goes to standard error and the usage is wrong") {
  const Ran ran = run_program({});
  CHECK(ran.status == 2);
  CHECK(ran.out == "");
  CHECK(ran.err.contains("run"));
  CHECK(ran.err.contains("convert"));
}

TEST_CASE("help and version are results") {
  const Ran version = run_program({"--version"});
  CHECK(version.status == 0);
  CHECK(version.out.starts_with("volvelle "));
  CHECK(version.err == "");
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"convert"},
                                             {"extend"},
                                             {"run"},
                                             {"logits"},
                                             {"tokenize"},
                                             {"detokenize"},
                                             {"inspect"},
                                             {"bench"},
                                             {"eval", "perplexity"},
                                             {"completion"}}) {
    std::vector<std::string> arguments = command;
    arguments.push_back("--help");
    CAPTURE(command.back());
    const Ran ran = run_program(arguments);
    CHECK(ran.status == 0);
    CHECK(ran.err == "");
    CHECK(ran.out.contains("volvelle " + command.front()));  // an example
  }
}

TEST_CASE("wrong usage is status 2 and one sentence that points to the help") {
  check_refused(run_program({"walk"}), 2, "volvelle --help");
  check_refused(run_program({"walk", "m.vvl", "-n", "4"}), 2, "there is no command walk");
  check_refused(run_program({"run"}), 2, "volvelle run --help");
  check_refused(run_program({"run", "m.vvl"}), 2, "volvelle run --help");
  check_refused(run_program({"run", "m.vvl", "-p", "a", "--tokens", "1"}), 2,
                "volvelle run --help");
  check_refused(run_program({"run", "m.vvl", "-p", "a", "--top-p", "2"}), 2, "--top-p");
  check_refused(run_program({"run", "m.vvl", "-p", "a", "-n", "many"}), 2, "--new-tokens");
  check_refused(run_program({"run", "m.vvl", "-p", "a", "--kv", "q3"}), 2, "--kv");
  check_refused(run_program({"run", "m.vvl", "-p", "a", "--cpus", "1,x"}), 2, "--cpus");
  check_refused(run_program({"logits", "m.vvl", "--tokens", "1"}), 2, "--output");
  check_refused(run_program({"bench", "m.vvl", "-p", "0", "-n", "0"}), 2, "nothing to measure");
  check_refused(run_program({"convert", "folder", "-o", "-"}), 2, "standard output");
  check_refused(run_program({"convert", "folder", "-o", "m.vvl", "--context", "0"}), 2,
                "--context");
  check_refused(run_program({"extend", "m.vvl", "--rope-scaling", "none"}), 2, "--in-place");
  check_refused(run_program({"extend", "m.vvl", "--rope-scaling", "none", "--in-place", "-o", "n"}),
                2, "--in-place");
  check_refused(run_program({"extend", "m.vvl", "--in-place"}), 2, "--rope-scaling");
  for (const char* spec : {"", "yarn", "yarn:0", "yarn:4,original=0", "linear:2,", "theta:1"}) {
    CAPTURE(spec);
    check_refused(run_program({"extend", "m.vvl", "--in-place", "--rope-scaling", spec}), 2,
                  "--rope-scaling");
    check_refused(run_program({"convert", "folder", "-o", "m.vvl", "--rope-scaling", spec}), 2,
                  "--rope-scaling");
  }
  for (const char* context : {"0", "16777217", "-1", "x"}) {
    CAPTURE(context);
    check_refused(run_program({"extend", "m.vvl", "--in-place", "--rope-scaling", "none",
                               "--context", context}),
                  2, "--context");
    check_refused(run_program({"convert", "folder", "-o", "m.vvl", "--context", context}), 2,
                  "--context");
  }
  check_refused(run_program({"inspect", "m.vvl", "--plot", ""}), 2, "--plot");
  check_refused(run_program({"inspect", "m.vvl", "--plot", "-"}), 2, "--plot");
  check_refused(run_program({"eval"}), 2, "volvelle eval --help");
}

TEST_CASE("a file that is missing or no model is status 1 and a sentence that names it") {
  const TemporaryFolder folder;
  const std::string missing = folder / "missing.vvl";
  const std::string letter = folder.write("letter.vvl", std::string(100000, 'x'));
  for (const std::string& path : {missing, letter}) {
    check_refused(run_program({"run", path, "-p", "a"}), 1, path);
    check_refused(run_program({"logits", path, "--tokens", "1", "-o", folder / "l.npy"}), 1, path);
    check_refused(run_program({"tokenize", path, "-p", "a"}), 1, path);
    check_refused(run_program({"inspect", path}), 1, path);
    check_refused(run_program({"extend", path, "--rope-scaling", "none", "--in-place"}), 1, path);
    check_refused(run_program({"bench", path}), 1, path);
    check_refused(run_program({"eval", "perplexity", path, "--text", letter}), 1, path);
  }
  CHECK(!std::filesystem::exists(folder / "l.npy"));
  check_refused(run_program({"run", folder / ".", "-p", "a"}), 1, "volvelle convert");
  check_refused(run_program({"tokenize", folder.write("novel.txt", "x"), "-p", "a"}), 1,
                "novel.txt");
  check_refused(run_program({"tokenize", folder / "poem.txt", "-p", "a"}), 1, "no such file");
}

TEST_CASE("names that steer a terminal are made visible, and others stay as they are") {
  const TemporaryFolder folder;
  const std::vector<std::pair<const char*, const char*>> names = {
      {"a\u202eb", "a\\u202eb"},        {"a\u2066b", "a\\u2066b"},       {"a\u009bb", "a\\u009bb"},
      {"a\ufeffb", "a\\ufeffb"},        {"a\x1b[31mb", "a\\x1b[31mb"},   {"a\xff\x62", "a\\xffb"},
      {"\u00e4\u6f22", "\u00e4\u6f22"}, {"\u0e01\u200d", "\u0e01\u200d"}};
  for (const auto& [name, shown] : names) {
    CAPTURE(shown);
    const Ran ran = run_program({"inspect", folder / name});
    CHECK(ran.status == 1);
    CHECK(ran.err.contains(std::string("/") + shown + ": there is no such file"));
  }
}

TEST_CASE("an empty file is called by its name, whatever reads it") {
  const TemporaryFolder folder;
  const std::string empty = folder.write("empty.vvl", "");
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"inspect", empty},
           {"extend", empty, "--rope-scaling", "none", "--in-place"},
           {"extend", empty, "--rope-scaling", "none", "-o", folder / "copy.vvl"}}) {
    check_refused(run_program(arguments), 1, empty + ": is empty");
  }
}

TEST_CASE("a limit on a file's size is an error, and leaves the file as it was") {
  const TemporaryFolder folder;
  const std::string path = folder.write("model.vvl", read_file(models().plain));
  const std::string bytes = read_file(path);
  rlimit former;
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &former) == 0);
  const rlimit limit = {.rlim_cur = bytes.size() + 1000, .rlim_max = former.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  const Ran in_place = run_program({"extend", path, "--rope-scaling", "yarn:64", "--in-place"});
  const Ran copy =
      run_program({"extend", path, "--rope-scaling", "yarn:64", "-o", folder / "copy.vvl"});
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &former) == 0);
  for (const Ran& ran : {in_place, copy}) {
    CHECK(ran.status == 1);
    CHECK(ran.err.contains("files may not grow that large here"));
  }
  CHECK(read_file(path) == bytes);
  CHECK_FALSE(std::filesystem::exists(folder / "copy.vvl"));
}

TEST_CASE("a result that cannot be written is an error") {
  if (!std::filesystem::exists("/dev/full")) return;
  const Ran ran = run_program({"inspect", models().plain, "--json"}, {.out_path = "/dev/full"});
  CHECK(ran.status == 1);
  CHECK(ran.err.contains("standard output"));
}

TEST_CASE(
    "Ctrl-C ends a long command without a result or a complaint, with a shell's status for it") {
  const Ran ran = run_program({"bench", models().plain, "-p", "100", "-n", "100", "-r", "1000"},
                              {.interrupt_after = 0.5});
  CHECK(ran.status == 130);
  CHECK(ran.out == "");
  CHECK(ran.err == "");
}

TEST_CASE("completion knows every command") {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const Ran ran = run_program({"completion", shell});
    CHECK(ran.status == 0);
    for (const char* word : {"run", "perplexity", "temperature", "convert"})
      CHECK(ran.out.contains(word));
  }
  check_refused(run_program({"completion", "tcsh"}), 2, "tcsh");
}

// ---- run ----------------------------------------------------------------------------------------

TEST_CASE("run --ids writes the reference's greedy ids on one line, in any chunking") {
  const std::string tokens = join(golden().tokens, ",");
  for (const char* chunk : {"1", "7", "512"}) {
    const Ran ran = run_program({"run", models().plain, "--tokens", tokens, "--ids", "-n",
                                 std::to_string(golden().greedy.size()), "--ignore-eos", "--kv",
                                 "f32", "--chunk", chunk});
    CHECK(ran.status == 0);
    CHECK(ran.err == "");
    CHECK(ran.out == join(golden().greedy, " ") + "\n");
  }
  const TemporaryFolder folder;
  const std::string file = folder.write("ids.txt", join(golden().tokens, "\n"));
  const std::vector<std::string> rest = {"--ids", "-n",  "3",  "--ignore-eos",
                                         "--kv",  "f32", "-t", "1"};
  const auto from = [&](const std::string& source) {
    std::vector<std::string> arguments = {"run", models().plain, "--tokens", source};
    arguments.insert(arguments.end(), rest.begin(), rest.end());
    return run_program(arguments, join(golden().tokens, " ")).out;
  };
  CHECK(from("@" + file) == from(tokens));
  CHECK(from("@-") == from(tokens));
}

TEST_CASE("no more threads are taken than there are cores, which is told") {
  const auto run = [](const char* threads) {
    return run_program(
        {"run", models().plain, "--tokens", "1,2,3", "--ids", "-n", "8", "-t", threads});
  };
  const Ran many = run("1000");
  CHECK(many.status == 0);
  CHECK(many.err.contains("1000 threads are more than the "));
  CHECK(many.out == run("1").out);
}

TEST_CASE("a model without a tokenizer takes ids, and says so when text is wanted") {
  check_refused(run_program({"run", models().plain, "-p", "hello"}), 1, "tokenizer");
  check_refused(run_program({"tokenize", models().plain, "-p", "hello"}), 1, "tokenizer");
  const Ran ran =
      run_program({"run", models().plain, "--tokens", "5,6", "-n", "4", "--ignore-eos"});
  CHECK(ran.status == 0);
  CHECK(std::ranges::count(ran.out, ' ') == 3);
  CHECK(ran.err.contains("no tokenizer"));
}

TEST_CASE("run writes the text of the ids that it chose, and nothing else, to standard output") {
  const std::vector<std::string> base = {"run", models().text,  "-p",   "the cat", "-n",
                                         "40",  "--ignore-eos", "--kv", "f32"};
  std::vector<std::string> with_ids = base;
  with_ids.push_back("--ids");
  std::string ids = run_program(with_ids).out;
  ids.pop_back();
  std::ranges::replace(ids, ' ', ',');
  const Ran detokenized =
      run_program({"detokenize", models().text, "--ids", ids, "--skip-special"});
  CHECK(detokenized.status == 0);
  const Ran ran = run_program(base);
  CHECK(ran.status == 0);
  CHECK(ran.out == detokenized.out);
  CHECK(ran.err == "");
  std::vector<std::string> from_stdin = base;
  from_stdin[3] = "-";
  CHECK(run_program(from_stdin, "the cat").out == ran.out);

  SUBCASE("--stop ends before a text that spans tokens, and may look like anything") {
    std::string text = ran.out;
    text.pop_back();
    REQUIRE(text.size() > 8);
    std::vector<std::string> stopped = base;
    for (const std::string& stop : {std::string("[never]"), text.substr(4, 3)}) {
      stopped.push_back("--stop");
      stopped.push_back(stop);
    }
    CHECK(run_program(stopped).out == text.substr(0, text.find(text.substr(4, 3))) + "\n");
  }
  SUBCASE("--stats go to standard error") {
    std::vector<std::string> with_stats = base;
    with_stats.push_back("--stats");
    const Ran told = run_program(with_stats);
    CHECK(told.out == ran.out);
    for (const char* word : {"prefill", "decode", "tokens/s", "GB/s", "peak"})
      CHECK(told.err.contains(word));
  }
}

TEST_CASE("prompts that look like options or lists are text") {
  for (const char* prompt : {"-x", "[a]", "{}", "%%", "a,b", "\"q\"", "--"}) {
    CAPTURE(prompt);
    const Ran ran =
        run_program({"tokenize", models().text, "-p", prompt, "--no-special", "--plain", "--json"});
    REQUIRE(ran.status == 0);
    CHECK(ran.json()["ids"].size() == std::strlen(prompt));  // none of them has a merge
  }
}

TEST_CASE("a seed draws the same tokens every time, and seeds differ") {
  const auto draw = [](const char* seed) {
    return run_program({"run",
                        models().plain,
                        "--tokens",
                        "5,6,7",
                        "--ids",
                        "-n",
                        "32",
                        "--ignore-eos",
                        "--temperature",
                        "1.5",
                        "--top-k",
                        "50",
                        "--top-p",
                        "0.95",
                        "--min-p",
                        "0.001",
                        "--repeat-penalty",
                        "1.1",
                        "--seed",
                        seed})
        .out;
  };
  CHECK(draw("3") == draw("3"));
  CHECK(draw("3") != draw("4"));
}

// A prompt that repeats itself, as what a tiny model says soon does too.
TEST_CASE("guessing tokens changes nothing of what is written") {
  size_t guessing = 0;
  for (const std::vector<std::string>& sampling : {std::vector<std::string>{},
                                                   {"--temperature", "0.7", "--seed", "5"},
                                                   {"--repeat-penalty", "1.2", "--kv", "f16"},
                                                   {"--chunk", "2"}}) {
    std::vector<std::string> arguments = {
        "run", models().plain, "--tokens", "5,6,7,8,9,5,6,7,8,9,5,6,7", "--ids", "-n",
        "48",  "--ignore-eos", "--stats"};
    arguments.insert(arguments.end(), sampling.begin(), sampling.end());
    const Ran guessed = run_program(arguments);
    arguments.push_back("--no-speculate");
    const Ran plain = run_program(arguments);
    CHECK(plain.status == 0);
    CHECK(std::ranges::count(plain.out, ' ') == 47);
    CHECK(guessed.out == plain.out);
    guessing += guessed.err.contains("tokens were right");
    CHECK_FALSE(plain.err.contains("tokens were right"));
  }
  CHECK(guessing >= 2);  // what is drawn need not repeat itself
}

TEST_CASE("packed weights are kept in a file beside the model unless memory is asked for") {
  const TemporaryFolder folder;
  const std::string model = folder / "m.vvl";
  REQUIRE(
      run_program({"convert", golden().source.string(), "-o", model, "--weights", "q8"}).status ==
      0);
  const auto run = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"run", model, "--tokens", "5,6,7", "--ids", "-n", "8"});
    const Ran ran = run_program(more);
    CHECK(ran.status == 0);
    return ran.out;
  };
  const std::string expected = run({"--pack", "memory"});
  CHECK_FALSE(std::filesystem::exists(folder / "m.vvlpack"));
  CHECK(run({}) == expected);
  CHECK(std::filesystem::exists(folder / "m.vvlpack"));
  CHECK(run({}) == expected);
  const std::string packed = read_file(folder / "m.vvlpack");
  folder.write("m.vvlpack", packed.substr(0, packed.size() / 2));
  CHECK(run({"--pack", "file"}) == expected);
  CHECK(read_file(folder / "m.vvlpack") == packed);
}

TEST_CASE(
    "tokens that the model does not have and prompts that do not fit are refused before "
    "computing") {
  check_refused(run_program({"run", models().plain, "--tokens", "5,128", "--ids"}), 1, "128");
  check_refused(run_program({"run", models().plain, "--tokens", "5,-1", "--ids"}), 1, "-1");
  check_refused(run_program({"run", models().plain, "--tokens", "5,99999999999", "--ids"}), 1,
                "99999999999");
  check_refused(
      run_program({"run", models().plain, "--tokens", "1,2,3", "--ids", "--context", "2"}), 1,
      "--context");
  check_refused(run_program({"run", models().plain, "--tokens",
                             join(std::vector<int32_t>(257, 5), ","), "--ids"}),
                1, "volvelle extend");
  check_refused(run_program({"run", models().plain, "--tokens", "5", "--first-position", "256"}), 1,
                "256");
  // A larger --context is offered only where it helps.
  const auto refused = [&](size_t tokens) {
    const Ran ran =
        run_program({"run", models().plain, "--tokens", join(std::vector<int32_t>(tokens, 5), ","),
                     "--ids", "--context", "100"});
    CHECK(ran.status == 1);
    return ran.err;
  };
  CHECK(refused(200).contains("ask for a larger --context, up to 256"));
  CHECK_FALSE(refused(300).contains("ask for a larger"));
  CHECK(refused(300).contains("the 256 that the model's positions reach"));
}

TEST_CASE("where the context is full, run stops and says so") {
  const Ran ran = run_program({"run", models().plain, "--tokens", "5,6,7", "--ids", "-n", "50",
                               "--ignore-eos", "--context", "10"});
  CHECK(ran.status == 0);
  CHECK(std::ranges::count(ran.out, ' ') == 7);  // 8 new ids: the last needs no place
  CHECK(ran.err.contains("context of 10 tokens is full"));
}

// ---- logits -------------------------------------------------------------------------------------

TEST_CASE("logits are the reference's, in a NumPy file, whatever the chunks") {
  const TemporaryFolder folder;
  const std::string tokens = join(golden().tokens, ",");
  for (const char* chunk : {"1", "7", "512"}) {
    const std::string path = folder / "logits.npy";
    const Ran ran = run_program({"logits", models().plain, "--tokens", tokens, "-o", path, "--kv",
                                 "f32", "--chunk", chunk});
    CHECK(ran.status == 0);
    CHECK(ran.out == "");
    CHECK(ran.err == "");
    const Matrix matrix = read_npy(read_file(path));
    CHECK(matrix.rows == golden().tokens.size());
    CHECK(matrix.columns == kVocabulary);
    float worst = 0;
    for (size_t i = 0; i < matrix.values.size(); ++i) {
      worst = std::max(worst, std::abs(matrix.values[i] - golden().logits[i]));
    }
    CHECK(worst <= 5e-5f * golden().range());
  }
  const Ran piped =
      run_program({"logits", models().plain, "--tokens", tokens, "-o", "-", "--kv", "f32"});
  CHECK(piped.status == 0);
  CHECK(piped.out == read_file(folder / "logits.npy"));
}

// ---- tokenize, detokenize -----------------------------------------------------------------------

TEST_CASE("tokenize and detokenize are inverse, in every form of input and output") {
  // Ids by hand from the vocabulary above: "th", "e", " ", "é" (two bytes).
  const std::string source = models().text;
  CHECK(run_program({"tokenize", source, "-p", "the é"}).out == "1,6,76,3,4,5\n");
  CHECK(run_program({"tokenize", source, "-p", "the é", "--no-special"}).out == "6,76,3,4,5\n");
  CHECK(run_program({"tokenize", source, "-p", "the é", "--json"}).json() ==
        json{{"ids", {1, 6, 76, 3, 4, 5}}});
  CHECK(run_program({"tokenize", source, "-p", "-"}, "the é").out == "1,6,76,3,4,5\n");
  CHECK(run_program({"tokenize", source, "--file", "-"}, "the é").out == "1,6,76,3,4,5\n");
  CHECK(run_program({"tokenize", source, "-p", "</s>", "--no-special"}).out == "2\n");
  CHECK(run_program({"tokenize", source, "-p", "</s>", "--no-special", "--plain"}).out ==
        "35,22,90,37\n");
  const Ran lines = run_program({"tokenize", source, "--jsonl", "-"},
                                "{\"text\":\"the \\u00e9\"}\n\n{\"base64\":\"dGhlIMOp\"}\n");
  CHECK(lines.status == 0);
  CHECK(lines.out == "{\"ids\":[1,6,76,3,4,5]}\n{\"ids\":[1,6,76,3,4,5]}\n");

  CHECK(run_program({"detokenize", source, "--ids", "6,76,3,4,5"}).out == "the é\n");
  CHECK(run_program({"detokenize", source, "--ids", "1,6", "--skip-special"}).out == "th\n");
  CHECK(run_program({"detokenize", source, "--ids", "1,6"}).out == "<s>th\n");
  CHECK(run_program({"detokenize", source, "--ids", "6,4,5,4", "--stream"}).json() ==
        json{{"pieces", {"th", "", "é", "", "\uFFFD"}}});
  CHECK(
      run_program({"detokenize", source, "--jsonl", "-"}, "{\"ids\":[6,76]}\n{\"ids\":[]}\n").out ==
      "{\"text\":\"the\"}\n{\"text\":\"\"}\n");
}

TEST_CASE("a line that is not as it should be is named by its number") {
  const std::string source = models().text;
  const auto refused = [&](const char* command, const char* input) {
    const Ran ran = run_program({command, source, "--jsonl", "-"}, input);
    CHECK(ran.status == 1);
    CHECK(ran.err.contains("line 2"));
    CHECK(std::ranges::count(ran.out, '\n') == 1);  // the first line's result stands
  };
  refused("tokenize", "{\"text\":\"a\"}\n{\"text\":\n");
  refused("tokenize", "{\"text\":\"a\"}\n[1]\n");
  refused("tokenize", "{\"text\":\"a\"}\n{\"text\":7}\n");
  refused("tokenize", "{\"text\":\"a\"}\n{\"base64\":\"?\"}\n");
  refused("detokenize", "{\"ids\":[1]}\n{\"ids\":[-1]}\n");
  refused("detokenize", "{\"ids\":[1]}\n{\"ids\":[1.5]}\n");
  refused("detokenize", "{\"ids\":[1]}\n{\"ids\":[4294967296]}\n");
}

// ---- inspect, bench, eval -----------------------------------------------------------------------

TEST_CASE("inspect tells what the checkpoint's configuration says") {
  const Ran ran = run_program({"inspect", models().text, "--json", "--verify"});
  CHECK(ran.status == 0);
  const json told = ran.json();
  CHECK(told["context"] == 256);
  CHECK(told["vocabulary"] == kVocabulary);
  CHECK(told["width"] == 32);
  CHECK(told["tied_head"] == true);
  CHECK(told["blocks"].size() == 2);
  CHECK(told["blocks"][0]["query_heads"] == 4);
  CHECK(told["blocks"][0]["kv_heads"] == 2);
  CHECK(told["blocks"][0]["head_dim"] == 8);
  CHECK(told["blocks"][0]["feed_forward_width"] == 48);
  CHECK(told["positions"][0]["scheme"] == "rotary");
  CHECK(told["positions"][0]["pairing"] == "half");
  CHECK(told["positions"][0]["positions"] >= 256);
  CHECK(told["positions"][0]["max_error"] < 2e-7);
  CHECK(told["tokenizer"]["vocabulary"] == kVocabulary);
  CHECK(told["sizes"]["file"] == std::filesystem::file_size(models().text));
  CHECK(told["weights_verified"] == true);
  CHECK(run_program({"inspect", models().plain}).out.contains("rotary"));
  CHECK(run_program({"inspect", models().plain, "--json"}).json()["tokenizer"].is_null());
}

TEST_CASE("inspect tells original and present scaling, and draws what it tells") {
  const TemporaryFolder folder;
  const std::string model = folder / "model.vvl", plots = folder / "new/plots";
  std::filesystem::copy_file(models().plain, model);
  REQUIRE(run_program({"extend", model, "--rope-scaling", "linear:4", "--in-place"}).status == 0);
  const Ran ran = run_program({"inspect", model, "--json", "--plot", plots});
  REQUIRE(ran.status == 0);
  const json told = ran.json(), rotary = told["positions"][0];
  CHECK(told["generation_of_file"] == 2);
  CHECK(told["context"] == 1024);
  CHECK(rotary["scaling"]["kind"] == "linear");
  CHECK(rotary["original"]["scaling"]["kind"] == "none");
  // Base 10000 and width 8: 2 pi * 10^i, of which two are below the trained 256 positions, and
  // still two when all are four times as long.
  const json& original = rotary["original"]["planes"];
  REQUIRE(original["wavelengths"].size() == 4);
  for (int plane = 0; plane < 4; ++plane) {
    const double length = 2 * M_PI * std::pow(10, plane);
    CHECK(original["wavelengths"][plane].get<double>() == doctest::Approx(length).epsilon(1e-6));
    CHECK(rotary["planes"]["wavelengths"][plane].get<double>() ==
          doctest::Approx(4 * length).epsilon(1e-6));
  }
  CHECK(original["turn_within_trained_context"] == 2);
  CHECK(rotary["planes"]["turn_within_trained_context"] == 2);  // 25 and 251
  REQUIRE(told["plots"].size() == 1);
  CHECK(read_file(told["plots"][0].get<std::string>()).contains("</svg>"));
  const Ran text = run_program({"inspect", model, "--plot", plots});
  CHECK(text.out.contains("2 of 4 planes turn fully"));
  CHECK(text.out.contains("position-0-rotary.svg: shows"));
}

TEST_CASE("inspect calls a plane that stands still so") {
  const TemporaryFolder folder;
  const std::string path = folder / "model.vvl";
  REQUIRE(run_program({"convert", "tests/goldens/llama_proportional", "-o", path}).status == 0);
  const Ran ran = run_program({"inspect", path});
  CHECK(ran.out.contains(" to none (it stands still), "));
  CHECK_FALSE(ran.out.contains(" inf"));
}

TEST_CASE("a model extended in place or to a copy computes what a fresh conversion does") {
  const TemporaryFolder folder;
  const std::string fresh = folder / "fresh.vvl", model = folder / "model.vvl",
                    copy = folder / "copy.vvl";
  const Ran converted = run_program({"convert", golden().source.string(), "-o", fresh, "--weights",
                                     "f32", "--rope-scaling", "yarn:4", "--json"});
  REQUIRE(converted.status == 0);
  CHECK(converted.json()["context"] == 1024);
  std::filesystem::copy_file(models().plain, model);
  const auto extend = [&](const std::vector<std::string>& where) {
    std::vector<std::string> arguments = {"extend", model, "--rope-scaling", "yarn:4", "--json"};
    arguments.insert(arguments.end(), where.begin(), where.end());
    const Ran ran = run_program(arguments);
    INFO(ran.err);
    REQUIRE(ran.status == 0);
    CHECK(ran.err.contains("1,024"));  // the context that was chosen
    return ran.json();
  };
  CHECK(extend({"-o", copy})["file"] == copy);
  const json told = extend({"--in-place"});
  CHECK(told["context"] == 1024);
  CHECK(told["former_context"] == 256);
  CHECK(told["generation"] == 2);
  CHECK(told["file_bytes"] == std::filesystem::file_size(model));
  CHECK(told["positions"][0]["after"].get<std::string>().contains("yarn scaling by 4"));

  const auto logits = [&](const std::string& path) {
    const Ran ran = run_program({"logits", path, "--tokens", join(golden().tokens, ","),
                                 "--first-position", "700", "-o", folder / "l.npy"});
    INFO(ran.err);
    REQUIRE(ran.status == 0);
    return read_file(folder / "l.npy");
  };
  const std::string expected = logits(fresh);
  CHECK(logits(model) == expected);
  CHECK(logits(copy) == expected);
  check_refused(run_program({"extend", model, "--rope-scaling", "none", "-o", copy}), 1, "--force");
  check_refused(run_program({"extend", model, "--rope-scaling", "none", "--in-place", "--context",
                             "2000000000"}),
                2, "--context");
  CHECK(logits(model) == expected);
}

TEST_CASE("inspect --verify finds one changed bit in the weights") {
  const TemporaryFolder folder;
  std::string bytes = read_file(models().plain);
  // The last segments of the file are weights; 64 bytes of padding end it.
  bytes[bytes.size() - 200] ^= 1;
  const std::string changed = folder.write("changed.vvl", bytes);
  check_refused(run_program({"inspect", changed, "--verify"}), 1, "checksum");
}

// Of `models().text`'s checkpoint.
json converted(const TemporaryFolder& folder, const std::vector<std::string>& options) {
  std::vector<std::string> arguments = {
      "convert", models().folder / "checkpoint", "-o", folder / "made.vvl", "--force", "--json"};
  arguments.insert(arguments.end(), options.begin(), options.end());
  const Ran ran = run_program(arguments);
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  return ran.json();
}

TEST_CASE("convert compensates rounding on a text, keeps what is named and mixes to a size") {
  const TemporaryFolder folder;
  const auto types = [](const json& report) {
    std::map<std::string, size_t> count;
    for (const json& linear : report["linears"]) ++count[linear["type"]];
    return count;
  };
  const auto count_of = [&](const std::vector<std::string>& options, const std::string& type) {
    return types(converted(folder, options))[type];
  };
  const size_t linears = converted(folder, {})["linears"].size();
  REQUIRE(linears > 4);
  CHECK(count_of({"--calibrate", "none"}, "q4") == linears);
  CHECK(count_of({}, "q4, compensated") == linears);
  const std::string text =
      folder.write("text.txt", "the thing that they think through, and through once more");
  CHECK(count_of({"--calibrate", text}, "q4, compensated") == linears);
  CHECK(count_of({"--weights", "q8"}, "q8") == linears);
  CHECK(count_of({"--weights", "q8", "--keep", "*=q4"}, "q4, compensated") == linears);

  const json first = converted(folder, {})["linears"][0];
  const std::string name = first["name"];
  CHECK(count_of({"--keep", name + "=q8"}, "q8") == 1);
  CHECK(count_of({"--keep", "*=q8", "--keep", name + "=f32"}, "f32") == 1);
  CHECK(count_of({"--keep", "*=q8", "--keep", name + "=f32"}, "q8") == linears - 1);
  check_refused(run_program({"convert", models().folder / "checkpoint", "-o", folder / "made.vvl",
                             "--force", "--keep", "nothing.like.it=q8"}),
                1, "fits no linear");
  check_refused(run_program({"convert", "folder", "-o", "m.vvl", "--keep", "*=q5"}), 2,
                "--keep *=q5: must be PATTERN=TYPE");

  const double least = converted(folder, {})["linear_bits"];
  for (const double more : {0.5, 1.5}) {
    const json mixed = converted(folder, {"--weights", std::format("auto:{}", least + more)});
    CHECK(mixed["linear_bits"] <= least + more + 0.1);  // side columns are chosen afterwards
    CHECK(types(mixed)["q8"] > 0);
    CHECK(types(mixed)["q8"] < linears);
    const json told = run_program({"inspect", folder / "made.vvl", "--json"}).json()["linears"];
    CHECK(told["linears"] == linears);
    CHECK(told["bits"].get<double>() == doctest::Approx(mixed["linear_bits"].get<double>()));
    CHECK(told["forms"].size() >= 2);
    size_t most = 0;
    for (const json& linear : mixed["linears"]) {
      most = std::max(most, linear["side_columns"].get<size_t>());
    }
    CHECK(told["most_side_columns"] == most);
    CHECK(run_program({"inspect", folder / "made.vvl"}).out.contains("bits a weight"));
  }
  check_refused(run_program({"convert", models().folder / "checkpoint", "-o", folder / "made.vvl",
                             "--force", "--weights", "auto:3"}),
                1, "auto:3");
  for (const char* weights : {"auto", "auto:", "auto:x", "auto:4.5x", "auto:0", "auto:nan", "q5"}) {
    check_refused(run_program({"convert", "folder", "-o", "m.vvl", "--weights", weights}), 2,
                  std::format("--weights {}: must be f32, q8, q4 or auto:BITS", weights));
  }
}

TEST_CASE("options that would change nothing are told or refused") {
  const TemporaryFolder folder;
  const auto told = [&](const std::vector<std::string>& options) {
    std::vector<std::string> arguments = {"convert", models().folder / "checkpoint", "-o",
                                          folder / "made.vvl", "--force"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    return run_program(arguments).err;
  };
  for (const char* weights : {"f32", "q8"}) {
    CHECK(told({"--weights", weights, "--no-keep-grid"}).contains("--no-keep-grid serves q4"));
    CHECK(told({"--weights", weights, "--calibrate", "none"}).contains("--calibrate serves q4"));
    CHECK(!told({"--weights", weights}).contains("serves q4"));
  }
  CHECK(!told({"--no-keep-grid", "--calibrate", "none"}).contains("serves q4"));
  check_refused(run_program({"eval", "perplexity", models().plain, "--text", "-", "--linears"}), 2,
                "--against");
  check_refused(
      run_program({"eval", "perplexity", models().plain, "--text", folder / "missing.txt"}), 1,
      "missing.txt: cannot be opened");
}

TEST_CASE("a text that is too short, too long or to be overwritten does not calibrate unnoticed") {
  const TemporaryFolder folder;
  const auto convert = [&](const std::string& text, const std::string& output) {
    return run_program(
        {"convert", models().folder / "checkpoint", "-o", output, "--force", "--calibrate", text});
  };
  const std::string made = folder / "made.vvl";
  check_refused(convert(folder.write("empty.txt", ""), made), 1, "is empty");
  CHECK(!std::filesystem::exists(made));
  CHECK(convert(folder.write("short.txt", "a b"), made).err.contains("too few to learn from"));
  CHECK(convert(folder.write("long.txt", std::string(200'000, 'x')), made)
            .err.contains(" tokens are read"));
  const std::string text = folder.write("text.txt", std::string(400, 'y'));
  check_refused(convert(text, text), 1, "choose another name");
  CHECK(read_file(text).size() == 400);
  check_refused(run_program({"convert", models().folder / "checkpoint", "-o", made, "--force",
                             "--report-text", folder / "missing.txt"}),
                1, "missing.txt");
  check_refused(convert("", made), 2, "names no file");
}

TEST_CASE("a report that cannot be made is refused before anything is converted") {
  const TemporaryFolder folder;
  const std::string made = folder / "made.vvl", checkpoint = models().folder / "checkpoint";
  check_refused(run_program({"convert", checkpoint, "-o", made, "--no-tokenizer", "--report"}), 1,
                "leave --report out");
  for (const std::string blank : {"", " \n\n"}) {
    const std::string text = folder.write("blank.txt", blank);
    check_refused(run_program({"convert", checkpoint, "-o", made, "--report-text", text}), 1,
                  "is empty");
  }
  check_refused(run_program({"convert", checkpoint, "-o", made, "--report-text", ""}), 2,
                "names no file");
  CHECK(!std::filesystem::exists(made));
}

TEST_CASE("convert says how a head of its own is stored, and that more bits would gain nothing") {
  const TemporaryFolder folder;
  const auto told = [&](const std::vector<std::string>& options) {
    std::vector<std::string> arguments = {"convert", "tests/goldens/mistral_no_window", "-o",
                                          folder / "made.vvl", "--force"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    return run_program(arguments).err;
  };
  CHECK(told({}).contains("the head is no copy of the embedding; it is stored as q8"));
  CHECK(!told({"--keep", "*head*=q4"}).contains("it is stored as q8"));
  CHECK(!told({"--weights", "q8"}).contains("it is stored as q8"));
  CHECK(told({"--weights", "auto:30"}).contains("none is gained"));
  CHECK(!told({"--weights", "auto:6"}).contains("none is gained"));
}

TEST_CASE("a calibrated conversion is the same to the byte for any number of threads") {
  const TemporaryFolder folder;
  std::string before;
  for (const char* threads : {"1", "2", "3"}) {
    converted(folder, {"-t", threads});
    const std::string bytes = read_file(folder / "made.vvl");
    CHECK((before.empty() || bytes == before));
    before = bytes;
  }
  CHECK(std::ranges::distance(std::filesystem::directory_iterator(folder / "")) == 1);
}

TEST_CASE("convert reports what a form costs against the float model, linear by linear") {
  const TemporaryFolder folder;
  const json exact = converted(folder, {"--weights", "f32", "--report"})["cost"];
  CHECK(exact["against"]["kl_mean"] == 0.0);
  CHECK(exact["linears"][0]["error"] == 0.0);
  const auto errors = [&](const std::string& weights) {
    const json cost = converted(folder, {"--weights", weights, "--report"})["cost"];
    double sum = 0;
    for (const json& linear : cost["linears"]) sum += linear["error"].get<double>();
    CHECK(cost["against"]["kl_mean"] > 0.0);
    return sum / static_cast<double>(cost["linears"].size());
  };
  // Eight bits have sixteen times finer steps than four; their inputs are rounded alike.
  CHECK(errors("q8") < errors("q4") / 8);
}

TEST_CASE("perplexity is what the logits say, window by window") {
  const TemporaryFolder folder;
  const std::string text =
      "the thing that they think through is either theirs or that of the others, then and there";
  const std::string file = folder.write("text.txt", text);
  const std::vector<int32_t> tokens =
      run_program({"tokenize", models().text, "-p", text, "--no-special", "--json"}).json()["ids"];
  const std::vector<size_t> lengths = {8, 32};
  const json told = run_program({"eval", "perplexity", models().text, "--text", file, "--lengths",
                                 "8,32", "--kv", "f32", "--against", models().text, "--json"})
                        .json();
  for (size_t i = 0; i < lengths.size(); ++i) {
    double surprise = 0;
    size_t count = 0;
    for (size_t at = 0; at + lengths[i] <= tokens.size(); at += lengths[i]) {
      const std::vector<int32_t> window(tokens.begin() + at, tokens.begin() + at + lengths[i]);
      const Matrix logits = read_npy(run_program({"logits", models().text, "--tokens",
                                                  join(window, ","), "-o", "-", "--kv", "f32"})
                                         .out);
      for (size_t row = 0; row + 1 < window.size(); ++row) {
        double sum = 0;
        for (size_t v = 0; v < kVocabulary; ++v)
          sum += std::exp(double{logits.values[row * kVocabulary + v]});
        surprise += std::log(sum) - logits.values[row * kVocabulary + window[row + 1]];
        ++count;
      }
    }
    CHECK(told["lengths"][i]["length"] == lengths[i]);
    CHECK(told["lengths"][i]["tokens"] == count);
    CHECK(told["lengths"][i]["perplexity"].get<double>() ==
          doctest::Approx(std::exp(surprise / count)).epsilon(1e-6));
  }
  CHECK(told["lengths"][0]["interval"][0] < told["lengths"][0]["perplexity"]);
  CHECK(told["lengths"][0]["interval"][1] > told["lengths"][0]["perplexity"]);
  CHECK(told["against"]["kl_mean"] == 0.0);  // against itself
  CHECK(told["against"]["kl_p999"] == 0.0);
  CHECK(told["against"]["top1"] == 1.0);
  check_refused(run_program({"eval", "perplexity", models().text, "--text", file}), 1, "--lengths");
  check_refused(run_program({"eval", "perplexity", models().plain, "--text", file}), 1,
                "tokenizer");
}

TEST_CASE("bench --json has every field of its contract") {
  const json told = run_program({"bench", models().plain, "-p", "16", "-n", "4", "-d", "0,20", "-r",
                                 "2", "-t", "1", "--json"})
                        .json();
  CHECK(told["model"] == models().plain);
  CHECK(told["threads"] == 1);
  CHECK(told["kv"] == "q8");
  CHECK(told["machine"]["read_gb_per_s"] > 0);
  CHECK(told["machine"]["int8_gops"] > 0);
  CHECK(told["peak_rss_bytes"] > 1000000);
  CHECK(told["load_seconds"] > 0);
  REQUIRE(told["results"].size() == 4);
  const std::vector<std::tuple<const char*, int, int>> expected = {
      {"prefill", 16, 0}, {"decode", 4, 0}, {"prefill", 16, 20}, {"decode", 4, 20}};
  for (size_t i = 0; i < expected.size(); ++i) {
    const json& result = told["results"][i];
    CHECK(result["kind"] == std::get<0>(expected[i]));
    CHECK(result["tokens"] == std::get<1>(expected[i]));
    CHECK(result["depth"] == std::get<2>(expected[i]));
    CHECK(result["tokens_per_s"]["min"] > 0);
    CHECK(result["tokens_per_s"]["min"] <= result["tokens_per_s"]["median"]);
    CHECK(result["tokens_per_s"]["median"] <= result["tokens_per_s"]["max"]);
    CHECK(result["fraction_of_limit"] > 0);  // above 1 too: this model lies in the caches
  }
}

TEST_CASE("bench --micro tells what each part of a decoder takes, and of which limit") {
  const json told =
      run_program({"bench", models().plain, "--micro", "-p", "8", "-d", "16", "--json"}).json();
  CHECK(told["depth"] == 16);
  CHECK(told["chunk"] == 8);
  std::map<std::string, json> parts;
  double decode = 0, prefill = 0;
  for (const json& part : told["parts"]) {
    parts[part["name"]] = part;
    CHECK(part["decode_us"] > 0);
    decode += part["decode_share"].get<double>();
    prefill += part["prefill_share"].get<double>();
  }
  CHECK(decode == doctest::Approx(1));
  CHECK(prefill == doctest::Approx(1));
  for (const char* name :
       {"q, k and v", "attention's output", "gate and up", "down", "head", "attention",
        "storing keys and values", "rotating q and k", "norms", "activation"}) {
    CAPTURE(name);
    CHECK(parts.contains(name));
  }
  CHECK(parts["down"]["decode_fraction_of_limit"] > 0);
  CHECK(parts["down"]["prefill_fraction_of_limit"] > 0);
  CHECK(parts["norms"]["decode_fraction_of_limit"].is_null());
  check_refused(run_program({"bench", models().plain, "--micro", "--sustain", "1"}), 2, "--micro");
}

TEST_CASE("bench --sweep-threads measures every number of threads and names the fastest") {
  const json told = run_program({"bench", models().plain, "--sweep-threads", "-p", "16", "-n", "4",
                                 "-r", "1", "--cpus", "0,1", "--json"})
                        .json();
  REQUIRE(told["sweep"].size() == 4);
  double fastest = 0;
  int threads = 0;
  for (const json& result : told["sweep"]) {
    if (result["kind"] != "decode" || result["tokens_per_s"]["median"] <= fastest) continue;
    fastest = result["tokens_per_s"]["median"];
    threads = result["threads"];
  }
  CHECK(told["sweep"][2]["threads"] == 2);
  CHECK(told["best"]["decode"] == threads);
}

TEST_CASE("bench --sustain decodes for as long as it is told, and tells speed and throttling") {
  const json told =
      run_program({"bench", models().plain, "--sustain", "1", "-t", "1", "--json"}).json();
  REQUIRE_FALSE(told["sustained"].empty());
  CHECK(told["sustained"].back()["seconds"] >= 1.0);
  CHECK(told["sustained"].back()["tokens_per_s"] > 0);
  CHECK(told["heat"].contains("throttled"));
}

TEST_CASE("inspect --memory tells what a session of a context and a cache will hold") {
  const auto memory = [](const char* context, const char* kv) {
    return run_program(
               {"inspect", models().plain, "--memory", "--context", context, "--kv", kv, "--json"})
        .json()["memory"];
  };
  const json small = memory("32", "f32"), large = memory("64", "f32"), codes = memory("64", "q8");
  CHECK(large["cache"] == 2 * small["cache"].get<size_t>());
  CHECK(codes["cache"] < large["cache"]);
  CHECK(large["packed_weights"] == small["packed_weights"]);
  CHECK(large["total"] == large["packed_weights"].get<size_t>() + large["cache"].get<size_t>() +
                              large["scratch"].get<size_t>());
  CHECK(large["left"] > 0);
  const Ran text = run_program({"inspect", models().plain, "--memory"});
  CHECK(text.status == 0);
  CHECK(text.out.contains("memory of "));
}

}  // namespace
}  // namespace volvelle
