// Products of rows of codes with an int8 matrix that stay near the processor's peak, for processors
// with one instruction for four products in a lane of long vectors. Elsewhere XNNPACK's are faster.

#ifndef VOLVELLE_KERNELS_INT8_PRODUCT_H_
#define VOLVELLE_KERNELS_INT8_PRODUCT_H_

#include <cstddef>
#include <cstdint>

#include "kernels/quantize.h"

namespace volvelle {

// Outputs whose weights lie together: three vectors. With eight rows, that is 24 sums in registers,
// for which a step of four inputs loads 3 vectors of weights and 8 of codes.
inline constexpr size_t kPanelOutputs = 48;

// Whether this processor has that instruction.
bool int8_product_pays();

// A matrix [outputs, inputs] in panels: of each, the sums of its outputs' weights, their scales and
// biases, then for every four inputs in turn those weights of each output.
struct Int8Matrix {
  const void* panels = nullptr;  // 64-byte aligned
  size_t inputs = 0;             // a multiple of 4
  size_t outputs = 0;

  size_t panel_count() const { return (outputs + kPanelOutputs - 1) / kPanelOutputs; }
  size_t panel_bytes() const { return kPanelOutputs * (3 * sizeof(float) + inputs); }
  size_t bytes() const { return panel_count() * panel_bytes(); }
};

// Writes all of the matrix's bytes to `panels`.
//
//   weights  [outputs, inputs], each times its output's scale
//   bias     [outputs]; null: zeros
void pack_int8(const Int8Matrix& shape, const int8_t* weights, const float* scales,
               const float* bias, void* panels);

// y = (matrix * x + bias) for the outputs of panel `panel`, row by row.
//
//   codes  [rows, inputs], of x as quantize_unsigned makes them
//   means  [rows], what they mean
//   y      [rows, outputs]
void multiply_int8(const Int8Matrix& matrix, size_t panel, const uint8_t* codes,
                   const RowCode* means, size_t rows, float* y);

namespace scalar {
void multiply_int8(const Int8Matrix& matrix, size_t panel, const uint8_t* codes,
                   const RowCode* means, size_t rows, float* y);
}  // namespace scalar

}  // namespace volvelle

#endif  // VOLVELLE_KERNELS_INT8_PRODUCT_H_
