// A whole file seen as read-only memory. Nothing is copied: pages come from the system's page cache
// when they are first touched and can be given back, so a model larger than free memory still opens
// at once.
//
// One thing mapping cannot give: if another program shortens the file afterwards, touching the lost
// pages raises SIGBUS and ends the process. Volvelle never does that to a file under its final name
// (OutputFile renames a whole file into place, which leaves older mappings intact); do not shorten
// a model that is in use, and copy one from an unreliable disk before opening it.

#ifndef VOLVELLE_PLATFORMS_MAPPED_FILE_H_
#define VOLVELLE_PLATFORMS_MAPPED_FILE_H_

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "platforms/error.h"

namespace volvelle {

class MappedFile {
 public:
  // Maps all of `path`. Refused with a sentence: a file that is missing, empty, not a regular file,
  // or not readable by this user.
  static Result<MappedFile> open(const std::string& path) { return open(path, path); }

  // The same, where sentences are to call the file `name`.
  static Result<MappedFile> open(const std::string& path, const std::string& name);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  // Valid while this object, or the one it was moved to, lives; aligned to a page.
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

  // Asks the system to start reading `length` bytes from `offset` now, or to forget that they were
  // read. Both are advice: the bytes seen never change. A range outside the file is refused.
  Result<> advise_willneed(size_t offset, size_t length) const;
  Result<> drop(size_t offset, size_t length) const;

  // Tells the system to read only what is touched, where it would read megabytes around it, but for
  // ranges that advise_willneed names.
  void expect_random() const;

  // Asks for pages of 2 MiB, which save address translation over a file that is read densely: Linux
  // 6.16 gives them on ext4 where it has to read the file's bytes.
  void prefer_large_pages() const;

 private:
  MappedFile(std::string path, const std::byte* data, size_t size)
      : path_(std::move(path)), data_(data), size_(size) {}
  Result<> advise(size_t offset, size_t length, int advice) const;

  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace volvelle

#endif  // VOLVELLE_PLATFORMS_MAPPED_FILE_H_
