#include "kernels/thin_product.h"

#include <algorithm>

#include "kernels/quantize.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/thin_product.cc"
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
HWY_INLINE void add_rows(const ThinWeights& weights, const float* HWY_RESTRICT x, size_t first,
                         size_t count, float* HWY_RESTRICT y) {
  const Floats d;
  const hn::RebindToSigned<Floats> di;
  const size_t inputs = weights.inputs, outputs = weights.outputs;
  for_each_vector(d, count, [&](auto lanes, size_t i) HWY_ATTR {
    const int8_t* codes = weights.codes + first + i;
    auto a = hn::Zero(d);
    [[maybe_unused]] auto b = a, c = a, e = a;
    for (size_t input = 0; input < inputs; ++input, codes += outputs) {
      const auto code = hn::ConvertTo(d, hn::PromoteTo(di, lanes.load(Codes(), codes)));
      a = hn::MulAdd(hn::Set(d, x[input]), code, a);
      if constexpr (rows > 1) {
        b = hn::MulAdd(hn::Set(d, x[inputs + input]), code, b);
        c = hn::MulAdd(hn::Set(d, x[2 * inputs + input]), code, c);
        e = hn::MulAdd(hn::Set(d, x[3 * inputs + input]), code, e);
      }
    }
    const auto scale = lanes.load(d, weights.scales + first + i);
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
HWY_INLINE size_t add_row(const ThinWeights& weights, const float* HWY_RESTRICT x, size_t first,
                          size_t count, float* HWY_RESTRICT y) {
  const Floats d;
  const hn::RebindToSigned<Floats> di;
  const size_t n = hn::Lanes(d), outputs = weights.outputs;
  size_t i = 0;
  for (; i + 4 * n <= count; i += 4 * n) {
    const int8_t* codes = weights.codes + first + i;
    auto a = hn::Zero(d), b = a, c = a, e = a;
    for (size_t input = 0; input < weights.inputs; ++input, codes += outputs) {
      const auto value = hn::Set(d, x[input]);
      const auto code = [&](size_t vector) HWY_ATTR {
        return hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(Codes(), codes + vector * n)));
      };
      a = hn::MulAdd(value, code(0), a);
      b = hn::MulAdd(value, code(1), b);
      c = hn::MulAdd(value, code(2), c);
      e = hn::MulAdd(value, code(3), e);
    }
    const auto add = [&](auto sum, size_t vector) HWY_ATTR {
      float* const to = y + first + i + vector * n;
      const auto scale = hn::LoadU(d, weights.scales + first + i + vector * n);
      hn::StoreU(hn::MulAdd(scale, sum, hn::LoadU(d, to)), d, to);
    };
    add(a, 0), add(b, 1), add(c, 2), add(e, 3);
  }
  return i;
}

void add_thin_product(const ThinWeights& weights, const float* x, size_t rows, size_t first,
                      size_t count, float* y) {
  size_t row = 0;
  for (; row + 4 <= rows; row += 4) {
    add_rows<4>(weights, x + row * weights.inputs, first, count, y + row * weights.outputs);
  }
  for (; row < rows; ++row) {
    const float* const row_x = x + row * weights.inputs;
    float* const row_y = y + row * weights.outputs;
    const size_t done = add_row(weights, row_x, first, count, row_y);
    add_rows<1>(weights, row_x, first + done, count - done, row_y);
  }
}

}  // namespace volvelle::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace volvelle {

HWY_EXPORT(sum_blocks);
HWY_EXPORT(add_thin_product);

void sum_blocks(const float* x, size_t count, float* sums) {
  HWY_DYNAMIC_DISPATCH(sum_blocks)(x, count, sums);
}

void add_thin_product(const ThinWeights& weights, const float* x, size_t rows, size_t first,
                      size_t count, float* y) {
  HWY_DYNAMIC_DISPATCH(add_thin_product)(weights, x, rows, first, count, y);
}

}  // namespace volvelle
#endif  // HWY_ONCE
