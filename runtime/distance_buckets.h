// T5's relative positions: distances share learned biases, exactly when short, by logarithm when
// long, and beyond a last distance all alike. Raffel et al. 2019, arXiv:1910.10683, section 2.1.

#ifndef VOLVELLE_RUNTIME_DISTANCE_BUCKETS_H_
#define VOLVELLE_RUNTIME_DISTANCE_BUCKETS_H_

#include <cstdint>
#include <span>
#include <vector>

namespace volvelle {

// Bounds that no real model comes near.
inline constexpr uint32_t kMaxBuckets = 1 << 12;
inline constexpr uint32_t kMaxBucketDistance = 1 << 20;

struct BucketPlan {
  uint32_t buckets = 32;        // at least 2 (bidirectional: even, at least 4)
  uint32_t max_distance = 128;  // above buckets / 2 (bidirectional: above buckets / 4)
  bool bidirectional = false;   // half of the buckets are for keys that follow the query
};

// The bucket of key position - query position, in [0, plan.buckets).
uint32_t bucket_of(const BucketPlan& plan, int64_t distance);

// The shortest distance from which on every key has the same bucket; at most max_distance.
uint32_t bucket_reach(const BucketPlan& plan);

// Biases by distance: [heads, 2 * reach + 1], element reach + d of a head for distance d. What lies
// farther has the first or the last one's.
//
//   table  [buckets, heads]
std::vector<float> expand_buckets(const BucketPlan& plan, std::span<const float> table,
                                  uint32_t heads);

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_DISTANCE_BUCKETS_H_
