// Each lane of a vector works on a block of its own, so that the sums of a block are formed in one
// order whatever the vector's width; compiled without contraction, every target gives the same
// bits.

#include "converter/quantize/q4.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "converter/quantize/row_checks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "converter/quantize/q4.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace volvelle::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::CappedTag<float, 16>;
using Ints = hn::RebindToSigned<Floats>;
using V = hn::Vec<Floats>;

// clamp(round(x / scale), -8, 7)
HWY_INLINE V code_of(V x, V inverse) {
  const Floats d;
  return hn::Clamp(hn::Round(hn::Mul(x, inverse)), hn::Set(d, -8.0f), hn::Set(d, 7.0f));
}

// x [kQ4Block, lanes]
HWY_INLINE V squared_error(const float* x, V scale) {
  const Floats d;
  const size_t lanes = hn::Lanes(d);
  const V inverse = hn::Div(hn::Set(d, 1.0f), scale);
  V even = hn::Zero(d);
  V odd = hn::Zero(d);
  for (size_t i = 0; i < kQ4Block; i += 2) {
    const V a = hn::Load(d, x + i * lanes);
    const V b = hn::Load(d, x + (i + 1) * lanes);
    const V error_a = hn::Sub(a, hn::Mul(scale, code_of(a, inverse)));
    const V error_b = hn::Sub(b, hn::Mul(scale, code_of(b, inverse)));
    even = hn::Add(even, hn::Mul(error_a, error_a));
    odd = hn::Add(odd, hn::Mul(error_b, error_b));
  }
  return hn::Add(even, odd);
}

// The least bfloat16 that is at least x, x being positive.
HWY_INLINE V bf16_above(V x) {
  const Ints di;
  const auto bits = hn::Add(hn::BitCast(di, x), hn::Set(di, 0xffff));
  return hn::BitCast(Floats(), hn::And(bits, hn::Set(di, ~0xffff)));
}

// The scale of least error, not below `least`, for blocks whose greatest and least values (and
// zero) are `high` and `low`.
HWY_INLINE V best_scale(const float* x, V high, V low, V least) {
  const Floats d;
  const Ints di;
  const V largest = hn::Max(high, hn::Neg(low));
  const V lowest = hn::Max(hn::Div(largest, hn::Set(d, kQ4FinestCode)), least);
  V best = least;
  V best_error = hn::Inf(d);
  const auto consider = [&](V scale, auto eligible) HWY_ATTR {
    const V error = squared_error(x, scale);
    const auto better = hn::And(eligible, hn::Lt(error, best_error));
    best = hn::IfThenElse(better, scale, best);
    best_error = hn::IfThenElse(better, error, best_error);
  };
  for (const float code : {4.0f, 5.0f}) {
    const V above = bf16_above(hn::Div(largest, hn::Set(d, code)));
    const V below = hn::BitCast(d, hn::Sub(hn::BitCast(di, above), hn::Set(di, 0x10000)));
    consider(hn::Max(above, least), hn::Eq(above, above));
    consider(hn::Max(below, least), hn::Eq(below, below));
  }
  V scale = hn::Max(bf16_above(hn::Div(largest, hn::Set(d, kQ4CoarsestCode))), least);
  for (;;) {
    // What is cut off the extremes is part of the error, and only grows as the scale falls.
    const V cut_high = hn::Max(hn::Sub(high, hn::Mul(scale, hn::Set(d, 7.0f))), hn::Zero(d));
    const V cut_low = hn::Max(hn::Sub(hn::Mul(scale, hn::Set(d, -8.0f)), low), hn::Zero(d));
    const V cut = hn::Max(hn::Mul(cut_high, cut_high), hn::Mul(cut_low, cut_low));
    const auto eligible = hn::And(hn::Lt(cut, best_error), hn::Ge(scale, lowest));
    if (hn::AllFalse(d, eligible)) return best;
    consider(scale, eligible);
    scale =
        hn::BitCast(d, hn::Sub(hn::BitCast(di, scale), hn::Set(di, 0x10000)));  // the next bfloat16
  }
}

