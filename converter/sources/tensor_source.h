// A checkpoint's tensors by name, whatever files they lie in. Values are read as float a few rows
// at a time, so that a conversion never holds more than a part of one tensor.

#ifndef VOLVELLE_CONVERTER_SOURCES_TENSOR_SOURCE_H_
#define VOLVELLE_CONVERTER_SOURCES_TENSOR_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "platforms/error.h"

namespace volvelle {

struct SourceTensor {
  std::string name;
  std::string type;  // as the file calls it: "BF16", "Q4_K"
  std::vector<uint64_t>
      shape;  // outermost dimension first, as PyTorch prints it; empty for a scalar

  // As a matrix: the product of all dimensions but the last by the last; a vector is one row. A
  // tensor without values is 0 by 0.
  uint64_t rows() const;
  uint64_t columns() const;
};

class TensorSource {
 public:
  virtual ~TensorSource() = default;

  // Every tensor, in the file's order. Names are unique; the list does not change.
  virtual const std::vector<SourceTensor>& tensors() const = 0;

  // Row-major values of rows [first_row, first_row + rows) of `tensor`, one of tensors(), as float.
  //
  //   values  [rows, columns]
  //
  // Fails when the file has been cut or its bytes are not of the stated type.
  virtual Result<void> read(const SourceTensor& tensor, uint64_t first_row, uint64_t rows,
                            std::span<float> values) const = 0;

  // The same of 32-bit integers, which by themselves are no weights.
  virtual Result<void> read_words(const SourceTensor& tensor, uint64_t first_row, uint64_t rows,
                                  std::span<uint32_t> words) const;

  // Columns in an order in which those that share scales are neighbours; empty: they are.
  virtual std::vector<uint32_t> column_order(const SourceTensor& tensor) const;

  // The tensor of that name, or null. Logarithmic; may be called from several threads at once.
  const SourceTensor* find(std::string_view name) const;

 private:
  mutable std::once_flag sorted_;
  mutable std::vector<size_t> by_name_;  // indices of tensors(), sorted when first asked for
};

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_SOURCES_TENSOR_SOURCE_H_
