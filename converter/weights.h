// Tensors of a recipe, from the source's rows to the file's segments: read a few rows at a time,
// put in order, quantised on all cores, written in sequence. What is held at once are those few
// rows and one tensor's scales.

#ifndef VOLVELLE_CONVERTER_WEIGHTS_H_
#define VOLVELLE_CONVERTER_WEIGHTS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "converter/quantize/compensation.h"
#include "converter/recipe.h"
#include "converter/sources/tensor_source.h"
#include "converter/writer.h"
#include "platforms/error.h"
#include "platforms/thread_pool.h"
#include "schema/volvelle_generated.h"

namespace volvelle {

// In what form a tensor is written.
struct Storage {
  file::TensorType type = file::TensorType::f32;
  uint32_t rotation = 0;                                  // see file::Tensor
  bool minima = false;                                    // of q4
  std::vector<uint32_t> side_columns = {};                // whose inputs are not rounded, ascending
  std::shared_ptr<const Compensation> compensation = {};  // of q4: how it is rounded; null: nearest
};

struct StoredTensor {
  Storage storage;
  file::Segment data;
  file::Segment scales;
  file::Segment minima, minimum_scales;
  file::Segment side, side_scales;

  uint64_t bytes() const {
    return data.bytes() + scales.bytes() + minima.bytes() + minimum_scales.bytes() + side.bytes() +
           side_scales.bytes();
  }
};

// Bytes of the data and of the scales of a tensor of that type; rows * columns fits 63 bits.
uint64_t data_bytes(file::TensorType type, uint64_t rows, uint64_t columns);
uint64_t scale_bytes(file::TensorType type, uint64_t rows, uint64_t columns);

// A few rows from all over the tensor, of about so many elements; none of one that is computed.
Result<std::vector<float>> sample_rows(const recipe::Tensor& tensor, const TensorSource& source,
                                       size_t elements);

// Writes `tensor` in that form, which is f32 for vectors.
//
//   progress  is told of elements written, now and then
//
// Fails when the source cannot be read, holds something else than finite numbers, or the user
// interrupts.
Result<StoredTensor> write_tensor(const recipe::Tensor& tensor, const Storage& storage,
                                  const TensorSource& source, const ThreadPool& threads,
                                  ModelWriter& writer,
                                  const std::function<void(uint64_t elements)>& progress);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_WEIGHTS_H_
