// Linear biases: each head adds slope * (key position - query position) to its logits. A model
// stores the slopes alone, so that any length is exact. Press et al. 2021, arXiv:2108.12409.

#ifndef VOLVELLE_CONVERTER_POSITIONS_ALIBI_H_
#define VOLVELLE_CONVERTER_POSITIONS_ALIBI_H_

#include <cstdint>
#include <vector>

namespace volvelle {

// The slopes of BLOOM, Falcon and Baichuan: powers of one float base for the largest power of two
// of heads, then every other power of the next finer base. `heads` in [1, 2^16].
std::vector<float> bloom_slopes(uint32_t heads);

// The slopes of MPT: 2^(-k * bias_max / c), c the next power of two; where c > heads, every other
// one first. With bias_max 8 these are BLOOM's but for the last place.
std::vector<float> mpt_slopes(uint32_t heads, double bias_max);

// Falcon adds its bias before it divides logits by sqrt(head_dim).
std::vector<float> falcon_slopes(uint32_t heads, uint32_t head_dim);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_POSITIONS_ALIBI_H_
