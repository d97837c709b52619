// How a user asks for another scaling of rotary positions, in one word:
//
//   original        what the checkpoint says
//   none            nothing scaled, the checkpoint's own scaling left out
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
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "converter/positions/rotary.h"
#include "platforms/error.h"

namespace volvelle {

struct ScalingSpec {
  RotaryScaling scaling;       // original_context 0: as the model has it
  std::optional<double> base;  // instead of the model's
  bool original = false;       // the checkpoint's own of both, and the others play no part

  bool operator==(const ScalingSpec&) const = default;
};

Result<ScalingSpec> parse_scaling_spec(std::string_view text);

// `plan` with its scaling replaced, starting from what the checkpoint says whatever `plan` was made
// of it before. Where the spec states no original context, it is the one that the checkpoint's
// scaling knows of, else `trained_context`.
RotaryPlan rescale(const RotaryPlan& plan, const ScalingSpec& spec, uint64_t trained_context);

// The context that a rescaled plan is good for: its factor times the context before any scaling, at
// most kMaxContext.
uint64_t scaled_context(const RotaryPlan& plan, uint64_t trained_context);

// What a layer's attention goes by.
struct LayerSight {
  int position = -1;    // index of a scheme; -1: none
  uint64_t window = 0;  // keys that a query sees; 0: all
};

// Which rotary schemes a longer context leaves alone: those that turn within windows only, where
// another turns layers that see everything (Gemma 3). `rotary`: which schemes are rotary; every
// position of a layer is an index into it.
std::vector<bool> local_schemes(const std::vector<bool>& rotary,
                                std::span<const LayerSight> layers);

// "yarn scaling by 4"; empty: none.
std::string scaling_text(const RotaryScaling& scaling);

// "rotary, base 10000, width 64, half pairs, yarn scaling by 4".
std::string rotary_text(const RotaryPlan& plan);

// Sentences for a user: which context comes of a scaling that reaches so far, where none was asked
// for and where it was `former` before; that the tables go beyond a scaling; and that a scheme
// stays as it is.
std::string chosen_context_text(uint64_t context, uint64_t reach);
std::string beyond_scaling_text(uint64_t context, uint64_t reach, uint64_t former);
std::string local_scheme_text(const RotaryPlan& plan);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_POSITIONS_SCALING_SPEC_H_
