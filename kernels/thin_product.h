// Products with few inputs that are added to a large one: what the minima of blocks of weights
// contribute, whose inputs are sums over blocks, and what inputs do that the large one must not
// round.

#ifndef VOLVELLE_KERNELS_THIN_PRODUCT_H_
#define VOLVELLE_KERNELS_THIN_PRODUCT_H_

#include <cstddef>
#include <cstdint>

namespace volvelle {

// The weight of output n for input i is codes[i, n] * scales[n].
struct ThinWeights {
  const int8_t* codes = nullptr;  // [inputs, outputs]; null: none
  const float* scales = nullptr;  // [outputs]
  size_t inputs = 0;
  size_t outputs = 0;
};

// The sums of x [count] over its blocks of kQ4Block elements, of which the last may be shorter:
// sums [ceil(count / kQ4Block)].
void sum_blocks(const float* x, size_t count, float* sums);

// y[r, n] += scales[n] * (sum over i of x[r, i] * codes[i, n]) for n in [first, first + count).
//
//   x  [rows, inputs]
//   y  [rows, outputs]
void add_thin_product(const ThinWeights& weights, const float* x, size_t rows, size_t first,
                      size_t count, float* y);

namespace scalar {
void sum_blocks(const float* x, size_t count, float* sums);
void add_thin_product(const ThinWeights& weights, const float* x, size_t rows, size_t first,
                      size_t count, float* y);
}  // namespace scalar

}  // namespace volvelle

#endif  // VOLVELLE_KERNELS_THIN_PRODUCT_H_
