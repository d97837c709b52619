// Arm's dot product of bytes, SDOT and UDOT, which Highway's NEON targets do without: processors
// from Cortex-A76 on have it, Cortex-A72 has not. Kernels that gain by it are compiled once more
// with it, and the processor at hand decides which are called.

#ifndef VOLVELLE_KERNELS_DOT_PRODUCT_H_
#define VOLVELLE_KERNELS_DOT_PRODUCT_H_

namespace volvelle {

// Whether this processor's best kernels are those with the dot product.
bool takes_dot_product();

// Takes them or not, where the processor has it, from now on; returns whether they are taken. For
// comparisons of both.
bool take_dot_product(bool wanted);

}  // namespace volvelle

#endif  // VOLVELLE_KERNELS_DOT_PRODUCT_H_
