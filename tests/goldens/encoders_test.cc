// Encoders, and encoders with decoders, against what the reference recorded: hidden states, heads,
// logits, and what beam searches find.

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/encoder.h"
#include "runtime/translator.h"
#include "tests/goldens/coverage.h"
#include "tests/goldens/golden.h"

namespace volvelle {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Record {
  fs::path folder;
  json expected;

  fs::path source() const {
    const std::string source = expected.at("source");
    return source == "folder" ? folder : folder / source;
  }
  std::shared_ptr<const Model> model() const {
    return convert_to_model(source(), "f32", expected.value("context", uint64_t{0}));
  }
  float tolerance(const char* kind) const {
    return kTolerance * expected.at("ranges").at(kind).get<float>();
  }
};

// Those whose record has `inputs`; with decoders or without.
std::vector<Record> records(bool with_decoders) {
  std::vector<Record> found;
  for (const auto& entry : fs::directory_iterator("tests/goldens")) {
    const fs::path path = entry.path() / "expected.json";
    if (!fs::exists(path)) continue;
    Record record{entry.path(), json::parse(std::ifstream(path))};
    if (!record.expected.contains("inputs")) continue;
    if (record.expected["inputs"][0].contains("decoder_tokens") == with_decoders) {
      found.push_back(std::move(record));
    }
  }
  std::ranges::sort(found, {}, &Record::folder);
  return found;
}

ThreadPool& pool() {
  static ThreadPool threads = *ThreadPool::make(2);
  return threads;
}

template <typename T>
T value_of(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return *std::move(result);
}

Sentence sentence_of(const json& input) {
  return {input.at("tokens").get<std::vector<int32_t>>(),
          input.value("token_types", std::vector<int32_t>())};
}

std::vector<Sentence> sentences_of(const Record& record) {
  std::vector<Sentence> sentences;
  for (const json& input : record.expected["inputs"]) sentences.push_back(sentence_of(input));
  return sentences;
}

// What becomes of each sentence, in batches of up to `chunk` tokens.
std::vector<std::vector<float>> run(const std::shared_ptr<const Model>& model, const Task* task,
                                    std::span<const Sentence> sentences, size_t chunk) {
  const auto encoder = value_of(Encoder::open(model, pool(), task, chunk));
  std::vector<std::vector<float>> values(sentences.size());
  const auto status =
      encoder->run(sentences, [&](size_t i, size_t, std::span<const float> rows) -> Result<void> {
        values[i].assign(rows.begin(), rows.end());
        return {};
      });
  if (!status) throw std::runtime_error(status.error().message);
  return values;
}

size_t longest(std::span<const Sentence> sentences) {
  size_t most = 0;
  for (const Sentence& sentence : sentences) most = std::max(most, sentence.tokens.size());
  return most;
}

void check_outputs(const Record& record, const std::shared_ptr<const Model>& model,
                   const Task* task, const char* kind) {
  const std::vector<Sentence> sentences = sentences_of(record);
  for (const size_t chunk : {longest(sentences), size_t{1000}}) {
    CAPTURE(kind);
    CAPTURE(chunk);
    const auto values = run(model, task, sentences, chunk);
    for (size_t i = 0; i < values.size(); ++i) {
      CAPTURE(i);
      const std::string array = record.expected["inputs"][i].at(kind);
      const std::vector<float> expected = read_floats(record.folder / array);
      REQUIRE(values[i].size() == expected.size());
      CHECK(largest_difference(values[i], expected) <= record.tolerance(kind));
    }
  }
}

// The task whose outputs the record holds as `logits`.
const Task* head_of(const Model& model) {
  for (const TaskKind kind : {TaskKind::kFill, TaskKind::kClassify, TaskKind::kTag}) {
    if (const Task* task = model.encoder()->task(kind)) return task;
  }
  return nullptr;
}

TEST_CASE("encoders' outputs equal the reference's, alone and in batches") {
  const std::vector<Record> all = records(false);
  REQUIRE(all.size() >= 10);
  for (const Record& record : all) {
    CAPTURE(record.folder.string());
    const auto model = record.model();
    const json& first = record.expected["inputs"][0];
    if (first.contains("hidden")) check_outputs(record, model, nullptr, "hidden");
    if (first.contains("logits")) {
      const Task* head = head_of(*model);
      REQUIRE(head != nullptr);
      check_outputs(record, model, head, "logits");
    }
    if (first.contains("sentence")) {
      check_outputs(record, model, model->encoder()->task(TaskKind::kEmbed), "sentence");
    }
    this_run().passed.add_encoder(model->family(), record.source().extension() == ".gguf");
  }
}

TEST_CASE("a sentence's outputs are the same to the bit alone and among 63 others") {
  for (const Record& record : records(false)) {
    CAPTURE(record.folder.string());
    const auto model = record.model();
    const std::vector<Sentence> own = sentences_of(record);
    std::vector<Sentence> many;
    for (size_t i = 0; i < 64; ++i) many.push_back(own[i % own.size()]);
    std::vector<const Task*> tasks = {nullptr};  // its hidden states, and what is made of them
    if (const Task* head = head_of(*model)) tasks.push_back(head);
    for (const Task* task : tasks) {
      CAPTURE(task);
      const auto together = run(model, task, many, 64 * longest(own));
      for (size_t i = 0; i < own.size(); ++i) {
        CAPTURE(i);
        const auto alone = run(model, task, std::span(own).subspan(i, 1), longest(own));
        for (size_t copy = i; copy < many.size(); copy += own.size()) {
          CHECK(together[copy] == alone[0]);
        }
      }
    }
  }
}

Generation settings_of(const Model& model, const json& settings) {
  Generation generation = model.generation();
  for (const auto& [key, value] : settings.items()) {
    const auto id = [&] { return value.is_null() ? -1 : value.get<int32_t>(); };
    const auto count = [&] { return value.is_null() ? size_t{0} : value.get<size_t>(); };
    if (key == "num_beams") {
      generation.beams = value.get<size_t>();
    } else if (key == "length_penalty") {
      generation.length_penalty = value.get<float>();
    } else if (key == "early_stopping") {
      generation.early_stopping = value == "never" ? EarlyStopping::kNever
                                  : value == true  ? EarlyStopping::kYes
                                                   : EarlyStopping::kNo;
    } else if (key == "no_repeat_ngram_size") {
      generation.no_repeat_ngram = count();
    } else if (key == "min_length") {
      generation.min_length = count();
    } else if (key == "max_length") {
      generation.max_length = count();
    } else if (key == "max_new_tokens") {
      generation.max_length = count() + 1;
    } else if (key == "forced_bos_token_id") {
      generation.forced_bos = id();
    } else if (key == "forced_eos_token_id") {
      generation.forced_eos = id();
    } else if (key == "bad_words_ids") {
      generation.bad_words = value.is_null() ? std::vector<std::vector<int32_t>>()
                                             : value.get<std::vector<std::vector<int32_t>>>();
    } else {
      FAIL("the record sets ", key);
    }
  }
  return generation;
}

TEST_CASE("encoder-decoders' states and logits equal the reference's") {
  const std::vector<Record> all = records(true);
  REQUIRE(all.size() >= 10);
  for (const Record& record : all) {
    CAPTURE(record.folder.string());
    const auto model = record.model();
    check_outputs(record, model, nullptr, "hidden");
    const auto translator = value_of(Translator::open(model, pool(), {}));
    for (const json& input : record.expected["inputs"]) {
      const auto targets = input.at("decoder_tokens").get<std::vector<int32_t>>();
      const std::vector<float> logits =
          value_of(translator->logits(sentence_of(input).tokens, targets));
      const std::vector<float> expected =
          read_floats(record.folder / input.at("logits").get<std::string>());
      REQUIRE(logits.size() == expected.size());
      CHECK(largest_difference(logits, expected) <= record.tolerance("logits"));
    }
    this_run().passed.add_encoder(model->family(), record.source().extension() == ".gguf");
  }
  this_run().encoders_tried = true;
}

TEST_CASE("greedy and beam searches find what the reference finds, with its scores") {
  for (const Record& record : records(true)) {
    if (!record.expected.contains("generated")) continue;
    CAPTURE(record.folder.string());
    const auto model = record.model();
    for (const json& generated : record.expected["generated"]) {
      CAPTURE(generated.at("settings").dump());
      const Generation settings = settings_of(*model, generated["settings"]);
      const auto translator = value_of(Translator::open(model, pool(), {.beams = settings.beams}));
      const Hypothesis best = value_of(
          translator->translate(generated.at("tokens").get<std::vector<int32_t>>(), settings));
      CHECK(best.tokens == generated.at("ids").get<std::vector<int32_t>>());
      if (generated.contains("score") && !generated["score"].is_null()) {
        CHECK(std::abs(best.score - generated["score"].get<double>()) <= 1e-3);
      }
    }
  }
}

}  // namespace
}  // namespace volvelle
