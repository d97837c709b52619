#include "kernels/int4_product.h"

#include <algorithm>
#include <bit>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/int4_product.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"
#include "kernels/dot-inl.h"
#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace volvelle::HWY_NAMESPACE {

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL

constexpr size_t kVectors = 3;  // of a panel
// With four rows, 12 sums of a block and as many of all blocks stay in registers.
constexpr size_t kTileRows = 4;

// `rows` rows of the panel's outputs, of which the first `outputs` exist.
template <size_t rows>
HWY_INLINE void multiply_tile(const Int4Matrix& matrix, const uint8_t* HWY_RESTRICT at,
                              size_t outputs, const int8_t* HWY_RESTRICT codes,
                              const int32_t* HWY_RESTRICT starts, const RowCode* means,
                              float* HWY_RESTRICT y) {
  const Floats d;
  const Sums ds;
  const hn::RebindToUnsigned<Floats> du;
  const hn::Rebind<uint16_t, Floats> dh;
  constexpr size_t n = hn::MaxLanes(d);
  const size_t inputs = matrix.inputs, blocks = matrix.blocks();
  const auto low_half = hn::Set(Unsigned(), 15);

  hn::Vec<Floats> totals[rows][kVectors];
#pragma GCC unroll 4
  for (size_t r = 0; r < rows; ++r) {
#pragma GCC unroll 3
    for (size_t v = 0; v < kVectors; ++v) totals[r][v] = hn::Zero(d);
  }
  for (size_t block = 0; block < blocks; ++block) {
    hn::Vec<Sums> dots[rows][kVectors];
#pragma GCC unroll 4
    for (size_t r = 0; r < rows; ++r) {
      dots[r][0] = dots[r][1] = dots[r][2] = hn::Set(ds, starts[r * blocks + block]);
    }
    const auto multiply_eight = [&](size_t i) HWY_ATTR {
      const auto load = [&](size_t v) HWY_ATTR {
        return hn::LoadU(Unsigned(), at + v * hn::MaxLanes(Unsigned()));
      };
      const auto w0 = load(0), w1 = load(1), w2 = load(2);
      at += 4 * kPanelOutputs;
      const auto low = [&](auto w) HWY_ATTR { return hn::And(w, low_half); };
      // Not a shift of bytes, for which there is an instruction that competes with the products.
      const auto high = [&](auto w) HWY_ATTR {
        const hn::Repartition<uint16_t, Floats> d16;
        return low(hn::BitCast(Unsigned(), hn::ShiftRight<4>(hn::BitCast(d16, w))));
      };
      const auto multiply = [&](const int8_t* fours, auto a, auto b, auto c) HWY_ATTR {
#pragma GCC unroll 4
        for (size_t r = 0; r < rows; ++r) {
          const auto four = broadcast_four(Signed(), fours + r * inputs);
          dots[r][0] = add_dot(a, four, dots[r][0]);
          dots[r][1] = add_dot(b, four, dots[r][1]);
          dots[r][2] = add_dot(c, four, dots[r][2]);
        }
      };
      multiply(codes + i, low(w0), low(w1), low(w2));
      multiply(codes + i + 4, high(w0), high(w1), high(w2));
    };
    if constexpr (rows == 1) {
      // Each load that walks the memory on its own is a stream more for the reading ahead.
#pragma GCC unroll 1
      for (size_t i = 0; i < kQ4Block; i += 8) multiply_eight(block * kQ4Block + i);
    } else {
#pragma GCC unroll 4
      for (size_t i = 0; i < kQ4Block; i += 8) multiply_eight(block * kQ4Block + i);
    }
    const auto* const scales = reinterpret_cast<const uint16_t*>(at);
    at += kPanelOutputs * sizeof(uint16_t);
#pragma GCC unroll 3
    for (size_t v = 0; v < kVectors; ++v) {
      const auto half = hn::LoadU(dh, scales + v * n);
      const auto scale = hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, half)));
#pragma GCC unroll 4
      for (size_t r = 0; r < rows; ++r) {
        totals[r][v] = hn::MulAdd(hn::ConvertTo(d, dots[r][v]), scale, totals[r][v]);
      }
    }
  }
  const float* const sums = reinterpret_cast<const float*>(at);
  const float* const biases = sums + kPanelOutputs;
#pragma GCC unroll 3
  for (size_t v = 0; v < kVectors; ++v) {
    if (v * n >= outputs) return;
    const auto sum = hn::LoadU(d, sums + v * n), bias = hn::LoadU(d, biases + v * n);
    const size_t left = outputs - v * n;
#pragma GCC unroll 4
    for (size_t r = 0; r < rows; ++r) {
      const auto zero = hn::Set(d, static_cast<float>(means[r].zero_point));
      const auto product =
          hn::MulAdd(hn::NegMulAdd(zero, sum, totals[r][v]), hn::Set(d, means[r].scale), bias);
      float* const to = y + r * matrix.outputs + v * n;
      if (left >= n) {
        hn::StoreU(product, d, to);
      } else {
        hn::StoreN(product, d, to, left);
      }
    }
  }
}

