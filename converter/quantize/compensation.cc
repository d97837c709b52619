// Each lane of a vector works on a row of its own.

#include "converter/quantize/compensation.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "converter/quantize/outer_products.h"
#include "converter/quantize/q4.h"
#include "converter/quantize/row_checks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "converter/quantize/compensation.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"
#include "kernels/vectors-inl.h"

#ifndef VOLVELLE_CONVERTER_QUANTIZE_COMPENSATION_LANES_
#define VOLVELLE_CONVERTER_QUANTIZE_COMPENSATION_LANES_
namespace volvelle {

inline constexpr size_t kMostLanes = 16;  // 64 bytes

// A block of kQ4Block columns of several rows, one in each lane.
struct LaneBlock {
  alignas(64) float targets[kQ4Block * kMostLanes];  // t, but for what the block's own columns add
  alignas(64) float weights[kQ4Block * kMostLanes];  // w
  alignas(64) float errors[kQ4Block * kMostLanes];   // w - q, of the best grid
  alignas(64) float codes[kQ4Block * kMostLanes];    // from -8 to 7
  alignas(64) float scales[kMostLanes];
  alignas(64) float minima[kMostLanes];          // in steps of minimum_scales
  alignas(64) float minimum_scales[kMostLanes];  // 0: none
  alignas(64) float least_scales[kMostLanes];
  alignas(64) float costs[kMostLanes];
};

}  // namespace volvelle
#endif

HWY_BEFORE_NAMESPACE();
namespace volvelle::HWY_NAMESPACE {

using V = hn::Vec<Floats>;

HWY_INLINE V to_bf16(V x) {
  const hn::RebindToUnsigned<Floats> du;
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu)));
  return hn::BitCast(Floats(), hn::And(rounded, hn::Set(du, 0xffff0000u)));
}

// Rounds the block to a grid and returns what that costs. feedback [kQ4Block, stride], worth
// [kQ4Block]: those of the block.
HWY_INLINE V round_block(const LaneBlock& block, const float* feedback, size_t stride,
                         const float* worth, V scale, V minimum, float* errors, float* codes) {
  const Floats d;
  const size_t n = hn::Lanes(d);
  const V inverse = hn::Div(hn::Set(d, 1.0f), scale);
  V cost = hn::Zero(d);
  for (size_t j = 0; j < kQ4Block; ++j) {
    V target = hn::Load(d, block.targets + j * n), other = hn::Zero(d);
    size_t k = 0;
    for (; k + 2 <= j; k += 2) {
      target =
          hn::MulAdd(hn::Load(d, errors + k * n), hn::Set(d, feedback[k * stride + j]), target);
      other = hn::MulAdd(hn::Load(d, errors + (k + 1) * n),
                         hn::Set(d, feedback[(k + 1) * stride + j]), other);
    }
    if (k < j) {
      target =
          hn::MulAdd(hn::Load(d, errors + k * n), hn::Set(d, feedback[k * stride + j]), target);
    }
    target = hn::Add(target, other);
    const V code = hn::Clamp(hn::Round(hn::Mul(hn::Sub(target, minimum), inverse)),
                             hn::Set(d, -8.0f), hn::Set(d, 7.0f));
    const V value = hn::MulAdd(code, scale, minimum);
    const V off = hn::Sub(target, value);
    cost = hn::MulAdd(hn::Mul(off, off), hn::Set(d, worth[j]), cost);
    hn::Store(hn::Sub(hn::Load(d, block.weights + j * n), value), d, errors + j * n);
    hn::Store(code, d, codes + j * n);
  }
  return cost;
}

