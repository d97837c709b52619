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
  const size_t group = shape.query_heads / shape.kv_heads;
  const size_t elements = cache_row_elements(shape.head_dim);
  for (size_t token = first; token < first + count; ++token) {
    const size_t end = chunk.position + token + 1;
    const size_t begin = std::max(cache.first_position,
                                  shape.window > 0 && shape.window < end ? end - shape.window : 0);
    const auto row_of = [&](size_t position) {
      return kv_head * cache.slots + (position - cache.first_position) % cache.slots;
    };
    std::vector<double> weights(end - begin);
    for (size_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const float* query = chunk.queries + token * chunk.query_stride + head * shape.head_dim;
      float* output = chunk.outputs + token * chunk.output_stride + head * shape.head_dim;
      for (size_t p = begin; p < end; ++p) {
        double dot = 0;
        for (size_t i = 0; i < shape.head_dim; ++i) {
          dot +=
              query[i] * element(cache.type, cache.keys, cache.key_scales, row_of(p), elements, i);
        }
        dot *= shape.scale;
        if (shape.soft_cap > 0) dot = shape.soft_cap * std::tanh(dot / shape.soft_cap);
        weights[p - begin] = dot;
      }
      const double greatest = *std::max_element(weights.begin(), weights.end());
      double total = 0;
      for (double& weight : weights) total += weight = std::exp(weight - greatest);
      for (size_t i = 0; i < shape.head_dim; ++i) {
        double sum = 0;
        for (size_t p = begin; p < end; ++p) {
          sum += weights[p - begin] *
                 element(cache.type, cache.values, cache.value_scales, row_of(p), elements, i);
        }
        output[i] = static_cast<float>(sum / total);
      }
    }
  }
}

}  // namespace volvelle::scalar
