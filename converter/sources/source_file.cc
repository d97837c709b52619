#include "converter/sources/source_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <system_error>
#include <utility>

namespace volvelle {
namespace {

std::string reason() { return std::generic_category().message(errno); }

}  // namespace

Result<SourceFile> SourceFile::open(const std::string& path) {
  // O_NONBLOCK: opening a pipe does not wait for its other end.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return fail("{}: cannot be opened: {}", path, reason());
  SourceFile file(path, descriptor, 0);
  struct stat status;
  if (::fstat(descriptor, &status) != 0) return fail("{}: cannot be examined: {}", path, reason());
  if (!S_ISREG(status.st_mode)) return fail("{}: is not a regular file", path);
  file.size_ = static_cast<uint64_t>(status.st_size);
  return file;
}

SourceFile::SourceFile(SourceFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_(other.size_) {}

SourceFile& SourceFile::operator=(SourceFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_, other.size_);
  return *this;
}

SourceFile::~SourceFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Result<void> SourceFile::read(uint64_t offset, std::span<std::byte> bytes) const {
  if (offset > size_ || bytes.size() > size_ - offset) {
    return fail("{}: bytes {} to {} are past its end at {}: it is cut short; fetch it again", path_,
                offset, offset + bytes.size(), size_);
  }
  while (!bytes.empty()) {
    const ssize_t count =
        ::pread(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return fail("{}: cannot be read at byte {}: {}", path_, offset, reason());
    if (count == 0) return fail("{}: was cut at byte {} while it was being read", path_, offset);
    bytes = bytes.subspan(static_cast<size_t>(count));
    offset += static_cast<uint64_t>(count);
  }
  return {};
}

Result<void> check_disjoint(std::string_view path, std::vector<Extent> extents) {
  std::erase_if(extents, [](const Extent& extent) { return extent.bytes == 0; });
  std::ranges::sort(extents, {}, &Extent::offset);
  for (size_t i = 1; i < extents.size(); ++i) {
    const Extent& before = extents[i - 1];
    if (before.offset + before.bytes > extents[i].offset) {
      return fail("{}: tensors {} and {} overlap at byte {} of the data: the file is damaged", path,
                  before.name, extents[i].name, extents[i].offset);
    }
  }
  return {};
}

Result<uint64_t> element_count(std::span<const uint64_t> shape, std::string_view path,
                               std::string_view tensor) {
  constexpr uint64_t kLimit = std::numeric_limits<int64_t>::max();
  // A zero makes the product zero, yet a product of some of the dimensions must fit as well.
  uint64_t product = 1;
  bool zero = false;
  for (const uint64_t dimension : shape) {
    if (dimension == 0) {
      zero = true;
      continue;
    }
    if (product > kLimit / dimension) {
      return fail("{}: tensor {}: the product of its shape does not fit 63 bits", path, tensor);
    }
    product *= dimension;
  }
  return zero ? 0 : product;
}

}  // namespace volvelle