// Chooses each lane's grid, by what remains once the block's own columns have made up for each
// other.
void choose_grid(LaneBlock& block, const float* feedback, size_t stride, const float* worth) {
  const Floats d;
  const size_t n = hn::Lanes(d);
  HWY_ALIGN float errors[kQ4Block * kMostLanes], codes[kQ4Block * kMostLanes];
  V low = hn::Load(d, block.targets), high = low;
  for (size_t j = 1; j < kQ4Block; ++j) {
    const V x = hn::Load(d, block.targets + j * n);
    low = hn::Min(low, x), high = hn::Max(high, x);
  }
  const V minimum_scale = hn::Load(d, block.minimum_scales);
  const auto shifted = hn::Gt(minimum_scale, hn::Zero(d));
  for (size_t i = 0; i < kQ4Block * n; i += n) {  // should no cost be finite
    hn::Store(hn::Load(d, block.weights + i), d, block.errors + i);
    hn::Store(hn::Zero(d), d, block.codes + i);
  }
  const V largest = hn::Max(hn::Abs(low), hn::Abs(high));
  // The step that reaches the farthest value with code 7.5.
  const V widest = hn::IfThenElse(shifted, hn::Mul(hn::Sub(high, low), hn::Set(d, 1 / 15.0f)),
                                  hn::Mul(largest, hn::Set(d, 1 / 7.5f)));
  const V center = hn::IfThenElseZero(shifted, hn::Mul(hn::Add(high, low), hn::Set(d, 0.5f)));
  const V minimum_inverse = hn::IfThenElseZero(shifted, hn::Div(hn::Set(d, 1.0f), minimum_scale));
  const V least = hn::Load(d, block.least_scales);
  V best = hn::Inf(d), best_scale = least, best_minimum = hn::Zero(d);
  const auto consider = [&](V wanted) HWY_ATTR {
    const V scale = hn::Max(to_bf16(wanted), least);
    const V middle = hn::MulAdd(hn::Set(d, 0.5f), scale, center);  // of code 8, which is 0
    const V steps = hn::Clamp(hn::Round(hn::Mul(middle, minimum_inverse)), hn::Set(d, -127.0f),
                              hn::Set(d, 127.0f));
    const V cost = round_block(block, feedback, stride, worth, scale, hn::Mul(steps, minimum_scale),
                               errors, codes);
    const auto better = hn::Lt(cost, best);
    if (hn::AllFalse(d, better)) return;
    best = hn::IfThenElse(better, cost, best);
    best_scale = hn::IfThenElse(better, scale, best_scale);
    best_minimum = hn::IfThenElse(better, steps, best_minimum);
    for (size_t i = 0; i < kQ4Block * n; i += n) {
      hn::BlendedStore(hn::Load(d, errors + i), better, d, block.errors + i);
      hn::BlendedStore(hn::Load(d, codes + i), better, d, block.codes + i);
    }
  };
  for (float factor = 1.3f; factor > 0.5f; factor *= 0.95f)
    consider(hn::Mul(widest, hn::Set(d, factor)));
  const V coarse = best_scale;
  for (const float factor : {0.97f, 0.985f, 1.015f, 1.03f}) {
    consider(hn::Mul(coarse, hn::Set(d, factor)));
  }
  hn::Store(best_scale, d, block.scales);
  hn::Store(best_minimum, d, block.minima);
  hn::Store(best, d, block.costs);
}

size_t float_lanes() { return hn::Lanes(Floats()); }

}  // namespace volvelle::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace volvelle {

HWY_EXPORT(choose_grid);
HWY_EXPORT(float_lanes);

Compensation compensate(std::vector<float> moments, size_t columns, float damping,
                        const ThreadPool& threads) {
  constexpr size_t kPanel = 32, kRowsPerTask = 32;
  constexpr float kOwnDamping = 0.01f;
  double mean = 0;
  for (size_t i = 0; i < columns; ++i) mean += moments[i * columns + i];
  mean /= static_cast<double>(columns);
  const float least = std::max(static_cast<float>(mean) * damping, 0x1p-100f);
  for (size_t i = 0; i < columns; ++i) {
    float& element = moments[i * columns + i];
    element += std::max(element * kOwnDamping, least);
  }
  Compensation result{.columns = columns,
                      .feedback = std::vector<float>(columns * columns),
                      .worth = std::vector<float>(columns)};
  // Row k of the lower triangle becomes D_k times column k of L, from the last one on.
  std::vector<float> scaled(kPanel * columns);  // minus L's columns of a panel, [kPanel, columns]
  for (size_t end = columns; end > 0;) {
    const size_t begin = end > kPanel ? end - kPanel : 0;
    for (size_t k = end; k-- > begin;) {
      float* const row = moments.data() + k * columns;
      // Rounding may have used up what is hardly there.
      const float worth = std::max(row[k], least);
      result.worth[k] = worth;
      float* const column = scaled.data() + (k - begin) * columns;
      for (size_t i = 0; i < k; ++i) {
        column[i] = -row[i] / worth;
        result.feedback[i * columns + k] = -column[i];
      }
      for (size_t i = begin; i < k; ++i) {
        for (size_t j = 0; j <= i; ++j) moments[i * columns + j] += column[i] * row[j];
      }
    }
    const size_t tasks = (begin + kRowsPerTask - 1) / kRowsPerTask;
    threads.parallel_for(tasks, [&](size_t task, size_t) {
      const size_t first = task * kRowsPerTask, last = std::min(first + kRowsPerTask, begin);
      add_outer_products({scaled.data() + first, columns},
                         {moments.data() + begin * columns, columns}, end - begin, last - first,
                         last, {moments.data() + first * columns, columns});
    });
    end = begin;
  }
  return result;
}

