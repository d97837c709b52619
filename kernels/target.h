// The namespace that kernels are compiled into: Highway's own for each of its targets, and another
// where a file is compiled once more for what Highway has no target for (attention_dot_product.cc).

#ifndef VOLVELLE_KERNELS_TARGET_H_
#define VOLVELLE_KERNELS_TARGET_H_

#ifndef VOLVELLE_TARGET
#define VOLVELLE_TARGET HWY_NAMESPACE
#endif

#endif  // VOLVELLE_KERNELS_TARGET_H_
