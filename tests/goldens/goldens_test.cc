// Logits and greedy continuations of every golden, against what its reference implementation
// recorded (float32, eager attention; make.py).

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numbers>
#include <string>
#include <vector>

#include "platforms/thread_pool.h"
#include "runtime/session.h"
#include "tests/goldens/coverage.h"
#include "tests/goldens/golden.h"

namespace volvelle {
namespace {

Coverage& passed = this_run().passed;
size_t goldens_tried = 0;
bool ntk_tried = false;

// Rotary of both pairings, of two dials and of one that switches; learned rows, sinusoids; slopes;
// buckets; rows by distance; none.
constexpr const char* kOfEachScheme[] = {"llama_grouped_heads",
                                         "gptj",
                                         "gemma3_seven_layers",
                                         "phi3_longrope",
                                         "gpt2",
                                         "transformer_halves",
                                         "bloom",
                                         "t5_decoder",
                                         "transformer_relative",
                                         "smollm3_no_positions"};

float mean_difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::abs(a[i] - b[i]);
  return static_cast<float>(sum / a.size());
}

TEST_CASE(
    "logits equal the reference's, whole, in chunks and token by token, on one thread and on two") {
  const std::vector<Golden> goldens = read_goldens();
  REQUIRE(goldens.size() >= 125);
  ThreadPool one = *ThreadPool::make(1), two = *ThreadPool::make(2);
  for (const Golden& golden : goldens) {
    CAPTURE(golden.name);
    const auto model = convert_to_model(golden.source, "f32", golden.context);
    REQUIRE(model->vocabulary() == golden.vocabulary);
    bool right = true;
    for (ThreadPool* pool : {&one, &two}) {
      for (size_t chunk : {512, 7, 1}) {
        CAPTURE(chunk);
        const auto session = open_session(model, *pool, golden, golden.tokens.size(), chunk);
        const float difference =
            largest_difference(logits_of(*session, golden.tokens), golden.logits);
        CHECK(difference <= kTolerance * golden.range());
        right &= difference <= kTolerance * golden.range();
      }
    }
    if (right) passed.add(golden, *model);
    ++goldens_tried;
  }
}

// What an emulated processor has time for (tests/CMakeLists.txt).
TEST_CASE("a golden of each position scheme equals the reference's, in chunks and token by token") {
  ThreadPool pool = *ThreadPool::make(2);
  for (const char* folder : kOfEachScheme) {
    CAPTURE(folder);
    const Golden golden = read_golden(folder);
    const auto model = convert_to_model(golden.source, "f32", golden.context);
    for (const size_t chunk : {7, 1}) {
      CAPTURE(chunk);
      const auto session = open_session(model, pool, golden, golden.tokens.size(), chunk);
      CHECK(largest_difference(logits_of(*session, golden.tokens), golden.logits) <=
            kTolerance * golden.range());
      const auto in_codes =
          open_session(model, pool, golden, golden.tokens.size(), chunk, CacheType::kQ8);
      CHECK(mean_difference(logits_of(*in_codes, golden.tokens), golden.logits) <=
            std::numbers::sqrt2_v<float> / 127 * golden.range());
    }
  }
}

// A golden's own base is what NTK-aware scaling by 4 makes of a smaller one: base * 4^(w / (w -
// 2)), w the rotated width. https://www.reddit.com/r/LocalLLaMA/comments/14lz7j5/
TEST_CASE("NTK-aware scaling that is asked for gives the logits of the base that it comes to") {
  ntk_tried = true;
  ThreadPool pool = *ThreadPool::make(1);
  for (const std::string folder : {"llama_ntk_aware", "phi", "cohere", "glm"}) {
    CAPTURE(folder);
    const Golden golden = read_golden(folder);
    const auto own = convert_to_model(golden.source, "f32");
    const Rotary& rotary = *own->decoder().blocks[0].attention.rotary;
    const double width = static_cast<double>(rotary.dial.width());
    const AlteredCheckpoint smaller(folder, [&](nlohmann::json& config) {
      config["rope_theta"] = rotary.base / std::pow(4, width / (width - 2));
    });
    const auto model = convert_to_model(smaller.source(), "f32", 0, "ntk:4");
    const auto session = open_session(model, pool, golden, golden.tokens.size());
    REQUIRE(largest_difference(logits_of(*session, golden.tokens), golden.logits) <=
            kTolerance * golden.range());
    const Attention& attention = model->decoder().blocks[0].attention;
    REQUIRE(attention.rotary->scaling.kind == "ntk");
    passed.add(*attention.rotary, attention.head_dim);
  }
}

TEST_CASE("README.md's tables of what is covered say what passed") {
  if (goldens_tried < read_goldens().size() || !ntk_tried || !this_run().encoders_tried)
    return;  // not all were asked for
  const ReadmeSection section;
  if (std::getenv("VOLVELLE_REWRITE_README") != nullptr) return section.rewrite(passed.tables());
  CHECK_MESSAGE(
      section.text() == passed.tables(),
      "README.md says otherwise; VOLVELLE_REWRITE_README=1 build/tests/goldens/test_goldens "
      "writes the section anew");
}

TEST_CASE("greedy continuations equal the reference's") {
  ThreadPool pool = *ThreadPool::make(2);
  for (const Golden& golden : read_goldens()) {
    if (golden.greedy.empty()) continue;
    CAPTURE(golden.name);
    const auto session = open_session(convert_to_model(golden.source, "f32", golden.context), pool,
                                      golden, golden.tokens.size() + golden.greedy.size(), 512);
    std::vector<int32_t> input = golden.tokens, generated;
    while (generated.size() < golden.greedy.size()) {
      const auto logits = session->feed(input);
      REQUIRE(logits.has_value());
      input = {static_cast<int32_t>(std::ranges::max_element(*logits) - logits->begin())};
      generated.push_back(input[0]);
    }
    CHECK(generated == golden.greedy);
  }
}

// Each cached value is off by at most half a step of its row: 2^-11 of the value in half precision,
// 1/254 of the row's largest in int8. Errors of many values average out, so that logits move by
// less than a whole step of their range in the mean; a scale or a row that is wrong moves them by
// far more. Beside an int8 cache queries and weights are rounded too, which doubles the number of
// errors that are alike in size and independent, and so makes their sum sqrt(2) as large.
TEST_CASE("a cache in half precision or int8 moves logits by less than its step") {
  ThreadPool pool = *ThreadPool::make(1);
  for (const auto& [cache, step] :
       {std::pair{CacheType::kF16, 1.0f / 1024},
        std::pair{CacheType::kQ8, std::numbers::sqrt2_v<float> / 127}}) {
    for (const Golden& golden : read_goldens()) {
      CAPTURE(golden.name);
      const auto model = convert_to_model(golden.source, "f32", golden.context);
      for (size_t chunk : {512, 7, 1}) {
        CAPTURE(chunk);
        const auto session = open_session(model, pool, golden, golden.tokens.size(), chunk, cache);
        CHECK(mean_difference(logits_of(*session, golden.tokens), golden.logits) <=
              step * golden.range());
      }
    }
  }
}

}  // namespace
}  // namespace volvelle
