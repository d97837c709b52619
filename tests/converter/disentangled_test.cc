// Rows of disentangled attention. Expected rows: make_log_bucket_position of the reference
// (transformers 5.24, modeling_deberta_v2.py), clamped as its attention does.

#include "converter/positions/disentangled.h"

#include <doctest/doctest.h>

#include <cmath>

#include "tests/converter/tiny_checkpoint.h"

namespace volvelle {
namespace {

TEST_CASE("distances are exact up to half of the buckets, then logarithmic, then the same") {
  CHECK(disentangled_row_of({.span = 8, .buckets = 8, .max_distance = 24}) ==
        std::vector<uint16_t>{15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 14, 14, 14, 14, 14,
                              13, 13, 13, 12, 11, 10, 9,  8,  7,  6,  5,  4,  3,  3,  3,  2,  2,
                              2,  2,  2,  1,  1,  1,  1,  1,  1,  1,  1,  1,  1,  1,  0});
  CHECK(disentangled_row_of({.span = 5}) == std::vector<uint16_t>{9, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0});
}

TEST_CASE("all distances of real sizes have the reference's rows") {
  struct Case {
    uint32_t buckets, max_distance;
    uint64_t sum;  // of (i + 1) * row i, modulo 1000003 at each step
  };
  for (const Case& one : {Case{256, 512, 434392}, Case{8, 40, 15461}, Case{32, 128, 600049},
                          Case{64, 1000, 150570}, Case{16, 64, 76625}, Case{128, 2048, 665742}}) {
    CAPTURE(one.buckets);
    const auto rows = disentangled_row_of(
        {.span = one.buckets, .buckets = one.buckets, .max_distance = one.max_distance});
    REQUIRE(rows.size() == 2 * one.max_distance + 1);
    uint64_t sum = 0;
    for (uint64_t i = 0; i < rows.size(); ++i) sum += (i + 1) * rows[i] % 1000003;
    CHECK(sum % 1000003 == one.sum);
  }
}

TEST_CASE("rows that go on beyond what a file can name are not formed") {
  CHECK(disentangled_row_of({.span = 1 << 17}).empty());
}

TEST_CASE("rows are normed, projected, and put in order of heads") {
  MemorySource source;
  source.add("table", {3, 2}, {1, 3, 2, 2, 9, 9});
  source.add("norm", {2}, {2, 4});
  source.add("shift", {2}, {0, 1});
  source.add("weight", {4, 2}, {1, 0, 0, 1, 1, 1, 2, 0});
  source.add("bias", {4}, {0, 10, 20, 30});
  ProjectedRows rows{.table = source.find("table"),
                     .weight = source.find("weight"),
                     .bias = source.find("bias"),
                     .rows = 2,
                     .heads = 2,
                     .epsilon = 0.5625};
  const ThreadPool pool = *ThreadPool::make(1);
  CHECK(*rows(source, pool) == std::vector<float>{1, 13, 2, 12, 24, 32, 24, 34});
  rows.norm_weight = source.find("norm");
  rows.norm_bias = source.find("shift");
  // Of mean 2 and variance 1, divided by 1.25: (-0.8, 0.8); of variance 0: (0, 0).
  const std::vector<float> normed = *rows(source, pool);
  const std::vector<float> expected = {-1.6f, 14.2f, 0, 11, 22.6f, 26.8f, 21, 30};
  REQUIRE(normed.size() == expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    CHECK(normed[i] == doctest::Approx(expected[i]).epsilon(1e-6));
  }
}

}  // namespace
}  // namespace volvelle
