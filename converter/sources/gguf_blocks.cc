// Compiled without contraction: d * q + m is two roundings in the reference.

#include "converter/sources/gguf_blocks.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>

#include "converter/sources/float16.h"

namespace volvelle {
namespace {

static_assert(std::endian::native == std::endian::little);

uint16_t u16_at(const uint8_t* bytes) {
  uint16_t value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

uint32_t u32_at(const uint8_t* bytes) {
  uint32_t value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

float half_at(const uint8_t* bytes) { return float_from_f16(u16_at(bytes)); }

// The four-bit types of 32 values keep value j and value 16 + j in one byte.
template <typename Value>
void split_nibbles(const uint8_t* codes, float* y, Value value) {
  for (int j = 0; j < 16; ++j) {
    y[j] = value(codes[j] & 15, j);
    y[16 + j] = value(codes[j] >> 4, 16 + j);
  }
}

void f32(const uint8_t* x, float* y) { std::memcpy(y, x, sizeof(*y)); }
void f16(const uint8_t* x, float* y) { *y = half_at(x); }
void bf16(const uint8_t* x, float* y) { *y = float_from_bf16(u16_at(x)); }

void q8_0(const uint8_t* x, float* y) {
  const float d = half_at(x);
  for (int j = 0; j < 32; ++j) y[j] = d * static_cast<int8_t>(x[2 + j]);
}

void q4_0(const uint8_t* x, float* y) {
  const float d = half_at(x);
  split_nibbles(x + 2, y, [&](int code, int) { return d * (code - 8); });
}

void q4_1(const uint8_t* x, float* y) {
  const float d = half_at(x);
  const float m = half_at(x + 2);
  split_nibbles(x + 4, y, [&](int code, int) { return d * code + m; });
}

void q5_0(const uint8_t* x, float* y) {
  const float d = half_at(x);
  const uint32_t high = u32_at(x + 2);
  split_nibbles(x + 6, y,
                [&](int code, int j) { return d * ((code | (high >> j & 1) << 4) - 16.0f); });
}

void q5_1(const uint8_t* x, float* y) {
  const float d = half_at(x);
  const float m = half_at(x + 2);
  const uint32_t high = u32_at(x + 4);
  split_nibbles(x + 8, y, [&](int code, int j) { return d * (code | (high >> j & 1) << 4) + m; });
}

constexpr float kIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                            1,    13,   25,  38,  53,  69,  89,  113};

void iq4_nl(const uint8_t* x, float* y) {
  const float d = half_at(x);
  split_nibbles(x + 2, y, [&](int code, int) { return d * kIq4[code]; });
}

// OCP Microscaling Formats v1.0: E2M1 values, here doubled, under a power of two.
void mxfp4(const uint8_t* x, float* y) {
  constexpr float kTwice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  const uint32_t e = x[0];
  const float d = std::bit_cast<float>(e < 2 ? 0x00200000u << e : (e - 1) << 23);  // 2^(e - 128)
  split_nibbles(x + 1, y, [&](int code, int) { return d * kTwice[code]; });
}

// Element 128h + 32t + 16u + l of a block of 256 has two bits at 2t of byte 32h + 16u + l; its
// scale is that of sub-block 8h + 2t + u.
template <typename Value>
void two_bit_codes(const uint8_t* codes, float* y, Value value) {
  for (int h = 0; h < 2; ++h) {
    for (int t = 0; t < 4; ++t) {
      for (int l = 0; l < 32; ++l) {
        y[128 * h + 32 * t + l] =
            value(codes[32 * h + l] >> 2 * t & 3, 8 * h + 2 * t + l / 16, 4 * h + t, l);
      }
    }
  }
}

void q2_k(const uint8_t* x, float* y) {
  const float d = half_at(x + 80);
  const float dmin = half_at(x + 82);
  float scale[16];
  float minimum[16];
  for (int s = 0; s < 16; ++s) {
    scale[s] = d * (x[s] & 15);
    minimum[s] = dmin * (x[s] >> 4);
  }
  two_bit_codes(x + 16, y, [&](int code, int s, int, int) { return scale[s] * code - minimum[s]; });
}

void q3_k(const uint8_t* x, float* y) {
  const uint8_t* high = x;
  const uint8_t* scales = x + 96;
  const float d = half_at(x + 108);
  float scale[16];
  for (int s = 0; s < 16; ++s) {
    const int low = s < 8 ? scales[s] & 15 : scales[s - 8] >> 4;
    scale[s] = d * ((low | (scales[8 + s % 4] >> 2 * (s / 4) & 3) << 4) - 32);
  }
  two_bit_codes(x + 32, y, [&](int code, int s, int bit, int l) {
    return scale[s] * (code - (high[l] >> bit & 1 ? 0 : 4));
  });
}

// Eight six-bit scales and minima in twelve bytes.
struct ScalesAndMinima {
  ScalesAndMinima(const uint8_t* s, float d, float dmin) {
    for (int j = 0; j < 8; ++j) {
      const int sc = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
      const int mn = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
      scale[j] = d * sc;
      minimum[j] = dmin * mn;
    }
  }
  float scale[8];
  float minimum[8];
};

void q4_k(const uint8_t* x, float* y) {
  const ScalesAndMinima s(x + 4, half_at(x), half_at(x + 2));
  const uint8_t* codes = x + 16;
  for (int g = 0; g < 8; ++g) {
    for (int l = 0; l < 32; ++l) {
      y[32 * g + l] = s.scale[g] * (codes[g / 2 * 32 + l] >> 4 * (g % 2) & 15) - s.minimum[g];
    }
  }
}

void q5_k(const uint8_t* x, float* y) {
  const ScalesAndMinima s(x + 4, half_at(x), half_at(x + 2));
  const uint8_t* high = x + 16;
  const uint8_t* codes = x + 48;
  for (int g = 0; g < 8; ++g) {
    for (int l = 0; l < 32; ++l) {
      const int code = (codes[g / 2 * 32 + l] >> 4 * (g % 2) & 15) | (high[l] >> g & 1) << 4;
      y[32 * g + l] = s.scale[g] * code - s.minimum[g];
    }
  }
}

void q6_k(const uint8_t* x, float* y) {
  const uint8_t* low = x;
  const uint8_t* high = x + 128;
  const uint8_t* scales = x + 192;
  const float d = half_at(x + 208);
  for (int h = 0; h < 2; ++h) {
    for (int k = 0; k < 4; ++k) {
      for (int l = 0; l < 32; ++l) {
        const int nibble = low[64 * h + 32 * (k & 1) + l] >> (k < 2 ? 0 : 4) & 15;
        const int code = (nibble | (high[32 * h + l] >> 2 * k & 3) << 4) - 32;
        y[128 * h + 32 * k + l] = d * static_cast<int8_t>(scales[8 * h + 2 * k + l / 16]) * code;
      }
    }
  }
}

void iq4_xs(const uint8_t* x, float* y) {
  const float d = half_at(x);
  const uint32_t high = u16_at(x + 2);
  for (int b = 0; b < 8; ++b) {
    const int scale = (x[4 + b / 2] >> 4 * (b % 2) & 15) | (high >> 2 * b & 3) << 4;
    const float ds = d * (scale - 32);
    split_nibbles(x + 8 + 16 * b, y + 32 * b, [&](int code, int) { return ds * kIq4[code]; });
  }
}

template <void (*block)(const uint8_t*, float*), size_t values, size_t bytes>
void each(const uint8_t* x, size_t blocks, float* y) {
  for (size_t i = 0; i < blocks; ++i) block(x + i * bytes, y + i * values);
}

template <void (*block)(const uint8_t*, float*), size_t values, size_t bytes>
constexpr GgufBlockType readable(uint32_t number, std::string_view name) {
  return {number, name, values, bytes, each<block, values, bytes>};
}

constexpr GgufBlockType kTypes[] = {
    readable<f32, 1, 4>(0, "F32"),
    readable<f16, 1, 2>(1, "F16"),
    readable<q4_0, 32, 18>(2, "Q4_0"),
    readable<q4_1, 32, 20>(3, "Q4_1"),
    readable<q5_0, 32, 22>(6, "Q5_0"),
    readable<q5_1, 32, 24>(7, "Q5_1"),
    readable<q8_0, 32, 34>(8, "Q8_0"),
    {9, "Q8_1", 32, 40, nullptr},
    readable<q2_k, 256, 84>(10, "Q2_K"),
    readable<q3_k, 256, 110>(11, "Q3_K"),
    readable<q4_k, 256, 144>(12, "Q4_K"),
    readable<q5_k, 256, 176>(13, "Q5_K"),
    readable<q6_k, 256, 210>(14, "Q6_K"),
    {15, "Q8_K", 256, 292, nullptr},
    {16, "IQ2_XXS", 256, 66, nullptr},
    {17, "IQ2_XS", 256, 74, nullptr},
    {18, "IQ3_XXS", 256, 98, nullptr},
    {19, "IQ1_S", 256, 50, nullptr},
    readable<iq4_nl, 32, 18>(20, "IQ4_NL"),
    {21, "IQ3_S", 256, 110, nullptr},
    {22, "IQ2_S", 256, 82, nullptr},
    readable<iq4_xs, 256, 136>(23, "IQ4_XS"),
    {24, "I8", 1, 1, nullptr},
    {25, "I16", 1, 2, nullptr},
    {26, "I32", 1, 4, nullptr},
    {27, "I64", 1, 8, nullptr},
    {28, "F64", 1, 8, nullptr},
    {29, "IQ1_M", 256, 56, nullptr},
    readable<bf16, 1, 2>(30, "BF16"),
    {34, "TQ1_0", 256, 54, nullptr},
    {35, "TQ2_0", 256, 66, nullptr},
    readable<mxfp4, 32, 17>(39, "MXFP4"),
    {40, "NVFP4", 64, 36, nullptr},
    {41, "Q1_0", 128, 18, nullptr},
};

}  // namespace

const GgufBlockType* find_gguf_block_type(uint32_t number) {
  const auto found = std::ranges::find(kTypes, number, &GgufBlockType::number);
  return found == std::end(kTypes) ? nullptr : found;
}

const GgufBlockType* find_gguf_block_type(std::string_view name) {
  const auto found = std::ranges::find(kTypes, name, &GgufBlockType::name);
  return found == std::end(kTypes) ? nullptr : found;
}

}  // namespace volvelle
