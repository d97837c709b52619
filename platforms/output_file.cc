#include "platforms/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>

#include "platforms/format_bytes.h"
#include "platforms/interrupt.h"

namespace volvelle {
namespace {

constexpr mode_t kMode = 0666;  // less the user's umask

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::unexpected<Error> taken(const std::string& path) {
  return fail("{}: exists already; choose another name or ask to overwrite it", path);
}

}  // namespace

std::string write_failure(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "the disk is full; make room or write elsewhere";
    case EFBIG:
      return "files may not grow that large here; write to another file system";
    case EACCES:
    case EPERM:
      return "this user may not write to that folder; choose another";
    case ENOENT:
    case ENOTDIR:
      return "its folder does not exist; make it first";
    case EROFS:
      return "the file system is read-only; write elsewhere";
    default:
      return std::strerror(error);
  }
}

struct OutputFile::Unfinished {
  std::string path;
  std::string beside;  // NAME.partial-PID while a file of that name exists, else empty
  int descriptor = -1;
  bool overwrite = false;
  bool broken = false;  // a write failed

  ~Unfinished() {
    if (descriptor >= 0) ::close(descriptor);
    forget_beside();
  }

  void name_beside() {
    beside = std::format("{}.partial-{}", path, ::getpid());
    remove_on_signal(beside);
  }
  void forget_beside() {
    if (beside.empty()) return;
    ::unlink(beside.c_str());
    keep_on_signal(beside);
    beside.clear();
  }

  Result<> open(bool visible);
  Result<> give_name();
};

void OutputFile::Discard::operator()(Unfinished* unfinished) const { delete unfinished; }

Result<> OutputFile::Unfinished::open(bool visible) {
  struct stat status;
  if (::lstat(path.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) return fail("{}: is a folder; add a file's name", path);
    if (!S_ISREG(status.st_mode) && !S_ISLNK(status.st_mode)) {
      return fail("{}: is not a regular file, so nothing can be written under that name", path);
    }
    if (!overwrite) return taken(path);
  }
#if defined(O_TMPFILE) && \
    !defined(__ANDROID__)  // Android forbids the link that names the file later.
  if (!visible && ::access("/proc/self/fd", X_OK) == 0) {
    descriptor = ::open(folder_of(path).c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, kMode);
    if (descriptor >= 0) return {};
  }
#endif
  // Also where the nameless file fails for a reason that this one will state.
  name_beside();
  ::unlink(beside.c_str());  // of an earlier process with our number
  descriptor = ::open(beside.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, kMode);
  if (descriptor < 0) return fail("{}: cannot be made: {}", path, write_failure(errno));
  return {};
}

Result<> OutputFile::Unfinished::give_name() {
  if (beside.empty()) {
    const std::string nameless = std::format("/proc/self/fd/{}", descriptor);
    const auto link_as = [&](const std::string& name) {
      return ::linkat(AT_FDCWD, nameless.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0;
    };
    if (link_as(path)) return {};
    if (errno != EEXIST) return fail("{}: cannot be named: {}", path, write_failure(errno));
    if (!overwrite) return taken(path);
    name_beside();
    ::unlink(beside.c_str());
    if (!link_as(beside)) return fail("{}: cannot be named: {}", path, write_failure(errno));
  } else if (!overwrite) {
    // A link, unlike a rename, never replaces; file systems without links leave us the check.
    if (::link(beside.c_str(), path.c_str()) == 0) {
      forget_beside();
      return {};
    }
    if (errno == EEXIST || ::access(path.c_str(), F_OK) == 0) return taken(path);
  }
  if (::rename(beside.c_str(), path.c_str()) != 0) {
    return fail("{}: cannot be named: {}", path, write_failure(errno));
  }
  keep_on_signal(beside);
  beside.clear();
  return {};
}

Result<OutputFile> OutputFile::create(const std::string& path, const OutputOptions& options) {
  if (path.empty()) return fail("the output file has no name; give one");
  std::unique_ptr<Unfinished, Discard> file(
      new Unfinished{.path = path, .overwrite = options.overwrite});
  VOLVELLE_RETURN_IF_ERROR(file->open(options.visible));
  return OutputFile(std::move(file));
}

const std::string& OutputFile::path() const { return file_->path; }

Result<> OutputFile::append(std::span<const std::byte> bytes) {
  VOLVELLE_RETURN_IF_ERROR(write(position_, bytes));
  position_ += bytes.size();
  return {};
}

Result<> OutputFile::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  if (offset > position_ || bytes.size() > position_ - offset) {
    return fail("{}: bytes {} + {} are not written yet, so they cannot be replaced", path(), offset,
                bytes.size());
  }
  return write(offset, bytes);
}

