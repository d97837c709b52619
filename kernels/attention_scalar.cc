#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "kernels/attention.h"
#include "kernels/quantize.h"

namespace volvelle::scalar {
namespace {

// Element e of what a head keeps in slot s.
double element(CacheType type, const void* rows, size_t at) {
  float value = 0;
  if (type == CacheType::kF32) return static_cast<const float*>(rows)[at];
  from_f16(static_cast<const uint16_t*>(rows) + at, 1, &value);
  return value;
}

double key(const CacheView& cache, size_t head, size_t s, size_t elements, size_t e) {
  const size_t row = head * cache_slots(cache.type, cache.slots) + s;
  if (cache.type != CacheType::kQ8) {
    return element(cache.type, cache.keys, (row - s) * elements + key_index(s, e, elements));
  }
  const size_t at = (row - s) * elements + q8_key_index(s, e, elements);
  return (static_cast<const uint8_t*>(cache.keys)[at] - kKeyOffset) *
         static_cast<double>(cache.key_scales[row]);
}

double value(const CacheView& cache, size_t head, size_t s, size_t elements, size_t e) {
  const size_t row = head * cache_slots(cache.type, cache.slots) + s;
  if (cache.type != CacheType::kQ8) return element(cache.type, cache.values, row * elements + e);
  const size_t at = (row - s) * elements + q8_value_index(s, e, elements);
  return static_cast<const int8_t*>(cache.values)[at] *
         static_cast<double>(cache.value_scales[row]);
}

// The Walsh-Hadamard transform of each block of x.
template <typename T>
void transform(std::span<T> x) {
  const size_t block = q8_block(x.size());
  for (size_t half = 1; half < block; half *= 2) {
    for (size_t i = 0; i < x.size(); ++i) {
      if (i & half) continue;
      const T a = x[i], b = x[i + half];
      x[i] = a + b;
      x[i + half] = a - b;
    }
  }
}

// The weights of consecutive slots of one tile, such that each times its value's scale is a whole
// number of 0 ... kLargestWeight units. Weights that are equal but for double's precision round
// alike.
void round_weights(std::span<double> weights, const float* scales) {
  double top = 0;
  for (size_t i = 0; i < weights.size(); ++i) top = std::max(top, weights[i] * scales[i]);
  for (size_t i = 0; i < weights.size() && top > 0; ++i) {
    if (scales[i] == 0) continue;  // a row of zeros, whatever it weighs
    weights[i] = std::nearbyint(weights[i] * scales[i] / top * kLargestWeight) * top /
                 kLargestWeight / scales[i];
  }
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
    const auto slot_of = [&](size_t position) {
      return (position - cache.first_position) % cache.slots;
    };
    std::vector<double> weights(end - begin), rounded;
    std::vector<float> scaled(elements);
    std::vector<int8_t> codes(elements);
    std::vector<double> sums(elements);
    for (size_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const float* query = chunk.queries + token * chunk.query_stride + head * shape.head_dim;
      double step = 1;  // of query codes
      if (cache.type == CacheType::kQ8) {
        std::fill(scaled.begin(), scaled.end(), 0.0f);
        for (size_t i = 0; i < shape.head_dim; ++i) scaled[i] = query[i] * shape.scale;
        if (q8_transforms_keys(shape)) {
          transform(std::span(scaled));
          step /= static_cast<double>(q8_block(elements));
        }
        step *= quantize_q8(scaled.data(), elements, codes.data());
      }
      float* output = chunk.outputs + token * chunk.output_stride + head * shape.head_dim;
      for (size_t p = begin; p < end; ++p) {
        const size_t r = relative_row(p, head);
        double dot = 0, related = 0;
        for (size_t i = 0; i < elements; ++i) {
          const double k = key(cache, kv_head, slot_of(p), elements, i);
          if (cache.type == CacheType::kQ8) dot += k * codes[i] * step;
          if (i >= shape.head_dim) continue;
          if (cache.type != CacheType::kQ8) dot += k * query[i] * shape.scale;
          if (relative.key) related += static_cast<double>(query[i]) * relative.key[r + i];
          if (relative.query) related += k * relative.query[r + i];
        }
        dot += related * shape.scale;
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
      rounded = weights;
      for (size_t p = begin, tile_end; cache.type == CacheType::kQ8 && p < end; p = tile_end) {
        const size_t s = slot_of(p),
                     next = std::min(s / kCacheTile * kCacheTile + kCacheTile, cache.slots);
        tile_end = std::min(p + next - s, end);
        round_weights({rounded.data() + p - begin, tile_end - p},
                      cache.value_scales + kv_head * cache_slots(cache.type, cache.slots) + s);
      }
      for (size_t i = 0; i < elements; ++i) {
        sums[i] = 0;
        for (size_t p = begin; p < end; ++p) {
          sums[i] += rounded[p - begin] * value(cache, kv_head, slot_of(p), elements, i);
          if (relative.value && i < shape.head_dim) {
            sums[i] += weights[p - begin] * relative.value[relative_row(p, head) + i];
          }
        }
      }
      if (cache.type == CacheType::kQ8 && q8_transforms_values(shape)) {
        transform(std::span(sums));
        total *= static_cast<double>(q8_block(elements));
      }
      for (size_t i = 0; i < shape.head_dim; ++i) output[i] = static_cast<float>(sums[i] / total);
    }
  }
}

}  // namespace volvelle::scalar
