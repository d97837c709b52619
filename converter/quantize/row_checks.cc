#include "converter/quantize/row_checks.h"

#include <cmath>

namespace volvelle {

Result<void> check_finite(const float* x, size_t rows, size_t columns, size_t first_row) {
  for (size_t row = 0; row < rows; ++row, x += columns) {
    uint32_t largest = 0;  // of the bits without sign: past the finite ones come infinity and NaNs
    for (size_t i = 0; i < columns; ++i) {
      largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & 0x7fffffff);
    }
    if (largest < 0x7f800000) continue;
    const size_t column =
        std::find_if_not(x, x + columns, [](float value) { return std::isfinite(value); }) - x;
    return fail(
        "row {}, column {} is {}, which no quantised type can hold: the checkpoint is damaged",
        first_row + row, column, std::isnan(x[column]) ? "not a number" : "infinite");
  }
  return {};
}

}  // namespace volvelle
