#include "kernels/attention.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "kernels/quantize.h"
#include "tests/kernels/sweep.h"

namespace volvelle {
namespace {

constexpr CacheType kTypes[] = {CacheType::kF32, CacheType::kF16, CacheType::kQ8};

// A cache of exactly the bytes that its shape needs. What is not stored yet is not a number, or far
// too large, so that reading it shows in every output.
struct Cache {
  std::vector<float> key_scales, value_scales;
  std::vector<uint8_t> keys, values;
  CacheView view;

  Cache(CacheType type, const AttentionShape& shape, size_t slots, size_t first_position) {
    const size_t rows = shape.kv_heads * cache_slots(type, slots);
    const size_t elements = cache_row_elements(shape.head_dim);
    // Bits that are all ones are not a number as a float and as a half; for int8 the scales are
    // none.
    keys.assign(rows * elements * cache_element_bytes(type), 0xff);
    values = keys;
    if (type == CacheType::kQ8) {
      key_scales.assign(rows, std::numeric_limits<float>::quiet_NaN());
      value_scales = key_scales;
    }
    view = {type,  keys.data(),   values.data(), key_scales.data(), value_scales.data(),
            slots, first_position};
  }
};

struct AlignedDelete {
  void operator()(void* p) const { ::operator delete(p, std::align_val_t(64)); }
};

// A session of `tokens` tokens with random queries, keys and values, [tokens, heads * head_dim]
// each.
struct Session {
  AttentionShape shape;
  size_t first_position, tokens;
  std::vector<float> queries, keys, values;

  Session(const AttentionShape& s, size_t first, size_t n)
      : shape(s),
        first_position(first),
        tokens(n),
        queries(random_row(n * s.query_heads * s.head_dim)),
        keys(random_row(n * s.kv_heads * s.head_dim)),
        values(random_row(n * s.kv_heads * s.head_dim)) {}

  size_t query_width() const { return shape.query_heads * shape.head_dim; }

  void store(const Cache& cache, size_t token) const {
    for (size_t h = 0; h < shape.kv_heads; ++h) {
      const size_t at = (token * shape.kv_heads + h) * shape.head_dim;
      store_keys(cache.view, shape, h, token % cache.view.slots, 1, keys.data() + at, 0);
      store_values(cache.view, shape, h, token % cache.view.slots, 1, values.data() + at, 0);
    }
  }

  void attend_apart(const CacheView& cache, const AttentionChunk& chunk, size_t head, size_t first,
                    size_t count, float* scratch) const {
    const size_t parts = attention_parts(shape, cache, chunk, first, count);
    const size_t floats = attention_partial_floats(shape, count);
    const std::unique_ptr<void, AlignedDelete> memory(
        ::operator new((1 + parts) * floats * sizeof(float), std::align_val_t(64)));
    float* const merged = static_cast<float*>(memory.get());
    for (size_t part = parts; part-- > 0;) {  // in any order
      attend_part(shape, cache, chunk, head, first, count, part, scratch,
                  merged + (1 + part) * floats);
    }
    clear_partial(shape, count, merged);
    for (size_t part = 0; part < parts; part += 3) {
      merge_parts(shape, count, merged + (1 + part) * floats, std::min(parts - part, size_t{3}),
                  merged);
    }
    write_merged(shape, cache.type, chunk, head, first, count, merged);
  }