namespace {

// A scale for the minima of a row's blocks: what the plain search would have, and some room for
// what compensation moves.
float minimum_scale_of(const float* row, size_t columns) {
  float most = 0;
  for (size_t first = 0; first < columns; first += kQ4Block) {
    const auto [low, high] =
        std::minmax_element(row + first, row + std::min(columns, first + kQ4Block));
    const float middle = (*low + *high) / 2 + (*high - *low) / 30;
    most = std::max(most, std::fabs(middle));
  }
  constexpr float kRoom = 1.1f;
  return most * kRoom / 127;
}

}  // namespace

Result<double> quantize_q4_rows_compensated(const float* x, size_t rows, size_t columns,
                                            const Compensation& compensation, uint8_t* codes,
                                            uint16_t* scales, int8_t* minima, float* minimum_scales,
                                            size_t first_row) {
  VOLVELLE_RETURN_IF_ERROR(check_finite(x, rows, columns, first_row));
  const size_t lanes = HWY_DYNAMIC_DISPATCH(float_lanes)(), blocks = q4_blocks(columns);
  std::vector<float> errors(kQ4Block * rows);  // of a block, [kQ4Block, rows]
  double cost = 0;
  std::vector<float> near_one(x, x + rows * columns);  // squares neither overflow nor vanish
  std::vector<PowerOfTwo> powers;
  for (size_t r = 0; r < rows; ++r) {
    float* const row = near_one.data() + r * columns;
    float largest = 0;
    for (size_t i = 0; i < columns; ++i) largest = std::max(largest, std::fabs(row[i]));
    powers.emplace_back(largest);
    for (size_t i = 0; i < columns; ++i) row[i] *= powers[r].down;
    if (minima == nullptr) continue;
    minimum_scales[r] = std::max(minimum_scale_of(row, columns) * powers[r].up, 0x1p-126f);
  }
  std::vector<float> targets = near_one;
  LaneBlock block = {};
  for (size_t b = 0; b < blocks; ++b) {
    const size_t column = b * kQ4Block, count = std::min(kQ4Block, columns - column);
    // Those of the block, with zeros past the last column.
    float feedback[kQ4Block * kQ4Block] = {}, worth[kQ4Block] = {};
    for (size_t k = 0; k < count; ++k) {
      worth[k] = compensation.worth[column + k];
      std::copy_n(&compensation.feedback[(column + k) * columns + column], count,
                  feedback + k * kQ4Block);
    }
    for (size_t first = 0; first < rows; first += lanes) {
      const size_t present = std::min(lanes, rows - first);
      for (size_t lane = 0; lane < lanes; ++lane) {
        const size_t r = first + std::min(lane, present - 1);  // spare lanes repeat the last row
        for (size_t j = 0; j < kQ4Block; ++j) {
          const size_t at = r * columns + column + j;
          block.targets[j * lanes + lane] = j < count ? targets[at] : 0;
          block.weights[j * lanes + lane] = j < count ? near_one[at] : 0;
        }
        block.minimum_scales[lane] = minima != nullptr ? minimum_scales[r] * powers[r].down : 0;
        block.least_scales[lane] = std::max(powers[r].least_normal, 0x1p-126f);
      }
      HWY_DYNAMIC_DISPATCH(choose_grid)(block, feedback, kQ4Block, worth);
      for (size_t lane = 0; lane < present; ++lane) {
        const size_t r = first + lane;
        uint8_t* const to = codes + (r * blocks + b) * (kQ4Block / 2);
        for (size_t j = 0; j < kQ4Block; j += 2) {
          const int even = static_cast<int>(block.codes[j * lanes + lane]) + 8;
          const int odd = static_cast<int>(block.codes[(j + 1) * lanes + lane]) + 8;
          to[j / 2] = static_cast<uint8_t>(even | odd << 4);
        }
        scales[r * blocks + b] =
            static_cast<uint16_t>(std::bit_cast<uint32_t>(block.scales[lane] * powers[r].up) >> 16);
        if (minima != nullptr) minima[r * blocks + b] = static_cast<int8_t>(block.minima[lane]);
        for (size_t j = 0; j < count; ++j) errors[j * rows + r] = block.errors[j * lanes + lane];
        cost += block.costs[lane] * double{powers[r].up} * powers[r].up;
      }
    }
    const size_t next = column + count;
    add_outer_products({errors.data(), rows},
                       {compensation.feedback.data() + column * columns + next, columns}, count,
                       rows, columns - next, {targets.data() + next, columns});
  }
  return cost;
}

}  // namespace volvelle
#endif  // HWY_ONCE
