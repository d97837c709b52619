#include "runtime/sampler.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <vector>

namespace volvelle {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// How often each token was drawn.
std::map<int32_t, int> draw(const SamplerOptions& options, const std::vector<float>& logits,
                            const std::vector<int32_t>& seen, int draws) {
  Sampler sampler(options, logits.size());
  std::map<int32_t, int> counts;
  for (int i = 0; i < draws; ++i) ++counts[sampler.sample(logits, seen)];
  return counts;
}

struct Case {
  SamplerOptions options;
  std::map<int32_t, double> probabilities;
};

const std::vector<float> kLogits = {1.5f, -0.5f, 2, 0.25f, 2, -3, 0.75f, 1, -1.25f, 3, 0, 2.5f};
const std::vector<int32_t> kSeen = {9, 1, 9, 3};

// Softmax of kLogits after the reference's processors (transformers 5.24:
// RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper,
// MinPLogitsWarper, in this order).
const std::vector<Case> kCases = {
    {{.temperature = 1},
     {{0, 0.075209},
      {1, 0.010178},
      {2, 0.123998},
      {3, 0.021548},
      {4, 0.123998},
      {5, 0.000835},
      {6, 0.035526},
      {7, 0.045616},
      {8, 0.004808},
      {9, 0.337062},
      {10, 0.016781},
      {11, 0.204439}}},
    {{.temperature = 0.7f, .repetition_penalty = 1.3f},
     {{0, 0.073529},
      {1, 0.003408},
      {2, 0.150201},
      {3, 0.011354},
      {4, 0.150201},
      {5, 0.000119},
      {6, 0.025185},
      {7, 0.035996},
      {8, 0.001446},
      {9, 0.233115},
      {10, 0.008626},
      {11, 0.306819}}},
    {{.temperature = 1, .top_k = 4}, {{2, 0.15706}, {4, 0.15706}, {9, 0.426933}, {11, 0.258948}}},
    {{.temperature = 1, .top_k = 3}, {{2, 0.15706}, {4, 0.15706}, {9, 0.426933}, {11, 0.258948}}},
    {{.temperature = 0.8f, .top_p = 0.75f},
     {{2, 0.135896}, {4, 0.135896}, {9, 0.474322}, {11, 0.253886}}},
    {{.temperature = 1.5f, .min_p = 0.2f},
     {{0, 0.102246},
      {2, 0.142696},
      {4, 0.142696},
      {6, 0.062016},
      {7, 0.073263},
      {9, 0.277934},
      {11, 0.199149}}},
    {{.temperature = 1.2f, .top_k = 8, .top_p = 0.9f, .min_p = 0.1f, .repetition_penalty = 1.5f},
     {{0, 0.117496}, {2, 0.17823}, {4, 0.17823}, {7, 0.077458}, {9, 0.17823}, {11, 0.270356}}},
    {{.temperature = 1, .top_p = 0.0001f}, {{9, 1}}},
};

TEST_CASE(
    "tokens are drawn with the reference's probabilities after penalty, temperature, top-k, top-p "
    "and min-p") {
  constexpr int kDraws = 200000;
  for (size_t i = 0; i < kCases.size(); ++i) {
    CAPTURE(i);
    const auto counts = draw(kCases[i].options, kLogits, kSeen, kDraws);
    for (const auto& [token, count] : counts)
      CHECK_MESSAGE(kCases[i].probabilities.contains(token), token);
    for (const auto& [token, probability] : kCases[i].probabilities) {
      CAPTURE(token);
      const double expected = probability * kDraws;
      const double deviation = std::sqrt(expected * (1 - probability));
      const int count = counts.contains(token) ? counts.at(token) : 0;
      // Of 60 counts, one in 300 000 lies past 4.5 deviations by chance. The half: figures have six
      // digits.
      CHECK(std::abs(count - expected) <= 4.5 * deviation + 0.5);
    }
  }
}

TEST_CASE("a seed gives the tokens that its random bits spell, on every machine") {
  // Of 8 equal logits, token floor(8 u) for u = the top 53 bits of the C++ standard's mt19937_64.
  const std::vector<float> logits(8, 1.25f);
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{5489}, ~uint64_t{0}}) {
    std::mt19937_64 random(seed);
    Sampler sampler({.temperature = 0.3f, .seed = seed}, logits.size());
    for (int i = 0; i < 1000; ++i)
      CHECK(sampler.sample(logits, {}) == static_cast<int32_t>(random() >> 61));
  }
}