  // Outputs of all tokens, `chunk` at a time, in calls of at most `step` tokens. A ring keeps
  // chunk - 1 slots more than a token can see.
  // With `apart`, part by part of the cache, of which up to three are merged at a time.
  std::vector<float> run(CacheType type, size_t chunk, size_t step, bool ring, bool twin,
                         bool apart = false) const {
    const size_t seen = std::min(shape.window > 0 ? shape.window : tokens,
                                 shape.stretch > 0 ? shape.stretch : tokens);
    const size_t slots = ring ? seen + chunk - 1 : tokens;
    const Cache cache(type, shape, slots, first_position);
    const size_t scratch_bytes = attention_scratch_floats(shape) * sizeof(float);
    const std::unique_ptr<void, AlignedDelete> scratch(
        ::operator new(scratch_bytes, std::align_val_t(64)));
    std::vector<float> outputs(tokens * query_width(), -7.0f);
    for (size_t t = 0; shape.bidirectional && t < tokens; ++t) store(cache, t);
    for (size_t start = 0; start < tokens; start += chunk) {
      const size_t count = std::min(chunk, tokens - start);
      for (size_t t = 0; !shape.bidirectional && t < count; ++t) store(cache, start + t);
      const AttentionChunk part = {queries.data() + start * query_width(),
                                   query_width(),
                                   outputs.data() + start * query_width(),
                                   query_width(),
                                   first_position + start,
                                   count,
                                   tokens};
      for (size_t h = 0; h < shape.kv_heads; ++h) {
        if (twin) {
          scalar::attend(shape, cache.view, part, h, 0, count);
          continue;
        }
        for (size_t first = 0; first < count; first += step) {
          if (apart) {
            attend_apart(cache.view, part, h, first, std::min(step, count - first),
                         static_cast<float*>(scratch.get()));
            continue;
          }
          attend(shape, cache.view, part, h, first, std::min(step, count - first),
                 static_cast<float*>(scratch.get()));
        }
      }
    }
    return outputs;
  }
};

// The difference that roundings allow. Outputs are means of values up to 1. With a scale of
// 1 / sqrt(head_dim), logits of random rows are about 1 in size whatever head_dim is, and their
// sums, taken in lanes, carry a few roundings of that; an error of e in every logit moves a mean by
// 2e at most. exp, the sums of weights and of weighted values and the quotient add a few more.
// Together 12 roundings; 3 is the most that was seen.
constexpr double kAttentionError = 12 * kRounding;

// The same for `shape`: relative rows add products to a logit and a second value to an element, and
// where a slope rises towards later keys, the logits that count are as large as its greatest bias,
// and are rounded twice as such.
double attention_error(const AttentionShape& shape, size_t tokens) {
  const RelativeRows& rows = shape.relative;
  const double products = 1 + (rows.key ? 1 : 0) + (rows.query ? 1 : 0);
  double error = products * (rows.value ? 2 : 1) * kAttentionError;
  if (shape.linear_bias.slopes && shape.bidirectional && !shape.linear_bias.symmetric) {
    const float* slopes = shape.linear_bias.slopes;
    error += 2 * 2 * kRounding * *std::max_element(slopes, slopes + shape.query_heads) *
             static_cast<double>(tokens);
  }
  return error;
}

// Weights of an int8 cache are rounded to whole codes, and one that lies in the middle between two
// may fall to the other side than the twin's. Its value v, scaled by the tile's largest transformed
// element L, then counts by L / (kLargestWeight |Hv|) of the tile's greatest weight more or less;
// and no element of v exceeds the largest of Hv, so that an output moves by L / kLargestWeight. Of
// random values up to 1 a block of b elements has L of 0.58 sqrt(b) times the largest of some
// thousand normal deviates, 3.5. Logits of about 1 and their weights are off by a few roundings,
// which 255 codes make 2^-14 of a code: in a row of 200 weights, one in 80 has such a weight.
constexpr double kRowsHit = 0.02;
double code_error(CacheType type, const AttentionShape& shape) {
  if (type != CacheType::kQ8) return 0;
  const size_t elements = cache_row_elements(shape.head_dim);
  const double spread = q8_transforms_values(shape) ? std::sqrt(q8_block(elements)) : 1;
  return 2 * spread / kLargestWeight;
}

double worst_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::fabs(double{a[i]} - b[i]);
    if (!(difference <= worst)) worst = difference;  // what is not a number is worst, and stays
    if (std::isnan(worst)) break;
  }
  return worst;
}

void check_equals_twin(const Session& session, CacheType type, size_t chunk, size_t step,
                       bool ring) {
  if (leave_out()) return;
  const AttentionShape& shape = session.shape;
  const double error = attention_error(shape, session.tokens);
  CAPTURE(static_cast<int>(type));
  CAPTURE(shape.query_heads);
  CAPTURE(shape.kv_heads);
  CAPTURE(shape.head_dim);
  CAPTURE(shape.window);
  CAPTURE(shape.soft_cap);
  CAPTURE(shape.stretch);
  CAPTURE(shape.distance_bias.reach);
  CAPTURE(shape.relative.clip);
  CAPTURE(session.tokens);
  CAPTURE(session.first_position);
  CAPTURE(chunk);
  CAPTURE(step);
  CAPTURE(ring);
  const std::vector<float> expected = session.run(type, chunk, step, ring, true);
  for_each_target([&] {
    const std::vector<float> outputs = session.run(type, chunk, step, ring, false);
    if (type != CacheType::kQ8) {
      CHECK(worst_difference(outputs, expected) <= error);
      return;
    }
    // Rows of heads, all of whose elements a code moves.
    size_t rows = 0, hit = 0;
    for (size_t at = 0; at < outputs.size(); at += shape.head_dim, ++rows) {
      double worst = 0;
      for (size_t i = at; i < at + shape.head_dim; ++i) {
        const double difference = std::fabs(double{outputs[i]} - expected[i]);
        if (!(difference <= worst)) worst = difference;
      }
      CHECK(worst <= code_error(type, shape));
      hit += !(worst <= error);
    }
    CHECK(static_cast<double>(hit) <= 1 + kRowsHit * static_cast<double>(rows));
  });
}

