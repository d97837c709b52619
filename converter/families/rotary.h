// The rotary part of a configuration, in every spelling that it has had.

#ifndef VOLVELLE_CONVERTER_FAMILIES_ROTARY_H_
#define VOLVELLE_CONVERTER_FAMILIES_ROTARY_H_

#include <cstdint>
#include <string>

#include "converter/families/checkpoint.h"
#include "converter/positions/rotary.h"

namespace volvelle {

// Where families differ in how they say it.
struct RotaryDialect {
  double base = 10000;  // where the settings state none
  std::string base_key = "rope_theta";

  // The rotated share of a head, where a family has one: its default and its key's name.
  bool partial = false;
  double share = 1;
  std::string share_key = "partial_rotary_factor";

  bool yarn_is_longrope = false;  // Phi-3 called LongRoPE so at first
};

// From config.json, for layers of type `layer_type` ("full_attention", "sliding_attention").
// Understood are rope_theta and rope_scaling beside the other settings (transformers 4) and
// rope_parameters (transformers 5), there also nested by layer type, and every scaling that
// transformers knows, "su" as the older name of "longrope". What else there is is refused by name.
// Faults go to the configuration.
//
//   head_dim  elements of a head; a share of them is rotated where the dialect is partial
RotaryPlan hugging_face_rotary(Config& config, const std::string& layer_type, uint64_t head_dim,
                               const RotaryDialect& dialect = {});

// From GGUF metadata and the tensors rope_freqs.weight, rope_factors_short.weight and
// rope_factors_long.weight, whose numbers divide the frequencies.
Result<RotaryPlan> gguf_rotary(Checkpoint& checkpoint, uint64_t head_dim);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_FAMILIES_ROTARY_H_
