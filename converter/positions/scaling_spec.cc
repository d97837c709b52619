#include "converter/positions/scaling_spec.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <format>
#include <functional>
#include <map>
#include <vector>

namespace volvelle {
namespace {

constexpr double kBaseLimit = 1e12;
constexpr double kFactorLimit = 1e6;

struct Option {
  const char* meaning;  // after "is not "
  std::function<bool(std::string_view)> set;
};
using Options = std::map<std::string, Option, std::less<>>;

std::optional<double> number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    return std::nullopt;
  }
  return value;
}

// As it stands in a sentence.
std::string shown(std::string_view text) {
  constexpr size_t kMost = 80;
  return text.size() <= kMost ? std::string(text) : std::string(text.substr(0, kMost - 3)) + "...";
}

// A number in [least, limit).
template <typename Target>
Option number_option(const char* meaning, double least, double limit, Target& target) {
  return {meaning, [=, &target](std::string_view text) {
            const std::optional<double> value = number(text);
            if (!value || !(*value >= least && *value < limit)) return false;
            target = *value;
            return true;
          }};
}

static_assert(kMaxContext == 16777216);

Option context_option(uint64_t& target) {
  return {"a whole number of positions from 2 to 16777216", [&target](std::string_view text) {
            const auto [end, error] =
                std::from_chars(text.data(), text.data() + text.size(), target);
            return error == std::errc() && end == text.data() + text.size() && target >= 2 &&
                   target <= kMaxContext;
          }};
}

Option truth_option(bool& target) {
  return {"true or false", [&target](std::string_view text) {
            target = text == "true";
            return target || text == "false";
          }};
}

Options options_of(RotaryScaling& scaling) {
  constexpr double kSmallest = 1e-6;
  Options options;
  if (scaling.kind == RotaryScalingKind::kYarn) {
    options.emplace("original", context_option(scaling.original_context));
    options.emplace("beta_fast", number_option("a number above 0 and below 1e6", kSmallest, 1e6,
                                               scaling.beta_fast));
    options.emplace("beta_slow", number_option("a number above 0 and below 1e6", kSmallest, 1e6,
                                               scaling.beta_slow));
    options.emplace("attention_factor", number_option("a number above 0 and below 1e6", kSmallest,
                                                      1e6, scaling.attention_factor));
    options.emplace("mscale",
                    number_option("a number from 0 and below 1e6", 0, 1e6, scaling.mscale));
    options.emplace("mscale_all_dim",
                    number_option("a number from 0 and below 1e6", 0, 1e6, scaling.mscale_all_dim));
    options.emplace("truncate", truth_option(scaling.truncate));
  } else if (scaling.kind == RotaryScalingKind::kLlama3) {
    options.emplace("low", number_option("a number above 0 and below 1e6", kSmallest, 1e6,
                                         scaling.low_frequency_factor));
    options.emplace("high", number_option("a number above 0 and below 1e6", kSmallest, 1e6,
                                          scaling.high_frequency_factor));
    options.emplace("original", context_option(scaling.original_context));
  }
  return options;
}

std::string names_of(const Options& options) {
  std::string names;
  for (const auto& [name, option] : options) names += (names.empty() ? "" : ", ") + name;
  return names;
}

// `text` is the whole as it stands in a sentence.
Result<void> read_options(const std::string& text, std::string_view kind, std::string_view list,
                          RotaryScaling& scaling) {
  Options options = options_of(scaling);
  const std::string known = names_of(options);
  if (known.empty())
    return fail("--rope-scaling {}: {} takes one number and nothing else", text, kind);
  while (true) {
    const std::string_view item = list.substr(0, list.find(','));
    const size_t equals = item.find('=');
    const std::string_view name = item.substr(0, equals);
    const auto option = options.find(name);
    if (equals == std::string_view::npos || option == options.end()) {
      return fail(
          "--rope-scaling {}: \"{}\" is no option of {}, or the second of its name; there "
          "are {}, each followed by =VALUE",
          text, shown(item), kind, known);
    }
    if (!option->second.set(item.substr(equals + 1))) {
      return fail("--rope-scaling {}: {} is not {}", text, name, option->second.meaning);
    }
    options.erase(option);
    if (item.size() == list.size()) return {};
    list.remove_prefix(item.size() + 1);
  }
}

std::string grouped(uint64_t count) {  // "12,345"
  std::string digits = std::to_string(count);
  for (size_t end = digits.size(); end > 3; end -= 3) digits.insert(end - 3, ",");
  return digits;
}

const char* kind_name(RotaryScalingKind kind) {
  switch (kind) {
    case RotaryScalingKind::kNone:
      return "none";
    case RotaryScalingKind::kLinear:
      return "linear";
    case RotaryScalingKind::kNtk:
      return "ntk";
    case RotaryScalingKind::kDynamicNtk:
      return "dynamic ntk";
    case RotaryScalingKind::kYarn:
      return "yarn";
    case RotaryScalingKind::kLongRope:
      return "longrope";
    case RotaryScalingKind::kLlama3:
      return "llama3";
    case RotaryScalingKind::kProportional:
      return "proportional";
  }
  return "";
}

}  // namespace

