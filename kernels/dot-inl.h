// Dot products of int8 codes, four to a 32-bit lane, exact: nothing saturates. x86 with VNNI
// multiplies unsigned bytes by signed ones in one instruction; Arm's SDOT and UDOT, bytes of like
// signs. So keys, which are stored with an offset, lose it there as they are loaded, and values
// gain it: what an offset adds to a product depends on the other side alone.

#if defined(VOLVELLE_KERNELS_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VOLVELLE_KERNELS_DOT_INL_H_
#undef VOLVELLE_KERNELS_DOT_INL_H_
#else
#define VOLVELLE_KERNELS_DOT_INL_H_
#endif

#include <cstdint>
#include <cstring>
#include <utility>

#include "hwy/highway.h"
#include "kernels/attention.h"
#include "kernels/target.h"
#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace volvelle::VOLVELLE_TARGET {
namespace hn = hwy::HWY_NAMESPACE;

using Sums = hn::RebindToSigned<Floats>;
using Unsigned = hn::Repartition<uint8_t, Sums>;
using Signed = hn::Repartition<int8_t, Sums>;

#if HWY_ARCH_ARM_A64

constexpr int kLoadedKeyOffset = 0, kLoadedValueOffset = kKeyOffset;
using KeyCodes = Signed;
using ValueCodes = Unsigned;

// Adds 128 to each byte or takes it away, which are the same.
HWY_INLINE hn::Vec<Unsigned> move_by_128(hn::Vec<Unsigned> bytes) {
  return hn::Xor(bytes, hn::Set(Unsigned(), 0x80));
}

HWY_INLINE hn::Vec<Signed> load_keys(const uint8_t* keys) {
  return hn::BitCast(Signed(), move_by_128(hn::LoadU(Unsigned(), keys)));
}

HWY_INLINE hn::Vec<Unsigned> load_values(const int8_t* values) {
  return move_by_128(hn::BitCast(Unsigned(), hn::LoadU(Signed(), values)));
}

// sum + a . b in each lane's four bytes; no byte of b is -128.
HWY_INLINE hn::Vec<Sums> add_dot(hn::Vec<Signed> a, hn::Vec<Signed> b, hn::Vec<Sums> sum) {
#if defined(__ARM_FEATURE_DOTPROD)
  return hn::Vec<Sums>(vdotq_s32(sum.raw, a.raw, b.raw));
#else
  // Two products fit 16 bits: 2 * 128 * 127.
  const int16x8_t low = vmull_s8(vget_low_s8(a.raw), vget_low_s8(b.raw));
  const int16x8_t high = vmull_high_s8(a.raw, b.raw);
  return hn::Vec<Sums>(vpadalq_s16(sum.raw, vpaddq_s16(low, high)));
#endif
}

HWY_INLINE hn::Vec<Sums> add_dot(hn::Vec<Unsigned> a, hn::Vec<Unsigned> b, hn::Vec<Sums> sum) {
#if defined(__ARM_FEATURE_DOTPROD)
  return hn::Vec<Sums>(
      vreinterpretq_s32_u32(vdotq_u32(vreinterpretq_u32_s32(sum.raw), a.raw, b.raw)));
#else
  const uint32x4_t low = vpaddlq_u16(vmull_u8(vget_low_u8(a.raw), vget_low_u8(b.raw)));
  const uint32x4_t high = vpaddlq_u16(vmull_high_u8(a.raw, b.raw));
  return hn::Vec<Sums>(vaddq_s32(sum.raw, vreinterpretq_s32_u32(vpaddq_u32(low, high))));
#endif
}

#else

constexpr int kLoadedKeyOffset = kKeyOffset, kLoadedValueOffset = 0;
using KeyCodes = Unsigned;
using ValueCodes = Signed;

HWY_INLINE hn::Vec<Unsigned> load_keys(const uint8_t* keys) { return hn::LoadU(Unsigned(), keys); }
HWY_INLINE hn::Vec<Signed> load_values(const int8_t* values) { return hn::LoadU(Signed(), values); }

// sum + a . b in each lane's four bytes.
HWY_INLINE hn::Vec<Sums> add_dot(hn::Vec<Unsigned> a, hn::Vec<Signed> b, hn::Vec<Sums> sum) {
  return hn::SumOfMulQuadAccumulate(Sums(), a, b, sum);
}

#endif  // HWY_ARCH_ARM_A64

// The same four bytes in every lane.
template <class D>
HWY_INLINE hn::Vec<D> broadcast_four(D d, const void* four) {
  int32_t bits;
  std::memcpy(&bits, four, sizeof(bits));
  return hn::BitCast(d, hn::Set(Sums(), bits));
}

// Sixteen codes of one row, of which add_dot<i> takes the four from 4 * i on for every lane. Arm's
// dot product reads them out of one register; elsewhere a broadcast from memory costs no more.
template <class D>
struct Sixteen {
#if defined(__ARM_FEATURE_DOTPROD)
  hn::Vec<D> codes;
  HWY_INLINE explicit Sixteen(const hn::TFromD<D>* from) : codes(hn::LoadU(D(), from)) {}
#else
  const hn::TFromD<D>* codes;
  HWY_INLINE explicit Sixteen(const hn::TFromD<D>* from) : codes(from) {}
#endif
};

#if defined(__ARM_FEATURE_DOTPROD)

template <int i>
HWY_INLINE hn::Vec<Sums> add_dot(hn::Vec<Signed> a, Sixteen<Signed> b, hn::Vec<Sums> sum) {
  return hn::Vec<Sums>(vdotq_laneq_s32(sum.raw, a.raw, b.codes.raw, i));
}

template <int i>
HWY_INLINE hn::Vec<Sums> add_dot(hn::Vec<Unsigned> a, Sixteen<Unsigned> b, hn::Vec<Sums> sum) {
  const uint32x4_t added = vdotq_laneq_u32(vreinterpretq_u32_s32(sum.raw), a.raw, b.codes.raw, i);
  return hn::Vec<Sums>(vreinterpretq_s32_u32(added));
}

#else

template <int i>
HWY_INLINE hn::Vec<Sums> add_dot(hn::Vec<KeyCodes> a, Sixteen<Signed> b, hn::Vec<Sums> sum) {
  return add_dot(a, broadcast_four(Signed(), b.codes + 4 * i), sum);
}

template <int i>
HWY_INLINE hn::Vec<Sums> add_dot(hn::Vec<ValueCodes> a, Sixteen<Unsigned> b, hn::Vec<Sums> sum) {
  return add_dot(broadcast_four(Unsigned(), b.codes + 4 * i), a, sum);
}

#endif  // __ARM_FEATURE_DOTPROD

// Calls tile.operator()<count>(first) for the rows [0, rows): `most` of them at a time, then what
// is left at once.
template <size_t most, class Tile>
HWY_INLINE void for_each_tile(size_t rows, const Tile& tile) {
  size_t first = 0;
  for (; first + most <= rows; first += most) tile.template operator()<most>(first);
  const auto rest = [&]<size_t... less>(std::index_sequence<less...>) HWY_ATTR {
    const auto is_it = [&]<size_t count>() HWY_ATTR {
      if (rows - first == count) tile.template operator()<count>(first);
    };
    (is_it.template operator()<less + 1>(), ...);
  };
  rest(std::make_index_sequence<most - 1>());
}

}  // namespace volvelle::VOLVELLE_TARGET
HWY_AFTER_NAMESPACE();

#endif  // toggled include guard
