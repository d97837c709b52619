// How kernels walk over rows: whole vectors, then what is left, without reading or writing a
// float past the row's end.

#if defined(VOLVELLE_KERNELS_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VOLVELLE_KERNELS_VECTORS_INL_H_
#undef VOLVELLE_KERNELS_VECTORS_INL_H_
#else
#define VOLVELLE_KERNELS_VECTORS_INL_H_
#endif

#include <cstddef>

#include "hwy/highway.h"
#include "kernels/target.h"

HWY_BEFORE_NAMESPACE();
namespace volvelle::VOLVELLE_TARGET {
namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes, so that a padded row of the cache is whole vectors on every target.
using Floats = hn::CappedTag<float, 16>;

// Loads and stores all lanes.
struct Whole {
  template <class D>
  HWY_INLINE hn::Vec<D> load(D d, const hn::TFromD<D>* from) const {
    return hn::LoadU(d, from);
  }
  template <class D>
  HWY_INLINE void store(hn::Vec<D> v, D d, hn::TFromD<D>* to) const {
    hn::StoreU(v, d, to);
  }
};

// Loads and stores the first `count` lanes; the others load as zero.
struct Partial {
  size_t count;

  template <class D>
  HWY_INLINE hn::Vec<D> load(D d, const hn::TFromD<D>* from) const {
    return hn::LoadN(d, from, count);
  }
  template <class D>
  HWY_INLINE void store(hn::Vec<D> v, D d, hn::TFromD<D>* to) const {
    hn::StoreN(v, d, to, count);
  }
};

// Calls body(lanes, i) for each vector of [0, count): `lanes` loads and stores what starts at
// element i.
template <class D, class Body>
HWY_INLINE void for_each_vector(D d, size_t count, const Body& body) {
  size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) body(Whole(), i);
  if (i < count) body(Partial{count - i}, i);
}

// A vector of each of a few rows, whose lanes are reduced for all rows at once: one row alone would
// wait for each of its steps. Rows that are not set hold zeros.
class FourVectors {
 public:
  static constexpr size_t kRows = 4;

  HWY_INLINE void set(size_t r, hn::Vec<Floats> v) { hn::Store(v, Floats(), lanes_ + r * kLanes); }

  // Each row's op(op(..., lane), lane), in an order that is the same for all.
  template <class Op>
  HWY_INLINE hn::Vec<hn::CappedTag<float, kRows>> reduce(const Op& op) const {
    const Floats d;
    const hn::Repartition<uint64_t, Floats> pairs;
    const auto row = [&](size_t r) HWY_ATTR { return hn::Load(d, lanes_ + r * kLanes); };
    const auto join = [&](auto a, auto b) HWY_ATTR {
      return op(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
    };
    const auto ab = hn::BitCast(pairs, join(row(0), row(1)));
    const auto ce = hn::BitCast(pairs, join(row(2), row(3)));
    auto all = op(hn::BitCast(d, hn::InterleaveLower(pairs, ab, ce)),
                  hn::BitCast(d, hn::InterleaveUpper(pairs, ab, ce)));
    if constexpr (HWY_MAX_LANES_D(Floats) > 4) {
      if (hn::Lanes(d) > 4) all = op(all, hn::SwapAdjacentBlocks(all));
    }
    if constexpr (HWY_MAX_LANES_D(Floats) > 8) {
      if (hn::Lanes(d) > 8) all = op(all, hn::ConcatLowerUpper(d, all, all));
    }
    return hn::ResizeBitCast(hn::CappedTag<float, kRows>(), all);
  }

  HWY_INLINE auto least() const {
    return reduce([](auto a, auto b) HWY_ATTR { return hn::Min(a, b); });
  }
  HWY_INLINE auto greatest() const {
    return reduce([](auto a, auto b) HWY_ATTR { return hn::Max(a, b); });
  }
  HWY_INLINE auto sum() const {
    return reduce([](auto a, auto b) HWY_ATTR { return hn::Add(a, b); });
  }

 private:
  static constexpr size_t kLanes = 16;
  HWY_ALIGN float lanes_[kRows * kLanes] = {};
};

// Floats of IEEE halves.
HWY_INLINE hn::Vec<Floats> promote_halves(Floats d, hn::Vec<hn::Rebind<uint16_t, Floats>> bits) {
  const auto floats = hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, Floats>(), bits));
  // Where the CPU has no such instruction, Highway's own promotion takes infinity and NaN for
  // numbers from 65536 on: their exponent is what is missing.
  constexpr bool native = HWY_ARCH_ARM_A64 || (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2);
  if constexpr (native) return floats;
  const auto exponent = hn::BitCast(d, hn::Set(hn::RebindToUnsigned<Floats>(), 0x7f800000u));
  return hn::IfThenElse(hn::Ge(hn::Abs(floats), hn::Set(d, 65536.0f)), hn::Or(floats, exponent),
                        floats);
}

}  // namespace volvelle::VOLVELLE_TARGET
HWY_AFTER_NAMESPACE();

#endif  // toggled include guard
