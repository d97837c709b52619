// How much memory this process holds, and large zeroed allocations that fail with a sentence.

#ifndef VOLVELLE_PLATFORMS_MEMORY_H_
#define VOLVELLE_PLATFORMS_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "platforms/error.h"

namespace volvelle {

// Bytes of physical memory, as the kernel counts them in /proc/self/status.
struct MemoryUse {
  uint64_t peak = 0;  // VmHWM: the most that was ever held, files included
  uint64_t anonymous =
      0;               // RssAnon: heap, stacks, AlignedBuffer; cannot be given back without swap
  uint64_t files = 0;  // RssFile: mapped files; the system can drop these pages and read them again
  uint64_t shared = 0;  // RssShmem
};

// Null where the system does not tell. `root`: see system_file.h.
std::optional<MemoryUse> memory_use(const std::string& root = "");

// How much more memory this process can take, and what limits it, in words: "this machine", "its
// container", or kAddressSpace.
inline constexpr std::string_view kAddressSpace = "ulimit -v";
struct MemoryLeft {
  uint64_t bytes = 0;
  std::string_view limit;
};

// The least of what the machine has available (swap included), of what the control groups (v2 or
// v1) around this process leave it, and of its limit on address space. Null where none is known.
std::optional<MemoryLeft> memory_left(const std::string& root = "");

// Zeroed memory straight from the system, whose pages take physical memory when first touched.
// Movable; the bytes stay where they are.
class AlignedBuffer {
 public:
  // Pages of 2 MiB save address translation over large, densely read buffers, but are taken whole.
  enum class Pages { kOrdinary, kHuge };

  AlignedBuffer() = default;  // holds 0 bytes

  // At least 64-byte aligned; with kHuge to 2 MiB. Fails where the system has not that much to
  // promise.
  static Result<AlignedBuffer> make(size_t bytes, Pages pages = Pages::kOrdinary);

  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  ~AlignedBuffer();

  std::span<std::byte> bytes() const { return {data_, size_}; }

  // The bytes as whole elements of T.
  template <typename T>
  std::span<T> as() const {
    static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= 64);
    return {reinterpret_cast<T*>(data_), size_ / sizeof(T)};
  }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  size_t mapped_ = 0;  // bytes to give back
};

}  // namespace volvelle

#endif  // VOLVELLE_PLATFORMS_MEMORY_H_
