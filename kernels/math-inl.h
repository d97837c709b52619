// exp, tanh and erfc of vectors of floats. Coefficients are minimax fits made for this file; the
// stated errors hold for all floats of the domain and are measured in tests/kernels/math_test.cc.

#if defined(VOLVELLE_KERNELS_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VOLVELLE_KERNELS_MATH_INL_H_
#undef VOLVELLE_KERNELS_MATH_INL_H_
#else
#define VOLVELLE_KERNELS_MATH_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/target.h"

HWY_BEFORE_NAMESPACE();
namespace volvelle::VOLVELLE_TARGET {
namespace hn = hwy::HWY_NAMESPACE;

// c0 + c1 x + c2 x^2 + ... by Horner's rule.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V polynomial(D d, V, float c0) {
  return hn::Set(d, c0);
}
template <class D, class V = hn::Vec<D>, typename... Rest>
HWY_INLINE V polynomial(D d, V x, float c0, Rest... rest) {
  return hn::MulAdd(polynomial(d, x, rest...), x, hn::Set(d, c0));
}

// e^x for x <= 0, within 1 ulp; 0 below -87, where the result would soon be denormal. Softmax,
// sigmoid and tanh can all be written so that nothing larger than 0 is raised, and then
// nothing overflows.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_nonpositive(D d, V x) {
  const hn::RebindToSigned<D> di;
  const V lowest = hn::Set(d, -87.0f);
  const V clamped = hn::Max(x, lowest);
  const V n = hn::Round(hn::Mul(clamped, hn::Set(d, 1.44269504f)));
  // r = x - n ln 2, |r| <= ln 2 / 2. The first part of ln 2 has 10 bits, so that n times it is
  // exact.
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), clamped);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  const V p = polynomial(d, r, 0.5f, 0.166666657f, 0.0416662805f, 0.0083335042f, 0.00139457523f,
                         0.000197892616f);
  const V e = hn::Add(hn::Set(d, 1.0f), hn::MulAdd(hn::Mul(r, r), p, r));
  const auto exponent = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127)));
  return hn::IfThenZeroElse(hn::Lt(x, lowest), hn::Mul(e, hn::BitCast(d, exponent)));
}

// e^x for -87 <= x <= 0, in fewer steps: within 1e-7 + |x| 2^-24 of it, relatively; some number
// below 1e-37 for less.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_of_weight(D d, V x) {
  const hn::RebindToSigned<D> di;
  const V power = hn::Mul(hn::Max(x, hn::Set(d, -87.0f)), hn::Set(d, 1.44269504f));
  // At this magnitude a float's last bit is one: the sum is rounded, and its bits end with n's.
  const V whole = hn::Set(d, 0x1.8p23f), shifted = hn::Add(power, whole);
  const V n = hn::Sub(shifted, whole);
  const V p = polynomial(d, hn::Sub(power, n), 1.0f, 0.693147004f, 0.240222424f, 0.0555073359f,
                         0.009671513f, 0.00132647273f);
  return hn::BitCast(d, hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(hn::BitCast(di, shifted))));
}

// tanh(x), within 3 ulp.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V tanh(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  const V magnitude = hn::Abs(x);
  const V square = hn::Mul(x, x);
  const V near_zero = hn::MulAdd(hn::Mul(x, square),
                                 polynomial(d, square, -0.333332807f, 0.133314416f, -0.0537397154f,
                                            0.0206390861f, -0.00570498686f),
                                 x);
  const V e = exp_nonpositive(d, hn::Mul(magnitude, hn::Set(d, -2.0f)));
  const V away = hn::Div(hn::Sub(one, e), hn::Add(one, e));
  return hn::IfThenElse(hn::Ge(magnitude, hn::Set(d, 0.625f)), hn::CopySign(away, x), near_zero);
}

// erfc(sqrt 2 * x) for x from 0 to 4, within 2.4e-7: 2^p, where p = log2 erfc(sqrt 2 * x) is smooth
// and falls from 0 to -50.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V erfc_sqrt2(D d, V x) {
  const hn::RebindToSigned<D> di;
  const V p = hn::Mul(x, polynomial(d, x, -2.3022177f, -1.8366573f, -0.42133284f, 0.11780999f,
                                    -0.01302335f, -0.0036926179f, 0.0011338774f));
  const V n = hn::Round(p);
  const V e = polynomial(d, hn::Sub(p, n), 1.0000001f, 0.69314694f, 0.2402212f, 0.05550713f,
                         0.009675541f, 0.0013276472f);
  const auto exponent = hn::ShiftLeft<23>(hn::ConvertTo(di, n));
  return hn::BitCast(d, hn::Add(hn::BitCast(di, e), exponent));
}

}  // namespace volvelle::VOLVELLE_TARGET
HWY_AFTER_NAMESPACE();

#endif  // toggled include guard