AttentionShape shape_of(size_t group, size_t kv_heads, size_t head_dim) {
  return {group * kv_heads, kv_heads, head_dim, 1 / std::sqrt(static_cast<float>(head_dim)), 0, 0};
}

TEST_CASE("attention equals its twin for every head dimension, group and cache type") {
  for (const size_t head_dim : {1, 4, 12, 15, 16, 17, 20, 33, 48, 64, 80, 128, 256}) {
    for (const size_t group : {1, 2, 3, 4, 5, 7}) {
      const Session session(shape_of(group, 1 + random_below(2), head_dim), random_below(1000),
                            1 + random_below(40));
      for (const CacheType type : kTypes) {
        check_equals_twin(session, type, 1 + random_below(12), 1 + random_below(kAttentionTokens),
                          false);
      }
    }
  }
}

TEST_CASE("attention equals its twin over several tiles, at every length around their ends") {
  for (const size_t tokens : {63, 64, 65, 127, 128, 129, 200}) {
    const Session session(shape_of(3, 1, 20), 0, tokens);
    for (const CacheType type : kTypes) {
      check_equals_twin(session, type, tokens, kAttentionTokens, false);
    }
  }
}

TEST_CASE("attention of heads that are too wide to be stored four at once equals its twin") {
  const Session session(shape_of(1, 1, kMaxHeadDim / 4 + 16), 0, 9);
  for (const CacheType type : kTypes) check_equals_twin(session, type, 9, 8, false);
}

TEST_CASE("attention of a group of 71 heads equals its twin") {
  const Session session(shape_of(71, 1, 64), 5, 12);
  for (const CacheType type : kTypes) check_equals_twin(session, type, 12, 8, false);
}

TEST_CASE("attention within a window equals its twin, over all slots and over a ring that wraps") {
  for (const size_t window : {1, 2, 7, 16, 63, 64, 65, 100, 1000}) {
    for (const size_t chunk : {1, 3, 8, 20}) {
      AttentionShape shape = shape_of(1 + random_below(4), 1 + random_below(2), 12);
      shape.window = window;
      const Session session(shape, random_below(3) * 77, 150);
      const CacheType type = kTypes[random_below(3)];
      check_equals_twin(session, type, chunk, 1 + random_below(kAttentionTokens), true);
      check_equals_twin(session, type, chunk, 1 + random_below(kAttentionTokens), false);
    }
  }
}

TEST_CASE("attention with a soft cap equals its twin") {
  for (const float cap : {0.5f, 5.0f, 50.0f}) {
    for (const size_t window : {0, 9}) {
      AttentionShape shape = shape_of(3, 2, 20);
      shape.soft_cap = cap;
      shape.window = window;
      const Session session(shape, 3, 90);
      for (const CacheType type : kTypes) check_equals_twin(session, type, 11, 8, false);
    }
  }
}

// Tables by distance, each of exactly the size that its shape needs.
struct Tables {
  std::vector<float> slopes, biases, keys, queries, values;

  // The slopes of Press et al. for a power of two of heads, for any number of them.
  void slope(AttentionShape& shape) {
    slopes.resize(shape.query_heads);
    for (size_t h = 0; h < slopes.size(); ++h) {
      slopes[h] = std::exp2(-8.0f * static_cast<float>(h + 1) / static_cast<float>(slopes.size()));
    }
    shape.linear_bias.slopes = slopes.data();
  }

  void bias(AttentionShape& shape, size_t reach) {
    biases = random_row(shape.query_heads * (2 * reach + 1), -2, 2);
    shape.distance_bias = {biases.data(), reach};
  }

