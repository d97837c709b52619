// Where XNNPACK's packed weights live: one after the other in large pages, in the order in which a
// token reads them, so that decoding streams through memory with few address translations. XNNPACK
// asks for the memory through its weights cache interface.

#ifndef VOLVELLE_RUNTIME_PACKED_WEIGHTS_H_
#define VOLVELLE_RUNTIME_PACKED_WEIGHTS_H_

#include <xnnpack.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "platforms/memory.h"

namespace volvelle {

struct Tensor;

// Bytes that XNNPACK packs a linear's weight into, with a bias; within a per cent.
size_t packed_bytes_of(const Tensor& weight);

class PackedWeights {
 public:
  PackedWeights();
  PackedWeights(const PackedWeights&) = delete;
  PackedWeights& operator=(const PackedWeights&) = delete;

  // Memory is taken in parts of this size at least, one of which may stay empty but for a byte.
  static constexpr size_t kPartBytes = size_t{32} << 20;

  // What XNNPACK's create functions take. Operators made with it must be deleted before this
  // object.
  xnn_weights_cache_t provider() { return &provider_; }

  size_t bytes() const { return bytes_; }  // packed so far

 private:
  std::byte* reserve(size_t bytes);

  xnn_weights_cache_provider provider_;
  std::vector<AlignedBuffer> parts_;
  size_t used_ = 0;  // of the last part
  size_t bytes_ = 0;
};

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_PACKED_WEIGHTS_H_
