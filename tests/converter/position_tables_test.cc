// Expected tables are the reference's, recorded in tests/goldens/position_tables.json, and closed
// forms.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "converter/positions/alibi.h"
#include "runtime/distance_buckets.h"
#include "runtime/sinusoids.h"

namespace volvelle {
namespace {

nlohmann::json recorded(const std::string& kind) {
  const nlohmann::json groups =
      nlohmann::json::parse(std::ifstream("tests/goldens/position_tables.json"));
  for (const nlohmann::json& group : groups) {
    if (group.at("kind") == kind) return group.at("tables");
  }
  return {};
}

TEST_CASE("ALiBi slopes are the reference's for any number of heads") {
  size_t compared = 0;
  for (const nlohmann::json& record : recorded("slopes")) {
    const uint32_t heads = record.at("heads");
    CAPTURE(record.at("kind"));
    CAPTURE(heads);
    const std::vector<float> slopes = record.at("kind") == "bloom"
                                          ? bloom_slopes(heads)
                                          : mpt_slopes(heads, record.at("bias_max"));
    const auto expected = record.at("slopes").get<std::vector<float>>();
    REQUIRE(slopes.size() == expected.size());
    for (size_t head = 0; head < heads; ++head) {
      CAPTURE(head);
      CHECK(slopes[head] == doctest::Approx(expected[head]).epsilon(1.2e-7));  // one last place
      ++compared;
    }
  }
  CHECK(compared > 1000);
}

TEST_CASE("twelve heads have the published slopes, and BLOOM's are MPT's with a maximum of 8") {
  const std::vector<float> twelve = bloom_slopes(12);
  for (int head = 0; head < 12; ++head) {
    CAPTURE(head);
    const double exponent = head < 8 ? -(head + 1) : -(head - 8) - 0.5;
    CHECK(twelve[head] == doctest::Approx(std::exp2(exponent)).epsilon(1e-7));
  }
  const std::vector<float> forty = bloom_slopes(40);
  CHECK(forty[0] == 0.840896428f);
  CHECK(forty[1] == 0.707106829f);  // the float base's square, not the nearest to 2^-0.5
  for (const uint32_t heads : {1u, 3u, 6u, 10u, 12u, 14u, 40u, 64u, 71u}) {
    CAPTURE(heads);
    const std::vector<float> bloom = bloom_slopes(heads);
    const std::vector<float> mpt = mpt_slopes(heads, 8);
    for (uint32_t head = 0; head < heads; ++head) {
      CHECK(bloom[head] == doctest::Approx(mpt[head]).epsilon(5e-6));
      CHECK(falcon_slopes(heads, 64)[head] == bloom[head] / 8);
    }
  }
}

TEST_CASE("T5's buckets are the reference's, either way") {
  for (const nlohmann::json& record : recorded("buckets")) {
    const BucketPlan plan{record.at("buckets"), record.at("max_distance"),
                          record.at("bidirectional")};
    CAPTURE(plan.buckets);
    CAPTURE(plan.bidirectional);
    int64_t distance = record.at("first_distance");
    for (const uint32_t expected : record.at("bucket")) {
      CAPTURE(distance);
      CHECK(bucket_of(plan, distance) == expected);
      ++distance;
    }
  }
}

TEST_CASE("thirty-two buckets begin where T5's do") {
  // First distance of each bucket past the exact ones.
  const std::vector<int> causal = {16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113};
  const std::vector<int> both = {8, 12, 16, 23, 32, 46, 64, 91};
  const BucketPlan one_way{32, 128, false}, two_way{32, 128, true};
  for (size_t i = 0; i < causal.size(); ++i) {
    CHECK(bucket_of(one_way, -causal[i]) == 16 + i);
    CHECK(bucket_of(one_way, -causal[i] + 1) == 15 + i);
  }
  for (size_t i = 0; i < both.size(); ++i) {
    for (const int sign : {-1, 1}) {
      CHECK(bucket_of(two_way, sign * both[i]) == 8 + i + (sign > 0 ? 16 : 0));
      CHECK(bucket_of(two_way, sign * (both[i] - 1)) == 7 + i + (sign > 0 ? 16 : 0));
    }
  }
  CHECK(bucket_reach(one_way) == 113);
  CHECK(bucket_reach(two_way) == 91);
  CHECK(bucket_of(one_way, 5) == 0);
  CHECK(bucket_of(one_way, -(int64_t{1} << 30)) == 31);
}

TEST_CASE("buckets expand to one bias for each distance, constant beyond the last") {
  for (const bool bidirectional : {false, true}) {
    const BucketPlan plan{8, 20, bidirectional};
    const uint32_t heads = 3;
    std::vector<float> table(8 * heads);
    for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<float>(i);
    const std::vector<float> biases = expand_buckets(plan, table, heads);
    const int64_t reach = bucket_reach(plan);
    const int64_t distances = 2 * reach + 1;
    REQUIRE(biases.size() == static_cast<size_t>(heads * distances));
    for (int64_t distance = -100; distance <= 100; ++distance) {
      const int64_t within = std::clamp(distance, -reach, reach);
      for (uint32_t head = 0; head < heads; ++head) {
        CHECK(biases[head * distances + reach + within] ==
              table[bucket_of(plan, distance) * heads + head]);
      }
    }
  }
}

TEST_CASE("sinusoids are the reference's in every layout") {
  const std::map<std::string, SinusoidLayout> layouts = {
      {"interleaved", SinusoidLayout::kInterleaved},
      {"halves", SinusoidLayout::kHalves},
      {"spread", SinusoidLayout::kSpread}};
  for (const nlohmann::json& record : recorded("sinusoids")) {
    CAPTURE(record.at("layout"));
    CAPTURE(record.at("width"));
    SinusoidPlan plan{.layout = layouts.at(record.at("layout")),
                      .width = record.at("width"),
                      .row_offset = record.at("row_offset")};
    if (!record.at("zero_row").is_null()) plan.zero_row = record.at("zero_row");
    const uint64_t rows = record.at("rows");
    const std::vector<float> table = bake_sinusoids(plan, 0, rows);
    const auto expected = record.at("table").get<std::vector<float>>();
    REQUIRE(table.size() == expected.size());
    // The reference forms spread angles, up to 40, in float.
    const double tolerance = plan.layout == SinusoidLayout::kSpread ? 4e-6 : 6e-8;
    for (size_t i = 0; i < table.size(); ++i) {
      CAPTURE(i);
      CHECK(std::abs(table[i] - expected[i]) <= tolerance);
    }
  }
}

TEST_CASE("a row of zeros is where it is asked for, and position 0 at its offset") {
  const SinusoidPlan plan{SinusoidLayout::kSpread, 9, 2, 1};
  const std::vector<float> table = bake_sinusoids(plan, 0, 5);
  REQUIRE(table.size() == 5 * 9);
  for (size_t i = 0; i < 9; ++i) CHECK(table[9 + i] == 0);
  CHECK(table[2 * 9] == static_cast<float>(std::sin(2.0)));
  CHECK(table[2 * 9 + 4] == static_cast<float>(std::cos(2.0)));
  for (size_t row = 0; row < 5; ++row) CHECK(table[row * 9 + 8] == 0);  // odd width
  const std::vector<float> later = bake_sinusoids(plan, 3, 2);
  CHECK(std::ranges::equal(later, std::span(table).subspan(3 * 9)));
}

}  // namespace
}  // namespace volvelle