  // The tables whose bits are set in `which`: keys, queries, values.
  void relate(AttentionShape& shape, size_t clip, unsigned which) {
    const size_t size = (2 * clip + 1) * shape.head_dim;
    keys = random_row(size), queries = random_row(size), values = random_row(size);
    shape.relative = {which & 1 ? keys.data() : nullptr, which & 2 ? queries.data() : nullptr,
                      which & 4 ? values.data() : nullptr, clip};
  }

  // The same, of rows that distances share and heads do not.
  void relate_heads(AttentionShape& shape, size_t clip, size_t count, unsigned which) {
    relate(shape, 0, which);
    const size_t stride = count * shape.head_dim, size = shape.query_heads * stride;
    keys = random_row(size), queries = random_row(size), values = random_row(size);
    row_of.resize(2 * clip + 1);
    for (uint16_t& row : row_of) row = static_cast<uint16_t>(random_below(count));
    shape.relative = {which & 1 ? keys.data() : nullptr,
                      which & 2 ? queries.data() : nullptr,
                      which & 4 ? values.data() : nullptr,
                      clip,
                      row_of.data(),
                      stride};
  }
  std::vector<uint16_t> row_of;
};

TEST_CASE("attention to both sides equals its twin, with every bias and bound") {
  for (const size_t tokens : {1, 2, 9, 64, 65, 150}) {
    for (const size_t window : {0, 1, 2, 17, 65}) {
      for (int kind = 0; kind < 6; ++kind) {
        CAPTURE(kind);
        AttentionShape shape = shape_of(1 + random_below(3), 1 + random_below(2), 20);
        shape.bidirectional = true;
        shape.window = window;
        Tables tables;
        if (kind == 1 || kind == 2) tables.slope(shape);
        shape.linear_bias.symmetric = kind == 2;
        if (kind == 3) tables.bias(shape, 30);
        if (kind == 4) tables.relate(shape, 12, 7);
        if (kind == 5) tables.relate_heads(shape, 40, 9, 3);
        const Session session(shape, 0, tokens);
        check_equals_twin(session, kTypes[random_below(3)], 1 + random_below(40),
                          1 + random_below(kAttentionTokens), false);
      }
    }
  }
}

TEST_CASE("attention with slopes equals its twin, whatever the number of heads") {
  for (const size_t kv_heads : {1, 2, 3, 5, 6}) {
    for (const size_t heads : {1, 6, 8, 10, 12}) {
      if (heads % kv_heads != 0) continue;
      for (const size_t window : {0, 9, 70}) {
        AttentionShape shape = shape_of(heads / kv_heads, kv_heads, 20);
        shape.window = window;
        Tables tables;
        tables.slope(shape);
        const Session session(shape, random_below(1000), 150);
        const CacheType type = kTypes[random_below(3)];
        check_equals_twin(session, type, 1 + random_below(40), 1 + random_below(kAttentionTokens),
                          window > 0);
      }
    }
  }
}

TEST_CASE("attention with a bias by distance equals its twin, within its reach and past it") {
  for (const size_t reach : {0, 1, 2, 15, 63, 64, 65, 149, 150, 400}) {
    for (const size_t window : {0, 1, 30, 100}) {
      AttentionShape shape = shape_of(1 + random_below(3), 2, 12);
      shape.window = window;
      Tables tables;
      tables.bias(shape, reach);
      const Session session(shape, random_below(1000), 150);
      for (const CacheType type : kTypes) {
        check_equals_twin(session, type, 1 + random_below(40), 1 + random_below(kAttentionTokens),
                          window > 0);
      }
    }
  }
}

TEST_CASE("attention with relative rows equals its twin, within their clip and past it") {
  for (const size_t clip : {0, 1, 5, 16, 64, 200}) {
    for (const unsigned which : {1u, 2u, 4u, 3u, 7u}) {
      for (const size_t head_dim : {7, 20, 64}) {
        CAPTURE(which);
        AttentionShape shape = shape_of(1 + random_below(3), 2, head_dim);
        shape.window = random_below(2) * 40;
        Tables tables;
        tables.relate(shape, clip, which);
        const Session session(shape, random_below(1000), 140);
        check_equals_twin(session, kTypes[random_below(3)], 1 + random_below(40),
                          1 + random_below(kAttentionTokens), shape.window > 0);
      }
    }
  }
}

