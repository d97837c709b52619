#include "runtime/distance_buckets.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>

namespace volvelle {

uint32_t bucket_of(const BucketPlan& plan, int64_t distance) {
  const uint32_t side = plan.bidirectional ? plan.buckets / 2 : plan.buckets;
  const uint32_t first = plan.bidirectional && distance > 0 ? side : 0;
  const int64_t away = plan.bidirectional ? std::abs(distance) : std::max<int64_t>(-distance, 0);
  const uint32_t exact = side / 2;
  if (away < exact) return first + static_cast<uint32_t>(away);
  // In float, as the references have it.
  const float ratio = static_cast<float>(away) / static_cast<float>(exact);
  const float whole = static_cast<float>(std::log(static_cast<double>(plan.max_distance) / exact));
  const float step =
      static_cast<float>(std::log(double{ratio})) / whole * static_cast<float>(side - exact);
  const float last = static_cast<float>(side - 1 - exact);
  return first + exact + static_cast<uint32_t>(std::min(step, last));
}

uint32_t bucket_reach(const BucketPlan& plan) {
  uint32_t reach = plan.max_distance;
  const uint32_t last = bucket_of(plan, -int64_t{reach});
  while (reach > 0 && bucket_of(plan, -int64_t{reach} + 1) == last) --reach;
  return reach;
}

std::vector<float> expand_buckets(const BucketPlan& plan, std::span<const float> table,
                                  uint32_t heads) {
  const int64_t reach = bucket_reach(plan);
  const size_t distances = static_cast<size_t>(2 * reach + 1);
  std::vector<float> biases(heads * distances);
  for (int64_t distance = -reach; distance <= reach; ++distance) {
    const float* row = table.data() + size_t{bucket_of(plan, distance)} * heads;
    for (size_t head = 0; head < heads; ++head) {
      biases[head * distances + static_cast<size_t>(reach + distance)] = row[head];
    }
  }
  return biases;
}

}  // namespace volvelle
