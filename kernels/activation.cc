#include "kernels/activation.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/activation.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"
#include "kernels/math-inl.h"
#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace volvelle::HWY_NAMESPACE {

// max(x, 0) that is not a number where x is none: what Max makes of those differs between CPUs.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V above_zero(D d, V x) {
  return hn::IfThenZeroElse(hn::Lt(x, hn::Zero(d)), x);
}

// Only e^-|x| is raised: sigmoid(x) = e^x / (e^x + 1) below zero, 1 / (1 + e^-x) above.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V sigmoid(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  const V e = exp_nonpositive(d, hn::Neg(hn::Abs(x)));
  const V numerator = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one);
  return hn::Div(numerator, hn::Add(one, e));
}

struct Silu {
  template <class D, class V = hn::Vec<D>>
  HWY_INLINE V operator()(D d, V x) const {
    return hn::Mul(x, sigmoid(d, x));
  }
};

struct GeluSigmoid {
  template <class D, class V = hn::Vec<D>>
  HWY_INLINE V operator()(D d, V x) const {
    return hn::Mul(x, sigmoid(d, hn::Mul(x, hn::Set(d, 1.702f))));
  }
};

struct Relu {
  template <class D, class V = hn::Vec<D>>
  HWY_INLINE V operator()(D d, V x) const {
    return above_zero(d, x);
  }
};

struct ReluSquared {
  template <class D, class V = hn::Vec<D>>
  HWY_INLINE V operator()(D d, V x) const {
    const V positive = above_zero(d, x);
    return hn::Mul(positive, positive);
  }
};

struct GeluErf {
  template <class D, class V = hn::Vec<D>>
  HWY_INLINE V operator()(D d, V x) const {
    // With h = x / 2: h (1 + erf(sqrt 2 * h)) = h + |h| - |h| erfc(sqrt 2 * |h|) on either side of
    // 0.
    const V half = hn::Mul(x, hn::Set(d, 0.5f));
    const V magnitude = hn::Abs(half);
    const V bounded = hn::Min(magnitude, hn::Set(d, 4.0f));  // past which nothing is left
    return hn::NegMulAdd(bounded, erfc_sqrt2(d, bounded), hn::Add(half, magnitude));
  }
};

struct CoarseGeluErf {
  template <class D, class V = hn::Vec<D>>
  HWY_INLINE V operator()(D d, V x) const {
    // max(x, 0) - |x| erfc(|x| / sqrt 2) / 2, the latter without |x| a minimax fit.
    const V bounded = hn::Min(hn::Abs(x), hn::Set(d, 3.9f));
    const V rest = polynomial(d, bounded, 0.4993295f, -0.3851953f, -0.05218343f, 0.14727508f,
                              -0.060467068f, 0.010490479f, -0.00068655453f);
    return hn::NegMulAdd(bounded, rest, above_zero(d, x));
  }
};

struct GeluTanh {
  template <class D, class V = hn::Vec<D>>
  HWY_INLINE V operator()(D d, V x) const {
    const V cubic = hn::MulAdd(hn::Mul(hn::Mul(x, x), x), hn::Set(d, 0.044715f), x);
    // (1 + tanh(u)) / 2 = sigmoid(2 u)
    return hn::Mul(x, sigmoid(d, hn::Mul(cubic, hn::Set(d, 1.59576912f))));  // 2 sqrt(2 / pi)
  }
};

struct Tanh {
  template <class D, class V = hn::Vec<D>>
  HWY_INLINE V operator()(D d, V x) const {
    return tanh(d, x);
  }
};

// Calls body(function) with the function that the activation names.
template <class Body>
HWY_INLINE void with_function(Activation activation, const Body& body) {
  switch (activation) {
    case Activation::kSilu:
      return body(Silu());
    case Activation::kGeluErf:
      return body(GeluErf());
    case Activation::kGeluTanh:
      return body(GeluTanh());
    case Activation::kGeluSigmoid:
      return body(GeluSigmoid());
    case Activation::kRelu:
      return body(Relu());
    case Activation::kReluSquared:
      return body(ReluSquared());
    case Activation::kTanh:
      return body(Tanh());
  }
}

void gate(Activation activation, const float* gate_up, size_t gate_up_stride, size_t rows,
          size_t width, float* y, size_t y_stride) {
  const Floats d;
  with_function(activation, [&](auto function) HWY_ATTR {
    for (size_t row = 0; row < rows; ++row) {
      const float* gates = gate_up + row * gate_up_stride;
      for_each_vector(d, width, [&](auto lanes, size_t i) HWY_ATTR {
        const auto up = lanes.load(d, gates + width + i);
        lanes.store(hn::Mul(function(d, lanes.load(d, gates + i)), up), d, y + row * y_stride + i);
      });
    }
  });
}

template <class Function>
HWY_INLINE void apply(Function function, const float* x, size_t x_stride, size_t rows, size_t width,
                      float* y, size_t y_stride) {
  const Floats d;
  for (size_t row = 0; row < rows; ++row) {
    for_each_vector(d, width, [&](auto lanes, size_t i) HWY_ATTR {
      lanes.store(function(d, lanes.load(d, x + row * x_stride + i)), d, y + row * y_stride + i);
    });
  }
}

void activate(Activation activation, const float* x, size_t x_stride, size_t rows, size_t width,
              float* y, size_t y_stride) {
  with_function(activation, [&](auto function) HWY_ATTR {
    apply(function, x, x_stride, rows, width, y, y_stride);
  });
}

void activate_coarsely(Activation activation, const float* x, size_t x_stride, size_t rows,
                       size_t width, float* y, size_t y_stride) {
  if (activation != Activation::kGeluErf) {
    return HWY_NAMESPACE::activate(activation, x, x_stride, rows, width, y, y_stride);
  }
  apply(CoarseGeluErf(), x, x_stride, rows, width, y, y_stride);
}

void soft_cap(float cap, size_t count, float* x) {
  const Floats d;
  for_each_vector(d, count, [&](auto lanes, size_t i) HWY_ATTR {
    const auto c = hn::Set(d, cap);
    lanes.store(hn::Mul(c, tanh(d, hn::Div(lanes.load(d, x + i), c))), d, x + i);
  });
}

}  // namespace volvelle::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace volvelle {

HWY_EXPORT(gate);
HWY_EXPORT(activate);
HWY_EXPORT(activate_coarsely);
HWY_EXPORT(soft_cap);

void gate(Activation activation, const float* gate_up, size_t gate_up_stride, size_t rows,
          size_t width, float* y, size_t y_stride) {
  HWY_DYNAMIC_DISPATCH(gate)(activation, gate_up, gate_up_stride, rows, width, y, y_stride);
}

void activate(Activation activation, const float* x, size_t x_stride, size_t rows, size_t width,
              float* y, size_t y_stride) {
  HWY_DYNAMIC_DISPATCH(activate)(activation, x, x_stride, rows, width, y, y_stride);
}

void activate_coarsely(Activation activation, const float* x, size_t x_stride, size_t rows,
                       size_t width, float* y, size_t y_stride) {
  HWY_DYNAMIC_DISPATCH(activate_coarsely)(activation, x, x_stride, rows, width, y, y_stride);
}

void soft_cap(float cap, size_t count, float* x) { HWY_DYNAMIC_DISPATCH(soft_cap)(cap, count, x); }

}  // namespace volvelle
#endif  // HWY_ONCE