TEST_CASE("attention within a stretch equals its twin, over all slots and over a ring that wraps") {
  for (const size_t stretch : {1, 2, 5, 16, 63, 64, 65, 100, 1000}) {
    for (const size_t chunk : {1, 3, 8, 20}) {
      AttentionShape shape = shape_of(1 + random_below(4), 1 + random_below(2), 12);
      shape.stretch = stretch;
      shape.window = random_below(2) * 30;
      const Session session(shape, random_below(3) * 77, 150);
      const CacheType type = kTypes[random_below(3)];
      check_equals_twin(session, type, chunk, 1 + random_below(kAttentionTokens), true);
      check_equals_twin(session, type, chunk, 1 + random_below(kAttentionTokens), false);
    }
  }
}

TEST_CASE("attention with a soft cap, slopes, a table, relative rows and bounds equals its twin") {
  for (const size_t window : {0, 33}) {
    for (const size_t stretch : {0, 6, 90}) {
      AttentionShape shape = shape_of(3, 2, 20);
      shape.soft_cap = 2;
      shape.window = window;
      shape.stretch = stretch;
      Tables tables;
      tables.slope(shape);
      tables.bias(shape, 20);
      tables.relate(shape, 11, 7);
      const Session session(shape, 50, 170);
      for (const CacheType type : kTypes) {
        check_equals_twin(session, type, 13, 8, window + stretch > 0);
      }
    }
  }
}

TEST_CASE("a slope over equal keys weighs values by a geometric sequence") {
  // Value p is the unit vector p, so that element p of a token's output is the weight of key p:
  // r^(t - p) (1 - r) / (1 - r^(t + 1)) with r = e^-slope.
  const float slope = 0.25f;
  AttentionShape shape = shape_of(1, 1, 100);
  shape.linear_bias.slopes = &slope;
  Session session(shape, 40, 100);
  std::fill(session.queries.begin(), session.queries.end(), 0.0f);
  for (size_t i = 0; i < session.values.size(); ++i) session.values[i] = i / 100 == i % 100;
  const double r = std::exp(-0.25);
  for_each_target([&] {
    const std::vector<float> outputs = session.run(CacheType::kF32, 100, 8, false, false);
    double worst = 0;
    for (size_t t = 0; t < 100; ++t) {
      for (size_t p = 0; p < 100; ++p) {
        const double weight = std::pow(r, t - p + 0.0) * (1 - r) / (1 - std::pow(r, t + 1.0));
        const double expected = p <= t ? weight : 0;
        worst = std::max(worst, std::fabs(outputs[t * 100 + p] - expected));
      }
    }
    CHECK(worst <= kAttentionError);
  });
}

TEST_CASE("a slope and the table of its products give the same outputs, to the bit") {
  AttentionShape sloped = shape_of(2, 3, 12);
  Tables tables;
  tables.slope(sloped);
  AttentionShape tabled = sloped;
  tabled.linear_bias.slopes = nullptr;
  tables.bias(tabled, 150);
  for (size_t i = 0; i < tables.biases.size(); ++i) {
    tables.biases[i] = tables.slopes[i / 301] * (static_cast<float>(i % 301) - 150.0f);
  }
  Session session(sloped, 7, 150);
  for_each_target([&] {
    session.shape = sloped;
    const std::vector<float> outputs = session.run(CacheType::kF32, 150, 8, false, false);
    session.shape = tabled;
    CHECK(session.run(CacheType::kF32, 150, 8, false, false) == outputs);
  });
}

TEST_CASE("relative rows of equal queries or equal keys are a bias by distance") {
  const size_t head_dim = 20, clip = 9;
  for (const unsigned which : {1u, 2u}) {
    CAPTURE(which);
    AttentionShape related = shape_of(1, 1, head_dim);
    Tables tables;
    tables.relate(related, clip, which);
    AttentionShape biased = related;
    biased.relative = {};
    tables.bias(biased, clip);
    const std::vector<float> same = random_row(head_dim);
    for (size_t r = 0; r < tables.biases.size(); ++r) {
      const float* row = (which == 1 ? tables.keys : tables.queries).data() + r * head_dim;
      double dot = 0;
      for (size_t i = 0; i < head_dim; ++i) dot += double{same[i]} * row[i];
      tables.biases[r] = static_cast<float>(dot * related.scale);
    }
    Session session(related, 3, 80);
    std::vector<float>& equal = which == 1 ? session.queries : session.keys;
    for (size_t i = 0; i < equal.size(); ++i) equal[i] = same[i % head_dim];
    for_each_target([&] {
      session.shape = related;
      const std::vector<float> outputs = session.run(CacheType::kF32, 80, 8, false, false);
      session.shape = biased;
      const std::vector<float> expected = session.run(CacheType::kF32, 80, 8, false, false);
      CHECK(worst_difference(outputs, expected) <= 2 * kAttentionError);
    });
  }
}

