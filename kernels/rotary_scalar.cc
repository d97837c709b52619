#include "kernels/rotary.h"

namespace volvelle::scalar {

void read_dial(const Dial& dial, std::span<const uint32_t> positions, float* rows) {
  const size_t planes = dial.planes;
  for (const uint32_t position : positions) {
    const float* coarse = dial.coarse + position / dial.fine_rows * dial.width();
    const float* fine = dial.fine + position % dial.fine_rows * dial.width();
    for (size_t i = 0; i < planes; ++i) {
      const double c0 = coarse[i], s0 = coarse[planes + i];
      const double c1 = fine[i], s1 = fine[planes + i];
      rows[i] = static_cast<float>(c0 * c1 - s0 * s1);
      rows[planes + i] = static_cast<float>(s0 * c1 + c0 * s1);
    }
    rows += dial.width();
  }
}

void rotate(float* x, const HeadShape& shape, Pairing pairing, size_t planes, const float* rows) {
  const bool half = pairing == Pairing::kHalf;
  for (size_t token = 0; token < shape.tokens; ++token) {
    for (size_t head = 0; head < shape.heads; ++head) {
      float* elements = x + token * shape.token_stride + head * shape.head_dim;
      for (size_t i = 0; i < planes; ++i) {
        float& a = elements[half ? i : 2 * i];
        float& b = elements[half ? i + planes : 2 * i + 1];
        const double c = rows[token * 2 * planes + i], s = rows[(token * 2 + 1) * planes + i];
        const double turned_a = a * c - b * s, turned_b = b * c + a * s;
        a = static_cast<float>(turned_a);
        b = static_cast<float>(turned_b);
      }
    }
  }
}

}  // namespace volvelle::scalar
