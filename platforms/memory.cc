#include "platforms/memory.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "platforms/control_groups.h"
#include "platforms/system_file.h"

namespace volvelle {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

// Of a line "KEY:   NUMBER kB".
std::optional<uint64_t> kilobytes(std::string_view text, std::string_view key) {
  auto value = find_field(text, key);
  if (!value || !value->ends_with(" kB")) return std::nullopt;
  value->remove_suffix(3);
  const auto number = parse_number(*value);
  if (!number || *number < 0) return std::nullopt;
  return static_cast<uint64_t>(*number) * 1024;
}

// Of the line "KEY NUMBER".
std::optional<int64_t> find_number(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    if (line.starts_with(key) && line.size() > key.size() && line[key.size()] == ' ') {
      return parse_number(line.substr(key.size() + 1));
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return std::nullopt;
}

}  // namespace

std::optional<MemoryUse> memory_use(const std::string& root) {
  const auto text = read_system_text(root + "/proc/self/status");
  if (!text) return std::nullopt;
  bool known = true;
  const auto bytes = [&](std::string_view key) {
    const auto value = kilobytes(*text, key);
    known = known && value.has_value();
    return value.value_or(0);
  };
  const MemoryUse use = {.peak = bytes("VmHWM"),
                         .anonymous = bytes("RssAnon"),
                         .files = bytes("RssFile"),
                         .shared = bytes("RssShmem")};
  return known ? std::optional(use) : std::nullopt;
}

std::optional<MemoryLeft> memory_left(const std::string& root) {
  std::optional<MemoryLeft> least;
  const auto consider = [&](uint64_t limit, uint64_t taken, std::string_view name) {
    const uint64_t bytes = limit > taken ? limit - taken : 0;
    if (!least || bytes < least->bytes) least = MemoryLeft{bytes, name};
  };
  if (const auto text = read_system_text(root + "/proc/meminfo")) {
    if (const auto available = kilobytes(*text, "MemAvailable")) {
      consider(*available + kilobytes(*text, "SwapFree").value_or(0), 0, "this machine");
    }
  }
  // What a group holds of files is given back when it wants for memory.
  for_each_control_group("memory", root, [&](const std::string& folder, bool second_version) {
    const auto limit =
        read_system_number(folder + (second_version ? "/memory.max" : "/memory.limit_in_bytes"));
    const auto taken = read_system_number(
        folder + (second_version ? "/memory.current" : "/memory.usage_in_bytes"));
    if (!limit || !taken || *limit < 0 || *taken < 0) return;
    int64_t files = 0;
    if (const auto text = read_system_text(folder + "/memory.stat")) {
      for (const char* kind : {"inactive_file", "active_file"}) {
        files += std::max<int64_t>(0, find_number(*text, kind).value_or(0));
      }
    }
    consider(static_cast<uint64_t>(*limit), static_cast<uint64_t>(*taken - std::min(files, *taken)),
             "its container");
  });
  rlimit space;
  if (::getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY) {
    const auto text = read_system_text(root + "/proc/self/status");
    if (text) consider(space.rlim_cur, kilobytes(*text, "VmSize").value_or(0), kAddressSpace);
  }
  return least;
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
