// GGUF checkpoints, versions 2 and 3, little-endian, in one file or in shards: typed metadata and
// tensors of every block type in gguf_blocks.h.
// https://github.com/ggml-org/ggml/blob/master/docs/gguf.md

#ifndef VOLVELLE_CONVERTER_SOURCES_GGUF_H_
#define VOLVELLE_CONVERTER_SOURCES_GGUF_H_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "converter/sources/gguf_blocks.h"
#include "converter/sources/source_file.h"
#include "converter/sources/tensor_source.h"
#include "platforms/error.h"

namespace volvelle {

enum class GgufType : uint32_t {
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  f32,
  boolean,
  string,
  array,
  u64,
  i64,
  f64
};

std::string_view gguf_type_name(GgufType type);

// A metadata value where it lies in the file's header: bytes [offset, …) hold `count` elements of
// `element`.
struct GgufValue {
  std::string_view key;
  GgufType element;  // of an array its elements' type, otherwise the value's own
  bool is_array;
  uint64_t count;  // 1 unless it is an array
  uint64_t offset;
};

// Strings of the header, each a u64 length and its bytes, read in order without copying.
class GgufStrings {
 public:
  class Iterator {
   public:
    using value_type = std::string_view;
    using difference_type = std::ptrdiff_t;
    Iterator() = default;
    explicit Iterator(const char* bytes) : bytes_(bytes) {}
    std::string_view operator*() const;
    Iterator& operator++();
    Iterator operator++(int) {
      Iterator before = *this;
      ++*this;
      return before;
    }
    bool operator==(const Iterator&) const = default;

   private:
    const char* bytes_ = nullptr;
  };

  GgufStrings(Iterator begin, Iterator end, uint64_t size)
      : begin_(begin), end_(end), size_(size) {}
  Iterator begin() const { return begin_; }
  Iterator end() const { return end_; }
  uint64_t size() const { return size_; }

 private:
  Iterator begin_;
  Iterator end_;
  uint64_t size_;
};

// Numbers (or booleans, as 0 and 1) of the header, converted when they are asked for.
class GgufNumbers {
 public:
  GgufNumbers(const char* bytes, GgufType type, uint64_t size)
      : bytes_(bytes), type_(type), size_(size) {}
  uint64_t size() const { return size_; }
  bool integral() const { return type_ != GgufType::f32 && type_ != GgufType::f64; }
  double real(uint64_t i) const;
  // Of a real number the part before the point, within int64; of u64 at most the largest int64.
  int64_t integer(uint64_t i) const;

 private:
  const char* bytes_;
  GgufType type_;
  uint64_t size_;
};

// What the header states, by key. Views point into this object's memory and live as long as it
// does. Every error names the file, the key and the type that was found.
class GgufMetadata {
 public:
  GgufMetadata() = default;
  GgufMetadata(GgufMetadata&&) = default;
  GgufMetadata& operator=(GgufMetadata&&) = default;

  const std::vector<GgufValue>& values() const { return values_; }  // sorted by key

  const GgufValue* find(std::string_view key) const;  // or null
  bool has(std::string_view key) const { return find(key) != nullptr; }

  Result<uint64_t> unsigned_integer(std::string_view key) const;  // any integer type, not negative
  Result<double> real(std::string_view key) const;                // any number
  Result<bool> boolean(std::string_view key) const;
  Result<std::string_view> text(std::string_view key) const;
  Result<GgufStrings> strings(std::string_view key) const;  // an array
  Result<GgufNumbers> numbers(
      std::string_view key) const;  // an array, or one number as an array of one

 private:
  friend class GgufTensorSource;

  Result<const GgufValue*> require(std::string_view key) const;
  std::unexpected<Error> wrong_type(const GgufValue& value, std::string_view expected) const;

  std::string path_;
  std::vector<char> header_;  // the file up to its tensors' data; views stay valid when it is moved
  std::vector<GgufValue> values_;
};

class GgufTensorSource : public TensorSource {
 public:
  // Opens the file, and with any one shard of NAME-00001-of-0000N.gguf all of them.
  static Result<std::unique_ptr<GgufTensorSource>> open(const std::string& path);

  // The file's, or the first shard's.
  const GgufMetadata& metadata() const { return metadata_; }

  const std::vector<SourceTensor>& tensors() const override { return tensors_; }
  Result<void> read(const SourceTensor& tensor, uint64_t first_row, uint64_t rows,
                    std::span<float> values) const override;

 private:
  // Where a tensor's blocks are; `type` is null when its number is not known.
  struct Place {
    size_t file;
    uint64_t offset;
    const GgufBlockType* type;
  };

  // Appends a file's tensors and returns its metadata.
  Result<GgufMetadata> add(const std::string& path);

  GgufMetadata metadata_;
  std::vector<SourceFile> files_;
  std::vector<SourceTensor> tensors_;
  std::vector<Place> places_;  // of tensors_
};

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_SOURCES_GGUF_H_
