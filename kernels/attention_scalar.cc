#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/attention.h"
#include "kernels/quantize.h"

namespace volvelle::scalar {
namespace {

// Element i of a stored row; `row` counts from the cache's start.
double element(CacheType type, const void* rows, const float* scales, size_t row, size_t elements,
               size_t i) {
  const size_t at = row * elements + i;
  float value = 0;
  switch (type) {
    case CacheType::kF32:
      return static_cast<const float*>(rows)[at];
    case CacheType::kF16:
      from_f16(static_cast<const uint16_t*>(rows) + at, 1, &value);
      return value;
    case CacheType::kQ8:
      return static_cast<double>(static_cast<const int8_t*>(rows)[at]) * scales[row];
  }
  return value;
}

}  // namespace

void attend(const AttentionShape& shape, const CacheView& cache, const AttentionChunk& chunk,
            size_t kv_head, size_t first, size_t count) {
  const RelativeRows& relative = shape.relative;
  const size_t group = shape.query_heads / shape.kv_heads;
  const size_t elements = cache_row_elements(shape.head_dim);
  for (size_t token = first; token < first + count; ++token) {
    const size_t end = chunk.position + token + 1;
    size_t begin = cache.first_position;
    if (shape.window > 0 && shape.window < end) begin = std::max(begin, end - shape.window);
    if (shape.stretch > 0) begin = std::max(begin, (end - 1) / shape.stretch * shape.stretch);
    // The row of a table of 2 * reach + 1 distances.
    const auto distance_row = [&](size_t position, size_t reach) {
      return reach - std::min(end - 1 - position, reach);
    };
    const auto row_of = [&](size_t position) {
      return kv_head * cache.slots + (position - cache.first_position) % cache.slots;
    };
    std::vector<double> weights(end - begin);
    for (size_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const float* query = chunk.queries + token * chunk.query_stride + head * shape.head_dim;
      float* output = chunk.outputs + token * chunk.output_stride + head * shape.head_dim;
      for (size_t p = begin; p < end; ++p) {
        const size_t r = distance_row(p, relative.clip) * shape.head_dim;
        double dot = 0;
        for (size_t i = 0; i < shape.head_dim; ++i) {
          const double key =
              element(cache.type, cache.keys, cache.key_scales, row_of(p), elements, i);
          dot += query[i] * key;
          if (relative.key) dot += static_cast<double>(query[i]) * relative.key[r + i];
          if (relative.query) dot += key * relative.query[r + i];
        }
        dot *= shape.scale;
        if (shape.soft_cap > 0) dot = shape.soft_cap * std::tanh(dot / shape.soft_cap);
        if (shape.linear_bias.slopes) {
          dot -= static_cast<double>(shape.linear_bias.slopes[head]) * (end - 1 - p);
        }
        if (shape.distance_bias.table) {
          const size_t reach = shape.distance_bias.reach;
          dot += shape.distance_bias.table[head * (2 * reach + 1) + distance_row(p, reach)];
        }
        weights[p - begin] = dot;
      }
      const double greatest = *std::max_element(weights.begin(), weights.end());
      double total = 0;
      for (double& weight : weights) total += weight = std::exp(weight - greatest);
      for (size_t i = 0; i < shape.head_dim; ++i) {
        double sum = 0;
        for (size_t p = begin; p < end; ++p) {
          double value =
              element(cache.type, cache.values, cache.value_scales, row_of(p), elements, i);
          if (relative.value) {
            value += relative.value[distance_row(p, relative.clip) * shape.head_dim + i];
          }
          sum += weights[p - begin] * value;
        }
        output[i] = static_cast<float>(sum / total);
      }
    }
  }
}

}  // namespace volvelle::scalar
