// Disentangled attention: what tells positions are rows for buckets of distances, projected like
// keys and like queries. Rows and their projections do not depend on the text, so a model stores
// what they come to. He et al. 2021, arXiv:2006.03654.

#ifndef VOLVELLE_CONVERTER_POSITIONS_DISENTANGLED_H_
#define VOLVELLE_CONVERTER_POSITIONS_DISENTANGLED_H_

#include <cstdint>
#include <vector>

#include "converter/sources/tensor_source.h"
#include "platforms/error.h"
#include "platforms/thread_pool.h"

namespace volvelle {

// How distances find their rows, of which there are 2 * span.
struct DisentangledPlan {
  uint32_t span = 0;
  // Above 0: distances up to half of these are exact, farther ones logarithmic until
  // `max_distance`; otherwise all are exact.
  uint32_t buckets = 0;
  uint32_t max_distance = 0;
};

// The rows of distances key - query from -clip to clip, [2 * clip + 1], where clip is the least
// from which on all have the first or the last row. Empty where that is beyond 2^16.
std::vector<uint16_t> disentangled_row_of(const DisentangledPlan& plan);

// weight * norm(row) + bias for the first `rows` rows of `table`, computed in double:
// [heads, rows, width / heads].
struct ProjectedRows {
  const SourceTensor* table = nullptr;        // [at least rows, inputs]
  const SourceTensor* norm_weight = nullptr;  // [inputs]; null: no norm
  const SourceTensor* norm_bias = nullptr;    // [inputs]
  const SourceTensor* weight = nullptr;       // [width, inputs]
  const SourceTensor* bias = nullptr;         // [width]
  uint64_t rows = 0;
  uint64_t heads = 0;
  double epsilon = 0;

  Result<std::vector<float>> operator()(const TensorSource& source, const ThreadPool& pool) const;
};

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_POSITIONS_DISENTANGLED_H_