Result<ScalingSpec> parse_scaling_spec(std::string_view text) {
  const std::map<std::string, RotaryScalingKind, std::less<>> kinds = {
      {"linear", RotaryScalingKind::kLinear},
      {"ntk", RotaryScalingKind::kNtk},
      {"dynamic", RotaryScalingKind::kDynamicNtk},
      {"yarn", RotaryScalingKind::kYarn},
      {"llama3", RotaryScalingKind::kLlama3}};
  ScalingSpec spec;
  if (text == "none") return spec;
  if (text == "original") return ScalingSpec{.original = true};

  const std::string quoted = shown(text);
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const auto kind = kinds.find(name);
  if (colon == std::string_view::npos || (kind == kinds.end() && name != "theta")) {
    return fail(
        "--rope-scaling {}: must be original, none, linear:F, ntk:F, dynamic:F, yarn:F[,...], "
        "llama3:F[,...] or theta:BASE",
        quoted);
  }
  std::string_view rest = text.substr(colon + 1);
  const std::string_view first = rest.substr(0, rest.find(','));
  const std::optional<double> value = number(first);
  if (name == "theta") {
    if (!value || !(*value > 1 && *value < kBaseLimit) || first.size() != rest.size()) {
      return fail("--rope-scaling {}: a base is one number above 1 and below 1e12", quoted);
    }
    spec.base = *value;
    return spec;
  }
  if (!value || !(*value >= 1 && *value < kFactorLimit)) {
    return fail("--rope-scaling {}: a factor is a number from 1 and below 1e6", quoted);
  }
  spec.scaling.kind = kind->second;
  spec.scaling.factor = *value;
  if (first.size() != rest.size()) {
    rest.remove_prefix(first.size() + 1);
    VOLVELLE_RETURN_IF_ERROR(read_options(quoted, name, rest, spec.scaling));
  }
  if (spec.scaling.beta_fast < spec.scaling.beta_slow) {
    return fail("--rope-scaling {}: beta_fast is below beta_slow", quoted);
  }
  if (spec.scaling.high_frequency_factor <= spec.scaling.low_frequency_factor) {
    return fail("--rope-scaling {}: high is not above low", quoted);
  }
  return spec;
}

RotaryPlan rescale(const RotaryPlan& plan, const ScalingSpec& spec, uint64_t trained_context) {
  if (spec.original) {
    if (!plan.origin) return plan;
    return {.pairing = plan.pairing,
            .width = plan.width,
            .base = plan.origin->base,
            .scaling = plan.origin->scaling,
            .frequencies = plan.origin->frequencies};
  }
  RotaryPlan rescaled{.pairing = plan.pairing, .width = plan.width, .scaling = spec.scaling};
  rescaled.origin =
      plan.origin ? *plan.origin : RotaryOrigin{plan.base, plan.scaling, scaled_frequencies(plan)};
  rescaled.base = spec.base.value_or(rescaled.origin->base);
  const bool counts = spec.scaling.kind == RotaryScalingKind::kDynamicNtk ||
                      spec.scaling.kind == RotaryScalingKind::kYarn ||
                      spec.scaling.kind == RotaryScalingKind::kLlama3;
  if (counts && spec.scaling.original_context == 0) {
    const uint64_t known = rescaled.origin->scaling.original_context;
    rescaled.scaling.original_context = known != 0 ? known : trained_context;
  }
  return rescaled;
}

uint64_t scaled_context(const RotaryPlan& plan, uint64_t trained_context) {
  uint64_t unscaled = plan.scaling.original_context;
  if (unscaled == 0 && plan.origin) unscaled = plan.origin->scaling.original_context;
  if (unscaled == 0) unscaled = trained_context;
  const double reach = plan.scaling.factor * static_cast<double>(unscaled);
  return reach < static_cast<double>(kMaxContext) ? static_cast<uint64_t>(reach) : kMaxContext;
}

std::vector<bool> local_schemes(const std::vector<bool>& rotary,
                                std::span<const LayerSight> layers) {
  std::vector<bool> used(rotary.size()), global(rotary.size());
  for (const LayerSight& layer : layers) {
    if (layer.position < 0 || !rotary[layer.position]) continue;
    used[layer.position] = true;
    if (layer.window == 0) global[layer.position] = true;
  }
  std::vector<bool> local(rotary.size());
  if (std::ranges::find(global, true) == global.end()) return local;
  for (size_t i = 0; i < rotary.size(); ++i) local[i] = used[i] && !global[i];
  return local;
}

std::string scaling_text(const RotaryScaling& scaling) {
  if (scaling.kind == RotaryScalingKind::kNone) return "";
  return std::format("{} scaling by {}", kind_name(scaling.kind), scaling.factor);
}

std::string rotary_text(const RotaryPlan& plan) {
  std::string text = std::format("rotary, base {:.10g}, width {}, {} pairs", plan.base, plan.width,
                                 plan.pairing == Pairing::kHalf ? "half" : "interleaved");
  if (const std::string scaling = scaling_text(plan.scaling); !scaling.empty()) {
    text += ", " + scaling;
  }
  return text;
}

std::string chosen_context_text(uint64_t context, uint64_t reach) {
  const char* why = context == kMaxContext ? "the most that is possible"
                    : context == reach     ? "that before any scaling, times the factor"
                                           : "that which was trained";
  return std::format("the context becomes {}: {}; --context N asks for another", grouped(context),
                     why);
}

std::string beyond_scaling_text(uint64_t context, uint64_t reach, uint64_t former) {
  return std::format(
      "the scaling serves {} positions; the context {} {}, beyond which nothing scales",
      grouped(reach), context == former ? "stays" : "becomes", grouped(context));
}

std::string local_scheme_text(const RotaryPlan& plan) {
  return std::format(
      "{}: serves layers that see a window only, whatever the context, and stays as it is",
      rotary_text(plan));
}

}  // namespace volvelle
