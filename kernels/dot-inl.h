// Dot products of int8 codes, four to a 32-bit lane, exact: nothing saturates. On x86 with VNNI
// each is one instruction, which multiplies unsigned bytes by signed ones.

#if defined(VOLVELLE_KERNELS_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VOLVELLE_KERNELS_DOT_INL_H_
#undef VOLVELLE_KERNELS_DOT_INL_H_
#else
#define VOLVELLE_KERNELS_DOT_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace volvelle::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Sums = hn::RebindToSigned<Floats>;
using Unsigned = hn::Repartition<uint8_t, Sums>;
using Signed = hn::Repartition<int8_t, Sums>;

// sum + a . b in each lane's four bytes.
HWY_INLINE hn::Vec<Sums> add_dot(hn::Vec<Unsigned> a, hn::Vec<Signed> b, hn::Vec<Sums> sum) {
  return hn::SumOfMulQuadAccumulate(Sums(), a, b, sum);
}

// The same four bytes in every lane.
template <class D>
HWY_INLINE hn::Vec<D> broadcast_four(D d, const void* four) {
  int32_t bits;
  std::memcpy(&bits, four, sizeof(bits));
  return hn::BitCast(d, hn::Set(Sums(), bits));
}

}  // namespace volvelle::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled include guard
