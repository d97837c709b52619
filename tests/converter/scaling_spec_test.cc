// The words of --rope-scaling and what they mean; the grammar stands in scaling_spec.h.

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "converter/positions/scaling_spec.h"

namespace volvelle {
namespace {

using enum RotaryScalingKind;

TEST_CASE("every word of the grammar is understood") {
  const std::vector<std::pair<const char*, ScalingSpec>> specs = {
      {"none", {}},
      {"linear:4", {.scaling = {.kind = kLinear, .factor = 4}}},
      {"ntk:2.5", {.scaling = {.kind = kNtk, .factor = 2.5}}},
      {"dynamic:8", {.scaling = {.kind = kDynamicNtk, .factor = 8}}},
      {"yarn:4", {.scaling = {.kind = kYarn, .factor = 4}}},
      {"yarn:4,original=32768,beta_fast=16,beta_slow=2,attention_factor=1.5,mscale=0.7,"
       "mscale_all_dim=1,truncate=false",
       {.scaling = {.kind = kYarn,
                    .factor = 4,
                    .original_context = 32768,
                    .beta_fast = 16,
                    .beta_slow = 2,
                    .truncate = false,
                    .attention_factor = 1.5,
                    .mscale = 0.7,
                    .mscale_all_dim = 1}}},
      {"yarn:1,truncate=true", {.scaling = {.kind = kYarn, .factor = 1}}},
      {"llama3:32", {.scaling = {.kind = kLlama3, .factor = 32}}},
      {"llama3:8,original=8192,high=8,low=2",
       {.scaling = {.kind = kLlama3,
                    .factor = 8,
                    .original_context = 8192,
                    .low_frequency_factor = 2,
                    .high_frequency_factor = 8}}},
      {"original", {.original = true}},
      {"theta:1e6", {.base = 1e6}},
      {"theta:500000", {.base = 500000}}};
  for (const auto& [text, expected] : specs) {
    CAPTURE(text);
    const Result<ScalingSpec> spec = parse_scaling_spec(text);
    REQUIRE(spec.has_value());
    CHECK(*spec == expected);
  }
}

TEST_CASE("what the grammar does not know is refused, with the word and the part at fault") {
  const std::vector<std::pair<std::string, const char*>> wrongs = {
      {"", "must be original, none, linear:F"},
      {"yarn", "must be original, none, linear:F"},
      {"original:1", "must be original, none, linear:F"},
      {"none:1", "must be original, none, linear:F"},
      {"longrope:4", "must be original, none, linear:F"},
      {"proportional:1", "must be original, none, linear:F"},
      {"Linear:4", "must be original, none, linear:F"},
      {" linear:4", "must be original, none, linear:F"},
      {"linear:", "a factor is"},
      {"linear:0", "a factor is"},
      {"linear:0.5", "a factor is"},
      {"linear:-2", "a factor is"},
      {"linear:nan", "a factor is"},
      {"linear:inf", "a factor is"},
      {"linear:1e6", "a factor is"},
      {"linear:1e999", "a factor is"},
      {"linear:4x", "a factor is"},
      {"linear: 4", "a factor is"},
      {"linear:4,original=8", "takes one number and nothing else"},
      {"ntk:4,", "takes one number and nothing else"},
      {"yarn:4,", "\"\" is no option of yarn"},
      {"yarn:4,,truncate=true", "\"\" is no option of yarn"},
      {"yarn:4,low=1", "\"low=1\" is no option of yarn"},
      {"yarn:4,original", "\"original\" is no option of yarn"},
      {"yarn:4,original=", "original is not a whole number of positions"},
      {"yarn:4,original=1.5", "original is not a whole number of positions"},
      {"yarn:4,original=-1", "original is not a whole number of positions from 2 to 16777216"},
      {"yarn:4,original=1", "original is not a whole number of positions"},
      {"yarn:4,original=99999999999999999999", "original is not a whole number of positions"},
      {"yarn:4,original=8,original=9", "the second of its name"},
      {"yarn:4,beta_fast=0", "beta_fast is not a number above 0"},
      {"yarn:4,beta_fast=0.5", "beta_fast is below beta_slow"},
      {"yarn:4,truncate=no", "truncate is not true or false"},
      {"yarn:4,mscale=-1", "mscale is not a number from 0"},
      {"yarn:4,attention_factor=0", "attention_factor is not a number above 0"},
      {"llama3:8,low=4", "high is not above low"},
      {"llama3:8,high=1", "high is not above low"},
      {"llama3:8,beta_fast=1", "is no option of llama3"},
      {"theta:1", "a base is one number"},
      {"theta:", "a base is one number"},
      {"theta:1e12", "a base is one number"},
      {"theta:1e6,linear:2", "a base is one number"}};
  for (const auto& [text, named] : wrongs) {
    CAPTURE(text);
    const Result<ScalingSpec> spec = parse_scaling_spec(text);
    REQUIRE_FALSE(spec.has_value());
    CHECK(spec.error().message.starts_with("--rope-scaling " + text + ": "));
    CHECK(spec.error().message.contains(named));
  }
}

TEST_CASE("a long specification is cut where a sentence shows it") {
  const std::string message =
      parse_scaling_spec("yarn:4," + std::string(5000, 'x')).error().message;
  CHECK(message.contains("xxx..."));
  CHECK(message.size() < 400);
}

TEST_CASE("a plan is rescaled from its original frequencies, and keeps pairing, width and base") {
  RotaryPlan plan{.pairing = Pairing::kInterleaved, .width = 4, .base = 500, .divisors = {1, 8}};
  plan.scaling = {.kind = kLlama3, .factor = 8};
  const RotaryPlan none = rescale(plan, *parse_scaling_spec("none"), 4096);
  CHECK(none == RotaryPlan{.pairing = Pairing::kInterleaved,
                           .width = 4,
                           .base = 500,
                           .origin = RotaryOrigin{500, plan.scaling, scaled_frequencies(plan)}});

  // The context that a new scaling starts from: stated, known, or the trained one.
  CHECK(rescale(plan, *parse_scaling_spec("yarn:4,original=32"), 4096).scaling.original_context ==
        32);
  CHECK(rescale(plan, *parse_scaling_spec("yarn:4"), 4096).scaling.original_context == 4096);
  plan.scaling.original_context = 2048;
  for (const char* spec : {"yarn:4", "llama3:4", "dynamic:4"}) {
    CHECK(rescale(plan, *parse_scaling_spec(spec), 4096).scaling.original_context == 2048);
  }
  for (const char* spec : {"none", "linear:4", "ntk:4"}) {
    CHECK(rescale(plan, *parse_scaling_spec(spec), 4096).scaling.original_context == 0);
  }
  const RotaryPlan other_base = rescale(plan, *parse_scaling_spec("theta:1e6"), 4096);
  CHECK(other_base.base == 1e6);
  CHECK(other_base.scaling == RotaryScaling());
  CHECK(bake(other_base, 16).frequencies[1] == 1e-3f);
  CHECK(bake(other_base, 16).original_frequencies == bake(none, 16).frequencies);
  CHECK(rescale(other_base, *parse_scaling_spec("none"), 4096).base == 500);
  const RotaryPlan back = rescale(other_base, *parse_scaling_spec("original"), 4096);
  CHECK(back.scaling == plan.scaling);
  CHECK(bake(back, 16).frequencies == bake(plan, 16).frequencies);
  CHECK(rescale(plan, *parse_scaling_spec("original"), 4096) == plan);
}

TEST_CASE("a scaling reaches its factor times the context before any scaling") {
  const RotaryPlan plan{.width = 4};
  const auto reach = [](const RotaryPlan& plan, const char* spec) {
    return scaled_context(rescale(plan, *parse_scaling_spec(spec), 4096), 4096);
  };
  for (const auto& [spec, context] : {std::pair{"none", 4096},
                                      {"theta:1e6", 4096},
                                      {"linear:2", 8192},
                                      {"ntk:2.5", 10240},
                                      {"dynamic:2", 8192},
                                      {"yarn:4", 16384},
                                      {"yarn:4,original=100", 400},
                                      {"llama3:8,original=64", 512}}) {
    CAPTURE(spec);
    CHECK(reach(plan, spec) == static_cast<uint64_t>(context));
  }
  RotaryPlan scaled = plan;
  scaled.scaling = {.kind = kLlama3, .factor = 8, .original_context = 1000};
  CHECK(reach(scaled, "linear:2") == 2000);
  CHECK(reach(plan, "linear:999999") == kMaxContext);
}

}  // namespace
}  // namespace volvelle