TEST_CASE("relative values over equal logits are averaged by how many keys share their distance") {
  // Row r of the table is the unit vector r, so that element r of an output is the share of keys at
  // that distance: one key each, and all that are farther back in row 0.
  const size_t clip = 5, head_dim = 2 * clip + 1;
  AttentionShape shape = shape_of(1, 1, head_dim);
  Tables tables;
  tables.relate(shape, clip, 4);
  for (size_t i = 0; i < tables.values.size(); ++i) {
    tables.values[i] = i / head_dim == i % head_dim;
  }
  Session session(shape, 0, 100);
  std::fill(session.queries.begin(), session.queries.end(), 0.0f);
  std::fill(session.values.begin(), session.values.end(), 0.0f);
  for_each_target([&] {
    for (const CacheType type : kTypes) {
      const std::vector<float> outputs = session.run(type, 100, 8, false, false);
      for (size_t t = 0; t < 100; ++t) {
        for (size_t r = 0; r < head_dim; ++r) {
          const size_t back = clip - std::min(r, clip);
          const float keys = r > clip || back > t ? 0
                             : r > 0              ? 1
                                                  : static_cast<float>(t - clip + 1);
          CHECK(outputs[t * head_dim + r] == keys / static_cast<float>(t + 1));
        }
      }
    }
  });
}

TEST_CASE("a stretch begins anew at each of its multiples of all positions") {
  // Value p is the unit vector p: what a token sees is what is not zero, and where it begins.
  AttentionShape shape = shape_of(1, 1, 30);
  shape.stretch = 8;
  Session session(shape, 5, 30);
  for (size_t i = 0; i < session.values.size(); ++i) session.values[i] = i / 30 == i % 30;
  for_each_target([&] {
    const std::vector<float> outputs = session.run(CacheType::kF32, 30, 8, false, false);
    for (size_t t = 0; t < 30; ++t) {
      for (size_t p = 0; p < 30; ++p) {
        CHECK((outputs[t * 30 + p] > 0) == (p <= t && (p + 5) / 8 == (t + 5) / 8));
      }
    }
  });
}

TEST_CASE("attention by distance comes out the same to the bit in whatever chunks tokens arrive") {
  for (const size_t window : {0, 70}) {
    for (const size_t stretch : {0, 5, 100}) {
      AttentionShape shape = shape_of(3, 1, 20);
      shape.window = window;
      shape.stretch = stretch;
      Tables tables;
      tables.slope(shape);
      tables.bias(shape, 30);
      tables.relate(shape, 17, 7);
      const Session session(shape, 64, 180);
      for (const CacheType type : kTypes) {
        for_each_target([&] {
          const std::vector<float> whole = session.run(type, 180, 8, false, false);
          CHECK(session.run(type, 1, 1, false, false) == whole);
          CHECK(session.run(type, 7, 8, false, false) == whole);
          CHECK(session.run(type, 50, 3, false, false) == whole);
        });
      }
    }
  }
}

TEST_CASE("attention comes out the same to the bit in whatever chunks the tokens arrive") {
  for (const size_t window : {0, 70}) {
    AttentionShape shape = shape_of(3, 1, 20);
    shape.window = window;
    const Session session(shape, 0, 180);
    for (const CacheType type : kTypes) {
      for_each_target([&] {
        const std::vector<float> whole = session.run(type, 180, 8, false, false);
        CHECK(session.run(type, 1, 1, false, false) == whole);
        CHECK(session.run(type, 7, 8, false, false) == whole);
        CHECK(session.run(type, 50, 3, false, false) == whole);
      });
    }
  }
}

