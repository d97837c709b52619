#include "converter/sources/float16.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <initializer_list>

namespace volvelle {
namespace {

// IEEE 754-2019, 3.4: the value of a format with `fraction` bits after an exponent of `exponent`
// bits.
double closed_form(uint32_t bits, int exponent, int fraction) {
  const int bias = (1 << (exponent - 1)) - 1;
  const int e = static_cast<int>(bits >> fraction) & ((1 << exponent) - 1);
  const double f = bits & ((1u << fraction) - 1);
  const double sign = bits >> (exponent + fraction) & 1 ? -1 : 1;
  if (e == (1 << exponent) - 1) return f != 0 ? NAN : sign * INFINITY;
  if (e == 0) return sign * std::ldexp(f, 1 - bias - fraction);
  return sign * std::ldexp(f + (1 << fraction), e - bias - fraction);
}

bool same(double a, double b) {
  return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b);
}

TEST_CASE("every F16 and BF16 value widens to its closed form and narrows to itself") {
  int f16_wrong = 0;
  int bf16_wrong = 0;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float f16 = float_from_f16(static_cast<uint16_t>(bits));
    const float bf16 = float_from_bf16(static_cast<uint16_t>(bits));
    f16_wrong += !same(f16, closed_form(bits, 5, 10));
    bf16_wrong += !same(bf16, closed_form(bits, 8, 7));
    if (std::isnan(f16)) {
      f16_wrong += !std::isnan(float_from_f16(f16_from_float(f16)));
    } else {
      f16_wrong += f16_from_float(f16) != bits;
    }
    if (std::isnan(bf16)) {
      bf16_wrong += !std::isnan(float_from_bf16(bf16_from_float(bf16)));
    } else {
      bf16_wrong += bf16_from_float(bf16) != bits;
    }
  }
  CHECK(f16_wrong == 0);
  CHECK(bf16_wrong == 0);
}

// Between each finite value and the next the midpoint is a float: what lies on either side of it
// goes to that side, itself goes to the even one. Past the largest, infinity stands for the next
// value.
template <typename Narrow>
int rounding_errors(uint32_t infinity, int exponent, int fraction, Narrow narrow) {
  int wrong = 0;
  for (uint32_t bits = 0; bits < infinity; ++bits) {
    const double low = closed_form(bits, exponent, fraction);
    const double high = bits + 1 < infinity ? closed_form(bits + 1, exponent, fraction)
                                            : 2 * low - closed_form(bits - 1, exponent, fraction);
    const float middle = static_cast<float>((low + high) / 2);
    const uint32_t even = bits + (bits & 1);
    for (const uint32_t sign : {0u, 1u << (exponent + fraction)}) {
      const float s = sign ? -1.0f : 1.0f;
      wrong += narrow(s * middle) != (even | sign);
      wrong += narrow(s * std::nextafter(middle, 0.0f)) != (bits | sign);
      wrong += narrow(s * std::nextafter(middle, INFINITY)) != ((bits + 1) | sign);
    }
  }
  return wrong;
}

TEST_CASE("floats narrow to the nearest F16 and BF16, ties to even") {
  CHECK(rounding_errors(0x7c00, 5, 10, f16_from_float) == 0);
  CHECK(rounding_errors(0x7f80, 8, 7, bf16_from_float) == 0);
  CHECK(f16_from_float(1e30f) == 0x7c00);
  CHECK(f16_from_float(-1e-30f) == 0x8000);
  CHECK(f16_from_float(INFINITY) == 0x7c00);
  CHECK(bf16_from_float(-INFINITY) == 0xff80);
}

}  // namespace
}  // namespace volvelle
