// Commands of encoders and of encoder-decoders, on checkpoints of tests/goldens, whose expected
// values the reference recorded.

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "tests/end_to_end/program_run.h"
#include "tests/goldens/golden.h"

namespace volvelle {
namespace {

using nlohmann::json;

json expected_of(const std::string& folder) {
  return json::parse(std::ifstream("tests/goldens/" + folder + "/expected.json"));
}

std::string list(const json& ids, const char* separator = ",") {
  std::string text;
  for (const json& id : ids) text += (text.empty() ? "" : separator) + id.dump();
  return text;
}

std::string convert(const TemporaryFolder& folder, const std::string& golden) {
  const std::string model = folder / (golden + ".vvl");
  const Ran ran =
      run_program({"convert", "tests/goldens/" + golden, "-o", model, "--weights", "f32"});
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  return model;
}

TEST_CASE("embed writes the reference's states, and pools and scales them as it is asked") {
  const TemporaryFolder folder;
  const std::string model = convert(folder, "bert");
  const json expected = expected_of("bert");
  const float tolerance = kTolerance * expected["ranges"]["hidden"].get<float>();
  for (const json& input : expected["inputs"]) {
    if (input.contains("token_types")) continue;
    const std::vector<float> states =
        read_floats("tests/goldens/bert/" + input["hidden"].get<std::string>());
    const std::string ids = list(input["tokens"]), file = folder / "states.npy";
    CHECK(run_program({"embed", model, "--tokens", ids, "--pool", "none", "-o", file}).status == 0);
    CHECK(largest_difference(read_floats(file), states) <= tolerance);

    const size_t rows = input["tokens"].size(), width = states.size() / rows;
    const auto embedding = [&](std::vector<std::string> options) {
      std::vector<std::string> arguments = {"embed", model, "--tokens", ids};
      arguments.insert(arguments.end(), options.begin(), options.end());
      return json::parse(run_program(arguments).out)["embedding"].get<std::vector<float>>();
    };
    const std::vector<float> first = embedding({"--pool", "cls"}), mean = embedding({}),
                             unit = embedding({"--normalize"});
    REQUIRE(mean.size() == width);
    double squares = 0;
    for (size_t i = 0; i < width; ++i) {
      double sum = 0;
      for (size_t row = 0; row < rows; ++row) sum += states[row * width + i];
      CHECK(std::abs(mean[i] - sum / static_cast<double>(rows)) <= tolerance);
      CHECK(std::abs(first[i] - states[i]) <= tolerance);
      squares += double{unit[i]} * unit[i];
    }
    CHECK(squares == doctest::Approx(1).epsilon(1e-5));
  }
}

TEST_CASE("embed scales each token's vector, keeps texts apart and writes to standard output") {
  const TemporaryFolder folder;
  const std::string model = convert(folder, "bert"), file = folder / "states.npy";
  const std::vector<std::string> states = {"embed", model, "--tokens", "5,9,7", "--pool", "none"};
  const auto with = [&](std::vector<std::string> options) {
    options.insert(options.begin(), states.begin(), states.end());
    return options;
  };
  REQUIRE(run_program(with({"--normalize", "-o", file})).status == 0);
  const std::vector<float> unit = read_floats(file);
  for (size_t first = 0; first < unit.size(); first += unit.size() / 3) {
    double squares = 0;
    for (size_t i = 0; i < unit.size() / 3; ++i)
      squares += double{unit[first + i]} * unit[first + i];
    CHECK(squares == doctest::Approx(1).epsilon(1e-6));
  }
  CHECK(run_program(with({"--normalize", "-o", "-"})).out == read_file(file));
  const json one = run_program({"embed", model, "--tokens", "5", "--pool", "none"}).json();
  CHECK(one["embeddings"].size() == 1);
}

TEST_CASE("a file that a command reads is not written over") {
  const TemporaryFolder folder;
  const std::string model = convert(folder, "bert"), lines = folder / "lines.txt";
  std::ofstream(lines) << "a\n";
  const std::string before = read_file(model);
  const Ran over = run_program({"embed", model, "--tokens", "5", "-o", model});
  CHECK(over.status == 1);
  CHECK(over.err.contains("is what the command reads"));
  CHECK(run_program({"embed", model, "--lines", lines, "-o", lines}).status == 1);
  CHECK(read_file(lines) == "a\n");
  CHECK(read_file(model) == before);
}

TEST_CASE("a number that is none is refused like one out of range") {
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"translate", "m.vvl", "--tokens", "1", "--length-penalty", "nan"},
           {"run", "m.vvl", "-p", "a", "--temperature", "nan"},
           {"run", "m.vvl", "-p", "a", "--top-p", "-nan"}}) {
    const Ran ran = run_program(arguments);
    CHECK(ran.status == 2);
    CHECK(ran.err.contains("not a number"));
  }
}

