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
    const size_t own = chunk.position + token;
    size_t begin = cache.first_position, end = own + 1;
    if (shape.window > 0 && shape.window <= own) begin = std::max(begin, own + 1 - shape.window);
    if (shape.stretch > 0) begin = std::max(begin, own / shape.stretch * shape.stretch);
    if (shape.bidirectional) {
      end = cache.first_position + chunk.keys;
      if (shape.window > 0) end = std::min(end, own + shape.window);
    }
    // The row of a table of 2 * reach + 1 distances.
    const auto distance_row = [&](size_t position, size_t reach) {
      return position > own ? reach + std::min(position - own, reach)
                            : reach - std::min(own - position, reach);
    };
    const auto relative_row = [&](size_t position, size_t head) {
      const size_t row = distance_row(position, relative.clip);
      return head * relative.head_stride +
             (relative.row_of ? relative.row_of[row] : row) * shape.head_dim;
    };
    const auto row_of = [&](size_t position) {
      return kv_head * cache.slots + (position - cache.first_position) % cache.slots;
    };
    std::vector<double> weights(end - begin);
    for (size_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const float* query = chunk.queries + token * chunk.query_stride + head * shape.head_dim;
      float* output = chunk.outputs + token * chunk.output_stride + head * shape.head_dim;
      for (size_t p = begin; p < end; ++p) {
        const size_t r = relative_row(p, head);
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
          const double distance = static_cast<double>(p) - static_cast<double>(own);
          dot += shape.linear_bias.slopes[head] *
                 (shape.linear_bias.symmetric ? -std::abs(distance) : distance);
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
            value += relative.value[relative_row(p, head) + i];
          }
          sum += weights[p - begin] * value;
        }
        output[i] = static_cast<float>(sum / total);
      }
    }
  }
}

}  // namespace volvelle::scalar
