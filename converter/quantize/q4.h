// Rows of weights in four bits: blocks of 32 with a bfloat16 scale, value = (code - 8) * scale, the
// scale being the one of least squared error. The result is the same on every machine and for any
// number of threads.

#ifndef VOLVELLE_CONVERTER_QUANTIZE_Q4_H_
#define VOLVELLE_CONVERTER_QUANTIZE_Q4_H_

#include <cstddef>
#include <cstdint>

#include "kernels/quantize.h"
#include "platforms/error.h"

namespace volvelle {

// The codes that max|x| of a block may fall on, were they not cut off at -8 and 7.
inline constexpr float kQ4CoarsestCode = 6;
inline constexpr float kQ4FinestCode = 13;

// Blocks of a row; the last one is padded with zeros (code 8).
constexpr size_t q4_blocks(size_t columns) { return (columns + kQ4Block - 1) / kQ4Block; }

//   x       [rows, columns]
//   codes   [rows, q4_blocks(columns), 16] bytes: value 2i of a block in the low nibble of byte i,
//   2i + 1 in the high scales  [rows, q4_blocks(columns)] bfloat16, positive and normal: 2^-126 for
//   a block of zeros
//
// The scale s minimises sum((x - s * clamp(round(x / s), -8, 7))^2) over every bfloat16 from max|x|
// / kQ4FinestCode to max|x| / kQ4CoarsestCode, and on either side of max|x| / 4 and max|x| / 5 for
// weights that lie on a coarser grid. A finer scale than that cuts more off max|x| than rounding
// can cost. Fails on a NaN or an infinity, naming row and column; `first_row` is the number of x's
// first row there.
Result<void> quantize_q4_rows(const float* x, size_t rows, size_t columns, uint8_t* codes,
                              uint16_t* scales, size_t first_row = 0);

// The same with a minimum for each block: value = (code - 8) * scale + minimum. Weights that lie on
// a grid of up to 16 steps, as those of another four-bit format do, stay on it but for the rounding
// of scale and minimum.
//
//   minima          [rows, q4_blocks(columns)]
//   minimum_scales  [rows]; a block's minimum is minima * minimum_scales
//
// Of the grids that divide a block's range into 15 to 6 steps, takes the one of least squared
// error.
Result<void> quantize_q4_rows_with_minima(const float* x, size_t rows, size_t columns,
                                          uint8_t* codes, uint16_t* scales, int8_t* minima,
                                          float* minimum_scales, size_t first_row = 0);

// What rounding to codes costs the rows: the sum of squared errors, without minima and with them.
struct Q4Error {
  double plain = 0;
  double with_minima = 0;
};
Result<Q4Error> q4_error(const float* x, size_t rows, size_t columns);

// y [rows, columns]
void dequantize_q4_rows(const uint8_t* codes, const uint16_t* scales, size_t rows, size_t columns,
                        float* y);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_QUANTIZE_Q4_H_
