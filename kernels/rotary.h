// Rotary positions. A model stores two small dials per rotary scheme; a token's row of cosines and
// sines is the complex product of one coarse and one fine row, and every head of q and k is turned
// by that row. RoPE: Su et al. 2021, arXiv:2104.09864, eq. 34.

#ifndef VOLVELLE_KERNELS_ROTARY_H_
#define VOLVELLE_KERNELS_ROTARY_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace volvelle {

enum class Pairing : uint8_t {
  kHalf,         // element i turns with element i + width / 2 (GPT-NeoX order)
  kInterleaved,  // element 2i turns with element 2i + 1 (GPT-J order)
};

// Position p = c * fine_rows + f is turned by coarse row c, then fine row f. A row holds `planes`
// cosines, then `planes` sines, in float.
struct Dial {
  const float* coarse = nullptr;  // [coarse_rows, 2, planes]
  const float* fine = nullptr;    // [fine_rows, 2, planes]
  size_t coarse_rows = 0;
  size_t fine_rows = 0;
  size_t planes = 0;

  size_t positions() const { return coarse_rows * fine_rows; }
  size_t width() const { return 2 * planes; }
};

// Heads of one chunk of tokens: element e of head h of token t is x[t * token_stride + h * head_dim
// + e].
struct HeadShape {
  size_t tokens = 0;
  size_t heads = 0;
  size_t head_dim = 0;
  size_t token_stride = 0;  // elements
};

// Writes the row of each token: rows [tokens, 2, planes], cosines then sines.
//
//   positions  [tokens], each below dial.positions()
void read_dial(const Dial& dial, std::span<const uint32_t> positions, float* rows);

// Turns the first 2 * planes elements of every head of `x` by its token's row, in place; the rest
// stay.
//
//   x     heads as `shape` says; 2 * planes <= shape.head_dim
//   rows  [shape.tokens, 2, planes] from read_dial
void rotate(float* x, const HeadShape& shape, Pairing pairing, size_t planes, const float* rows);

namespace scalar {  // the meaning, in plain C++
void read_dial(const Dial& dial, std::span<const uint32_t> positions, float* rows);
void rotate(float* x, const HeadShape& shape, Pairing pairing, size_t planes, const float* rows);
}  // namespace scalar

}  // namespace volvelle

#endif  // VOLVELLE_KERNELS_ROTARY_H_
