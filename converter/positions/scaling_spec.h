// How a user asks for another scaling of rotary positions, in one word:
//
//   none            the checkpoint's own scaling is left out
//   linear:F        all positions F times closer
//   ntk:F           the base changed so that the slowest plane turns F times slower
//   dynamic:F       the same, growing with the length of a sequence
//   yarn:F[,original=N,beta_fast=R,beta_slow=R,attention_factor=A,mscale=M,mscale_all_dim=M,
//        truncate=true|false]
//   llama3:F[,low=R,high=R,original=N]
//   theta:BASE      another base, nothing scaled

#ifndef VOLVELLE_CONVERTER_POSITIONS_SCALING_SPEC_H_
#define VOLVELLE_CONVERTER_POSITIONS_SCALING_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "converter/positions/rotary.h"
#include "platforms/error.h"

namespace volvelle {

struct ScalingSpec {
  RotaryScaling scaling;       // original_context 0: as the model has it
  std::optional<double> base;  // instead of the model's

  bool operator==(const ScalingSpec&) const = default;
};

Result<ScalingSpec> parse_scaling_spec(std::string_view text);

// `plan` with its own scaling replaced. Where the spec states no original context, it is the one
// that the plan's scaling knows of, else `trained_context`.
RotaryPlan rescale(const RotaryPlan& plan, const ScalingSpec& spec, uint64_t trained_context);

// "yarn scaling by 4"; empty: none.
std::string scaling_text(const RotaryScaling& scaling);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_POSITIONS_SCALING_SPEC_H_