void start_blocks(const int8_t* codes, size_t blocks, int32_t* starts) {
  const hn::CappedTag<uint8_t, kQ4Block> d;
  const hn::Repartition<uint64_t, decltype(d)> d64;
  for (size_t b = 0; b < blocks; ++b) {
    const auto some = hn::LoadU(d, reinterpret_cast<const uint8_t*>(codes) + b * kQ4Block);
    const auto sum = hn::ReduceSum(d64, hn::SumsOf8(hn::Xor(some, hn::Set(d, 128))));
    starts[b] = -8 * (static_cast<int32_t>(sum) - 128 * static_cast<int32_t>(kQ4Block));
  }
}

void multiply_int4(const Int4Matrix& matrix, size_t panel, const int8_t* codes,
                   const int32_t* starts, const RowCode* means, size_t rows, float* y) {
  const auto* const at = static_cast<const uint8_t*>(matrix.panels) + panel * matrix.panel_bytes();
  const size_t first = panel * kPanelOutputs;
  const size_t outputs = std::min(kPanelOutputs, matrix.outputs - first);
  y += first;
  for_each_tile<kTileRows>(rows, [&]<size_t count>(size_t row) HWY_ATTR {
    multiply_tile<count>(matrix, at, outputs, codes + row * matrix.inputs,
                         starts + row * matrix.blocks(), means + row, y + row * matrix.outputs);
  });
}

#else

void start_blocks(const int8_t* codes, size_t blocks, int32_t* starts) {
  scalar::start_blocks(codes, blocks, starts);
}

void multiply_int4(const Int4Matrix& matrix, size_t panel, const int8_t* codes,
                   const int32_t* starts, const RowCode* means, size_t rows, float* y) {
  scalar::multiply_int4(matrix, panel, codes, starts, means, rows, y);
}

#endif

}  // namespace volvelle::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace volvelle {

HWY_EXPORT(start_blocks);
HWY_EXPORT(multiply_int4);

void start_blocks(const int8_t* codes, size_t blocks, int32_t* starts) {
  HWY_DYNAMIC_DISPATCH(start_blocks)(codes, blocks, starts);
}

void multiply_int4(const Int4Matrix& matrix, size_t panel, const int8_t* codes,
                   const int32_t* starts, const RowCode* means, size_t rows, float* y) {
  HWY_DYNAMIC_DISPATCH(multiply_int4)(matrix, panel, codes, starts, means, rows, y);
}

void pack_int4(const Int4Matrix& shape, const uint8_t* codes, const uint16_t* scales,
               const float* bias, void* panels) {
  const size_t blocks = shape.blocks();
  for (size_t panel = 0; panel < shape.panel_count(); ++panel) {
    auto* const at = static_cast<uint8_t*>(panels) + panel * shape.panel_bytes();
    const size_t first = panel * kPanelOutputs;
    const size_t outputs = std::min(kPanelOutputs, shape.outputs - first);
    std::memset(at, 0, shape.panel_bytes());
    float* const sums = reinterpret_cast<float*>(at + blocks * Int4Matrix::kBlockBytes);
    float* const biases = sums + kPanelOutputs;
    if (bias != nullptr) std::copy_n(bias + first, outputs, biases);
    for (size_t o = 0; o < outputs; ++o) {
      const uint8_t* const row = codes + (first + o) * (shape.inputs / 2);
      double sum = 0;
      for (size_t b = 0; b < blocks; ++b) {
        uint8_t* const block = at + b * Int4Matrix::kBlockBytes;
        uint8_t* const weights = block + o * 4;
        const uint16_t scale = scales[(first + o) * blocks + b];
        reinterpret_cast<uint16_t*>(block + Int4Matrix::kCodeBytes)[o] = scale;
        int steps = 0;
        for (size_t i = 0; i < kQ4Block; ++i) {
          const uint8_t two = row[(b * kQ4Block + i) / 2];
          const uint8_t code = i % 2 == 0 ? two & 15 : two >> 4;
          steps += code - 8;
          uint8_t& to = weights[i / 8 * kPanelOutputs * 4 + i % 4];
          to = static_cast<uint8_t>(to | (i % 8 < 4 ? code : code << 4));
        }
        sum += steps * double{std::bit_cast<float>(uint32_t{scale} << 16)};
      }
      sums[o] = static_cast<float>(sum);
    }
  }
}

}  // namespace volvelle
#endif  // HWY_ONCE
