// The Walsh-Hadamard transform, which spreads a few large elements of a row evenly over a block, so
// that int8 steps over the row become finer.

#ifndef VOLVELLE_KERNELS_HADAMARD_H_
#define VOLVELLE_KERNELS_HADAMARD_H_

#include <cstddef>

namespace volvelle {

// The largest block that a row of `count` elements has: the greatest power of two that divides it.
constexpr size_t largest_hadamard_block(size_t count) { return count & (~count + 1); }

// x = H x in each block of a row, H [block, block] being the orthonormal Sylvester-Hadamard matrix:
// element (i, j) is (-1)^popcount(i & j) / sqrt(block). H is its own transpose and inverse.
// Ashkboos et al. 2024, arXiv:2404.00456, section 2.
//
//   x      [count], in place
//   block  a power of two that divides `count`; 1 changes nothing
//
// Each element is a sum in one fixed order, so that every target gives the same bits.
void hadamard(size_t block, size_t count, float* x);

namespace scalar {
void add_and_subtract(size_t block, size_t count, float* x);  // x = sqrt(block) H x
void hadamard(size_t block, size_t count, float* x);
}  // namespace scalar

}  // namespace volvelle

#endif  // VOLVELLE_KERNELS_HADAMARD_H_
