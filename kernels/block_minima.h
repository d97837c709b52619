// What a minimum of each block of weights adds to a product: y += sums over blocks of x * minima.

#ifndef VOLVELLE_KERNELS_BLOCK_MINIMA_H_
#define VOLVELLE_KERNELS_BLOCK_MINIMA_H_

#include <cstddef>
#include <cstdint>

namespace volvelle {

// Minima of the blocks of a weight [outputs, blocks * kQ4Block]: that of output n in block b is
// codes[b, n] * scales[n].
struct BlockMinima {
  const int8_t* codes = nullptr;  // [blocks, outputs]; null: none
  const float* scales = nullptr;  // [outputs]
  size_t blocks = 0;
  size_t outputs = 0;
};

// The sums of x [count] over its blocks of kQ4Block elements, of which the last may be shorter:
// sums [ceil(count / kQ4Block)].
void sum_blocks(const float* x, size_t count, float* sums);

// y[r, n] += scales[n] * (sum over b of sums[r, b] * codes[b, n]) for n in [first, first + count).
//
//   sums  [rows, blocks]
//   y     [rows, outputs]
void add_block_minima(const BlockMinima& minima, const float* sums, size_t rows, size_t first,
                      size_t count, float* y);

namespace scalar {
void sum_blocks(const float* x, size_t count, float* sums);
void add_block_minima(const BlockMinima& minima, const float* sums, size_t rows, size_t first,
                      size_t count, float* y);
}  // namespace scalar

}  // namespace volvelle

#endif  // VOLVELLE_KERNELS_BLOCK_MINIMA_H_