void quantize_q4(const float* x, size_t rows, size_t columns, uint8_t* codes, uint16_t* scales) {
  const Floats d;
  const Ints di;
  const size_t lanes = hn::Lanes(d);
  HWY_ALIGN float group[kQ4Block * 16];  // [kQ4Block, lanes]
  HWY_ALIGN float high[16], low[16], least[16], unit[16];
  HWY_ALIGN int32_t pairs[kQ4Block / 2 * 16];  // [kQ4Block / 2, lanes]
  const size_t row_blocks = q4_blocks(columns);
  const size_t blocks = rows * row_blocks;
  for (size_t first = 0; first < blocks; first += lanes) {
    const size_t count = std::min(lanes, blocks - first);
    for (size_t lane = 0; lane < lanes; ++lane) {
      const size_t block = first + std::min(lane, count - 1);  // spare lanes repeat the last block
      const size_t column = block % row_blocks * kQ4Block;
      const float* from = x + block / row_blocks * columns + column;
      const size_t present = std::min(kQ4Block, columns - column);
      float values[kQ4Block] = {};
      std::copy_n(from, present, values);
      float most = 0;
      float minimum = 0;
      for (const float value : values) {
        most = std::max(most, value);
        minimum = std::min(minimum, value);
      }
      const PowerOfTwo power(std::max(most, -minimum));
      for (size_t i = 0; i < kQ4Block; ++i) group[i * lanes + lane] = values[i] * power.down;
      high[lane] = most * power.down;
      low[lane] = minimum * power.down;
      least[lane] = power.least_normal;
      unit[lane] = power.up;
    }

    const V scale = best_scale(group, hn::Load(d, high), hn::Load(d, low), hn::Load(d, least));
    const V inverse = hn::Div(hn::Set(d, 1.0f), scale);
    for (size_t i = 0; i < kQ4Block / 2; ++i) {
      const auto even = hn::ConvertTo(di, code_of(hn::Load(d, group + 2 * i * lanes), inverse));
      const auto odd =
          hn::ConvertTo(di, code_of(hn::Load(d, group + (2 * i + 1) * lanes), inverse));
      const auto pair = hn::Add(hn::Add(even, hn::ShiftLeft<4>(odd)), hn::Set(di, 0x88));
      hn::Store(pair, di, pairs + i * lanes);
    }
    hn::Store(hn::Mul(scale, hn::Load(d, unit)), d, unit);
    for (size_t lane = 0; lane < count; ++lane) {
      uint8_t* to = codes + (first + lane) * (kQ4Block / 2);
      for (size_t i = 0; i < kQ4Block / 2; ++i)
        to[i] = static_cast<uint8_t>(pairs[i * lanes + lane]);
      scales[first + lane] = static_cast<uint16_t>(std::bit_cast<uint32_t>(unit[lane]) >> 16);
    }
  }
}

}  // namespace volvelle::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace volvelle {

HWY_EXPORT(quantize_q4);

Result<void> quantize_q4_rows(const float* x, size_t rows, size_t columns, uint8_t* codes,
                              uint16_t* scales, size_t first_row) {
  VOLVELLE_RETURN_IF_ERROR(check_finite(x, rows, columns, first_row));
  HWY_DYNAMIC_DISPATCH(quantize_q4)(x, rows, columns, codes, scales);
  return {};
}

namespace {

// Adding it and taking it away again rounds to an integer, ties to even, below 2^22.
constexpr float kRoundingConstant = 0x1.8p23f;

float bf16_nearest(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u);
}

// A block's code: the step above `origin`, from 0 to 15.
float step_of(float x, float origin, float inverse) {
  const float step = (x - origin) * inverse;
  return std::clamp(step, 0.0f, 15.0f) + kRoundingConstant - kRoundingConstant;
}

struct Grid {
  float origin = 0;  // the value of code 0
  float scale = 0;
};

// x [kQ4Block], near one or zeros.
Grid best_grid(const float* x) {
  const auto [least, greatest] = std::minmax_element(x, x + kQ4Block);
  const float range = *greatest - *least;
  if (range == 0) {
    // Code 8 is the value; its neighbours make up for what the minimum loses.
    const float scale = std::max(bf16_nearest(std::fabs(*least) / 64), 0x1p-126f);
    return {*least - 8 * scale, scale};
  }
  Grid best;
  double best_error = INFINITY;
  for (int steps = 15; steps >= 6; --steps) {
    const float scale = bf16_nearest(range / static_cast<float>(steps));
    const float inverse = 1 / scale;
    float error = 0, shift = 0, squares[4] = {}, shifts[4] = {};
    for (size_t i = 0; i < kQ4Block; i += 4) {
      for (size_t lane = 0; lane < 4; ++lane) {
        const float back = step_of(x[i + lane], *least, inverse) * scale + *least;
        const float off = x[i + lane] - back;
        shifts[lane] += off;
        squares[lane] += off * off;
      }
    }
    for (size_t lane = 0; lane < 4; ++lane) error += squares[lane], shift += shifts[lane];
    shift /= static_cast<float>(kQ4Block);
    error -= shift * shift * static_cast<float>(kQ4Block);
    if (error < best_error) {
      best = {*least + shift, scale};
      best_error = error;
    }
    if (error <= 1e-5f * range * range) break;  // on the grid
  }
  return best;
}

