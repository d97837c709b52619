#include "kernels/block_minima.h"

#include <algorithm>

#include "kernels/quantize.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/block_minima.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"
#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace volvelle::HWY_NAMESPACE {

using Codes = hn::Rebind<int8_t, Floats>;

void sum_blocks(const float* x, size_t count, float* sums) {
  const Floats d;
  for (size_t first = 0; first < count; first += kQ4Block) {
    auto sum = hn::Zero(d);
    for_each_vector(d, std::min(kQ4Block, count - first), [&](auto lanes, size_t i) HWY_ATTR {
      sum = hn::Add(sum, lanes.load(d, x + first + i));
    });
    *sums++ = hn::ReduceSum(d, sum);
  }
}

// Outputs of `rows` rows by `vectors` vectors from `at` on, one sum or four at once: four do not
// wait for each other, and rows share each promoted code. `lanes` loads and stores a vector.
template <size_t rows, size_t vectors, class Lanes>
HWY_INLINE void add_outputs(const BlockMinima& minima, const float* HWY_RESTRICT sums, size_t at,
                            const Lanes& lanes, float* HWY_RESTRICT y) {
  static_assert(rows * vectors == 1 || rows * vectors == 4);
  const Floats d;
  const hn::RebindToSigned<Floats> di;
  const size_t n = hn::Lanes(d), outputs = minima.outputs;
  const int8_t* codes = minima.codes + at;
  auto a = hn::Zero(d);
  [[maybe_unused]] auto b = a, c = a, e = a;
  for (size_t block = 0; block < minima.blocks; ++block, codes += outputs) {
    // What the sum number k, of row k / vectors, gains.
    const auto add_term = [&](size_t k, auto sum) HWY_ATTR {
      const auto code = hn::PromoteTo(di, lanes.load(Codes(), codes + k % vectors * n));
      const auto factor = hn::Set(d, sums[k / vectors * minima.blocks + block]);
      return hn::MulAdd(factor, hn::ConvertTo(d, code), sum);
    };
    a = add_term(0, a);
    if constexpr (rows * vectors > 1) b = add_term(1, b), c = add_term(2, c), e = add_term(3, e);
  }
  const auto store = [&](size_t k, auto sum) HWY_ATTR {
    const size_t output = at + k % vectors * n;
    float* const to = y + k / vectors * outputs + output;
    const auto scale = lanes.load(d, minima.scales + output);
    lanes.store(hn::MulAdd(scale, sum, lanes.load(d, to)), d, to);
  };
  store(0, a);
  if constexpr (rows * vectors > 1) store(1, b), store(2, c), store(3, e);
}

void add_block_minima(const BlockMinima& minima, const float* sums, size_t rows, size_t first,
                      size_t count, float* y) {
  const Floats d;
  size_t row = 0;
  for (; row + 4 <= rows; row += 4, sums += 4 * minima.blocks, y += 4 * minima.outputs) {
    for_each_vector(d, count, [&](auto lanes, size_t i) HWY_ATTR {
      add_outputs<4, 1>(minima, sums, first + i, lanes, y);
    });
  }
  for (; row < rows; ++row, sums += minima.blocks, y += minima.outputs) {
    const size_t step = 4 * hn::Lanes(d);
    size_t done = 0;
    for (; done + step <= count; done += step) {
      add_outputs<1, 4>(minima, sums, first + done, Whole(), y);
    }
    for_each_vector(d, count - done, [&](auto lanes, size_t i) HWY_ATTR {
      add_outputs<1, 1>(minima, sums, first + done + i, lanes, y);
    });
  }
}

}  // namespace volvelle::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace volvelle {

HWY_EXPORT(sum_blocks);
HWY_EXPORT(add_block_minima);

void sum_blocks(const float* x, size_t count, float* sums) {
  HWY_DYNAMIC_DISPATCH(sum_blocks)(x, count, sums);
}

void add_block_minima(const BlockMinima& minima, const float* sums, size_t rows, size_t first,
                      size_t count, float* y) {
  HWY_DYNAMIC_DISPATCH(add_block_minima)(minima, sums, rows, first, count, y);
}

}  // namespace volvelle
#endif  // HWY_ONCE
