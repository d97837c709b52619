#include "kernels/int8_product.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/int8_product.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"
#include "kernels/dot-inl.h"
#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace volvelle::HWY_NAMESPACE {

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL

constexpr size_t kVectors = 3;  // of a panel
constexpr size_t kTileRows = 8;

bool int8_product_pays() { return true; }

// `rows` rows of the panel's outputs, of which the first `outputs` exist.
template <size_t rows>
HWY_INLINE void multiply_tile(const Int8Matrix& matrix, const int8_t* panel, size_t outputs,
                              const uint8_t* HWY_RESTRICT codes, const RowCode* means,
                              float* HWY_RESTRICT y) {
  const Floats d;
  const Sums ds;
  constexpr size_t n = hn::MaxLanes(d);
  const int32_t* const sums = reinterpret_cast<const int32_t*>(panel);
  const float* const scales = reinterpret_cast<const float*>(sums + kPanelOutputs);
  const float* const biases = scales + kPanelOutputs;
  const int8_t* HWY_RESTRICT weights = reinterpret_cast<const int8_t*>(biases + kPanelOutputs);

  hn::Vec<Sums> totals[rows][kVectors];  // in registers, once the loops are unrolled
#pragma GCC unroll 8
  for (size_t r = 0; r < rows; ++r) {
    const auto zero = hn::Set(ds, -means[r].zero_point);
#pragma GCC unroll 3
    for (size_t v = 0; v < kVectors; ++v) {
      totals[r][v] = hn::Mul(zero, hn::Load(ds, sums + v * n));
    }
  }
  for (size_t i = 0; i < matrix.inputs; i += 4, weights += 4 * kPanelOutputs) {
    const auto w0 = hn::Load(Signed(), weights), w1 = hn::Load(Signed(), weights + 4 * n);
    const auto w2 = hn::Load(Signed(), weights + 8 * n);
#pragma GCC unroll 8
    for (size_t r = 0; r < rows; ++r) {
      const auto four = broadcast_four(Unsigned(), codes + r * matrix.inputs + i);
      totals[r][0] = add_dot(four, w0, totals[r][0]);
      totals[r][1] = add_dot(four, w1, totals[r][1]);
      totals[r][2] = add_dot(four, w2, totals[r][2]);
    }
  }
#pragma GCC unroll 3
  for (size_t v = 0; v < kVectors; ++v) {
    if (v * n >= outputs) return;
    const auto scale = hn::Load(d, scales + v * n), bias = hn::Load(d, biases + v * n);
    const size_t left = outputs - v * n;
#pragma GCC unroll 8
    for (size_t r = 0; r < rows; ++r) {
      const auto factor = hn::Mul(scale, hn::Set(d, means[r].scale));
      const auto product = hn::MulAdd(hn::ConvertTo(d, totals[r][v]), factor, bias);
      float* const to = y + r * matrix.outputs + v * n;
      if (left >= n) {
        hn::StoreU(product, d, to);
      } else {
        hn::StoreN(product, d, to, left);
      }
    }
  }
}

void multiply_int8(const Int8Matrix& matrix, size_t panel, const uint8_t* codes,
                   const RowCode* means, size_t rows, float* y) {
  const auto* const at = static_cast<const int8_t*>(matrix.panels) + panel * matrix.panel_bytes();
  const size_t first = panel * kPanelOutputs;
  const size_t outputs = std::min(kPanelOutputs, matrix.outputs - first);
  y += first;
  for_each_tile<kTileRows>(rows, [&]<size_t count>(size_t row) HWY_ATTR {
    multiply_tile<count>(matrix, at, outputs, codes + row * matrix.inputs, means + row,
                         y + row * matrix.outputs);
  });
}

#else

bool int8_product_pays() { return false; }

void multiply_int8(const Int8Matrix& matrix, size_t panel, const uint8_t* codes,
                   const RowCode* means, size_t rows, float* y) {
  scalar::multiply_int8(matrix, panel, codes, means, rows, y);
}

#endif

}  // namespace volvelle::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace volvelle {

HWY_EXPORT(int8_product_pays);
HWY_EXPORT(multiply_int8);

bool int8_product_pays() { return HWY_DYNAMIC_DISPATCH(int8_product_pays)(); }

void multiply_int8(const Int8Matrix& matrix, size_t panel, const uint8_t* codes,
                   const RowCode* means, size_t rows, float* y) {
  HWY_DYNAMIC_DISPATCH(multiply_int8)(matrix, panel, codes, means, rows, y);
}

void pack_int8(const Int8Matrix& shape, const int8_t* weights, const float* scales,
               const float* bias, void* panels) {
  for (size_t panel = 0; panel < shape.panel_count(); ++panel) {
    auto* const at = static_cast<std::byte*>(panels) + panel * shape.panel_bytes();
    const size_t first = panel * kPanelOutputs;
    const size_t outputs = std::min(kPanelOutputs, shape.outputs - first);
    std::memset(at, 0, shape.panel_bytes());
    int32_t* const sums = reinterpret_cast<int32_t*>(at);
    float* const own_scales = reinterpret_cast<float*>(sums + kPanelOutputs);
    float* const biases = own_scales + kPanelOutputs;
    std::copy_n(scales + first, outputs, own_scales);
    if (bias != nullptr) std::copy_n(bias + first, outputs, biases);
    auto* const packed = reinterpret_cast<int8_t*>(biases + kPanelOutputs);
    for (size_t o = 0; o < outputs; ++o) {
      const int8_t* const row = weights + (first + o) * shape.inputs;
      uint32_t sum = 0;  // may wrap, as the sums of products do
      for (size_t i = 0; i < shape.inputs; i += 4) {
        std::memcpy(packed + i * kPanelOutputs + o * 4, row + i, 4);
        for (size_t k = 0; k < 4; ++k) sum += static_cast<uint32_t>(row[i + k]);
      }
      sums[o] = static_cast<int32_t>(sum);
    }
  }
}

}  // namespace volvelle
#endif  // HWY_ONCE
