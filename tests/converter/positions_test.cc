// Expected frequencies are the reference's, recorded in tests/goldens/dials.json and
// tests/goldens/scaled_dials.json; expected cosines and sines are those of the exact product in
// long double.

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "converter/positions/rotary.h"

namespace volvelle {
namespace {

RotaryScaling llama3(const nlohmann::json& record) {
  return {.kind = RotaryScalingKind::kLlama3,
          .factor = record.at("factor"),
          .original_context = record.at("original_max_position_embeddings"),
          .low_frequency_factor = record.at("low_freq_factor"),
          .high_frequency_factor = record.at("high_freq_factor")};
}

// Largest error of any cosine or sine that a dial of `frequencies` gives at `positions`.
double dial_error(const Dial& dial, const std::vector<float>& frequencies, double amplitude,
                  const std::vector<uint32_t>& positions) {
  const size_t planes = frequencies.size();
  std::vector<float> rows(positions.size() * 2 * planes);
  read_dial(dial, positions, rows.data());
  long double worst = 0;
  for (size_t i = 0; i < positions.size(); ++i) {
    for (size_t plane = 0; plane < planes; ++plane) {
      // 28 bits by 24: exact in long double.
      const long double angle = static_cast<long double>(positions[i]) * frequencies[plane];
      const float* row = rows.data() + i * 2 * planes;
      worst = std::max(worst, std::abs(row[plane] - amplitude * std::cos(angle)));
      worst = std::max(worst, std::abs(row[planes + plane] - amplitude * std::sin(angle)));
    }
  }
  return static_cast<double>(worst);
}

double dial_error(const RotaryTables& tables, const std::vector<uint32_t>& positions) {
  return dial_error(tables.dial(), tables.frequencies, tables.amplitude, positions);
}

uint32_t distance_in_last_places(float a, float b) {
  const int32_t difference = std::bit_cast<int32_t>(a) - std::bit_cast<int32_t>(b);
  return static_cast<uint32_t>(std::abs(difference));
}

// The plan of a record in scaled_dials.json.
RotaryPlan scaled_plan(const nlohmann::json& record) {
  const nlohmann::json& stated = record.at("scaling");
  const std::map<std::string, RotaryScalingKind> kinds = {
      {"linear", RotaryScalingKind::kLinear},
      {"dynamic", RotaryScalingKind::kDynamicNtk},
      {"yarn", RotaryScalingKind::kYarn},
      {"longrope", RotaryScalingKind::kLongRope},
      {"proportional", RotaryScalingKind::kProportional}};
  RotaryPlan plan{.width = record.at("width"), .base = record.at("base")};
  RotaryScaling& scaling = plan.scaling;
  const double context = record.at("context");
  scaling.kind = kinds.at(stated.at("rope_type"));
  scaling.original_context = stated.value("original_max_position_embeddings", context);
  const double ratio = stated.contains("original_max_position_embeddings")
                           ? context / static_cast<double>(scaling.original_context)
                           : 1;
  const bool null_factor = stated.contains("factor") && stated.at("factor").is_null();
  scaling.factor = null_factor ? ratio : stated.value("factor", ratio);
  scaling.beta_fast = stated.value("beta_fast", 32.0);
  scaling.beta_slow = stated.value("beta_slow", 1.0);
  scaling.truncate = stated.value("truncate", true);
  if (stated.contains("attention_factor")) scaling.attention_factor = stated["attention_factor"];
  scaling.mscale = stated.value("mscale", 0.0);
  scaling.mscale_all_dim = stated.value("mscale_all_dim", 0.0);
  scaling.short_factors = stated.value("short_factor", std::vector<float>());
  scaling.long_factors = stated.value("long_factor", std::vector<float>());
  scaling.turning_planes = static_cast<uint32_t>(stated.value("partial_rotary_factor", 0.0) *
                                                 record.at("width").get<double>() / 2);
  return plan;
}

TEST_CASE("frequencies are the reference's, bit for bit, plain and scaled") {
  const nlohmann::json records = nlohmann::json::parse(std::ifstream("tests/goldens/dials.json"));
  size_t compared = 0;
  for (const nlohmann::json& record : records) {
    const uint32_t width = record.at("width");
    const double base = record.at("base");
    CAPTURE(width);
    CAPTURE(base);
    std::vector<float> frequencies = rotary_frequencies(base, width);
    if (!record.at("scaling").is_null()) {
      frequencies = scale_llama3(frequencies, llama3(record.at("scaling")));
    }
    const auto expected = record.at("frequencies").get<std::vector<float>>();
    const auto elsewhere = record.at("power_rounded_otherwise").get<std::set<size_t>>();
    REQUIRE(frequencies.size() == expected.size());
    for (size_t plane = 0; plane < expected.size(); ++plane) {
      if (elsewhere.contains(plane)) continue;
      CAPTURE(plane);
      CHECK(frequencies[plane] == expected[plane]);
      ++compared;
    }
  }
  CHECK(compared > 1000);
}

TEST_CASE("two dials give every position's cosine and sine to 2e-7") {
  for (const double base : {500.0, 10000.0, 500000.0, 1e6, 1e8}) {
    for (const uint32_t width : {2u, 10u, 64u, 128u, 256u}) {
      for (const uint64_t context : {131072u, 132000u}) {
        CAPTURE(base);
        CAPTURE(width);
        const RotaryTables tables = bake({.width = width, .base = base}, context);
        std::vector<uint32_t> positions = {0, 1, 2, 4095, 4096, 32767, 32768, 131000, 131071};
        for (uint32_t coarse = 1; coarse < tables.coarse_rows; ++coarse) {
          positions.push_back(coarse * tables.fine_rows - 1);
          positions.push_back(coarse * tables.fine_rows);
          positions.push_back(coarse * tables.fine_rows + 1);
        }
        CHECK(dial_error(tables, positions) <= 2e-7);
      }
    }
  }
}

TEST_CASE("a scaled dial turns by the scaled frequencies") {
  RotaryPlan plan{.width = 64, .base = 500000};
  plan.scaling = {.kind = RotaryScalingKind::kLlama3, .factor = 32, .original_context = 8192};
  const RotaryTables tables = bake(plan, 131072);
  CHECK(dial_error(tables, {0, 1, 8191, 8192, 131071}) <= 2e-7);
  // How much slower each plane turns, computed from the formula in double: 1 up to plane 14, then a
  // blend, then 32.
  const std::vector<std::pair<size_t, double>> expected = {
      {0, 1}, {14, 1}, {15, 1.65133}, {16, 3.29226}, {17, 9.66673}, {18, 32}, {31, 32}};
  for (const auto& [plane, ratio] : expected) {
    CAPTURE(plane);
    CHECK(double{tables.original_frequencies[plane]} / tables.frequencies[plane] ==
          doctest::Approx(ratio).epsilon(1e-5));
  }
}

TEST_CASE("every scaling's frequencies and attention factor are the reference's") {
  const nlohmann::json records =
      nlohmann::json::parse(std::ifstream("tests/goldens/scaled_dials.json"));
  size_t exact = 0, all = 0;
  for (const nlohmann::json& record : records) {
    CAPTURE(record.at("scaling").dump());
    CAPTURE(record.at("width"));
    CAPTURE(record.at("base"));
    const RotaryPlan plan = scaled_plan(record);
    const uint64_t context = record.at("context");
    const RotaryTables tables = bake(plan, context);
    CHECK(attention_factor(plan.scaling) ==
          doctest::Approx(record.at("attention_factor").get<double>()).epsilon(1e-15));
    CHECK(tables.amplitude == record.at("attention_factor").get<float>());

    std::vector<float> frequencies = tables.frequencies;
    bool stretched = false;
    if (!record.at("length").is_null()) {
      const uint64_t length = record.at("length");
      CAPTURE(length);
      if (plan.scaling.kind == RotaryScalingKind::kDynamicNtk && length > context) {
        stretched = true;
        frequencies = rotary_frequencies(
            dynamic_ntk_base(plan.base, plan.scaling.factor, plan.width, context, length),
            plan.width);
      } else if (plan.scaling.kind == RotaryScalingKind::kLongRope &&
                 length > tables.switch_length) {
        frequencies = tables.long_frequencies;
      }
    }
    const auto expected = record.at("frequencies").get<std::vector<float>>();
    const auto elsewhere = record.at("power_rounded_otherwise").get<std::set<size_t>>();
    REQUIRE(frequencies.size() == expected.size());
    for (size_t plane = 0; plane < expected.size(); ++plane) {
      CAPTURE(plane);
      const uint32_t distance = distance_in_last_places(frequencies[plane], expected[plane]);
      // A power that is one last place off may put a reciprocal two off. A stretched base is itself
      // a power and has powers of its own, which the record's list does not cover.
      CHECK(distance <= (stretched || elsewhere.contains(plane) ? 2 : 0));
      exact += distance == 0;
      ++all;
    }
  }
  CHECK(all > 4000);
  CHECK(exact > all * 0.97);
}

TEST_CASE("yarn blends between the planes of the published formula") {
  // Peng et al. 2023, section 3.2, computed in double.
  const RotaryScaling rounded{
      .kind = RotaryScalingKind::kYarn, .factor = 4, .original_context = 32768};
  CHECK(yarn_range(1e6, 128, rounded) == std::pair(23.0, 40.0));
  CHECK(attention_factor(rounded) == doctest::Approx(1.13862944).epsilon(1e-8));
  const RotaryScaling exact{
      .kind = RotaryScalingKind::kYarn, .factor = 32, .original_context = 4096, .truncate = false};
  CHECK(yarn_range(150000, 64, exact).first == doctest::Approx(8.092779).epsilon(1e-6));
  CHECK(yarn_range(150000, 64, exact).second == doctest::Approx(17.398025).epsilon(1e-6));
  CHECK(attention_factor(exact) == doctest::Approx(1.34657359).epsilon(1e-8));
}

TEST_CASE("an attention factor stands in the coarse dial, and in both dials of LongRoPE") {
  RotaryPlan plan{.width = 8, .base = 10000};
  plan.scaling = {.kind = RotaryScalingKind::kLongRope,
                  .factor = 32,
                  .original_context = 4096,
                  .short_factors = {1, 1.1f, 1.5f, 2},
                  .long_factors = {1, 4, 20, 60}};
  const RotaryTables tables = bake(plan, 131072);
  CHECK(tables.amplitude ==
        doctest::Approx(1.19023807).epsilon(1e-7));  // sqrt(1 + ln 32 / ln 4096)
  CHECK(tables.switch_length == 4096);
  CHECK(tables.coarse[0] == tables.amplitude);
  CHECK(tables.long_coarse[0] == tables.amplitude);
  CHECK(tables.fine[0] == 1);
  CHECK(tables.long_frequencies[3] == doctest::Approx(tables.original_frequencies[3] / 60));
  const std::vector<uint32_t> positions = {0, 1, 4095, 4096, 4097, 131071};
  CHECK(dial_error(tables, positions) <= 2.4e-7);
  CHECK(dial_error(tables.long_dial(), tables.long_frequencies, tables.amplitude, positions) <=
        2.4e-7);

  const RotaryTables within = bake(plan, 4096);
  CHECK(within.switch_length == 0);
  CHECK(within.long_coarse.empty());
}

TEST_CASE("the NTK base slows the slowest plane by the factor and leaves the fastest alone") {
  for (const uint32_t width : {4u, 10u, 64u, 128u}) {
    for (const double factor : {1.0, 2.0, 8.0}) {
      CAPTURE(width);
      CAPTURE(factor);
      RotaryPlan plan{.width = width, .base = 10000};
      plan.scaling = {.kind = RotaryScalingKind::kNtk, .factor = factor};
      const RotaryTables tables = bake(plan, 16);
      CHECK(tables.frequencies.front() == 1);
      CHECK(tables.original_frequencies.back() / tables.frequencies.back() ==
            doctest::Approx(factor).epsilon(1e-6));
      // Twice the context stretches by 2 * factor - (factor - 1).
      CHECK(double{dynamic_ntk_base(10000, factor, width, 100, 200)} ==
            doctest::Approx(ntk_base(10000, factor + 1, width)).epsilon(1e-6));
      CHECK(dynamic_ntk_base(10000, factor, width, 100, 100) == 10000);
    }
  }
  CHECK(ntk_base(10000, 8, 2) == 10000);
  CHECK(dynamic_ntk_base(10000, 8, 2, 100, 200) == 10000);
}

TEST_CASE("dials reach the context with about the fewest rows") {
  for (const uint64_t context :
       {1u, 2u, 3u, 5u, 64u, 1000u, 4096u, 5000u, 131072u, 132000u, 1048576u}) {
    CAPTURE(context);
    const RotaryTables tables = bake({.width = 4}, context);
    const uint64_t reached = uint64_t{tables.coarse_rows} * tables.fine_rows;
    CHECK(reached >= context);
    CHECK(reached < context + tables.fine_rows);
    CHECK(tables.coarse_rows + tables.fine_rows <= 2.2 * std::sqrt(context) + 2);
    CHECK(tables.coarse.size() == size_t{tables.coarse_rows} * 4);
    CHECK(tables.fine.size() == size_t{tables.fine_rows} * 4);
  }
}

TEST_CASE("divisors divide the frequencies in float") {
  const RotaryTables tables = bake({.width = 4, .base = 100, .divisors = {1, 3}}, 16);
  CHECK(tables.frequencies[0] == 1.0f);
  CHECK(tables.frequencies[1] == 0.1f / 3.0f);
}

}  // namespace
}  // namespace volvelle
