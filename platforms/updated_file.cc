#include "platforms/updated_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "platforms/output_file.h"

namespace volvelle {

Result<UpdatedFile> UpdatedFile::open(const std::string& path) {
  struct stat status;
  if (::stat(path.c_str(), &status) != 0)
    return fail("{}: there is no such file; check the path", path);
  if (!S_ISREG(status.st_mode)) return fail("{}: is not a regular file", path);
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) {
    const int error = errno;
    switch (error) {
      case EACCES:
      case EPERM:
        return fail("{}: is read-only for this user; change its permissions or write a copy", path);
      case EROFS:
        return fail("{}: lies on a read-only file system; write a copy elsewhere", path);
      default:
        return fail("{}: cannot be opened for writing: {}", path, write_failure(error));
    }
  }
  UpdatedFile file(path, descriptor);
  if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      return fail("{}: another process is changing it; wait until that has ended", path);
    }
    return fail("{}: cannot be locked; write a copy instead", path);
  }
  return file;
}

UpdatedFile::~UpdatedFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Result<> UpdatedFile::write(uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const size_t some = std::min<size_t>(bytes.size(), 64 << 20);
    const ssize_t written = ::pwrite(descriptor_, bytes.data(), some, static_cast<off_t>(offset));
    if (written < 0) {
      if (errno == EINTR) continue;
      return fail("{}: cannot be written: {}", path_, write_failure(errno));
    }
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
  return {};
}

Result<> UpdatedFile::resize(uint64_t bytes) {
  if (::ftruncate(descriptor_, static_cast<off_t>(bytes)) == 0) return {};
  return fail("{}: cannot be made {} bytes long: {}", path_, bytes, write_failure(errno));
}

Result<> UpdatedFile::sync() {
  if (::fsync(descriptor_) == 0) return {};
  return fail("{}: cannot be written: {}", path_, write_failure(errno));
}

Result<MappedFile> UpdatedFile::map() const {
  return MappedFile::open(std::format("/proc/self/fd/{}", descriptor_), path_);
}

}  // namespace volvelle
