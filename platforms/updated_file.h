// A finished file that is changed where it lies, by one process at a time. What order bytes reach
// the disk in is the caller's: `sync` returns when all that was written before is there.

#ifndef VOLVELLE_PLATFORMS_UPDATED_FILE_H_
#define VOLVELLE_PLATFORMS_UPDATED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "platforms/error.h"
#include "platforms/mapped_file.h"

namespace volvelle {

class UpdatedFile {
 public:
  // Opens `path` for reading and writing and locks it against other UpdatedFiles. Refused with a
  // sentence: a file that is missing, not a regular one, not this user's to write, or being changed
  // already.
  static Result<UpdatedFile> open(const std::string& path);

  UpdatedFile(UpdatedFile&& other) noexcept
      : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}
  UpdatedFile& operator=(UpdatedFile&&) = delete;
  ~UpdatedFile();

  Result<> write(uint64_t offset, std::span<const std::byte> bytes);  // past the end as well
  Result<> resize(uint64_t bytes);
  Result<> sync();
  Result<MappedFile> map() const;  // as long as the file is now

 private:
  UpdatedFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}

  std::string path_;
  int descriptor_;
};

}  // namespace volvelle

#endif  // VOLVELLE_PLATFORMS_UPDATED_FILE_H_
