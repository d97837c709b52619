#include "runtime/packed_weights.h"

#include <algorithm>
#include <cstdint>

#include "runtime/model.h"

namespace volvelle {
namespace {

constexpr size_t kAlignment = 64;  // what XNNPACK's kernels may load at once

}  // namespace

// Outputs are padded to whole tiles, of 16 at most; each has its bias, and int8 and int4 ones the
// sum of their codes, which the activations' zero point multiplies.
size_t packed_bytes_of(const Tensor& weight) {
  const size_t outputs = (weight.rows + 15) / 16 * 16, inputs = weight.padded_columns();
  switch (weight.type) {
    case TensorType::kF32:
      return outputs * (inputs + 1) * sizeof(float);
    case TensorType::kQ8:
      return outputs * ((inputs + 7) / 8 * 8 + 3 * sizeof(float));
    case TensorType::kQ4:
      return outputs * (inputs / 2 + weight.blocks() * sizeof(uint16_t) + 2 * sizeof(float));
  }
  return 0;
}

// The interface speaks of offsets so that a cache can move. This one never does: an offset is the
// address itself, nothing is ever found, and it counts as finished all the time.
PackedWeights::PackedWeights()
    : provider_{
          .context = this,
          .look_up = [](void*, const xnn_weights_cache_look_up_key*) { return SIZE_MAX; },
          .reserve_space = [](void* self, size_t bytes) -> void* {
            return static_cast<PackedWeights*>(self)->reserve(bytes);
          },
          .look_up_or_insert = [](void*, const xnn_weights_cache_look_up_key*, void* packed,
                                  size_t) { return reinterpret_cast<size_t>(packed); },
          .is_finalized = [](void*) { return true; },
          .offset_to_addr = [](void*, size_t offset) { return reinterpret_cast<void*>(offset); },
          .delete_cache = [](void*) { return xnn_status_success; },
      } {}

// Zeroed and aligned; null when memory is short, which XNNPACK reports.
std::byte* PackedWeights::reserve(size_t bytes) {
  // Kernels may read a little past their weights.
  const size_t taken = (bytes + XNN_EXTRA_BYTES + kAlignment - 1) / kAlignment * kAlignment;
  if (taken < bytes) return nullptr;
  if (parts_.empty() || taken > parts_.back().bytes().size() - used_) {
    auto part = AlignedBuffer::make(std::max(kPartBytes, taken), AlignedBuffer::Pages::kHuge);
    if (!part) return nullptr;
    parts_.push_back(*std::move(part));
    used_ = 0;
  }
  std::byte* const place = parts_.back().bytes().data() + used_;
  used_ += taken;
  bytes_ += bytes;
  return place;
}

}  // namespace volvelle
