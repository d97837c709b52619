// A file of a checkpoint, read at offsets. It is not mapped: a file that is cut while it is being
// read gives an error instead of a fault, and what has been read does not count as the converter's
// memory.

#ifndef VOLVELLE_CONVERTER_SOURCES_SOURCE_FILE_H_
#define VOLVELLE_CONVERTER_SOURCES_SOURCE_FILE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "platforms/error.h"

namespace volvelle {

class SourceFile {
 public:
  static Result<SourceFile> open(const std::string& path);
  SourceFile(SourceFile&& other) noexcept;
  SourceFile& operator=(SourceFile&& other) noexcept;
  ~SourceFile();

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }  // bytes, when it was opened

  // Bytes [offset, offset + bytes.size()). May be called from several threads at once.
  Result<void> read(uint64_t offset, std::span<std::byte> bytes) const;

 private:
  SourceFile(std::string path, int descriptor, uint64_t size)
      : path_(std::move(path)), descriptor_(descriptor), size_(size) {}

  std::string path_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
};

// Bytes [offset, offset + bytes) that a tensor takes of its file.
struct Extent {
  std::string_view name;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// Fails when two extents share a byte. Ends must not overflow.
Result<void> check_disjoint(std::string_view path, std::vector<Extent> extents);

// The product of the dimensions, or an error when it does not fit 63 bits.
Result<uint64_t> element_count(std::span<const uint64_t> shape, std::string_view path,
                               std::string_view tensor);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_SOURCES_SOURCE_FILE_H_
