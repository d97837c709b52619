// Commands of encoders and of encoder-decoders, on checkpoints of tests/goldens, whose expected
// values the reference recorded.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <format>
#include <fstream>
#include <sstream>

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
  CHECK(task["default_prompt"] == "query");
  const std::string told = run_program({"inspect", model}).out;
  CHECK(told.contains("pooling cls + root_mean"));
  CHECK(told.contains("texts of at most 32 tokens"));
  CHECK(told.contains("prompt      passage: \"p r \"\n"));
  CHECK(told.contains("prompt      query (the default): \"q \"\n"));
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

// BART's golden, of 40 positions, with a tokenizer: 4 ... 29 are letters that begin words, 30 ...
// 55 those within.
std::string checkpoint_with_letters(const TemporaryFolder& folder) {
  json vocabulary = json::array();
  for (const char* special : {"<s>", "<pad>", "</s>", "<unk>"}) vocabulary.push_back({special, 0});
  for (const char* before : {"\u2581", ""}) {
    for (char c = 'a'; c <= 'z'; ++c) vocabulary.push_back({before + std::string(1, c), -1});
  }
  for (const char* digit : {"0", "1", "2"}) vocabulary.push_back({digit, -1});
  const json space = {
      {"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "always"}};
  const json tokenizer = {
      {"model", {{"type", "Unigram"}, {"unk_id", 3}, {"vocab", vocabulary}}},
      {"pre_tokenizer", space},
      {"decoder", space},
      {"added_tokens",
       {{{"id", 0}, {"content", "<s>"}, {"special", true}},
        {{"id", 2}, {"content", "</s>"}, {"special", true}}}},
      {"post_processor",
       {{"type", "TemplateProcessing"},
        {"single",
         {{{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
          {{"SpecialToken", {{"id", "</s>"}, {"type_id", 0}}}}}},
        {"pair", json::array()},
        {"special_tokens", {{"</s>", {{"id", "</s>"}, {"ids", {2}}, {"tokens", {"</s>"}}}}}}}}};
  const std::string source = folder / "bart";
  std::filesystem::copy("tests/goldens/bart", source);
  std::ofstream(source + "/tokenizer.json") << tokenizer;
  return source;
}

std::string convert_with_letters(const TemporaryFolder& folder) {
  const std::string source = checkpoint_with_letters(folder), model = folder / "bart.vvl";
  const Ran ran = run_program({"convert", source, "-o", model, "--weights", "f32"});
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  return model;
}

TEST_CASE("an encoder and the decoder behind it are calibrated alike for any number of threads") {
  const TemporaryFolder folder;
  const std::string source = checkpoint_with_letters(folder), text = folder / "text.txt";
  std::string letters;
  for (int i = 0; i < 400; ++i) letters += std::string(i % 7 == 6 ? " " : "") + char('a' + i % 26);
  std::ofstream(text) << letters;
  std::vector<std::string> files;
  for (const char* threads : {"1", "2"}) {
    const std::string model = folder / (std::string(threads) + ".vvl");
    const Ran ran =
        run_program({"convert", source, "-o", model, "--calibrate", text, "--json", "-t", threads});
    INFO(ran.err);
    REQUIRE(ran.status == 0);
    const json report = json::parse(ran.out);
    CHECK(report["linears"].size() == 3 * 4 + 2 * 7);
    for (const json& linear : report["linears"]) CHECK(linear["type"] == "q4, compensated");
    files.push_back(read_file(model));
  }
  CHECK(files[0] == files[1]);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST_CASE("translate gives each line of a file the translation that it has alone, in order") {
  const TemporaryFolder folder;
  const std::string model = convert_with_letters(folder);
  std::vector<std::string> texts = {"u s v y kqfx", "", "a", "alyl ck", " ", "a", "t h e e n d"};
  for (int i = 0; i < 9; ++i) texts.push_back(std::string(3 * i + 1, static_cast<char>('b' + i)));
  std::string all;
  for (const std::string& text : texts) all += text + "\n";
  const std::string file = folder.write("lines.txt", all);
  for (const std::vector<std::string>& options : std::vector<std::vector<std::string>>{
           {"--beams", "2"}, {"--beams", "1", "-n", "9"}, {"--ids"}, {"--json"}}) {
    CAPTURE(options);
    const auto with = [&](std::vector<std::string> arguments) {
      arguments.insert(arguments.begin(), {"translate", model});
      arguments.insert(arguments.end(), options.begin(), options.end());
      return arguments;
    };
    const Ran ran = run_program(with({"--lines", file}));
    INFO(ran.err);
    REQUIRE(ran.status == 0);
    CHECK(run_program(with({"--lines", "-"}), all).out == ran.out);
    const std::vector<std::string> lines = lines_of(ran.out);
    REQUIRE(lines.size() == texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      CAPTURE(texts[i]);
      if (texts[i].find_first_not_of(' ') == std::string::npos) {
        if (options[0] != "--json") CHECK(lines[i].empty());
        if (options[0] == "--json") CHECK(json::parse(lines[i])["ids"].empty());
      } else {
        CHECK(lines[i] + "\n" == run_program(with({"-p", texts[i]})).out);
      }
    }
  }
  // The reference's own: its tokens are this text's.
  for (const json& generated : expected_of("bart")["generated"]) {
    if (generated["tokens"] != json({24, 22, 25, 28, 14, 46, 35, 53, 2})) continue;
    const Ran ran = run_program({"translate", model, "--lines", file, "--beams", "2", "--ids"});
    CHECK(lines_of(ran.out)[0] == list(generated["ids"], " "));
  }
  CHECK(run_program({"translate", model, "-p", ""}).err.contains("the text is empty"));
  CHECK(run_program({"translate", model, "--lines", folder / "none"}).status == 1);
}

TEST_CASE("translate cuts, refuses or splits what its positions do not hold, as it is asked") {
  const TemporaryFolder folder;
  const std::string model = convert_with_letters(folder);
  // 50 letters of 40 positions, one of which </s> takes.
  std::string whole;
  for (int i = 0; i < 50; ++i) whole += (i > 0 ? " " : "") + std::string(1, char('a' + i * 7 % 26));
  const std::string first = whole.substr(0, 77), second = whole.substr(78);
  const std::string file = folder.write("lines.txt", "a b\n" + whole + "\nc\n");
  const auto ids = [&](const std::string& text) {
    return run_program({"translate", model, "-p", text, "--ids"}).out;
  };
  const auto lines = [&](const std::string& overflow) {
    return run_program({"translate", model, "--lines", file, "--ids", "--overflow", overflow});
  };
  const Ran cut = lines("truncate");
  CHECK(cut.err.contains("1 of 3 texts is cut to the 40 tokens"));
  CHECK(cut.out == ids("a b") + ids(first) + ids("c"));
  CHECK(ids(whole) == ids(first));
  const Ran refused = lines("error");
  CHECK(refused.status == 1);
  CHECK(refused.err.contains("text 2 has 51 tokens, more than the 40"));
  CHECK(refused.out.empty());
  const std::string one = ids(first);
  CHECK(lines("split").out ==
        ids("a b") + one.substr(0, one.size() - 1) + " " + ids(second) + ids("c"));
  const auto text = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"translate", model, "-p"});
    const std::string out = run_program(arguments).out;
    return out.substr(0, out.size() - 1);
  };
  CHECK(text({whole, "--overflow", "split"}) == text({first}) + " " + text({second}));
  const std::string tokens = list(json(std::vector<int>(41, 7)));
  CHECK(run_program({"translate", model, "--tokens", tokens}).err.contains("41 tokens are cut"));
  CHECK(run_program({"translate", model, "--tokens", tokens, "--overflow", "error"}).status == 1);
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

TEST_CASE("classify prints values of a regression, and of labels that go together each its own") {
  const TemporaryFolder folder;
  const std::string source = folder / "checkpoint", model = folder / "model.vvl";
  const json input = expected_of("bert_classify")["inputs"][0];
  const std::vector<float> logits =
      read_floats("tests/goldens/bert_classify/" + input["logits"].get<std::string>());
  const float tolerance =
      kTolerance * expected_of("bert_classify")["ranges"]["logits"].get<float>();
  REQUIRE(logits.size() == 3);
  const std::vector<std::string> names = {"grief", "calm", "joy"};
  // What classify says of the checkpoint with such settings and as many labels.
  const auto classify = [&](const char* problem, size_t labels) {
    std::filesystem::remove_all(source);
    std::filesystem::copy("tests/goldens/bert_classify", source);
    json config = json::parse(read_file(source + "/config.json"));
    if (problem != nullptr) config["problem_type"] = problem;
    if (labels == 1) {
      // The head's bias and weight are the file's last tensors, in halves.
      config["id2label"] = {{"0", "grief"}};
      const std::string bytes = read_file(source + "/model.safetensors");
      uint64_t length = 0;
      std::memcpy(&length, bytes.data(), sizeof(length));
      json header = json::parse(bytes.substr(8, length));
      json &bias = header["classifier.bias"], &weight = header["classifier.weight"];
      const size_t from = bias["data_offsets"][0], rows = weight["data_offsets"][0];
      const size_t row = 2 * weight["shape"][1].get<size_t>();
      const std::string data = bytes.substr(8 + length);
      REQUIRE(data.size() == rows + 3 * row);
      bias["shape"] = {1}, bias["data_offsets"] = {from, from + 2};
      weight["shape"][0] = 1, weight["data_offsets"] = {from + 2, from + 2 + row};
      const std::string changed = header.dump();
      length = changed.size();
      std::ofstream(source + "/model.safetensors", std::ios::binary)
          << std::string(reinterpret_cast<const char*>(&length), 8) << changed
          << data.substr(0, from + 2) << data.substr(rows, row);
    }
    std::ofstream(source + "/config.json") << config;
    const Ran ran = run_program({"convert", source, "-o", model, "--weights", "f32", "--force"});
    INFO(ran.err);
    REQUIRE(ran.status == 0);
    return run_program({"classify", model, "--tokens", list(input["tokens"]), "--json"}).json();
  };
  for (const auto& [problem, labels] : {std::pair{"regression", 3},
                                        {"regression", 1},
                                        {static_cast<const char*>(nullptr), 1},
                                        {"single_label_classification", 1}}) {
    CAPTURE(labels);
    const json values = classify(problem, labels);
    REQUIRE(values.size() == static_cast<size_t>(labels));
    for (int i = 0; i < labels; ++i) {
      CHECK(values[i]["label"] == names[i]);
      CHECK(!values[i].contains("probability"));
      CHECK(std::abs(values[i]["value"].get<float>() - logits[i]) <= tolerance);
    }
    const Ran text = run_program({"classify", model, "--tokens", list(input["tokens"])});
    CHECK(text.out.starts_with(std::format("{:7.4f}  grief\n", values[0]["value"].get<double>())));
  }
  CHECK(run_program({"inspect", model}).out.contains("labels      grief\n"));
  for (const int labels : {1, 3}) {
    const json values = classify("multi_label_classification", labels);
    REQUIRE(values.size() == static_cast<size_t>(labels));
    for (const json& value : values) {
      const float logit =
          logits[std::ranges::find(names, value["label"].get<std::string>()) - names.begin()];
      CHECK(std::abs(value["logit"].get<float>() - logit) <= tolerance);
      // The sigmoid's slope is at most 1/4.
      CHECK(std::abs(value["probability"].get<double>() - 1 / (1 + std::exp(-double{logit}))) <=
            tolerance);
    }
  }
  CHECK(run_program({"inspect", model}).out.contains("labels that do not exclude each other"));
}

TEST_CASE("bench of an encoder-decoder tells tokens a second of reading and of writing") {
  const TemporaryFolder folder;
  for (const std::string golden : {"bart", "t5"}) {
    const std::string model = convert(folder, golden);
    const std::vector<std::string> arguments = {"bench", model, "--length", "5,19", "-n",
                                                "7",     "-r",  "2",        "-t",   "1"};
    std::vector<std::string> as_json = arguments;
    as_json.push_back("--json");
    const json told = run_program(as_json).json();
    REQUIRE(told["results"].size() == 4);
    for (size_t i = 0; i < 4; ++i) {
      const json& result = told["results"][i];
      const int length = i < 2 ? 5 : 19;
      CHECK(result["kind"] == (i % 2 == 0 ? "encode" : "decode"));
      CHECK(result["tokens"] == (i % 2 == 0 ? length : 7));
      if (i % 2 == 1) CHECK(result["source"] == length);
      CHECK(result["tokens_per_s"]["min"] > 0);
      CHECK(result["tokens_per_s"]["min"] <= result["tokens_per_s"]["max"]);
      CHECK(result["fraction_of_limit"] > 0);
    }
    const Ran table = run_program(arguments);
    CHECK(table.status == 0);
    CHECK(table.out.contains("encode"));
  }
  const std::string bart = folder / "bart.vvl";
  const Ran defaults = run_program({"bench", bart, "-r", "1", "-t", "1", "--json"});
  CHECK(defaults.json()["results"][1]["tokens"] == 40);  // as many as there are positions
  CHECK(run_program({"bench", bart, "--length", "41"}).err.contains("--length of 41"));
  CHECK(run_program({"bench", bart, "-n", "41"}).err.contains("40 positions"));
  const json only = run_program({"bench", bart, "-n", "0", "-r", "1", "--json"}).json();
  CHECK(only["results"].size() == 1);
}

TEST_CASE("options of bench that do not apply to a model are refused, and which") {
  const TemporaryFolder folder;
  const std::string encoder = convert(folder, "bert"), pair = convert(folder, "t5"),
                    decoder = convert(folder, "llama_grouped_heads");
  const std::vector<std::pair<std::string, std::vector<std::vector<std::string>>>> wrongs = {
      {encoder, {{"-p", "4"}, {"-n", "4"}, {"-d", "4"}, {"--kv", "f32"}, {"--context", "9"}}},
      {pair, {{"-p", "4"}, {"-d", "4"}, {"--kv", "f32"}, {"--context", "9"}, {"--batch", "2"}}},
      {decoder, {{"--batch", "2"}, {"--length", "8"}}}};
  for (const auto& [model, options] : wrongs) {
    for (const std::vector<std::string>& option : options) {
      CAPTURE(option[0]);
      const Ran ran = run_program({"bench", model, "-r", "1", option[0], option[1]});
      CHECK(ran.status == 1);
      CHECK(ran.err.contains(model));
      CHECK(ran.err.contains(option[0]));
      CHECK(ran.out.empty());
    }
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
