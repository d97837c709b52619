#include "converter/sources/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <limits>
#include <set>
#include <utility>

namespace volvelle {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint64_t kHeaderLimit = uint64_t{1}
                                  << 30;  // bytes; a vocabulary of 262144 takes some 15 MB
constexpr uint64_t kNameLimit = 65535;  // bytes of a key, as the format says, or of a tensor's name
constexpr uint64_t kAlignmentLimit = uint64_t{1} << 30;
constexpr uint32_t kDimensionsLimit = 4;
constexpr int kNestingLimit = 4;         // arrays in arrays
constexpr size_t kChunkBytes = 1 << 18;  // decoded at a time

struct TypeFacts {
  std::string_view name;
  uint64_t bytes;  // 0: of no fixed size
};

constexpr TypeFacts kTypes[] = {
    {"u8", 1},   {"i8", 1},     {"u16", 2},   {"i16", 2}, {"u32", 4}, {"i32", 4}, {"f32", 4},
    {"bool", 1}, {"string", 0}, {"array", 0}, {"u64", 8}, {"i64", 8}, {"f64", 8},
};

uint64_t fixed_size(GgufType type) { return kTypes[static_cast<uint32_t>(type)].bytes; }

template <typename T>
T load(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

// Calls `visit` with the number at `bytes`.
template <typename Visit>
auto with_number(GgufType type, const char* bytes, Visit visit) {
  switch (type) {
    case GgufType::i8:
      return visit(load<int8_t>(bytes));
    case GgufType::u16:
      return visit(load<uint16_t>(bytes));
    case GgufType::i16:
      return visit(load<int16_t>(bytes));
    case GgufType::u32:
      return visit(load<uint32_t>(bytes));
    case GgufType::i32:
      return visit(load<int32_t>(bytes));
    case GgufType::f32:
      return visit(load<float>(bytes));
    case GgufType::u64:
      return visit(load<uint64_t>(bytes));
    case GgufType::i64:
      return visit(load<int64_t>(bytes));
    case GgufType::f64:
      return visit(load<double>(bytes));
    default:
      return visit(load<uint8_t>(bytes));  // u8, boolean
  }
}

bool is_number(GgufType type) { return fixed_size(type) != 0 && type != GgufType::boolean; }

bool is_integer(GgufType type) {
  return is_number(type) && type != GgufType::f32 && type != GgufType::f64;
}

// Reads a header front to back. Its length is stated nowhere, so that the file is fetched as it is
// needed, and never more than the file has.
class HeaderReader {
 public:
  explicit HeaderReader(const SourceFile& file) : file_(file) {}

  uint64_t position() const { return position_; }
  uint64_t left() const { return file_.size() - position_; }
  std::vector<char> take_bytes() {
    bytes_.resize(position_);
    return std::move(bytes_);
  }
  // Makes the next `count` bytes available, steps over them and returns their offset.
  Result<uint64_t> skip(uint64_t count, std::string_view what) {
    if (count > left()) {
      return fail("{}: ends within {}, at byte {}: it is cut short or damaged", file_.path(), what,
                  position_);
    }
    if (position_ + count > kHeaderLimit) {
      return fail("{}: its header is longer than {} bytes", file_.path(), kHeaderLimit);
    }
    if (position_ + count > bytes_.size()) {
      constexpr uint64_t kFirst = 1 << 16;
      const size_t have = bytes_.size();
      bytes_.resize(
          std::min(file_.size(), std::max({position_ + count, 2 * uint64_t{have}, kFirst})));
      VOLVELLE_RETURN_IF_ERROR(
          file_.read(have, std::as_writable_bytes(std::span(bytes_)).subspan(have)));
    }
    return std::exchange(position_, position_ + count);
  }

  template <typename T>
  Result<T> number(std::string_view what) {
    VOLVELLE_ASSIGN_OR_RETURN(const uint64_t offset, skip(sizeof(T), what));
    return load<T>(bytes_.data() + offset);
  }

  struct Range {
    uint64_t offset;
    uint64_t count;
  };
  Result<Range> string(std::string_view what) {
    VOLVELLE_ASSIGN_OR_RETURN(const uint64_t count, number<uint64_t>(what));
    VOLVELLE_ASSIGN_OR_RETURN(const uint64_t offset, skip(count, what));
    return Range{offset, count};
  }

  Result<std::string> name(std::string_view what) {
    VOLVELLE_ASSIGN_OR_RETURN(const Range range, string(what));
    if (range.count > kNameLimit) {
      return fail("{}: {} has {} bytes; at most {} are possible", file_.path(), what, range.count,
                  kNameLimit);
    }
    return std::string(bytes_.data() + range.offset, range.count);
  }

  // Steps over `count` elements.
  Result<void> values(GgufType type, uint64_t count, std::string_view key, int depth) {
    const uint64_t least = type == GgufType::string  ? 8
                           : type == GgufType::array ? 12
                                                     : fixed_size(type);
    if (count > left() / least) {
      return fail(
          "{}: metadata {}: {} elements of type {} do not fit the file: it is cut short or damaged",
          file_.path(), key, count, gguf_type_name(type));
    }
    if (type != GgufType::string && type != GgufType::array) {
      VOLVELLE_RETURN_IF_ERROR(skip(count * least, key));
      return {};
    }
    for (uint64_t i = 0; i < count; ++i) {
      if (type == GgufType::string) {
        VOLVELLE_RETURN_IF_ERROR(string(key));
      } else {
        VOLVELLE_RETURN_IF_ERROR(array(key, depth + 1));
      }
    }
    return {};
  }

  struct Array {
    GgufType element;
    uint64_t count;
    uint64_t offset;
  };
  Result<Array> array(std::string_view key, int depth) {
    if (depth > kNestingLimit) {
      return fail("{}: metadata {}: arrays are nested deeper than {}", file_.path(), key,
                  kNestingLimit);
    }
    VOLVELLE_ASSIGN_OR_RETURN(const GgufType element, type(key));
    VOLVELLE_ASSIGN_OR_RETURN(const uint64_t count, number<uint64_t>(key));
    const uint64_t offset = position_;
    VOLVELLE_RETURN_IF_ERROR(values(element, count, key, depth));
    return Array{element, count, offset};
  }

  Result<GgufType> type(std::string_view key) {
    VOLVELLE_ASSIGN_OR_RETURN(const uint32_t number, this->number<uint32_t>(key));
    if (number >= std::size(kTypes)) {
      return fail("{}: metadata {}: there is no value type {}", file_.path(), key, number);
    }
    return static_cast<GgufType>(number);
  }

 private:
  const SourceFile& file_;
  std::vector<char> bytes_;
  uint64_t position_ = 0;
};

// NAME-00002-of-00003.gguf
struct ShardName {
  std::string stem;  // NAME, with its folder
  uint32_t number;   // from 1
  uint32_t count;

  std::string path(uint32_t shard) const {
    return std::format("{}-{:05}-of-{:05}.gguf", stem, shard, count);
  }
};

// Whether `path` is so called; `shard` is then filled in.
bool parse_shard_name(const std::string& path, ShardName& shard) {
  constexpr std::string_view kPattern = "-00000-of-00000.gguf";
  if (path.size() <= kPattern.size()) return false;
  const std::string_view tail = std::string_view(path).substr(path.size() - kPattern.size());
  uint32_t numbers[2] = {0, 0};
  int which = 0;
  for (size_t i = 0; i < tail.size(); ++i) {
    if (kPattern[i] != '0') {
      if (tail[i] != kPattern[i]) return false;
      which = i > 6;
    } else {
      if (tail[i] < '0' || tail[i] > '9') return false;
      numbers[which] = numbers[which] * 10 + (tail[i] - '0');
    }
  }
  shard = {path.substr(0, path.size() - kPattern.size()), numbers[0], numbers[1]};
  return true;
}

}  // namespace

std::string_view gguf_type_name(GgufType type) { return kTypes[static_cast<uint32_t>(type)].name; }

std::string_view GgufStrings::Iterator::operator*() const {
  return {bytes_ + sizeof(uint64_t), load<uint64_t>(bytes_)};
}

GgufStrings::Iterator& GgufStrings::Iterator::operator++() {
  bytes_ += sizeof(uint64_t) + load<uint64_t>(bytes_);
  return *this;
}

double GgufNumbers::real(uint64_t i) const {
  return with_number(type_, bytes_ + i * fixed_size(type_),
                     [](auto value) { return static_cast<double>(value); });
}

int64_t GgufNumbers::integer(uint64_t i) const {
  return with_number(type_, bytes_ + i * fixed_size(type_), [](auto value) -> int64_t {
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
    if constexpr (std::is_floating_point_v<decltype(value)>) {
      if (value != value) return 0;
      if (value >= 0x1p63) return kMost;
      return value <= -0x1p63 ? std::numeric_limits<int64_t>::min() : static_cast<int64_t>(value);
    } else {
      return std::cmp_greater(value, kMost) ? kMost : static_cast<int64_t>(value);
    }
  });
}

const GgufValue* GgufMetadata::find(std::string_view key) const {
  const auto found = std::ranges::lower_bound(values_, key, {}, &GgufValue::key);
  return found != values_.end() && found->key == key ? &*found : nullptr;
}

Result<const GgufValue*> GgufMetadata::require(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return fail("{}: metadata {} is missing", path_, key);
  return value;
}

std::unexpected<Error> GgufMetadata::wrong_type(const GgufValue& value,
                                                std::string_view expected) const {
  return fail("{}: metadata {} is {}{} where {} is expected", path_, value.key,
              value.is_array ? "an array of " : "of type ", gguf_type_name(value.element),
              expected);
}

Result<uint64_t> GgufMetadata::unsigned_integer(std::string_view key) const {
  VOLVELLE_ASSIGN_OR_RETURN(const GgufValue* value, require(key));
  if (value->is_array || !is_integer(value->element)) return wrong_type(*value, "an integer");
  return with_number(value->element, header_.data() + value->offset,
                     [&](auto number) -> Result<uint64_t> {
                       if (number < 0) return fail("{}: metadata {} is negative", path_, key);
                       return static_cast<uint64_t>(number);
                     });
}

Result<double> GgufMetadata::real(std::string_view key) const {
  VOLVELLE_ASSIGN_OR_RETURN(const GgufValue* value, require(key));
  if (value->is_array || !is_number(value->element)) return wrong_type(*value, "a number");
  return GgufNumbers(header_.data() + value->offset, value->element, 1).real(0);
}

Result<bool> GgufMetadata::boolean(std::string_view key) const {
  VOLVELLE_ASSIGN_OR_RETURN(const GgufValue* value, require(key));
  if (value->is_array || value->element != GgufType::boolean)
    return wrong_type(*value, "a boolean");
  return header_[value->offset] != 0;
}

Result<std::string_view> GgufMetadata::text(std::string_view key) const {
  VOLVELLE_ASSIGN_OR_RETURN(const GgufValue* value, require(key));
  if (value->is_array || value->element != GgufType::string) return wrong_type(*value, "a string");
  return *GgufStrings::Iterator(header_.data() + value->offset);
}

Result<GgufStrings> GgufMetadata::strings(std::string_view key) const {
  VOLVELLE_ASSIGN_OR_RETURN(const GgufValue* value, require(key));
  if (!value->is_array || value->element != GgufType::string)
    return wrong_type(*value, "an array of strings");
  const GgufStrings::Iterator begin(header_.data() + value->offset);
  GgufStrings::Iterator end = begin;
  for (uint64_t i = 0; i < value->count; ++i) ++end;
  return GgufStrings(begin, end, value->count);
}

Result<GgufNumbers> GgufMetadata::numbers(std::string_view key) const {
  VOLVELLE_ASSIGN_OR_RETURN(const GgufValue* value, require(key));
  if (fixed_size(value->element) == 0) return wrong_type(*value, "a number or an array of numbers");
  return GgufNumbers(header_.data() + value->offset, value->element, value->count);
}

Result<GgufMetadata> GgufTensorSource::add(const std::string& path) {
  VOLVELLE_ASSIGN_OR_RETURN(SourceFile file, SourceFile::open(path));
  HeaderReader header(file);
  VOLVELLE_ASSIGN_OR_RETURN(const uint32_t magic, header.number<uint32_t>("its magic number"));
  if (magic != 0x46554747) return fail("{}: does not begin with GGUF: it is no GGUF file", path);
  VOLVELLE_ASSIGN_OR_RETURN(const uint32_t version, header.number<uint32_t>("its version"));
  if (version == std::byteswap(2u) || version == std::byteswap(3u)) {
    return fail("{}: is a big-endian GGUF file: get the little-endian one", path);
  }
  if (version != 2 && version != 3) {
    return fail("{}: is GGUF version {}; versions 2 and 3 can be read", path, version);
  }
  VOLVELLE_ASSIGN_OR_RETURN(const uint64_t tensor_count,
                            header.number<uint64_t>("its tensor count"));
  VOLVELLE_ASSIGN_OR_RETURN(const uint64_t value_count,
                            header.number<uint64_t>("its metadata count"));
  constexpr uint64_t kLeastValue = 8 + 4 + 1;  // an empty key, a type, a byte
  constexpr uint64_t kLeastTensor =
      8 + 4 + 4 + 8;  // an empty name, no dimensions, a type, an offset
  if (value_count > header.left() / kLeastValue || tensor_count > header.left() / kLeastTensor) {
    return fail(
        "{}: {} metadata values and {} tensors do not fit the file: it is cut short or damaged",
        path, value_count, tensor_count);
  }

  // Keys are views of the header's bytes, which move until the last of them has been fetched.
  std::vector<GgufValue> values;
  std::vector<HeaderReader::Range> keys;
  for (uint64_t i = 0; i < value_count; ++i) {
    VOLVELLE_ASSIGN_OR_RETURN(const std::string key, header.name("a metadata key"));
    keys.push_back({header.position() - key.size(), key.size()});
    VOLVELLE_ASSIGN_OR_RETURN(const GgufType type, header.type(key));
    GgufValue value{{}, type, type == GgufType::array, 1, header.position()};
    if (value.is_array) {
      VOLVELLE_ASSIGN_OR_RETURN(const HeaderReader::Array array, header.array(key, 1));
      value.element = array.element;
      value.count = array.count;
      value.offset = array.offset;
    } else {
      VOLVELLE_RETURN_IF_ERROR(header.values(type, 1, key, 0));
    }
    values.push_back(value);
  }

  std::vector<uint64_t> offsets;  // from the data's start
  const size_t first = tensors_.size();
  for (uint64_t i = 0; i < tensor_count; ++i) {
    VOLVELLE_ASSIGN_OR_RETURN(const std::string name, header.name("a tensor's name"));
    VOLVELLE_ASSIGN_OR_RETURN(const uint32_t dimensions, header.number<uint32_t>(name));
    if (dimensions > kDimensionsLimit) {
      return fail("{}: tensor {} has {} dimensions; at most {} are possible", path, name,
                  dimensions, kDimensionsLimit);
    }
    std::vector<uint64_t> shape(dimensions);
    for (uint64_t& dimension : shape) {
      VOLVELLE_ASSIGN_OR_RETURN(dimension, header.number<uint64_t>(name));
    }
    std::ranges::reverse(shape);  // the file has the fastest first
    VOLVELLE_ASSIGN_OR_RETURN(const uint32_t number, header.number<uint32_t>(name));
    VOLVELLE_ASSIGN_OR_RETURN(const uint64_t offset, header.number<uint64_t>(name));
    const GgufBlockType* type = find_gguf_block_type(number);
    tensors_.push_back({name, type ? std::string(type->name) : std::format("number {}", number),
                        std::move(shape)});
    places_.push_back({files_.size(), 0, type});
    offsets.push_back(offset);
  }

  GgufMetadata metadata;
  metadata.path_ = path;
  const uint64_t end = header.position();
  metadata.header_ = header.take_bytes();
  metadata.values_ = std::move(values);
  for (size_t i = 0; i < metadata.values_.size(); ++i) {
    metadata.values_[i].key = {metadata.header_.data() + keys[i].offset, keys[i].count};
  }
  std::ranges::sort(metadata.values_, {}, &GgufValue::key);
  const auto twice = std::ranges::adjacent_find(metadata.values_, {}, &GgufValue::key);
  if (twice != metadata.values_.end())
    return fail("{}: metadata {} stands there twice", path, twice->key);

  uint64_t alignment = 32;
  if (metadata.has("general.alignment")) {
    VOLVELLE_ASSIGN_OR_RETURN(alignment, metadata.unsigned_integer("general.alignment"));
    if (alignment == 0 || alignment % 8 != 0 || alignment > kAlignmentLimit) {
      return fail("{}: metadata general.alignment is {}, not a multiple of 8", path, alignment);
    }
  }
  // A file without tensors may end before the padding does.
  const uint64_t data = std::min((end + alignment - 1) / alignment * alignment, file.size());
  const uint64_t data_bytes = file.size() - data;
  std::vector<Extent> extents;
  for (size_t i = first; i < tensors_.size(); ++i) {
    const SourceTensor& tensor = tensors_[i];
    const GgufBlockType* type = places_[i].type;
    const uint64_t offset = offsets[i - first];
    VOLVELLE_ASSIGN_OR_RETURN(const uint64_t count, element_count(tensor.shape, path, tensor.name));
    uint64_t bytes = 0;
    if (type != nullptr) {
      const uint64_t width = tensor.shape.empty() ? 1 : tensor.shape.back();
      if (width % type->values != 0) {
        return fail("{}: tensor {}: rows of {} values are not made of {}'s blocks of {}", path,
                    tensor.name, width, type->name, type->values);
      }
      // More blocks than bytes cannot be, which also keeps the product small.
      const uint64_t blocks = count / type->values;
      bytes = blocks > data_bytes ? std::numeric_limits<uint64_t>::max() : blocks * type->bytes;
    }
    // No type takes less than a bit for a value: what is not known has no more values than that.
    if (offset > data_bytes || bytes > data_bytes - offset || count / 8 > data_bytes) {
      return fail(
          "{}: tensor {}: its {} values of type {} at offset {} do not lie in the file's {} bytes "
          "of data: "
          "it is cut short or damaged",
          path, tensor.name, count, tensor.type, offset, data_bytes);
    }
    extents.push_back({tensor.name, offset, bytes});
    places_[i].offset = data + offset;
  }
  VOLVELLE_RETURN_IF_ERROR(check_disjoint(path, std::move(extents)));
  files_.push_back(std::move(file));
  return metadata;
}

Result<std::unique_ptr<GgufTensorSource>> GgufTensorSource::open(const std::string& path) {
  auto source = std::make_unique<GgufTensorSource>();
  ShardName shard;
  const bool named = parse_shard_name(path, shard);
  // The first shard has the metadata, whichever was given.
  const std::string first = named ? shard.path(1) : path;
  VOLVELLE_ASSIGN_OR_RETURN(source->metadata_, source->add(first));

  uint64_t count = 1;
  if (source->metadata_.has("split.count")) {
    VOLVELLE_ASSIGN_OR_RETURN(count, source->metadata_.unsigned_integer("split.count"));
  }
  if (count > 1) {
    if (!named) {
      return fail(
          "{}: is one of {} shards, but is not called NAME-00001-of-{:05}.gguf: give the shards "
          "their names",
          path, count, count);
    }
    if (count != shard.count) {
      return fail("{}: metadata split.count is {}, but the file's name says {}", first, count,
                  shard.count);
    }
    for (uint32_t i = 1; i <= shard.count; ++i) {
      GgufMetadata other;
      if (i > 1) {
        VOLVELLE_ASSIGN_OR_RETURN(other, source->add(shard.path(i)));
      }
      const GgufMetadata& metadata = i > 1 ? other : source->metadata_;
      VOLVELLE_ASSIGN_OR_RETURN(const uint64_t number, metadata.unsigned_integer("split.no"));
      if (number != i - 1) {
        return fail("{}: metadata split.no is {}, but the file's name says {}", shard.path(i),
                    number, i - 1);
      }
    }
    VOLVELLE_ASSIGN_OR_RETURN(const uint64_t tensors,
                              source->metadata_.unsigned_integer("split.tensors.count"));
    if (tensors != source->tensors_.size()) {
      return fail("{}: metadata split.tensors.count is {}, but the shards have {} tensors", first,
                  tensors, source->tensors_.size());
    }
  }

  if (count <= 1 && first != path) {
    return fail("{}: its name says that it is a shard, but {} states no split.count", path, first);
  }

  std::set<std::string_view> names;
  for (const SourceTensor& tensor : source->tensors_) {
    if (!names.insert(tensor.name).second)
      return fail("{}: tensor {} is there twice", path, tensor.name);
  }
  return source;
}

Result<void> GgufTensorSource::read(const SourceTensor& tensor, uint64_t first_row, uint64_t rows,
                                    std::span<float> values) const {
  const SourceTensor* known = find(tensor.name);
  if (known == nullptr) return fail("{}: tensor {} is not there", metadata_.path_, tensor.name);
  const Place& place = places_[known - tensors_.data()];
  const SourceFile& file = files_[place.file];
  const GgufBlockType* type = place.type;
  if (type == nullptr || type->decode == nullptr) {
    return fail(
        "{}: tensor {} is of type {}, which cannot be read: quantise the model to another type",
        file.path(), tensor.name, known->type);
  }
  const uint64_t columns = known->columns();
  if (first_row > known->rows() || rows > known->rows() - first_row ||
      values.size() != rows * columns) {
    return fail("{}: tensor {}: rows {} to {} were asked for of {}", file.path(), tensor.name,
                first_row, first_row + rows, known->rows());
  }
  uint64_t offset = place.offset + first_row * columns / type->values * type->bytes;
  uint64_t blocks = values.size() / type->values;
  const uint64_t chunk = std::min<uint64_t>(blocks, kChunkBytes / type->bytes);
  std::vector<uint8_t> bytes(chunk * type->bytes);
  for (float* out = values.data(); blocks > 0;) {
    const uint64_t count = std::min(blocks, chunk);
    VOLVELLE_RETURN_IF_ERROR(
        file.read(offset, std::as_writable_bytes(std::span(bytes).first(count * type->bytes))));
    type->decode(bytes.data(), count, out);
    out += count * type->values;
    offset += count * type->bytes;
    blocks -= count;
  }
  return {};
}

}  // namespace volvelle
