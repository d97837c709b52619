// Rows in fewer bits: what the cache stores, and embedding rows back.

#ifndef VOLVELLE_KERNELS_QUANTIZE_H_
#define VOLVELLE_KERNELS_QUANTIZE_H_

#include <cstddef>
#include <cstdint>

namespace volvelle {

// Weights in a row of a four-bit tensor that share a scale: the model file's and XNNPACK's block.
inline constexpr size_t kQ4Block = 32;

// Symmetric int8: returns the scale max|x| / 127 and writes codes round(x * (1 / scale)) (ties to
// even), so that x is about code * scale. Where the scale is 0 or denormal, codes are 0.
//
//   x      [count] finite floats
//   codes  [count]
float quantize_q8(const float* x, size_t count, int8_t* codes);

// What codes of a row mean: x = (code - zero_point) * scale.
struct RowCode {
  int32_t zero_point = 0;
  float scale = 0;
};

struct FloatRows {
  const float* x;  // [rows, count]
  size_t rows, count;
};

// Rotates rows of activations (hadamard.h) and quantises each on its own: 255 steps from the least
// to the greatest element, both of which zero widens, so that 0 is code zero_point exactly. A row
// with a NaN or an infinity gets a scale that is not a number.
//
//   block        of the rotation; 1: none
//   transformed  [x.rows, x.count], scratch of a rotation: its result times sqrt(block); maybe x
//   codes        row r's [x.count] from r * stride on; as unsigned bytes they are 128 more, as is
//                the zero point
//   means        [x.rows]
void quantize_rows(size_t block, const FloatRows& x, float* transformed, int8_t* codes,
                   size_t stride, RowCode* means);
void quantize_rows(size_t block, const FloatRows& x, float* transformed, uint8_t* codes,
                   size_t stride, RowCode* means);

// y = codes * scale.
void dequantize_q8(const int8_t* codes, float scale, size_t count, float* y);

// IEEE half precision, rounded to nearest even; magnitudes past 65504 become the largest finite
// half.
void to_f16(const float* x, size_t count, uint16_t* y);
void from_f16(const uint16_t* x, size_t count, float* y);

namespace scalar {
void quantize_rows(size_t block, const FloatRows& x, float* transformed, int8_t* codes,
                   size_t stride, RowCode* means);
void quantize_rows(size_t block, const FloatRows& x, float* transformed, uint8_t* codes,
                   size_t stride, RowCode* means);
float quantize_q8(const float* x, size_t count, int8_t* codes);
void dequantize_q8(const int8_t* codes, float scale, size_t count, float* y);
void to_f16(const float* x, size_t count, uint16_t* y);
void from_f16(const uint16_t* x, size_t count, float* y);
}  // namespace scalar

}  // namespace volvelle

#endif  // VOLVELLE_KERNELS_QUANTIZE_H_
