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

// Outputs of `rows` rows at once: each code is promoted once for all of them.
template <size_t rows>
HWY_INLINE void add_rows(const BlockMinima& minima, const float* HWY_RESTRICT sums, size_t first,
                         size_t count, float* HWY_RESTRICT y) {
  const Floats d;
  const hn::RebindToSigned<Floats> di;
  const size_t blocks = minima.blocks, outputs = minima.outputs;
  for_each_vector(d, count, [&](auto lanes, size_t i) HWY_ATTR {
    const int8_t* codes = minima.codes + first + i;
    auto a = hn::Zero(d);
    [[maybe_unused]] auto b = a, c = a, e = a;
    for (size_t block = 0; block < blocks; ++block, codes += outputs) {
      const auto code = hn::ConvertTo(d, hn::PromoteTo(di, lanes.load(Codes(), codes)));
      a = hn::MulAdd(hn::Set(d, sums[block]), code, a);
      if constexpr (rows > 1) {
        b = hn::MulAdd(hn::Set(d, sums[blocks + block]), code, b);
        c = hn::MulAdd(hn::Set(d, sums[2 * blocks + block]), code, c);
        e = hn::MulAdd(hn::Set(d, sums[3 * blocks + block]), code, e);
      }
    }
    const auto scale = lanes.load(d, minima.scales + first + i);
    float* to = y + first + i;
    const auto add = [&](auto sum) HWY_ATTR {
      lanes.store(hn::MulAdd(scale, sum, lanes.load(d, to)), d, to);
      to += outputs;
    };
    add(a);
    if constexpr (rows > 1) add(b), add(c), add(e);
  });
}

// Outputs of one row, four vectors at once, so that sums do not wait for each other. Returns how
// many outputs are done.
HWY_INLINE size_t add_row(const BlockMinima& minima, const float* HWY_RESTRICT sums, size_t first,
                          size_t count, float* HWY_RESTRICT y) {
  const Floats d;
  const hn::RebindToSigned<Floats> di;
  const size_t n = hn::Lanes(d), outputs = minima.outputs;
  size_t i = 0;
  for (; i + 4 * n <= count; i += 4 * n) {
    const int8_t* codes = minima.codes + first + i;
    auto a = hn::Zero(d), b = a, c = a, e = a;
    for (size_t block = 0; block < minima.blocks; ++block, codes += outputs) {
      const auto sum = hn::Set(d, sums[block]);
      const auto code = [&](size_t vector) HWY_ATTR {
        return hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(Codes(), codes + vector * n)));
      };
      a = hn::MulAdd(sum, code(0), a);
      b = hn::MulAdd(sum, code(1), b);
      c = hn::MulAdd(sum, code(2), c);
      e = hn::MulAdd(sum, code(3), e);
    }
    const auto add = [&](auto sum, size_t vector) HWY_ATTR {
      float* const to = y + first + i + vector * n;
      const auto scale = hn::LoadU(d, minima.scales + first + i + vector * n);
      hn::StoreU(hn::MulAdd(scale, sum, hn::LoadU(d, to)), d, to);
    };
    add(a, 0), add(b, 1), add(c, 2), add(e, 3);
  }
  return i;
}

void add_block_minima(const BlockMinima& minima, const float* sums, size_t rows, size_t first,
                      size_t count, float* y) {
  size_t row = 0;
  for (; row + 4 <= rows; row += 4) {
    add_rows<4>(minima, sums + row * minima.blocks, first, count, y + row * minima.outputs);
  }
  for (; row < rows; ++row) {
    const float* const row_sums = sums + row * minima.blocks;
    float* const row_y = y + row * minima.outputs;
    const size_t done = add_row(minima, row_sums, first, count, row_y);
    add_rows<1>(minima, row_sums, first + done, count - done, row_y);
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
