#include "platforms/memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "platforms/system_file.h"

namespace volvelle {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

std::optional<MemoryUse> memory_use(const std::string& root) {
  const auto text = read_system_text(root + "/proc/self/status");
  if (!text) return std::nullopt;
  bool known = true;
  const auto bytes = [&](std::string_view key) -> uint64_t {
    auto value = find_field(*text, key);
    if (!value || !value->ends_with(" kB")) {
      known = false;
      return 0;
    }
    value->remove_suffix(3);
    return static_cast<uint64_t>(parse_number(*value).value_or(0)) * 1024;
  };
  const MemoryUse use = {.peak = bytes("VmHWM"),
                         .anonymous = bytes("RssAnon"),
                         .files = bytes("RssFile"),
                         .shared = bytes("RssShmem")};
  return known ? std::optional(use) : std::nullopt;
}

Result<AlignedBuffer> AlignedBuffer::make(size_t bytes, Pages pages) {
  AlignedBuffer buffer;
  if (bytes == 0) return buffer;
  const auto refuse = [&](const char* reason) {
    return fail("{} MB of memory cannot be had: {}; use a shorter context or close other programs",
                (bytes >> 20) + 1, reason);
  };
  // Huge pages must begin at a multiple of their size: map one more, then give the ends back.
  const bool huge = pages == Pages::kHuge;
  const size_t slack = huge ? kHugePage : 0;
  if (bytes > std::numeric_limits<size_t>::max() / 2) return refuse("no machine has it");
  const size_t length = huge ? (bytes + kHugePage - 1) / kHugePage * kHugePage : bytes;
  void* mapped =
      ::mmap(nullptr, length + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return refuse(std::strerror(errno));
  std::byte* start = static_cast<std::byte*>(mapped);
  if (huge) {
    const size_t skip = (kHugePage - reinterpret_cast<uintptr_t>(start) % kHugePage) % kHugePage;
    if (skip > 0) ::munmap(start, skip);
    start += skip;
    if (slack > skip) ::munmap(start + length, slack - skip);
    ::madvise(start, length, MADV_HUGEPAGE);  // Advice: without it the buffer is merely slower.
  }
  buffer.data_ = start;
  buffer.size_ = bytes;
  buffer.mapped_ = length;
  return buffer;
}

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      mapped_(std::exchange(other.mapped_, 0)) {}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

AlignedBuffer::~AlignedBuffer() {
  if (data_ != nullptr) ::munmap(data_, mapped_);
}

}  // namespace volvelle
