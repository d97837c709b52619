#include "converter/quantize/outer_products.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "converter/quantize/outer_products.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"
#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace volvelle::HWY_NAMESPACE {

constexpr size_t kRows = 4;     // of a tile, whose sums stay in registers
constexpr size_t kDepth = 128;  // of what is packed, so that a tile's factors stay in the L1 cache
constexpr size_t kMostPackedRows = 32;

// Two vectors of each of four rows. a [depth, kRows], b [depth, 2 vectors].
template <class Left, class Right>
HWY_INLINE void add_tile(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, size_t depth,
                         size_t rows, const Left& left, const Right& right, Strided<float> c) {
  const Floats d;
  const size_t n = hn::Lanes(d);
  const auto row = [&](size_t i) { return c.data + std::min(i, rows - 1) * c.stride; };
  auto a0 = left.load(d, row(0)), a1 = right.load(d, row(0) + n);
  auto b0 = left.load(d, row(1)), b1 = right.load(d, row(1) + n);
  auto c0 = left.load(d, row(2)), c1 = right.load(d, row(2) + n);
  auto d0 = left.load(d, row(3)), d1 = right.load(d, row(3) + n);
  for (size_t k = 0; k < depth; ++k, a += kRows, b += 2 * n) {
    const auto x = hn::Load(d, b), y = hn::Load(d, b + n);
    const auto add = [&](float factor, auto& first, auto& second) HWY_ATTR {
      first = hn::MulAdd(hn::Set(d, factor), x, first);
      second = hn::MulAdd(hn::Set(d, factor), y, second);
    };
    add(a[0], a0, a1), add(a[1], b0, b1), add(a[2], c0, c1), add(a[3], d0, d1);
  }
  const auto store = [&](size_t i, auto first, auto second) HWY_ATTR {
    if (i >= rows) return;
    left.store(first, d, row(i));
    right.store(second, d, row(i) + n);
  };
  store(0, a0, a1), store(1, b0, b1), store(2, c0, c1), store(3, d0, d1);
}

// Of at most kDepth and kMostPackedRows.
void add_packed(Strided<const float> a, Strided<const float> b, size_t depth, size_t rows,
                size_t columns, Strided<float> c) {
  const size_t n = hn::Lanes(Floats()), width = 2 * n;
  HWY_ALIGN float packed_a[kMostPackedRows * kDepth];  // [tiles, depth, kRows]
  HWY_ALIGN float packed_b[kDepth * 32];               // [depth, width]
  for (size_t i = 0; i < rows; i += kRows) {
    for (size_t k = 0; k < depth; ++k) {
      for (size_t row = i; row < i + kRows; ++row) {
        packed_a[i * depth + k * kRows + row - i] = row < rows ? a.data[k * a.stride + row] : 0;
      }
    }
  }
  for (size_t j = 0; j < columns; j += width) {
    const size_t count = std::min(width, columns - j);
    for (size_t k = 0; k < depth; ++k) {
      float* const to = packed_b + k * width;
      std::fill(std::copy_n(b.data + k * b.stride + j, count, to), to + width, 0.0f);
    }
    for (size_t i = 0; i < rows; i += kRows) {
      const auto add = [&](auto left, auto right) HWY_ATTR {
        add_tile(packed_a + i * depth, packed_b, depth, std::min(kRows, rows - i), left, right,
                 c.from(i, j));
      };
      if (count == width) {
        add(Whole(), Whole());
      } else {
        add(Partial{std::min(n, count)}, Partial{count - std::min(n, count)});
      }
    }
  }
}

void add_outer_products(Strided<const float> a, Strided<const float> b, size_t depth, size_t rows,
                        size_t columns, Strided<float> c) {
  for (size_t i = 0; i < rows; i += kMostPackedRows) {
    for (size_t k = 0; k < depth; k += kDepth) {
      add_packed(a.from(k, i), b.from(k, 0), std::min(kDepth, depth - k),
                 std::min(kMostPackedRows, rows - i), columns, c.from(i, 0));
    }
  }
}

}  // namespace volvelle::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace volvelle {

HWY_EXPORT(add_outer_products);

void add_outer_products(Strided<const float> a, Strided<const float> b, size_t depth, size_t rows,
                        size_t columns, Strided<float> c) {
  HWY_DYNAMIC_DISPATCH(add_outer_products)(a, b, depth, rows, columns, c);
}

}  // namespace volvelle
#endif  // HWY_ONCE
