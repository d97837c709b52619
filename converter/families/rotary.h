// The rotary part of a configuration, in every spelling that it has had.

#ifndef VOLVELLE_CONVERTER_FAMILIES_ROTARY_H_
#define VOLVELLE_CONVERTER_FAMILIES_ROTARY_H_

#include <cstdint>
#include <string>

#include "converter/families/checkpoint.h"
#include "converter/positions/rotary.h"

namespace volvelle {

// From config.json, for layers of type `layer_type` ("full_attention", "sliding_attention").
// Understood are rope_theta and rope_scaling beside the other settings (transformers 4) and
// rope_parameters (transformers 5), there also nested by layer type. Every scaling but "default"
// and "llama3" is refused by name. Faults go to the configuration.
//
//   width  elements of a head
RotaryPlan hugging_face_rotary(Config& config, const std::string& layer_type, uint64_t width);

// From GGUF metadata and the tensor rope_freqs.weight, whose numbers divide the frequencies.
Result<RotaryPlan> gguf_rotary(Checkpoint& checkpoint, uint64_t head_dim);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_FAMILIES_ROTARY_H_
