// Which form a tensor gets.

#include "converter/forms.h"

#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

#include "tests/converter/tiny_checkpoint.h"

namespace volvelle {
namespace {

std::vector<float> random_values(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// Blocks of 32 codes from 0 to 15 times a scale of the block's, from `origin` on.
std::vector<float> on_grid(size_t count, float origin) {
  std::mt19937 random(7);
  std::vector<float> values(count);
  float scale = 0;
  for (size_t i = 0; i < count; ++i) {
    if (i % 32 == 0) scale = 0.5f + static_cast<float>(random() % 64) / 64;
    values[i] = scale * (static_cast<float>(random() % 16) + origin);
  }
  return values;
}

struct Linears {
  static constexpr uint64_t kRows = 24, kColumns = 96;
  MemorySource source;
  recipe::Model model;

  explicit Linears(const std::vector<std::pair<std::string, std::vector<float>>>& linears) {
    for (const auto& [name, values] : linears) source.add(name, {kRows, kColumns}, values);
    for (const SourceTensor& tensor : source.tensors()) {
      model.tensors.push_back(
          {tensor.name, recipe::Use::kLinear, kRows, kColumns, {{&tensor, kRows}}});
    }
  }
  static constexpr size_t kCount = kRows * kColumns;
};

TEST_CASE("columns that stand out are taken from the rounded ones, and no others") {
  constexpr size_t kColumns = 300, kRows = 64;
  std::vector<float> sample = random_values(kRows * kColumns, 1);
  for (size_t row = 0; row < kRows; ++row) {
    sample[row * kColumns + 7] *= 100;
    sample[row * kColumns + 250] = -200;  // always on one side
  }
  CHECK(choose_side_columns(sample, kColumns, 2) == std::vector<uint32_t>{7, 250});
  CHECK(choose_side_columns(sample, kColumns, 1) == std::vector<uint32_t>{250});
  CHECK(choose_side_columns(sample, kColumns, 0).empty());
  CHECK(choose_side_columns(std::vector<float>(kRows * kColumns), kColumns, 8).empty());
  // Each row's extremes lie elsewhere: of 64 rows, none of the columns is worth a hundredth.
  std::vector<float> even(200 * kColumns, 0.5f);
  for (size_t row = 0; row < 200; ++row) {
    even[row * kColumns + row] = 1;
    even[row * kColumns + row + 50] = -1;
  }
  CHECK(choose_side_columns(even, kColumns, 8).empty());
}

TEST_CASE("weights on a four-bit grid stay on it, with minima where it has them") {
  const Linears linears({{"symmetric", on_grid(Linears::kCount, -8)},
                         {"shifted", on_grid(Linears::kCount, 3.25f)},
                         {"none", random_values(Linears::kCount, 2)}});
  ConvertOptions options;
  const auto plans =
      make_plans(linears.model, options, linears.source, nullptr, *ThreadPool::make(1));
  REQUIRE(plans.has_value());
  const std::vector<bool> kept = {true, true, false}, minima = {false, true, false};
  for (size_t i = 0; i < plans->size(); ++i) {
    CAPTURE(linears.model.tensors[i].name);
    CHECK((*plans)[i].type == file::TensorType::q4);
    CHECK((*plans)[i].kept == kept[i]);
    CHECK((*plans)[i].minima == minima[i]);
  }
  options.keep_grid = false;
  const auto rounded =
      make_plans(linears.model, options, linears.source, nullptr, *ThreadPool::make(1));
  REQUIRE(rounded.has_value());
  for (const Plan& plan : *rounded) {
    CHECK(!plan.kept);
    CHECK(!plan.minima);
  }
}

TEST_CASE("a mix spends its bits on the tensors that four bits cost most") {
  // Rotated, rows that are nearly constant have one element in each block that is not near zero.
  std::vector<float> flat = random_values(Linears::kCount, 4);
  for (size_t i = 0; i < flat.size(); ++i) {
    flat[i] = static_cast<float>(1 + i / Linears::kColumns) + flat[i] / 256;
  }
  const Linears linears({{"a", flat}, {"b", random_values(Linears::kCount, 3)}, {"c", flat}});
  ConvertOptions options;
  options.keep_grid = false;
  // 4.5 bits and 8 + 32 / 96 of one in three: 5.78 in the mean.
  for (const auto& [bits, eight] : std::vector<std::pair<double, size_t>>{
           {4.5, 0}, {5.77, 0}, {5.78, 1}, {7.06, 2}, {8.34, 3}}) {
    CAPTURE(bits);
    options.bits = bits;
    const auto plans =
        make_plans(linears.model, options, linears.source, nullptr, *ThreadPool::make(1));
    REQUIRE(plans.has_value());
    size_t count = 0;
    for (const Plan& plan : *plans) count += plan.type == file::TensorType::q8;
    CHECK(count == eight);
    if (eight == 1) CHECK((*plans)[1].type == file::TensorType::q8);
  }
  options.bits = 4.4;
  const auto plans =
      make_plans(linears.model, options, linears.source, nullptr, *ThreadPool::make(1));
  REQUIRE(!plans.has_value());
  CHECK(plans.error().message.contains("4.50 bits"));
  options.bits = 5.77;
  options.keep = {{"b", WeightType::kQ8}};
  const auto too_few =
      make_plans(linears.model, options, linears.source, nullptr, *ThreadPool::make(1));
  REQUIRE(!too_few.has_value());
  CHECK(too_few.error().message.contains("what --keep asks for"));
}

TEST_CASE("more bits than a four-bit grid takes buy eight bits for some tensors") {
  const Linears linears({{"a", on_grid(Linears::kCount, 3.25f)},
                         {"b", on_grid(Linears::kCount, 2.5f)},
                         {"c", on_grid(Linears::kCount, 1)}});
  ConvertOptions options;
  // Off the grid a weight takes 4.5 bits; on it, with a byte for each block's minimum, one for the
  // side column that there may be, and the scales of both, 5.5; in q8 8 + 32 / 96.
  size_t before = 0;
  for (const double bits : {4.51, 5.51, 6.5, 7.5, 8.34}) {
    CAPTURE(bits);
    options.bits = bits;
    const auto plans =
        make_plans(linears.model, options, linears.source, nullptr, *ThreadPool::make(1));
    REQUIRE(plans.has_value());
    size_t kept = 0, eight = 0;
    for (const Plan& plan : *plans) {
      kept += plan.kept, eight += plan.type == file::TensorType::q8;
      CHECK((plan.kept || !plan.minima));
    }
    if (bits < 5) CHECK(kept + eight == 0);
    if (bits > 5.5) CHECK(kept + eight == 3);
    CHECK(eight >= before);
    before = eight;
  }
  CHECK(before == 3);
}

}  // namespace
}  // namespace volvelle
