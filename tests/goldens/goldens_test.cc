// Logits and greedy continuations of every golden, against what its reference implementation
// recorded (float32, eager attention; make.py). 5e-5 of the logits' range is ten times the
// reference's own worst distance from float64.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "platforms/thread_pool.h"
#include "runtime/session.h"
#include "tests/goldens/golden.h"

namespace volvelle {
namespace {

constexpr float kTolerance = 5e-5f;  // of the logits' range

// A session for `tokens` tokens of the golden; some scalings go by that number.
std::unique_ptr<Session> open(std::shared_ptr<const Model> model, ThreadPool& pool,
                              const Golden& golden, size_t tokens, size_t chunk,
                              CacheType cache = CacheType::kF32) {
  auto session = Session::open(
      model, pool,
      {.cache = cache, .context = tokens, .chunk = chunk, .first_position = golden.first_position});
  if (!session) FAIL(session.error().message);
  return *std::move(session);
}

std::vector<float> logits_of(Session& session, const std::vector<int32_t>& tokens) {
  std::vector<float> all;
  const auto fed =
      session.feed_all(tokens, [&](size_t, size_t, std::span<const float> logits) -> Result<void> {
        all.insert(all.end(), logits.begin(), logits.end());
        return {};
      });
  if (!fed) FAIL(fed.error().message);
  return all;
}

float largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  float largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!(std::abs(a[i] - b[i]) <= largest))
      largest = std::abs(a[i] - b[i]);  // NaN counts as a difference
  }
  return largest;
}

TEST_CASE(
    "logits equal the reference's, whole, in chunks and token by token, on one thread and on two") {
  const std::vector<Golden> goldens = read_goldens();
  REQUIRE(goldens.size() >= 125);
  for (size_t threads : {1, 2}) {
    ThreadPool pool = *ThreadPool::make(threads);
    for (const Golden& golden : goldens) {
      CAPTURE(golden.name);
      const auto model = convert_to_model(golden.source, "f32", golden.context);
      REQUIRE(model->vocabulary() == golden.vocabulary);
      for (size_t chunk : {512, 7, 1}) {
        CAPTURE(chunk);
        const auto session = open(model, pool, golden, golden.tokens.size(), chunk);
        CHECK(largest_difference(logits_of(*session, golden.tokens), golden.logits) <=
              kTolerance * golden.range());
      }
    }
  }
}

TEST_CASE("greedy continuations equal the reference's") {
  ThreadPool pool = *ThreadPool::make(2);
  for (const Golden& golden : read_goldens()) {
    if (golden.greedy.empty()) continue;
    CAPTURE(golden.name);
    const auto session = open(convert_to_model(golden.source, "f32", golden.context), pool, golden,
                              golden.tokens.size() + golden.greedy.size(), 512);
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

float mean_difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::abs(a[i] - b[i]);
  return static_cast<float>(sum / a.size());
}

// Each cached value is off by at most half a step of its row: 2^-11 of the value in half precision,
// 1/254 of the row's largest in int8. Errors of many values average out, so that logits move by
// less than a whole step of their range in the mean; a scale or a row that is wrong moves them by
// far more.
TEST_CASE("a cache in half precision or int8 moves logits by less than its step") {
  ThreadPool pool = *ThreadPool::make(1);
  for (const auto& [cache, step] :
       {std::pair{CacheType::kF16, 1.0f / 1024}, std::pair{CacheType::kQ8, 1.0f / 127}}) {
    for (const Golden& golden : read_goldens()) {
      CAPTURE(golden.name);
      const auto model = convert_to_model(golden.source, "f32", golden.context);
      for (size_t chunk : {512, 7, 1}) {
        CAPTURE(chunk);
        const auto session = open(model, pool, golden, golden.tokens.size(), chunk, cache);
        CHECK(mean_difference(logits_of(*session, golden.tokens), golden.logits) <=
              step * golden.range());
      }
    }
  }
}

}  // namespace
}  // namespace volvelle
