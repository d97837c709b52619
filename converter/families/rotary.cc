#include "converter/families/rotary.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace volvelle {
namespace {

// What the conversion to GGUF assumes of Llama 3.1's scaling, whose numbers it does not keep.
constexpr uint64_t kGgufLlama3Context = 8192;
constexpr float kSameFactor = 1e-4f;

// Beyond these there is no model, and float arithmetic might overflow.
constexpr double kBaseLimit = 1e12;
constexpr double kFactorLimit = 1e6;

// Divisors of frequencies, amplitudes.
bool usable(double divisor) { return divisor > 1e-6 && divisor < 1e6; }

void check_base(Config& config, const std::string& key, double base) {
  if (!(base > 1 && base < kBaseLimit)) {
    config.refuse(key, "is {}, which is no base for rotary positions", base);
  }
}

void check_factor(Config& config, const std::string& key, double factor) {
  if (!(factor > 0 && factor < kFactorLimit)) {
    config.refuse(key, "is {}, which is no factor to scale by", factor);
  }
}

// The section that speaks of a layer type, and what stands beside it.
class HuggingFaceRotary {
 public:
  HuggingFaceRotary(Config& config, const std::string& layer_type, const RotaryDialect& dialect)
      : config_(config), dialect_(dialect) {
    const bool scaled = config.has_section("rope_scaling");
    if (scaled && config.has_section("rope_parameters")) {
      config.refuse("rope_scaling", "stands beside rope_parameters; keep one of them");
    }
    outer_ = scaled ? "rope_scaling" : "rope_parameters";
    nested_ = config.has_section(outer_ + "." + layer_type);
    section_ = nested_ ? outer_ + "." + layer_type : outer_;
  }

  RotaryPlan read(uint64_t head_dim) {
    RotaryPlan plan;
    read_base(plan);
    const std::string type = read_type();
    const double share = read_share();
    if (type == "proportional") {
      plan.width = static_cast<uint32_t>(head_dim);
      plan.scaling.turning_planes =
          static_cast<uint32_t>(share * static_cast<double>(head_dim) / 2);
    } else {
      plan.width = static_cast<uint32_t>(static_cast<double>(head_dim) * share);
      if (share < 1 && (plan.width == 0 || plan.width % 2 != 0)) {
        config_.refuse(share_key_,
                       "asks for {} rotated elements of a head's {}, not an even number",
                       plan.width, head_dim);
      }
    }
    read_scaling(type, plan);
    return plan;
  }

 private:
  std::string key(const std::string& name) const { return section_ + "." + name; }

  void read_base(RotaryPlan& plan) {
    const bool inside = config_.has(key("rope_theta"));
    const double beside = config_.number(dialect_.base_key, dialect_.base);
    plan.base = config_.number(key("rope_theta"), beside);
    check_base(config_, inside ? key("rope_theta") : dialect_.base_key, plan.base);
  }

  std::string read_type() {
    const std::string legacy = config_.text(key("type"), "default");
    type_key_ = config_.has(key("rope_type")) ? key("rope_type") : key("type");
    const std::string type = config_.text(key("rope_type"), legacy);
    if (type == "su" || (type == "yarn" && dialect_.yarn_is_longrope)) return "longrope";
    return type;
  }

  // Without `partial`, references ignored, honoured or failed on a share, version by version.
  double read_share() {
    const std::string inner = key("partial_rotary_factor");
    share_key_ = config_.has(inner) ? inner : dialect_.share_key;
    if (!dialect_.partial && config_.text(type_key_, "") != "proportional") {
      config_.expect(dialect_.share_key, 1);
      config_.expect(inner, 1);
      return 1;
    }
    const double share = config_.number(inner, config_.number(dialect_.share_key, dialect_.share));
    if (!(share > 0 && share <= 1)) {
      config_.refuse(share_key_, "is {}, which is no share of a head", share);
      return 1;
    }
    return share;
  }