TEST_CASE("texts are cut at the length that a folder says, after the prompt that was asked for") {
  const TemporaryFolder folder;
  const std::string source = folder / "checkpoint", model = folder / "model.vvl";
  std::filesystem::copy("tests/goldens/sentence_two_modes", source,
                        std::filesystem::copy_options::recursive);
  std::string vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  for (char c = 'a'; c <= 'z'; ++c) vocabulary += std::string(1, c) + "\n";
  for (char c = 'a'; c <= 'z'; ++c) vocabulary += std::string("##") + c + "\n";
  for (int i = 0; i < 4; ++i) vocabulary += std::to_string(i) + "\n";
  folder.write("checkpoint/vocab.txt", vocabulary);
  folder.write(
      "checkpoint/config_sentence_transformers.json",
      R"({"prompts": {"query": "q ", "passage": "p r "}, "default_prompt_name": "query"})");
  const Ran converted = run_program({"convert", source, "-o", model, "--weights", "f32"});
  INFO(converted.err);
  REQUIRE(converted.status == 0);

  const auto embed = [&](const std::string& text, std::vector<std::string> options) {
    std::vector<std::string> arguments = {"embed", model, "-p", text};
    arguments.insert(arguments.end(), options.begin(), options.end());
    return run_program(arguments);
  };
  const auto vector = [](const Ran& ran) { return ran.json()["embedding"]; };
  // max_seq_length is 32: [CLS], 30 words, [SEP].
  std::string words, kept;
  for (int i = 0; i < 36; ++i) {
    words += std::string(1, static_cast<char>('a' + i % 26)) + " ";
    if (i == 29) kept = words;
  }
  const Ran cut = embed(words, {"--prompt-name", ""});
  CHECK(cut.status == 0);
  CHECK(cut.err.contains("cut to the 32 tokens that the checkpoint allows a text"));
  CHECK(vector(cut) == vector(embed(kept, {"--prompt-name", ""})));
  const Ran refused = embed(words, {"--prompt-name", "", "--overflow", "error"});
  CHECK(refused.status == 1);
  CHECK(refused.err.contains("38 tokens, more than the 32"));
  CHECK(embed(words, {"--overflow", "split"}).status == 0);
  const std::string ids = list(json(std::vector<int>(33, 7)));
  CHECK(run_program({"embed", model, "--tokens", ids, "--overflow", "error"}).status == 1);
  CHECK(run_program({"embed", model, "--tokens", ids}).err.contains("33 tokens are cut to the 32"));

  CHECK(vector(embed("a b", {})) == vector(embed("q a b", {"--prompt-name", ""})));
  CHECK(vector(embed("a b", {"--prompt-name", "passage"})) ==
        vector(embed("p r a b", {"--prompt-name", ""})));
  CHECK(vector(embed("a b", {})) != vector(embed("a b", {"--prompt-name", ""})));
  const Ran unknown = embed("a b", {"--prompt-name", "title"});
  CHECK(unknown.status == 1);
  CHECK(unknown.err.contains("passage, query"));

  // Two poolings are one row to the dense layer behind them.
  CHECK(embed("a b", {"--pool", "cls"}).err.contains("2 poolings"));
  const json task = run_program({"inspect", model, "--json"}).json()["tasks"][0];
  CHECK(task["pooling"] == "cls + root_mean");
  CHECK(task["max_tokens"] == 32);
  CHECK(task["prompts"]["passage"] == "p r ");
}

TEST_CASE("translate finds what the reference finds, greedily and with beams") {
  for (const std::string golden : {"bart", "t5", "marian"}) {
    CAPTURE(golden);
    const TemporaryFolder folder;
    const std::string model = convert(folder, golden);
    for (const json& generated : expected_of(golden)["generated"]) {
      std::vector<std::string> arguments = {"translate", model, "--ids", "--tokens",
                                            list(generated["tokens"])};
      bool plain = true;
      for (const auto& [key, value] : generated["settings"].items()) {
        if (key == "num_beams") {
          arguments.insert(arguments.end(), {"--beams", value.dump()});
        } else if (key == "max_new_tokens") {
          arguments.insert(arguments.end(), {"-n", value.dump()});
        } else if (key == "length_penalty") {
          arguments.insert(arguments.end(), {"--length-penalty", value.dump()});
        } else {
          plain = false;
        }
      }
      if (!plain) continue;
      CAPTURE(generated["settings"].dump());
      const Ran ran = run_program(arguments);
      INFO(ran.err);
      CHECK(ran.out == list(generated["ids"], " ") + "\n");
    }
  }
}

