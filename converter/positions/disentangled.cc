#include "converter/positions/disentangled.h"

#include <algorithm>
#include <cmath>
#include <span>

namespace volvelle {
namespace {

constexpr int64_t kMostDistance = int64_t{1} << 16;

// The bucket of a distance, in float as the reference has it.
int64_t bucket_of(const DisentangledPlan& plan, int64_t distance) {
  const int64_t exact = plan.buckets / 2;
  if (exact == 0 || distance <= exact) return distance;
  const auto log_of = [exact](int64_t far) {
    const float ratio = static_cast<float>(far) / static_cast<float>(exact);
    return static_cast<float>(std::log(double{ratio}));
  };
  const float step = log_of(distance) / log_of(int64_t{plan.max_distance} - 1);
  return static_cast<int64_t>(std::ceil(step * static_cast<float>(exact - 1))) + exact;
}

Result<std::vector<float>> read_all(const TensorSource& source, const SourceTensor& tensor,
                                    uint64_t rows) {
  std::vector<float> values(rows * tensor.columns());
  VOLVELLE_RETURN_IF_ERROR(source.read(tensor, 0, rows, values));
  return values;
}

}  // namespace

std::vector<uint16_t> disentangled_row_of(const DisentangledPlan& plan) {
  const int64_t span = plan.span;
  std::vector<uint16_t> before, after;  // keys before the query, and after it, from distance 1 on
  for (int64_t distance = 1; distance <= kMostDistance; ++distance) {
    const int64_t bucket = bucket_of(plan, distance);
    before.push_back(static_cast<uint16_t>(std::min(span + bucket, 2 * span - 1)));
    after.push_back(static_cast<uint16_t>(std::max<int64_t>(span - bucket, 0)));
    if (bucket < span) continue;
    std::vector<uint16_t> rows(before.rbegin(), before.rend());
    rows.push_back(static_cast<uint16_t>(span));
    rows.insert(rows.end(), after.begin(), after.end());
    return rows;
  }
  return {};
}

Result<std::vector<float>> ProjectedRows::operator()(const TensorSource& source,
                                                     const ThreadPool& pool) const {
  const uint64_t inputs = table->columns(), width = weight->rows(), head_dim = width / heads;
  VOLVELLE_ASSIGN_OR_RETURN(const std::vector<float> stored, read_all(source, *table, rows));
  VOLVELLE_ASSIGN_OR_RETURN(const std::vector<float> matrix, read_all(source, *weight, width));
  VOLVELLE_ASSIGN_OR_RETURN(const std::vector<float> offset, read_all(source, *bias, 1));
  std::vector<float> gain(inputs, 1.0f), shift(inputs, 0.0f);
  if (norm_weight != nullptr) {
    VOLVELLE_ASSIGN_OR_RETURN(gain, read_all(source, *norm_weight, 1));
    VOLVELLE_ASSIGN_OR_RETURN(shift, read_all(source, *norm_bias, 1));
  }
  std::vector<float> projected(rows * width);
  pool.parallel_for(rows, [&](size_t row, size_t) {
    std::vector<double> x(stored.begin() + row * inputs, stored.begin() + (row + 1) * inputs);
    if (norm_weight != nullptr) {
      double mean = 0, variance = 0;
      for (const double value : x) mean += value / static_cast<double>(inputs);
      for (const double value : x) {
        variance += (value - mean) * (value - mean) / static_cast<double>(inputs);
      }
      const double scale = 1 / std::sqrt(variance + epsilon);
      for (uint64_t i = 0; i < inputs; ++i) x[i] = (x[i] - mean) * scale * gain[i] + shift[i];
    }
    for (uint64_t output = 0; output < width; ++output) {
      double sum = offset[output];
      for (uint64_t i = 0; i < inputs; ++i) sum += x[i] * matrix[output * inputs + i];
      const uint64_t head = output / head_dim;
      projected[(head * rows + row) * head_dim + output % head_dim] = static_cast<float>(sum);
    }
  });
  return projected;
}

}  // namespace volvelle
