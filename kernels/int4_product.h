// Products of rows of codes with a four-bit matrix, near the memory's speed for one row and near
// the processor's peak for many; for the processors of int8_product.h. Elsewhere XNNPACK's are
// faster.

#ifndef VOLVELLE_KERNELS_INT4_PRODUCT_H_
#define VOLVELLE_KERNELS_INT4_PRODUCT_H_

#include <cstddef>
#include <cstdint>

#include "kernels/int8_product.h"
#include "kernels/quantize.h"

namespace volvelle {

// A matrix [outputs, inputs] in panels of kPanelOutputs, whose bytes are used in the order in which
// they lie; anything else leaves a processor's reading ahead behind. Of each, block by block of
// kQ4Block inputs: for every eight inputs those codes of each output, the first four in low halves
// of bytes and the others in high ones, then the outputs' scales in bfloat16. After all blocks, the
// sums of the outputs' weights and their biases. Code 8 means 0.
struct Int4Matrix {
  const void* panels = nullptr;  // 64-byte aligned
  size_t inputs = 0;             // a multiple of kQ4Block
  size_t outputs = 0;

  static constexpr size_t kCodeBytes = kPanelOutputs * kQ4Block / 2;  // of a block
  static constexpr size_t kBlockBytes = kCodeBytes + kPanelOutputs * sizeof(uint16_t);

  size_t blocks() const { return inputs / kQ4Block; }
  size_t panel_count() const { return (outputs + kPanelOutputs - 1) / kPanelOutputs; }
  size_t panel_bytes() const {
    return (blocks() * kBlockBytes + 2 * kPanelOutputs * sizeof(float) + 63) / 64 * 64;
  }
  size_t bytes() const { return panel_count() * panel_bytes(); }
};

// Writes all of the matrix's bytes to `panels`.
//
//   codes   [outputs, inputs / 2], two in a byte, that of the lower column in its low half
//   scales  [outputs, blocks], bfloat16
//   bias    [outputs]; null: zeros
void pack_int4(const Int4Matrix& shape, const uint8_t* codes, const uint16_t* scales,
               const float* bias, void* panels);

// What products start with in each block of a row: -8 times the sum of its codes.
//
//   codes   [blocks * kQ4Block]
//   starts  [blocks]
void start_blocks(const int8_t* codes, size_t blocks, int32_t* starts);

// y = (matrix * x + bias) for the outputs of panel `panel`, row by row.
//
//   codes   [rows, inputs], of x as quantize_rows makes them
//   starts  [rows, blocks], of start_blocks
//   means   [rows], what codes mean
//   y       [rows, outputs]
void multiply_int4(const Int4Matrix& matrix, size_t panel, const int8_t* codes,
                   const int32_t* starts, const RowCode* means, size_t rows, float* y);

namespace scalar {
void start_blocks(const int8_t* codes, size_t blocks, int32_t* starts);
void multiply_int4(const Int4Matrix& matrix, size_t panel, const int8_t* codes,
                   const int32_t* starts, const RowCode* means, size_t rows, float* y);
}  // namespace scalar

}  // namespace volvelle

#endif  // VOLVELLE_KERNELS_INT4_PRODUCT_H_
