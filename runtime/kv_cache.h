// The cached keys and values of every layer of a session. A layer that sees everything keeps every
// token; a layer with a sliding window keeps a ring of window + chunk - 1 tokens, which is what the
// queries of one chunk can still see while its own keys are being stored.

#ifndef VOLVELLE_RUNTIME_KV_CACHE_H_
#define VOLVELLE_RUNTIME_KV_CACHE_H_

#include <cstddef>
#include <vector>

#include "kernels/attention.h"
#include "platforms/error.h"
#include "platforms/memory.h"
#include "runtime/model.h"

namespace volvelle {

class KvCache {
 public:
  // Room for `context` tokens of each of `lanes` sequences, fed up to `chunk` at a time from
  // position `first_position` on. Memory is reserved, and taken from the system as tokens come.
  static Result<KvCache> make(const Stack& stack, CacheType type, size_t context, size_t chunk,
                              size_t first_position, size_t lanes = 1);

  // Bytes of such a cache; SIZE_MAX where no number holds them.
  static size_t bytes_for(const Stack& stack, CacheType type, size_t context, size_t chunk,
                          size_t lanes = 1);

  const CacheView& layer(size_t index, size_t lane = 0) const {
    return layers_[index * lanes_ + lane];
  }

  // The first `tokens` tokens of one lane into another.
  void copy_lane(size_t from, size_t to, size_t tokens);

  size_t bytes() const { return buffer_.bytes().size(); }

  // Bytes of keys and values that one query reads when `tokens` are cached.
  size_t bytes_read(const Stack& stack, size_t tokens) const;

 private:
  AlignedBuffer buffer_;
  std::vector<CacheView> layers_;          // [layers, lanes]
  std::vector<size_t> row_bytes_, heads_;  // [layers]
  size_t lanes_ = 1;
};

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_KV_CACHE_H_