TEST_CASE("logits of a decoder behind an encoder are the reference's") {
  const TemporaryFolder folder;
  const std::string model = convert(folder, "t5"), file = folder / "logits.npy";
  const json expected = expected_of("t5"), &input = expected["inputs"][0];
  CHECK(run_program({"logits", model, "--tokens", list(input["tokens"]), "--decoder-tokens",
                     list(input["decoder_tokens"]), "-o", file})
            .status == 0);
  CHECK(largest_difference(read_floats(file),
                           read_floats("tests/goldens/t5/" + input["logits"].get<std::string>())) <=
        kTolerance * expected["ranges"]["logits"].get<float>());
}

TEST_CASE("classify gives labels the reference's logits") {
  const TemporaryFolder folder;
  const std::string model = convert(folder, "bert_classify");
  const json expected = expected_of("bert_classify");
  for (const json& input : expected["inputs"]) {
    if (input.contains("token_types")) continue;
    const Ran ran = run_program({"classify", model, "--tokens", list(input["tokens"]), "--json"});
    INFO(ran.err);
    const std::vector<float> logits =
        read_floats("tests/goldens/bert_classify/" + input["logits"].get<std::string>());
    const json choices = json::parse(ran.out);
    REQUIRE(choices.size() == logits.size());
    double sum = 0;
    for (size_t i = 0; i < choices.size(); ++i) {
      sum += choices[i]["probability"].get<double>();
      const float logit = choices[i]["logit"];
      CHECK(std::ranges::any_of(logits, [&](float one) {
        return std::abs(one - logit) <= kTolerance * expected["ranges"]["logits"].get<float>();
      }));
    }
    CHECK(sum == doctest::Approx(1).epsilon(1e-6));
  }
}

TEST_CASE("bench of an encoder tells sentences a second for each batch and length") {
  const TemporaryFolder folder;
  const json told = run_program({"bench", convert(folder, "bert"), "--batch", "1,3", "--length",
                                 "4,9", "-r", "1", "-t", "1", "--json"})
                        .json();
  CHECK(!told.contains("kv"));
  REQUIRE(told["results"].size() == 4);
  for (size_t i = 0; i < 4; ++i) {
    const json& result = told["results"][i];
    CHECK(result["kind"] == "embed");
    CHECK(result["batch"] == (i < 2 ? 1 : 3));
    CHECK(result["length"] == (i % 2 == 0 ? 4 : 9));
    CHECK(result["sentences_per_s"]["min"] > 0);
    CHECK(result["sentences_per_s"]["min"] <= result["sentences_per_s"]["median"]);
    CHECK(result["sentences_per_s"]["median"] <= result["sentences_per_s"]["max"]);
    CHECK(result["fraction_of_limit"] > 0);
  }
}

TEST_CASE("a model of another kind than the command's is refused, and the right command named") {
  const TemporaryFolder folder;
  const std::string encoder = convert(folder, "bert"), pair = convert(folder, "t5"),
                    decoder = convert(folder, "llama_grouped_heads");
  const std::vector<std::pair<std::vector<std::string>, const char*>> wrongs = {
      {{"run", encoder, "--tokens", "1"}, "volvelle embed"},
      {{"bench", pair}, "encoder-decoder"},
      {{"bench", decoder, "--length", "8"}, "for encoders"},
      {{"bench", encoder, "--length", "100000"}, "--length of 100000"},
      {{"logits", encoder, "--tokens", "1", "-o", "-"}, "volvelle embed"},
      {{"run", pair, "--tokens", "1"}, "volvelle translate"},
      {{"logits", pair, "--tokens", "1", "-o", "-"}, "--decoder-tokens"},
      {{"translate", encoder, "--tokens", "1"}, "volvelle embed"},
      {{"translate", decoder, "--tokens", "1"}, "volvelle run"},
      {{"embed", decoder, "--tokens", "1"}, "volvelle run"},
      {{"fill", encoder, "--tokens", "1"}, "no head that fills gaps"},
      {{"classify", encoder, "--tokens", "1"}, "no labels"},
      {{"embed", encoder, "-p", "text"}, "no tokenizer"},
      {{"embed", encoder, "--tokens", ""}, "token"},
      {{"embed", encoder, "--lines", "nowhere"}, "no tokenizer"},
      {{"embed", encoder, "--tokens", "1000000"}, "not in the vocabulary"}};
  for (const auto& [arguments, sentence] : wrongs) {
    CAPTURE(arguments[0]);
    CAPTURE(sentence);
    const Ran ran = run_program(arguments);
    CHECK(ran.status == 1);
    CHECK(ran.err.contains(sentence));
    CHECK(ran.out.empty());
  }
}

}  // namespace
}  // namespace volvelle