Result<> OutputFile::pad_to(uint64_t alignment) {
  static constexpr std::array<std::byte, 4096> kZeros = {};
  uint64_t missing = (alignment - position_ % alignment) % alignment;
  while (missing > 0) {
    const size_t some = static_cast<size_t>(std::min<uint64_t>(missing, kZeros.size()));
    VOLVELLE_RETURN_IF_ERROR(append(std::span(kZeros).first(some)));
    missing -= some;
  }
  return {};
}

Result<> OutputFile::expect(uint64_t bytes) const {
  struct statvfs status;
  if (::fstatvfs(file_->descriptor, &status) != 0) return {};  // Unknown: writing will tell.
  const uint64_t unit = status.f_frsize > 0 ? status.f_frsize : 1;
  if (bytes / unit >= status.f_bavail) {
    return fail("{}: needs {} but the disk has {} free; make room or write elsewhere", path(),
                format_bytes(bytes), format_bytes(status.f_bavail * unit));
  }
  return {};
}

Result<> OutputFile::write(uint64_t offset, std::span<const std::byte> bytes) {
  if (file_->broken) return fail("{}: an earlier write failed", path());
  if (file_->descriptor < 0) return fail("{}: is complete; nothing more can be written", path());
  while (!bytes.empty()) {
    // Linux writes at most 2^31 bytes a call; a limit of our own keeps interrupts prompt.
    const size_t some = std::min<size_t>(bytes.size(), 64 << 20);
    const ssize_t written =
        ::pwrite(file_->descriptor, bytes.data(), some, static_cast<off_t>(offset));
    if (written < 0) {
      if (errno == EINTR) continue;
      file_->broken = true;
      return fail("{}: cannot be written: {}", path(), write_failure(errno));
    }
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
  return {};
}

Result<MappedFile> OutputFile::map() const {
  return MappedFile::open(
      file_->beside.empty() ? std::format("/proc/self/fd/{}", file_->descriptor) : file_->beside,
      path());
}

Result<MappedFile> OutputFile::map_large() const {
  if (::fsync(file_->descriptor) == 0)
    (void)::posix_fadvise(file_->descriptor, 0, 0, POSIX_FADV_DONTNEED);
  Result<MappedFile> file = map();
  if (file) file->prefer_large_pages();
  return file;
}

Result<> OutputFile::commit() {
  if (file_->broken) return fail("{}: an earlier write failed", path());
  if (file_->descriptor < 0) return fail("{}: is complete already", path());
  // Bytes first, name second: a name that survives a power cut must not show missing bytes.
  if (::fsync(file_->descriptor) != 0) {
    file_->broken = true;
    return fail("{}: cannot be written: {}", path(), write_failure(errno));
  }
  if (auto named = file_->give_name(); !named) {
    file_->broken = true;
    return named;
  }
  ::close(std::exchange(file_->descriptor, -1));
  const int folder = ::open(folder_of(path()).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    // Some file systems cannot sync a folder (EINVAL) and keep its order themselves.
    const bool synced = ::fsync(folder) == 0 || errno == EINVAL || errno == ENOTSUP;
    const int error = errno;
    ::close(folder);
    if (!synced) return fail("{}: its folder cannot be synced: {}", path(), write_failure(error));
  }
  return {};
}

}  // namespace volvelle
