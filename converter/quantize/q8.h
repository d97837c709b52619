// Rows of weights in eight bits: one float scale per row (output channel), value = code * scale,
// codes from -127 to 127, the scale being chosen by least squared error. The result is the same on
// every machine.

#ifndef VOLVELLE_CONVERTER_QUANTIZE_Q8_H_
#define VOLVELLE_CONVERTER_QUANTIZE_Q8_H_

#include <cstddef>
#include <cstdint>

#include "platforms/error.h"

namespace volvelle {

//   x       [rows, columns]
//   codes   [rows, columns]
//   scales  [rows] positive and normal: 2^-126 for a row of zeros
//
// Tries max|x| / 127 and smaller scales in steps of 1/256 of it as long as what they cut off the
// maximum is less than the error so far, then the scale sum(x * code) / sum(code^2) that fits the
// best one's codes; takes the first of least sum((x - s * code)^2). Fails on a NaN or an infinity,
// naming row and column; `first_row` is the number of x's first row there.
Result<void> quantize_q8_rows(const float* x, size_t rows, size_t columns, int8_t* codes,
                              float* scales, size_t first_row = 0);

// y [rows, columns]
void dequantize_q8_rows(const int8_t* codes, const float* scales, size_t rows, size_t columns,
                        float* y);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_QUANTIZE_Q8_H_
