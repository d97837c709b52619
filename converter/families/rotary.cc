#include "converter/families/rotary.h"

#include <algorithm>
#include <cmath>

namespace volvelle {
namespace {

// Where a family states no base of its own: as the references have it.
constexpr double kDefaultBase = 10000;

// What the conversion to GGUF assumes of Llama 3.1's scaling, whose numbers it does not keep.
constexpr Llama3Scaling kGgufLlama3 = {
    .factor = 1, .low_frequency_factor = 1, .high_frequency_factor = 4, .original_context = 8192};
constexpr float kSameFactor = 1e-4f;

void check(Config& config, const std::string& base_key, const RotaryPlan& plan) {
  if (!(plan.base > 1 && plan.base < 1e12)) {
    config.refuse(base_key, "is {}, which is no base for rotary positions", plan.base);
  }
}

}  // namespace

RotaryPlan hugging_face_rotary(Config& config, const std::string& layer_type, uint64_t width) {
  RotaryPlan plan;
  plan.width = static_cast<uint32_t>(width);

  const bool scaled = config.has_section("rope_scaling");
  if (scaled && config.has_section("rope_parameters")) {
    config.refuse("rope_scaling", "stands beside rope_parameters; keep one of them");
  }
  std::string section = scaled ? "rope_scaling" : "rope_parameters";
  if (config.has_section(section + "." + layer_type)) section += "." + layer_type;
  const auto key = [&](const char* name) { return section + "." + name; };

  const bool base_inside = config.has(key("rope_theta"));
  const double outer_base = config.number("rope_theta", kDefaultBase);
  plan.base = config.number(key("rope_theta"), outer_base);
  check(config, base_inside ? key("rope_theta") : "rope_theta", plan);

  // The references ignored, honoured or failed on a partial width here, version by version.
  config.expect("partial_rotary_factor", 1);
  config.expect(key("partial_rotary_factor"), 1);

  const std::string legacy_type = config.text(key("type"), "default");
  const std::string type = config.text(key("rope_type"), legacy_type);
  if (type == "llama3") {
    plan.scaling = RotaryScalingKind::kLlama3;
    plan.llama3.factor = config.number(key("factor"));
    plan.llama3.low_frequency_factor = config.number(key("low_freq_factor"));
    plan.llama3.high_frequency_factor = config.number(key("high_freq_factor"));
    const uint64_t inner = config.count(key("original_max_position_embeddings"),
                                        config.count("max_position_embeddings", 1));
    plan.llama3.original_context = config.count("original_max_position_embeddings", inner);
    if (!(plan.llama3.factor > 0)) config.refuse(key("factor"), "is not above 0");
    if (!(plan.llama3.low_frequency_factor > 0) ||
        !(plan.llama3.high_frequency_factor > plan.llama3.low_frequency_factor)) {
      config.refuse(key("high_freq_factor"),
                    "is not above low_freq_factor, or that is not above 0");
    }
  } else if (type != "default") {
    config.refuse(config.has(key("rope_type")) ? key("rope_type") : key("type"),
                  "is \"{}\", which is not implemented; \"default\" and \"llama3\" are", type);
  }
  return plan;
}

Result<RotaryPlan> gguf_rotary(Checkpoint& checkpoint, uint64_t head_dim) {
  Config& config = checkpoint.config;
  RotaryPlan plan;
  plan.width = static_cast<uint32_t>(config.count("rope.dimension_count", head_dim));
  plan.base = config.number("rope.freq_base", kDefaultBase);
  check(config, "rope.freq_base", plan);
  if (plan.width > head_dim || plan.width % 2 != 0) {
    config.refuse("rope.dimension_count", "is {}, not an even number up to the head's {}",
                  plan.width, head_dim);
  }

  // A type without a factor scales nothing; a factor without a type means linear scaling.
  const double linear = config.number("rope.scale_linear", 1);
  const double factor = config.number("rope.scaling.factor", 1);
  const std::string type = config.text("rope.scaling.type", "linear");
  if (linear != 1)
    config.refuse("rope.scale_linear", "is {}; linear scaling is not implemented", linear);
  if (type != "none" && (type != "linear" || (factor != 1 && factor != 0))) {
    config.refuse(type == "linear" ? "rope.scaling.factor" : "rope.scaling.type",
                  "asks for {} scaling by {}, which is not implemented", type, factor);
  }
  config.expect("rope.scaling.attn_factor", 1.0);
  config.optional_count("rope.scaling.original_context_length");  // of no scaling
  VOLVELLE_RETURN_IF_ERROR(config.status());

  if (const SourceTensor* divisors = checkpoint.optional("rope_freqs.weight")) {
    if (divisors->rows() != 1 || divisors->columns() != plan.width / 2) {
      return fail(
          "{}: tensor rope_freqs.weight has the shape {}; a rotary width of {} asks for [{}]",
          checkpoint.path(), shape_text(divisors->shape), plan.width, plan.width / 2);
    }
    plan.divisors.resize(plan.width / 2);
    VOLVELLE_RETURN_IF_ERROR(checkpoint.source().read(*divisors, 0, 1, plan.divisors));
    const auto usable = [](float divisor) { return divisor > 1e-6f && divisor < 1e6f; };
    if (!std::ranges::all_of(plan.divisors, usable)) {
      return fail("{}: tensor rope_freqs.weight holds numbers that are no scaling factors",
                  checkpoint.path());
    }
    // A record for people, and exact when the guess reproduces the divisors.
    plan.scaling = RotaryScalingKind::kLlama3;
    plan.llama3 = kGgufLlama3;
    plan.llama3.factor = std::ranges::max(plan.divisors);
    const std::vector<float> plain = rotary_frequencies(plan.base, plan.width);
    const std::vector<float> scaled = scale_llama3(plain, plan.llama3);
    for (size_t plane = 0; plane < plain.size(); ++plane) {
      const float guess = plain[plane] / scaled[plane];
      if (std::abs(guess / plan.divisors[plane] - 1) > kSameFactor)
        plan.llama3.original_context = 0;
    }
  }
  return plan;
}

}  // namespace volvelle
