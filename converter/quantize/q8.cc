// Sums run in sixteen parts whatever the vector's width; compiled without contraction, every target
// gives the same bits.

#include "converter/quantize/q8.h"

#include <algorithm>
#include <vector>

#include "converter/quantize/row_checks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "converter/quantize/q8.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace volvelle::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::FixedTag<float, 4>;
using V = hn::Vec<Floats>;
constexpr size_t kParts = 16;

// clamp(round(x / scale), -127, 127)
HWY_INLINE V code_of(V x, V inverse) {
  const Floats d;
  return hn::Clamp(hn::Round(hn::Mul(x, inverse)), hn::Set(d, -127.0f), hn::Set(d, 127.0f));
}

// The sum of term(i), a vector for x[i] and on, over `count` values, a multiple of kParts.
template <class Term>
HWY_INLINE double sum(size_t count, const Term& term) {
  const Floats d;
  V a = hn::Zero(d), b = a, c = a, e = a;
  for (size_t i = 0; i < count; i += kParts) {
    a = hn::Add(a, term(i));
    b = hn::Add(b, term(i + 4));
    c = hn::Add(c, term(i + 8));
    e = hn::Add(e, term(i + 12));
  }
  HWY_ALIGN float parts[4];
  hn::Store(hn::Add(hn::Add(a, b), hn::Add(c, e)), d, parts);
  return (double{parts[0]} + parts[1]) + (double{parts[2]} + parts[3]);
}

HWY_INLINE double squared_error(const float* x, size_t count, float scale) {
  const Floats d;
  const V s = hn::Set(d, scale);
  const V inverse = hn::Set(d, 1 / scale);
  return sum(count, [&](size_t i) HWY_ATTR {
    const V v = hn::LoadU(d, x + i);
    const V error = hn::Sub(v, hn::Mul(s, code_of(v, inverse)));
    return hn::Mul(error, error);
  });
}

// sum(x * code) / sum(code^2), or `scale` where all codes are zero.
HWY_INLINE float fitted_scale(const float* x, size_t count, float scale) {
  const Floats d;
  const V inverse = hn::Set(d, 1 / scale);
  const double product = sum(count, [&](size_t i) HWY_ATTR {
    const V v = hn::LoadU(d, x + i);
    return hn::Mul(v, code_of(v, inverse));
  });
  const double square = sum(count, [&](size_t i) HWY_ATTR {
    const V code = code_of(hn::LoadU(d, x + i), inverse);
    return hn::Mul(code, code);
  });
  return square > 0 ? static_cast<float>(product / square) : scale;
}

// x [count], padded with zeros to a multiple of kParts, its magnitudes up to `largest`, near one.
float best_scale_q8(const float* x, size_t count, float largest, float least) {
  const float plain = std::max(largest / 127, least);
  float best = plain;
  double best_error = squared_error(x, count, plain);
  for (int step = 1; step < 128; ++step) {
    const float scale = plain * (1 - step / 256.0f);
    const double cut = largest - 127 * scale;
    if (scale < least || cut * cut >= best_error) break;
    const double error = squared_error(x, count, scale);
    if (error < best_error) {
      best = scale;
      best_error = error;
    }
  }
  const float fitted = std::max(fitted_scale(x, count, best), least);
  return squared_error(x, count, fitted) < best_error ? fitted : best;
}

void encode_q8(const float* x, size_t count, float scale, int32_t* codes) {
  const Floats d;
  const hn::RebindToSigned<Floats> di;
  const V inverse = hn::Set(d, 1 / scale);
  for (size_t i = 0; i < count; i += 4) {
    hn::StoreU(hn::ConvertTo(di, code_of(hn::LoadU(d, x + i), inverse)), di, codes + i);
  }
}

}  // namespace volvelle::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace volvelle {

HWY_EXPORT(best_scale_q8);
HWY_EXPORT(encode_q8);

Result<void> quantize_q8_rows(const float* x, size_t rows, size_t columns, int8_t* codes,
                              float* scales, size_t first_row) {
  VOLVELLE_RETURN_IF_ERROR(check_finite(x, rows, columns, first_row));
  constexpr size_t kParts = 16;
  const size_t count = (columns + kParts - 1) / kParts * kParts;
  std::vector<float> near_one(count);
  std::vector<int32_t> wide(count);
  for (size_t row = 0; row < rows; ++row, x += columns, codes += columns) {
    float largest = 0;
    for (size_t i = 0; i < columns; ++i) largest = std::max(largest, x[i] < 0 ? -x[i] : x[i]);
    const PowerOfTwo power(largest);
    for (size_t i = 0; i < columns; ++i) near_one[i] = x[i] * power.down;
    const float scale = HWY_DYNAMIC_DISPATCH(best_scale_q8)(
        near_one.data(), count, largest * power.down, power.least_normal);
    HWY_DYNAMIC_DISPATCH(encode_q8)(near_one.data(), count, scale, wide.data());
    std::transform(wide.begin(), wide.begin() + columns, codes,
                   [](int32_t code) { return static_cast<int8_t>(code); });
    scales[row] = scale * power.up;
  }
  return {};
}

void dequantize_q8_rows(const int8_t* codes, const float* scales, size_t rows, size_t columns,
                        float* y) {
  for (size_t row = 0; row < rows; ++row) {
    for (size_t column = 0; column < columns; ++column) *y++ = *codes++ * scales[row];
  }
}

}  // namespace volvelle
#endif  // HWY_ONCE
