#include "kernels/hadamard.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/hadamard.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"
#include "kernels/hadamard-inl.h"

HWY_BEFORE_NAMESPACE();
namespace volvelle::HWY_NAMESPACE {

void hadamard(size_t block, size_t count, float* x) {
  if (block > 1) transform_blocks(block, count, 1 / std::sqrt(static_cast<float>(block)), x);
}

}  // namespace volvelle::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace volvelle {

HWY_EXPORT(hadamard);

void hadamard(size_t block, size_t count, float* x) {
  HWY_DYNAMIC_DISPATCH(hadamard)(block, count, x);
}

}  // namespace volvelle
#endif  // HWY_ONCE