void quantize_row_with_minima(const float* x, size_t columns, uint8_t* codes, uint16_t* scales,
                              int8_t* minima, float& minimum_scale) {
  const size_t blocks = q4_blocks(columns);
  std::vector<float> middles(blocks);  // the values of code 8
  std::vector<float> steps(blocks);
  float greatest = 0;
  for (size_t b = 0; b < blocks; ++b) {
    float values[kQ4Block] = {};
    std::copy_n(x + b * kQ4Block, std::min(kQ4Block, columns - b * kQ4Block), values);
    float largest = 0;
    for (const float value : values) largest = std::max(largest, std::fabs(value));
    const PowerOfTwo power(largest);
    for (float& value : values) value *= power.down;
    const Grid grid = best_grid(values);
    steps[b] = std::max(grid.scale * power.up, 0x1p-126f);
    middles[b] = std::clamp((grid.origin + 8 * grid.scale) * power.up,
                            -std::numeric_limits<float>::max(), std::numeric_limits<float>::max());
    if (largest == 0) steps[b] = 0x1p-126f, middles[b] = 0;
    greatest = std::max(greatest, std::fabs(middles[b]));
  }
  minimum_scale = std::max(greatest / 127, 0x1p-126f);
  for (size_t b = 0; b < blocks; ++b) {
    minima[b] = static_cast<int8_t>(
        std::clamp(std::nearbyint(middles[b] / minimum_scale), -127.0f, 127.0f));
    const float origin = static_cast<float>(minima[b]) * minimum_scale - 8 * steps[b];
    uint8_t* const to = codes + b * (kQ4Block / 2);
    for (size_t i = 0; i < kQ4Block; ++i) {
      const size_t column = b * kQ4Block + i;
      const float value = column < columns ? x[column] : 0.0f;
      const auto code = static_cast<uint8_t>(step_of(value, origin, 1 / steps[b]));
      to[i / 2] = static_cast<uint8_t>(i % 2 == 0 ? code : to[i / 2] | code << 4);
    }
    scales[b] = static_cast<uint16_t>(std::bit_cast<uint32_t>(steps[b]) >> 16);
  }
}

}  // namespace

Result<void> quantize_q4_rows_with_minima(const float* x, size_t rows, size_t columns,
                                          uint8_t* codes, uint16_t* scales, int8_t* minima,
                                          float* minimum_scales, size_t first_row) {
  VOLVELLE_RETURN_IF_ERROR(check_finite(x, rows, columns, first_row));
  const size_t blocks = q4_blocks(columns);
  for (size_t row = 0; row < rows; ++row) {
    quantize_row_with_minima(x + row * columns, columns, codes + row * blocks * (kQ4Block / 2),
                             scales + row * blocks, minima + row * blocks, minimum_scales[row]);
  }
  return {};
}

Result<Q4Error> q4_error(const float* x, size_t rows, size_t columns) {
  const size_t blocks = q4_blocks(columns);
  std::vector<uint8_t> codes(rows * blocks * (kQ4Block / 2));
  std::vector<uint16_t> scales(rows * blocks);
  std::vector<int8_t> minima(rows * blocks);
  std::vector<float> minimum_scales(rows), back(rows * columns);
  Q4Error error;
  VOLVELLE_RETURN_IF_ERROR(quantize_q4_rows(x, rows, columns, codes.data(), scales.data()));
  dequantize_q4_rows(codes.data(), scales.data(), rows, columns, back.data());
  for (size_t i = 0; i < back.size(); ++i) error.plain += std::pow(double{x[i]} - back[i], 2);
  VOLVELLE_RETURN_IF_ERROR(quantize_q4_rows_with_minima(
      x, rows, columns, codes.data(), scales.data(), minima.data(), minimum_scales.data()));
  dequantize_q4_rows(codes.data(), scales.data(), rows, columns, back.data());
  for (size_t i = 0; i < back.size(); ++i) {
    const size_t row = i / columns, block = i % columns / kQ4Block;
    const float minimum = minima[row * blocks + block] * minimum_scales[row];
    error.with_minima += std::pow(double{x[i]} - back[i] - minimum, 2);
  }
  return error;
}

void dequantize_q4_rows(const uint8_t* codes, const uint16_t* scales, size_t rows, size_t columns,
                        float* y) {
  const size_t row_blocks = q4_blocks(columns);
  for (size_t row = 0; row < rows; ++row) {
    for (size_t column = 0; column < columns; ++column) {
      const size_t block = row * row_blocks + column / kQ4Block;
      const size_t i = column % kQ4Block;
      const int code = codes[block * (kQ4Block / 2) + i / 2] >> (i % 2 * 4) & 15;
      *y++ = (code - 8) * std::bit_cast<float>(uint32_t{scales[block]} << 16);
    }
  }
}

}  // namespace volvelle
#endif  // HWY_ONCE
