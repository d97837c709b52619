// The shape that most decoders of today share: RMS norms before attention and before a gated
// feed-forward, grouped heads turned by rotary positions, an embedding that may be the head as
// well. A family fills in where it differs.

#ifndef VOLVELLE_CONVERTER_FAMILIES_GATED_DECODER_H_
#define VOLVELLE_CONVERTER_FAMILIES_GATED_DECODER_H_

#include <cstdint>
#include <functional>

#include "converter/families/checkpoint.h"
#include "converter/positions/rotary.h"
#include "converter/recipe.h"

namespace volvelle {

enum class Bias { kNone, kRequired, kIfPresent };

struct GatedDecoder {
  uint64_t vocabulary = 0;  // 0: as many as the embedding has rows
  uint64_t width = 0;
  uint64_t layers = 0;
  uint64_t query_heads = 0;
  uint64_t kv_heads = 0;
  uint64_t head_dim = 0;
  uint64_t feed_forward_width = 0;
  uint64_t context = 0;
  double epsilon = 0;
  file::Activation activation = file::Activation::silu;

  Bias query_key_value_bias = Bias::kNone;
  Bias output_bias = Bias::kNone;
  Bias feed_forward_bias = Bias::kNone;
  bool head_norms = false;        // RMS norms of each query and key head before rotation
  bool interleaved_rows = false;  // rows of q and k lie in interleaved order; half order is wanted

  uint64_t window = 0;                   // keys that a sliding layer sees
  std::function<bool(uint64_t)> slides;  // whether a layer does; empty: none
  RotaryPlan rotary;                     // of full layers
  RotaryPlan sliding_rotary;             // of sliding layers
};

// What config.json or the metadata say of all such models, rotary positions included, biases and
// windows not.
//
//   default_head_dim  where none is stated; 0: width / query heads
Result<GatedDecoder> read_gated_decoder(Checkpoint& checkpoint, uint64_t default_head_dim = 0);

// Windows by `layer_types`, or by `use_sliding_window` and `max_window_layers` (Qwen's spelling).
void read_layer_windows(Config& config, GatedDecoder& decoder);

// Finds the tensors.
Result<recipe::Model> build(Checkpoint& checkpoint, const GatedDecoder& decoder);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_FAMILIES_GATED_DECODER_H_