TEST_CASE("attention of equal logits averages the values that are seen") {
  AttentionShape shape = shape_of(2, 1, 20);
  for (const size_t window : {0, 33}) {
    shape.window = window;
    Session session(shape, 0, 100);
    std::fill(session.queries.begin(), session.queries.end(), 0.0f);
    for_each_target([&] {
      const std::vector<float> outputs = session.run(CacheType::kF32, 100, 8, false, false);
      for (size_t token = 0; token < 100; ++token) {
        const size_t begin = window > 0 && token >= window ? token - window + 1 : 0;
        for (size_t i = 0; i < 20; ++i) {
          double mean = 0;
          for (size_t p = begin; p <= token; ++p) mean += session.values[p * 20 + i];
          mean /= static_cast<double>(token - begin + 1);
          // At most 100 additions of values up to 1 to a sum that the count divides, half of a
          // rounding each.
          CHECK(std::fabs(outputs[token * 40 + i] - mean) <= 50 * kRounding);
          CHECK(outputs[token * 40 + 20 + i] == outputs[token * 40 + i]);
        }
      }
    });
  }
}

TEST_CASE("attention to one overwhelming key gives its value") {
  AttentionShape shape = shape_of(1, 1, 12);
  shape.scale = 1;
  Session session(shape, 0, 90);
  for (size_t t = 0; t < 90; ++t) {
    for (size_t i = 0; i < 12; ++i) {
      session.queries[t * 12 + i] = 100;
      session.keys[t * 12 + i] = t == 40 ? 100 : -100;  // logits of 1.2e5 and -1.2e5
    }
  }
  for_each_target([&] {
    const std::vector<float> outputs = session.run(CacheType::kF32, 90, 8, false, false);
    for (size_t t = 40; t < 90; ++t) {
      CHECK(std::equal(outputs.begin() + t * 12, outputs.begin() + t * 12 + 12,
                       session.values.begin() + 40 * 12));
    }
    for (const float output : outputs) CHECK(std::isfinite(output));
  });
}

TEST_CASE("attention in parts that are merged in order is the same to the bit") {
  for (const size_t window : {0, 700}) {
    AttentionShape shape = shape_of(3, 1, 12);
    shape.window = window;
    const Session session(shape, 3, 2 * kAttentionPart + 30);
    for (const CacheType type : kTypes) {
      const bool ring = window > 0;
      for_each_target([&] {
        const std::vector<float> whole = session.run(type, 600, 16, ring, false);
        CHECK(session.run(type, 600, 16, ring, false, true) == whole);
        if (!ring) CHECK(session.run(type, 37, 5, ring, false, true) == whole);
      });
    }
  }
}

TEST_CASE("rows of several tokens are stored as they are one by one") {
  for (const CacheType type : kTypes) {
    for (const size_t head_dim : {4, 16, 20, 32, 48}) {
      const AttentionShape shape = shape_of(1, 2, head_dim);
      const size_t stride = 2 * head_dim + 3;
      for (size_t count = 1; count <= 40; count += 1 + count / 5) {
        const size_t slots = 71, slot = random_below(slots - count);
        CAPTURE(head_dim);
        CAPTURE(count);
        CAPTURE(slot);
        const std::vector<float> rows = random_row(count * stride);
        for_each_target([&] {
          const Cache together(type, shape, slots, 0), apart(type, shape, slots, 0);
          store_keys(together.view, shape, 1, slot, count, rows.data(), stride);
          store_values(together.view, shape, 1, slot, count, rows.data(), stride);
          for (size_t t = 0; t < count; ++t) {
            store_keys(apart.view, shape, 1, slot + t, 1, rows.data() + t * stride, 0);
            store_values(apart.view, shape, 1, slot + t, 1, rows.data() + t * stride, 0);
          }
          CHECK(together.keys == apart.keys);
          CHECK(together.values == apart.values);
          if (type != CacheType::kQ8) return;
          const auto bits = [](const std::vector<float>& x) {  // NaN where nothing is stored
            return std::vector<uint8_t>(reinterpret_cast<const uint8_t*>(x.data()),
                                        reinterpret_cast<const uint8_t*>(x.data() + x.size()));
          };
          CHECK(bits(together.key_scales) == bits(apart.key_scales));
          CHECK(bits(together.value_scales) == bits(apart.value_scales));
        });
      }
    }
  }
}