  void read_scaling(const std::string& type, RotaryPlan& plan) {
    RotaryScaling& scaling = plan.scaling;
    if (type == "linear") {
      scaling.kind = RotaryScalingKind::kLinear;
      scaling.factor = config_.number(key("factor"));
      read_original();  // which the references do not use
    } else if (type == "dynamic") {
      scaling.kind = RotaryScalingKind::kDynamicNtk;
      scaling.factor = config_.number(key("factor"));
      read_original();  // likewise
      scaling.original_context = config_.count("max_position_embeddings");
    } else if (type == "yarn") {
      read_yarn(scaling);
    } else if (type == "longrope") {
      read_longrope(plan);
    } else if (type == "llama3") {
      read_llama3(scaling);
    } else if (type == "proportional") {
      scaling.kind = RotaryScalingKind::kProportional;
      scaling.factor = config_.number(key("factor"), 1);
    } else if (type != "default") {
      config_.refuse(type_key_,
                     "is \"{}\", which is not implemented; \"default\", \"linear\", \"dynamic\", "
                     "\"yarn\", \"longrope\", \"llama3\" and \"proportional\" are",
                     type);
    }
    check_factor(config_, key("factor"), scaling.factor);
  }

  void read_llama3(RotaryScaling& scaling) {
    scaling.kind = RotaryScalingKind::kLlama3;
    scaling.factor = config_.number(key("factor"));
    scaling.low_frequency_factor = config_.number(key("low_freq_factor"));
    scaling.high_frequency_factor = config_.number(key("high_freq_factor"));
    scaling.original_context = read_original();
    if (!(scaling.low_frequency_factor > 0) ||
        !(scaling.high_frequency_factor > scaling.low_frequency_factor)) {
      config_.refuse(key("high_freq_factor"),
                     "is not above low_freq_factor, or that is not above 0");
    }
  }

  void read_yarn(RotaryScaling& scaling) {
    scaling.kind = RotaryScalingKind::kYarn;
    read_extension(scaling);
    // A zero is as good as absent, to the references.
    const auto turns = [&](const char* name, double fallback) {
      const double stated = config_.number(key(name), 0);
      return stated == 0 ? fallback : stated;
    };
    scaling.beta_fast = turns("beta_fast", 32);
    scaling.beta_slow = turns("beta_slow", 1);
    if (!(scaling.beta_slow > 0 && scaling.beta_fast >= scaling.beta_slow)) {
      config_.refuse(key("beta_fast"), "is not at least beta_slow, or that is not above 0");
    }
    scaling.mscale = config_.number(key("mscale"), 0);
    scaling.mscale_all_dim = config_.number(key("mscale_all_dim"), 0);
    if (scaling.mscale < 0 || scaling.mscale_all_dim < 0) {
      config_.refuse(key("mscale"), "or mscale_all_dim is below 0");
    }
    // The references look for it beside the layer types.
    scaling.truncate = config_.flag(outer_ + ".truncate", true);
    if (nested_ && config_.flag(key("truncate"), scaling.truncate) != scaling.truncate) {
      config_.refuse(key("truncate"), "differs from {}.truncate, which counts", outer_);
    }
  }

  void read_longrope(RotaryPlan& plan) {
    plan.scaling.kind = RotaryScalingKind::kLongRope;
    read_extension(plan.scaling);
    if (plan.scaling.original_context < 2) {
      config_.refuse(key("original_max_position_embeddings"), "is below 2");
    }
    plan.scaling.short_factors = read_divisors("short_factor", plan.width / 2);
    plan.scaling.long_factors = read_divisors("long_factor", plan.width / 2);
  }

  // The original context, the factor (or the ratio of the contexts) and the attention factor.
  void read_extension(RotaryScaling& scaling) {
    scaling.original_context = read_original();
    if (original_stated_ && !config_.has(key("factor"))) {
      scaling.factor = static_cast<double>(config_.count("max_position_embeddings")) /
                       static_cast<double>(std::max<uint64_t>(1, scaling.original_context));
    } else {
      scaling.factor = config_.number(key("factor"));
    }
    if (config_.has(key("attention_factor"))) {
      scaling.attention_factor = config_.number(key("attention_factor"));
      if (!usable(*scaling.attention_factor)) {
        config_.refuse(key("attention_factor"), "is {}, which scales nothing sensibly",
                       *scaling.attention_factor);
      }
    }
  }

