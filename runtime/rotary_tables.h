// Rotary frequencies and dials, as the converter bakes them and as a session forms them where a
// scaling depends on the length of its sequence.

#ifndef VOLVELLE_RUNTIME_ROTARY_TABLES_H_
#define VOLVELLE_RUNTIME_ROTARY_TABLES_H_

#include <cstdint>
#include <span>
#include <vector>

namespace volvelle {

// Positions that a model may have: up to here a float holds every distance, and a double the
// product of a position and a float frequency, exactly.
inline constexpr uint64_t kMaxContext = uint64_t{1} << 24;

// base^(2i / width) for i in [0, width / 2), in float. The references' float powers are within one
// unit of the last place of the correctly rounded one and differ with the processor; this is the
// correctly rounded one: a double power, rounded once.
std::vector<float> rotary_powers(double base, uint32_t width);

// 1 / base^(2i / width) for i in [0, width / 2), every step in float as the references take it.
std::vector<float> rotary_frequencies(double base, uint32_t width);

// The base that a sequence of `length` positions is rotated with; every step in float, as in the
// reference, but for the exponent. Up to `trained_context` the base itself.
float dynamic_ntk_base(double base, double factor, uint32_t width, uint64_t trained_context,
                       uint64_t length);

// Rows [rows, 2, planes] of a dial: row r turns plane i by r * stride * frequencies[i], both its
// cosine and its sine times `amplitude`. Angles, cosines and sines are formed in double and rounded
// once; r * stride is below 2^29.
std::vector<float> dial_rows(std::span<const float> frequencies, uint32_t rows, uint64_t stride,
                             float amplitude);

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_ROTARY_TABLES_H_
