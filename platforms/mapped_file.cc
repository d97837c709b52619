#include "platforms/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

namespace volvelle {

Result<MappedFile> MappedFile::open(const std::string& path, const std::string& name) {
  // O_NONBLOCK: opening a named pipe must be refused below, not wait for a writer.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    switch (errno) {
      case ENOENT:
        return fail("{}: there is no such file; check the path", name);
      case EACCES:
        return fail("{}: this user may not read it; change its permissions", name);
      default:
        return fail("{}: cannot be opened: {}", name, std::strerror(errno));
    }
  }
  struct Closer {
    int descriptor;
    ~Closer() { ::close(descriptor); }
  } closer{descriptor};

  struct stat status;
  if (::fstat(descriptor, &status) != 0) {
    return fail("{}: cannot be examined: {}", name, std::strerror(errno));
  }
  if (S_ISDIR(status.st_mode)) return fail("{}: is a folder, not a file; name a file in it", name);
  if (!S_ISREG(status.st_mode)) {
    return fail("{}: is not a regular file; copy its contents to a file first", name);
  }
  if (status.st_size == 0) return fail("{}: is empty; fetch or convert it again", name);
  if (static_cast<uint64_t>(status.st_size) > SIZE_MAX) {
    return fail("{}: {} bytes do not fit this machine's address space", name, status.st_size);
  }
  const size_t size = static_cast<size_t>(status.st_size);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor, 0);
  if (data == MAP_FAILED) {
    return fail("{}: {} bytes cannot be mapped: {}", name, size, std::strerror(errno));
  }
  return MappedFile(name, static_cast<const std::byte*>(data), size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::expect_random() const {
  (void)::madvise(const_cast<std::byte*>(data_), size_, MADV_RANDOM);
}

void MappedFile::prefer_large_pages() const {
#ifdef MADV_HUGEPAGE
  (void)::madvise(const_cast<std::byte*>(data_), size_, MADV_HUGEPAGE);
#endif
}

Result<> MappedFile::advise_willneed(size_t offset, size_t length) const {
  return advise(offset, length, MADV_WILLNEED);
}

Result<> MappedFile::drop(size_t offset, size_t length) const {
  return advise(offset, length, MADV_DONTNEED);
}

Result<> MappedFile::advise(size_t offset, size_t length, int advice) const {
  if (offset > size_ || length > size_ - offset) {
    return fail("{}: bytes {} to {} + {} lie outside its {} bytes", path_, offset, offset, length,
                size_);
  }
  if (length == 0) return {};
  // madvise wants a page's first byte; the pages at both ends are advised whole.
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t first = offset / page * page;
  void* start = const_cast<std::byte*>(data_ + first);
  if (::madvise(start, offset + length - first, advice) != 0) {
    return fail("{}: the system refuses advice on its pages: {}", path_, std::strerror(errno));
  }
  return {};
}

}  // namespace volvelle
