// A file that appears under its name only when it is whole. Bytes go to a file beside the name,
// without a name of its own where the file system can do that (the system then removes it however
// the process ends), else called NAME.partial-PID. `commit` syncs it, gives it its name and syncs
// the folder: after a crash or power cut there is the former file or the new one, never a part.

#ifndef VOLVELLE_PLATFORMS_OUTPUT_FILE_H_
#define VOLVELLE_PLATFORMS_OUTPUT_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "platforms/error.h"
#include "platforms/mapped_file.h"

namespace volvelle {

struct OutputOptions {
  bool overwrite = false;  // replace a file that has the name already; otherwise that is an error
  bool visible = false;    // write to NAME.partial-PID even where a nameless file is possible
};

class OutputFile {
 public:
  // Begins a file that is to be called `path`. Refused with a sentence: a name that is taken
  // (without `overwrite`, checked now and again at commit), a missing folder, one that this user
  // may not write to, and a name of something else than a file.
  static Result<OutputFile> create(const std::string& path, const OutputOptions& options = {});

  OutputFile(OutputFile&&) noexcept = default;
  OutputFile& operator=(OutputFile&&) noexcept = default;
  ~OutputFile() = default;  // without a commit, nothing remains

  // Writes at the end. After a failure the file cannot be committed.
  Result<> append(std::span<const std::byte> bytes);

  // Replaces bytes written before: [offset, offset + size) must lie below position().
  Result<> write_at(uint64_t offset, std::span<const std::byte> bytes);

  // Appends zeros up to the next multiple of `alignment` (above 0).
  Result<> pad_to(uint64_t alignment);

  // Fails now, rather than hours later, if the file system has no room for `bytes` more.
  Result<> expect(uint64_t bytes) const;

  // Bytes appended so far.
  uint64_t position() const { return position_; }
  const std::string& path() const;

  // Maps what has been written so far, for a last look at it before it appears.
  Result<MappedFile> map() const;

  // The same once it is on disk, read again in large pages where the system has them for files:
  // what was written is cached in small ones.
  Result<MappedFile> map_large() const;

  // Makes the file appear. Call once; nothing can be written after it.
  Result<> commit();

 private:
  struct Unfinished;  // the descriptor and the name beside, both given up on destruction
  struct Discard {
    void operator()(Unfinished* unfinished) const;
  };

  explicit OutputFile(std::unique_ptr<Unfinished, Discard> file) : file_(std::move(file)) {}
  Result<> write(uint64_t offset, std::span<const std::byte> bytes);

  std::unique_ptr<Unfinished, Discard> file_;
  uint64_t position_ = 0;
};

// Why a write failed and what to do about it, of an errno value: "the disk is full; make room …".
std::string write_failure(int error);

}  // namespace volvelle

#endif  // VOLVELLE_PLATFORMS_OUTPUT_FILE_H_
