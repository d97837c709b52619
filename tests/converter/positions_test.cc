// Expected frequencies are the reference's, recorded in tests/goldens/dials.json; expected cosines
// and sines are those of the exact product in long double.

#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "converter/positions/rotary.h"

namespace volvelle {
namespace {

Llama3Scaling llama3(const nlohmann::json& record) {
  return {.factor = record.at("factor"),
          .low_frequency_factor = record.at("low_freq_factor"),
          .high_frequency_factor = record.at("high_freq_factor"),
          .original_context = record.at("original_max_position_embeddings")};
}

// Largest error of any cosine or sine that the dial gives at `positions`.
double dial_error(const RotaryTables& tables, const std::vector<uint32_t>& positions) {
  const size_t planes = tables.frequencies.size();
  std::vector<float> rows(positions.size() * 2 * planes);
  read_dial(tables.dial(), positions, rows.data());
  long double worst = 0;
  for (size_t i = 0; i < positions.size(); ++i) {
    for (size_t plane = 0; plane < planes; ++plane) {
      // 28 bits by 24: exact in long double.
      const long double angle = static_cast<long double>(positions[i]) * tables.frequencies[plane];
      const float* row = rows.data() + i * 2 * planes;
      worst = std::max(worst, std::abs(row[plane] - std::cos(angle)));
      worst = std::max(worst, std::abs(row[planes + plane] - std::sin(angle)));
    }
  }
  return static_cast<double>(worst);
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
  RotaryPlan plan{.width = 64, .base = 500000, .scaling = RotaryScalingKind::kLlama3};
  plan.llama3 = {.factor = 32, .original_context = 8192};
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
