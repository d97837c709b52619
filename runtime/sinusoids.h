// Sinusoidal positions: a table of rows that are added to embeddings. Vaswani et al. 2017,
// arXiv:1706.03762, section 3.5, in the three variants that models have of it.

#ifndef VOLVELLE_RUNTIME_SINUSOIDS_H_
#define VOLVELLE_RUNTIME_SINUSOIDS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace volvelle {

enum class SinusoidLayout : uint8_t {
  kInterleaved,  // element 2i: sin(p / 10000^(2i / width)); 2i + 1: its cosine (the paper)
  kHalves,       // all sines, then all cosines, of the same angles (Marian, Pegasus)
  kSpread,  // sines, then cosines, of p * 10000^(-i / (width / 2 - 1)), an odd last element zero
            // (tensor2tensor, fairseq, Whisper)
};

struct SinusoidPlan {
  SinusoidLayout layout = SinusoidLayout::kInterleaved;
  uint32_t width = 0;                // kSpread: at least 4
  uint32_t row_offset = 0;           // row of position 0
  std::optional<uint32_t> zero_row;  // the padding token's row
  int32_t padding = -1;              // that token, where it takes the row; see file::AdditiveTable

  bool operator==(const SinusoidPlan&) const = default;
};

// What a position is multiplied by for the angle of each sine: [(width + 1) / 2], or of kSpread
// [width / 2].
std::vector<double> sinusoid_rates(SinusoidLayout layout, size_t width);

// The largest difference between a table [rows, width] of floats and its layout's sines and cosines
// in long double, over up to 1024 rows; rows of zeros, which padding has, do not count.
double sinusoid_error(SinusoidLayout layout, const float* table, size_t rows, size_t width);

// Rows [first, first + rows) of the table, [rows, width]. Angles are formed in double; kSpread's
// frequencies are first rounded to float, as the references have them.
std::vector<float> bake_sinusoids(const SinusoidPlan& plan, uint64_t first, uint64_t rows);

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_SINUSOIDS_H_