  // Phi's place, beside the other settings, counts first, but not for layer types.
  uint64_t read_original() {
    const std::string name = "original_max_position_embeddings";
    const auto inside = config_.optional_count(key(name));
    const auto beside = config_.optional_count(name);
    const auto stated = !nested_ && beside ? beside : inside;
    original_stated_ = stated.has_value();
    return stated.value_or(config_.count("max_position_embeddings", 1));
  }

  std::vector<float> read_divisors(const char* name, size_t planes) {
    const nlohmann::json* list = config_.value(key(name));
    if (list == nullptr || !list->is_array() || list->size() != planes) {
      config_.refuse(key(name), "is no list of {} numbers, one for each pair of elements", planes);
      return {};
    }
    std::vector<float> divisors;
    for (const nlohmann::json& value : *list) {
      if (!value.is_number() || !usable(value.get<double>())) {
        config_.refuse(key(name), "holds {}, which divides no frequency sensibly", value.dump());
        return {};
      }
      divisors.push_back(static_cast<float>(value.get<double>()));
    }
    return divisors;
  }

  Config& config_;
  const RotaryDialect& dialect_;
  std::string outer_;    // "rope_scaling" or "rope_parameters"
  std::string section_;  // that, or the layer type's part of it
  std::string type_key_;
  std::string share_key_;
  bool nested_ = false;
  bool original_stated_ = false;
};

// The tensor of that name: one divisor for each plane; empty when absent.
Result<std::vector<float>> gguf_divisors(Checkpoint& checkpoint, const char* name, uint32_t width) {
  const SourceTensor* tensor = checkpoint.optional(name);
  if (tensor == nullptr) return std::vector<float>();
  if (tensor->rows() != 1 || tensor->columns() != width / 2) {
    return fail("{}: tensor {} has the shape {}; a rotary width of {} asks for [{}]",
                checkpoint.path(), name, shape_text(tensor->shape), width, width / 2);
  }
  std::vector<float> divisors(width / 2);
  VOLVELLE_RETURN_IF_ERROR(checkpoint.source().read(*tensor, 0, 1, divisors));
  if (!std::ranges::all_of(divisors, usable)) {
    return fail("{}: tensor {} holds numbers that are no scaling factors", checkpoint.path(), name);
  }
  return divisors;
}

// A record for people, and exact when the guess reproduces the divisors.
RotaryScaling guess_llama3(const RotaryPlan& plan) {
  RotaryScaling guess{.kind = RotaryScalingKind::kLlama3, .original_context = kGgufLlama3Context};
  guess.factor = std::ranges::max(plan.divisors);
  const std::vector<float> plain = rotary_frequencies(plan.base, plan.width);
  const std::vector<float> scaled = scale_llama3(plain, guess);
  for (size_t plane = 0; plane < plain.size(); ++plane) {
    const float divisor = plain[plane] / scaled[plane];
    if (std::abs(divisor / plan.divisors[plane] - 1) > kSameFactor) guess.original_context = 0;
  }
  return guess;
}

}  // namespace

RotaryPlan hugging_face_rotary(Config& config, const std::string& layer_type, uint64_t head_dim,
                               const RotaryDialect& dialect) {
  return HuggingFaceRotary(config, layer_type, dialect).read(head_dim);
}

