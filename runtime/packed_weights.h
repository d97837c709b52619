// Where XNNPACK's packed weights live: one after the other in large pages, in the order in which a
// token reads them, so that decoding streams through memory with few address translations. XNNPACK
// asks for the memory through its weights cache interface.

#ifndef VOLVELLE_RUNTIME_PACKED_WEIGHTS_H_
#define VOLVELLE_RUNTIME_PACKED_WEIGHTS_H_

#include <xnnpack.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "platforms/memory.h"

namespace volvelle {

class PackedWeights {
 public:
  PackedWeights();
  PackedWeights(const PackedWeights&) = delete;
  PackedWeights& operator=(const PackedWeights&) = delete;

  // What XNNPACK's create functions take. Operators made with it must be deleted before this
  // object.
  xnn_weights_cache_t provider() { return &provider_; }

  // Memory that write(place) has filled from `weights`; null when memory is short.
  template <class Write>
  const void* pack(size_t bytes, const void* weights, const Write& write) {
    // As XNNPACK does.
    const xnn_weights_cache_look_up_key key{.seed = 0, .kernel = weights, .bias = nullptr};
    size_t offset = provider_.look_up(provider_.context, &key);
    if (offset == SIZE_MAX) {
      void* const place = provider_.reserve_space(provider_.context, bytes);
      if (place == nullptr) return nullptr;
      write(place);
      offset = provider_.look_up_or_insert(provider_.context, &key, place, bytes);
    }
    return provider_.offset_to_addr(provider_.context, offset);
  }

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