TEST_CASE("greedy takes the largest logit, and the lowest id of equals") {
  Sampler greedy({}, 5);
  CHECK(greedy.sample(std::vector<float>{0, 3, 1, 3, 2}, {}) == 1);
  CHECK(greedy.sample(std::vector<float>{-5, -5, -5, -5, -5}, {}) == 0);
  CHECK(greedy.sample(std::vector<float>{-kInfinity, -4, kInfinity, 9, kInfinity}, {}) == 2);
}

TEST_CASE("a repetition penalty changes what greedy takes, once for each token seen") {
  // 3 / 1.4 > 2 > 3 / 1.4^2: punished twice, token 1 would lose.
  CHECK(Sampler({.repetition_penalty = 1.4f}, 3)
            .sample(std::vector<float>{0, 3, 2}, std::vector{1, 1, 1}) == 1);
  CHECK(Sampler({.repetition_penalty = 1.6f}, 3)
            .sample(std::vector<float>{0, 3, 2}, std::vector{1}) == 2);
  CHECK(
      Sampler({.repetition_penalty = 1.6f}, 2).sample(std::vector<float>{-2, -3}, std::vector{0}) ==
      1);
  // Ids that are no token of the logits count for nothing.
  CHECK(
      Sampler({.repetition_penalty = 2}, 2).sample(std::vector<float>{1, 2}, std::vector{-1, 7}) ==
      1);
}

TEST_CASE("NaN is never chosen while a number is there, and hurts nobody when none is") {
  const std::vector<float> some = {kNan, -7, kNan, -9};
  const std::vector<float> none(4, kNan);
  CHECK(Sampler({}, 4).sample(some, {}) == 1);
  CHECK(Sampler({}, 4).sample(none, {}) == 0);
  const auto counts =
      draw({.temperature = 1, .top_k = 3, .top_p = 0.99f, .repetition_penalty = 1.1f}, some, {0, 1},
           500);
  for (const auto& [token, count] : counts) CHECK((token == 1 || token == 3));
  for (const auto& [token, count] : draw({.temperature = 1e-30f, .min_p = 0.5f}, none, {2}, 500)) {
    CHECK(token >= 0);
    CHECK(token < 4);
  }
}

TEST_CASE("a masked logit is never drawn, at any temperature") {
  const std::vector<float> logits = {-kInfinity, 0, -kInfinity, 1};
  for (const float temperature : {1e-6f, 1.0f, 1e6f}) {
    for (const auto& [token, count] : draw({.temperature = temperature}, logits, {}, 2000)) {
      CHECK((token == 1 || token == 3));
    }
  }
}

TEST_CASE("options that make no sense are refused by name") {
  CHECK(check({}).has_value());
  const auto message = [](const SamplerOptions& options) { return check(options).error().message; };
  CHECK(message({.temperature = -1}).contains("temperature"));
  CHECK(message({.temperature = kNan}).contains("temperature"));
  CHECK(message({.temperature = kInfinity}).contains("temperature"));
  CHECK(message({.top_p = 1.5f}).contains("top-p"));
  CHECK(message({.top_p = kNan}).contains("top-p"));
  CHECK(message({.min_p = -0.1f}).contains("min-p"));
  CHECK(message({.repetition_penalty = 0}).contains("repetition penalty"));
}

}  // namespace
}  // namespace volvelle