TEST_CASE("keys lie in lanes of slots, values in rows, padded with zeros, and nothing else moves") {
  const AttentionShape shape = shape_of(1, 2, 20);
  const std::vector<float> row = random_row(20);
  const size_t slots = cache_slots(CacheType::kF32, 19), head = 1, slot = 17;
  REQUIRE(slots == 32);
  for (const CacheType type : {CacheType::kF32, CacheType::kF16}) {
    for_each_target([&] {
      const Cache cache(type, shape, 19, 0);
      store_keys(cache.view, shape, head, slot, 1, row.data(), 0);
      store_values(cache.view, shape, head, slot, 1, row.data(), 0);
      const size_t bytes = cache_element_bytes(type);
      std::vector<uint8_t> keys(2 * slots * 32 * bytes, 0xff), values = keys;
      for (size_t e = 0; e < 32; ++e) {
        const float element = e < 20 ? row[e] : 0.0f;
        uint16_t half = 0;
        scalar::to_f16(&element, 1, &half);
        const void* const from =
            type == CacheType::kF32 ? static_cast<const void*>(&element) : &half;
        // Of the second head: its second 16 slots, element by element; row by row.
        std::memcpy(&keys[(head * slots * 32 + 16 * 32 + e * 16 + 1) * bytes], from, bytes);
        std::memcpy(&values[((head * slots + slot) * 32 + e) * bytes], from, bytes);
      }
      CHECK(cache.keys == keys);
      CHECK(cache.values == values);
    });
  }
}

TEST_CASE(
    "an int8 row is transformed, has its scale and lies in its tile, and nothing else moves") {
  for (const unsigned related : {0u, 2u, 4u}) {
    CAPTURE(related);
    AttentionShape shape = shape_of(1, 2, 20);
    Tables tables;
    tables.relate(shape, 1, related);
    const std::vector<float> row = random_row(20);
    // Element i of the transform of 32 elements is their sum, each negated whose bits shared with i
    // are odd in number. Relative rows want keys, or values, as they are.
    const auto codes_of = [&](bool transformed, std::vector<int8_t>& codes) {
      std::vector<float> x(32);
      for (size_t i = 0; i < 32; ++i) {
        if (!transformed) x[i] = i < 20 ? row[i] : 0;
        for (size_t j = 0; transformed && j < 20; ++j) {
          x[i] += std::popcount(i & j) % 2 == 0 ? row[j] : -row[j];
        }
      }
      codes.resize(32);
      return scalar::quantize_q8(x.data(), 32, codes.data());
    };
    for_each_target([&] {
      const Cache cache(CacheType::kQ8, shape, 70, 0);
      const size_t slots = cache_slots(CacheType::kQ8, 70), head = 1, slot = 66;
      CHECK(slots == 128);
      store_keys(cache.view, shape, head, slot, 1, row.data(), 0);
      store_values(cache.view, shape, head, slot, 1, row.data(), 0);
      std::vector<int8_t> keys, values;
      const float key_scale = codes_of(related != 2, keys);
      const float value_scale = codes_of(related != 4, values);
      CHECK(cache.key_scales[slots + slot] == doctest::Approx(key_scale).epsilon(4 * kUlp));
      CHECK(cache.value_scales[slots + slot] == doctest::Approx(value_scale).epsilon(4 * kUlp));
      std::vector<uint8_t> expected_keys(2 * slots * 32, 0xff), expected_values = expected_keys;
      for (size_t e = 0; e < 32; ++e) {
        const size_t key_at = slots * 32 + q8_key_index(slot, e, 32);
        const size_t value_at = slots * 32 + q8_value_index(slot, e, 32);
        // Sums in another order may round a code to its neighbour.
        CHECK(std::abs(cache.keys[key_at] - (keys[e] + 128)) <= 1);
        CHECK(std::abs(static_cast<int8_t>(cache.values[value_at]) - values[e]) <= 1);
        expected_keys[key_at] = cache.keys[key_at];
        expected_values[value_at] = cache.values[value_at];
      }
      CHECK(cache.keys == expected_keys);
      CHECK(cache.values == expected_values);
    });
  }
}

TEST_CASE("every element of every slot has a place of its own in an int8 cache") {
  for (const size_t elements : {16, 48, 64}) {
    std::vector<int> keys(2 * kCacheTile * elements), values = keys;
    for (size_t s = 0; s < 2 * kCacheTile; ++s) {
      for (size_t e = 0; e < elements; ++e) {
        ++keys.at(q8_key_index(s, e, elements));
        ++values.at(q8_value_index(s, e, elements));
      }
    }
    CHECK(std::ranges::all_of(keys, [](int count) { return count == 1; }));
    CHECK(std::ranges::all_of(values, [](int count) { return count == 1; }));
  }
}

}  // namespace
}  // namespace volvelle