Result<RotaryPlan> gguf_rotary(Checkpoint& checkpoint, uint64_t head_dim) {
  Config& config = checkpoint.config;
  RotaryPlan plan;
  plan.width = static_cast<uint32_t>(config.count("rope.dimension_count", head_dim));
  plan.base = config.number("rope.freq_base", RotaryDialect().base);
  check_base(config, "rope.freq_base", plan.base);
  if (plan.width > head_dim || plan.width % 2 != 0) {
    config.refuse("rope.dimension_count", "is {}, not an even number up to the head's {}",
                  plan.width, head_dim);
  }

  // A type without a factor scales nothing; a factor without a type means linear scaling; 0 is 1.
  const std::string factor_key =
      config.has("rope.scaling.factor") ? "rope.scaling.factor" : "rope.scale_linear";
  const double legacy = config.number("rope.scale_linear", 1);
  const double stated = config.number("rope.scaling.factor", legacy);
  const double factor = stated == 0 ? 1 : stated;
  check_factor(config, factor_key, factor);
  const std::string type = config.text("rope.scaling.type", "linear");
  const double attention = config.number("rope.scaling.attn_factor", 1);
  const uint64_t original =
      config.count("rope.scaling.original_context_length", config.count("context_length", 1));
  VOLVELLE_RETURN_IF_ERROR(config.status());

  VOLVELLE_ASSIGN_OR_RETURN(plan.divisors,
                            gguf_divisors(checkpoint, "rope_freqs.weight", plan.width));
  RotaryScaling& scaling = plan.scaling;
  VOLVELLE_ASSIGN_OR_RETURN(scaling.short_factors,
                            gguf_divisors(checkpoint, "rope_factors_short.weight", plan.width));
  VOLVELLE_ASSIGN_OR_RETURN(scaling.long_factors,
                            gguf_divisors(checkpoint, "rope_factors_long.weight", plan.width));
  const bool two_sets = !scaling.short_factors.empty() && !scaling.long_factors.empty();
  if (scaling.short_factors.empty() != scaling.long_factors.empty()) {
    return fail(
        "{}: one of the tensors rope_factors_short.weight and rope_factors_long.weight is "
        "missing",
        checkpoint.path());
  }

  if (two_sets && (type == "longrope" || (type == "linear" && factor == 1))) {
    scaling.kind = RotaryScalingKind::kLongRope;
    scaling.factor = factor;
    scaling.original_context = original;
    scaling.attention_factor = attention;  // the whole of it
  } else if (type == "yarn" && !two_sets) {
    scaling.kind = RotaryScalingKind::kYarn;
    scaling.factor = factor;
    scaling.original_context = original;
    scaling.beta_fast = config.number("rope.scaling.yarn_beta_fast", 32);
    scaling.beta_slow = config.number("rope.scaling.yarn_beta_slow", 1);
    if (!(scaling.beta_slow > 0 && scaling.beta_fast >= scaling.beta_slow)) {
      config.refuse("rope.scaling.yarn_beta_fast",
                    "is not at least yarn_beta_slow, or that is not above 0");
    }
    config.expect("rope.scaling.yarn_ext_factor", 1.0);
    config.expect("rope.scaling.yarn_attn_factor", 1.0);
    // What is stated stands beside yarn's own.
    if (attention != 1) scaling.attention_factor = attention * attention_factor(scaling);
  } else if (type == "linear" && !two_sets) {
    if (factor != 1) {
      scaling.kind = RotaryScalingKind::kLinear;
      scaling.factor = factor;
    }
  } else if (type != "none" || two_sets) {
    config.refuse("rope.scaling.type", "is \"{}\"{}, which is not implemented", type,
                  two_sets ? " beside two sets of divisors" : "");
  }
  if (scaling.kind != RotaryScalingKind::kLongRope && scaling.kind != RotaryScalingKind::kYarn &&
      attention != 1) {
    config.refuse("rope.scaling.attn_factor", "is {}, but nothing is scaled that it belongs to",
                  attention);
  }
  if (!usable(attention)) {
    config.refuse("rope.scaling.attn_factor", "is {}, which scales nothing sensibly", attention);
  }
  if (!plan.divisors.empty()) {
    if (scaling.kind != RotaryScalingKind::kNone) {
      config.refuse(factor_key, "scales positions that rope_freqs.weight scales already");
    } else {
      scaling = guess_llama3(plan);
    }
  }
  VOLVELLE_RETURN_IF_ERROR(config.status());
  return plan;
}

}  // namespace volvelle
