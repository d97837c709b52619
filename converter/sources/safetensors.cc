#include "converter/sources/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "converter/sources/float16.h"
#include "converter/sources/json_file.h"
#include "converter/sources/source_file.h"

namespace volvelle {
namespace {

using nlohmann::json;
static_assert(std::endian::native == std::endian::little);

constexpr uint64_t kHeaderLimit = 100'000'000;  // bytes, the format's own limit
constexpr size_t kChunkValues = 1 << 16;        // values converted at a time

enum class Format { none, f32, f16, bf16, words };

struct DataType {
  std::string_view name;
  uint64_t bytes;
  Format format = Format::none;
};

// A type that is not here (four- and six-bit floats) is taken as it is: its size cannot be checked.
constexpr DataType kDataTypes[] = {
    {"F32", 4, Format::f32},
    {"F16", 2, Format::f16},
    {"BF16", 2, Format::bf16},
    {"F64", 8},
    {"I64", 8},
    {"U64", 8},
    {"I32", 4, Format::words},
    {"U32", 4, Format::words},
    {"I16", 2},
    {"U16", 2},
    {"I8", 1},
    {"U8", 1},
    {"BOOL", 1},
    {"F8_E4M3", 1},
    {"F8_E5M2", 1},
    {"F8_E8M0", 1},
    {"C64", 8},
};

const DataType* find_type(std::string_view name) {
  const auto found = std::ranges::find(kDataTypes, name, &DataType::name);
  return found == std::end(kDataTypes) ? nullptr : found;
}

// Where a tensor's bytes are.
struct Place {
  size_t file;
  uint64_t offset;
  Format format;
};

class SafetensorsSource : public TensorSource {
 public:
  const std::vector<SourceTensor>& tensors() const override { return tensors_; }
  Result<void> read(const SourceTensor& tensor, uint64_t first_row, uint64_t rows,
                    std::span<float> values) const override;
  Result<void> read_words(const SourceTensor& tensor, uint64_t first_row, uint64_t rows,
                          std::span<uint32_t> words) const override;

  // Appends a file's tensors; of those that `index` (name to file) gives to another file, none.
  Result<void> add(const std::string& path, const std::map<std::string, std::string>* index);

 private:
  Result<Place> find_rows(const SourceTensor& tensor, uint64_t first_row, uint64_t rows,
                          size_t values) const;

  std::vector<SourceFile> files_;
  std::vector<SourceTensor> tensors_;
  std::vector<Place> places_;  // of tensors_
};

// Where those rows are, which take so many values.
Result<Place> SafetensorsSource::find_rows(const SourceTensor& tensor, uint64_t first_row,
                                           uint64_t rows, size_t values) const {
  const SourceTensor* known = find(tensor.name);
  if (known == nullptr) return fail("tensor {} is not in this checkpoint", tensor.name);
  Place place = places_[known - tensors_.data()];
  const uint64_t columns = known->columns();
  if (first_row > known->rows() || rows > known->rows() - first_row || values != rows * columns) {
    return fail("{}: tensor {}: rows {} to {} were asked for of {}", files_[place.file].path(),
                tensor.name, first_row, first_row + rows, known->rows());
  }
  const bool half = place.format == Format::f16 || place.format == Format::bf16;
  place.offset += first_row * columns * (half ? 2 : 4);
  return place;
}

Result<void> SafetensorsSource::read_words(const SourceTensor& tensor, uint64_t first_row,
                                           uint64_t rows, std::span<uint32_t> words) const {
  VOLVELLE_ASSIGN_OR_RETURN(const Place place, find_rows(tensor, first_row, rows, words.size()));
  if (place.format != Format::words) {
    return TensorSource::read_words(tensor, first_row, rows, words);
  }
  return files_[place.file].read(place.offset, std::as_writable_bytes(words));
}

Result<void> SafetensorsSource::read(const SourceTensor& tensor, uint64_t first_row, uint64_t rows,
                                     std::span<float> values) const {
  VOLVELLE_ASSIGN_OR_RETURN(const Place place, find_rows(tensor, first_row, rows, values.size()));
  const SourceFile& file = files_[place.file];
  if (place.format == Format::none || place.format == Format::words) {
    return fail("{}: tensor {} is of type {}, which is no weight: F32, F16 and BF16 can be read",
                file.path(), tensor.name, tensor.type);
  }
  const uint64_t width = place.format == Format::f32 ? 4 : 2;
  uint64_t offset = place.offset;
  if (place.format == Format::f32) return file.read(offset, std::as_writable_bytes(values));
  std::vector<uint16_t> bits(std::min(values.size(), kChunkValues));
  while (!values.empty()) {
    const size_t count = std::min(values.size(), bits.size());
    VOLVELLE_RETURN_IF_ERROR(
        file.read(offset, std::as_writable_bytes(std::span(bits).first(count))));
    if (place.format == Format::bf16) {
      std::transform(bits.begin(), bits.begin() + count, values.begin(), float_from_bf16);
    } else {
      std::transform(bits.begin(), bits.begin() + count, values.begin(), float_from_f16);
    }
    values = values.subspan(count);
    offset += count * width;
  }
  return {};
}

// The array of unsigned integers that `object` has under `name`, or nothing.
std::optional<std::vector<uint64_t>> unsigned_array(const json& object, const char* name) {
  const auto member = object.find(name);
  if (member == object.end() || !member->is_array()) return std::nullopt;
  std::vector<uint64_t> numbers;
  for (const json& number : *member) {
    if (!number.is_number_unsigned()) return std::nullopt;
    numbers.push_back(number.get<uint64_t>());
  }
  return numbers;
}

Result<void> SafetensorsSource::add(const std::string& path,
                                    const std::map<std::string, std::string>* index) {
  VOLVELLE_ASSIGN_OR_RETURN(SourceFile file, SourceFile::open(path));
  uint64_t length = 0;
  VOLVELLE_RETURN_IF_ERROR(file.read(0, std::as_writable_bytes(std::span(&length, 1))));
  if (length > kHeaderLimit || length > file.size() - sizeof(length)) {
    return fail("{}: its header claims {} bytes: it is no safetensors file, or is cut short", path,
                length);
  }
  std::string text(length, '\0');
  VOLVELLE_RETURN_IF_ERROR(file.read(sizeof(length), std::as_writable_bytes(std::span(text))));
  VOLVELLE_ASSIGN_OR_RETURN(const json header, parse_json(text, path, RepeatedNames::refuse));
  if (!header.is_object()) return fail("{}: its header is not a JSON object", path);

  const uint64_t data = sizeof(length) + length;
  const uint64_t data_bytes = file.size() - data;
  const std::string file_name = std::filesystem::path(path).filename().string();
  std::vector<Extent> extents;
  std::vector<std::pair<uint64_t, size_t>> order;  // by offset
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    if (!entry.is_object()) return fail("{}: tensor {}: its entry is not an object", path, name);
    const auto type = entry.find("dtype");
    if (type == entry.end() || !type->is_string()) {
      return fail("{}: tensor {}: dtype is missing or not a string", path, name);
    }
    const auto offsets = unsigned_array(entry, "data_offsets");
    if (!offsets || offsets->size() != 2) {
      return fail("{}: tensor {}: data_offsets is not a pair of offsets", path, name);
    }
    auto shape = unsigned_array(entry, "shape");
    if (!shape) return fail("{}: tensor {}: shape is not an array of sizes", path, name);
    const auto [begin, end] = std::pair((*offsets)[0], (*offsets)[1]);
    if (begin > end || end > data_bytes) {
      return fail(
          "{}: tensor {}: data_offsets {} to {} do not lie in the file's {} bytes of data: it "
          "is cut short or damaged",
          path, name, begin, end, data_bytes);
    }
    VOLVELLE_ASSIGN_OR_RETURN(const uint64_t count, element_count(*shape, path, name));
    const std::string& type_name = type->get_ref<const std::string&>();
    const DataType* known = find_type(type_name);
    if (known != nullptr &&
        ((end - begin) % known->bytes != 0 || (end - begin) / known->bytes != count)) {
      return fail("{}: tensor {}: {} values of type {} do not fill data_offsets {} to {}", path,
                  name, count, type_name, begin, end);
    }
    // No type takes less than a bit for a value.
    if (known == nullptr && count / 8 > end - begin) {
      return fail("{}: tensor {}: {} values do not fit data_offsets {} to {}", path, name, count,
                  begin, end);
    }
    extents.push_back({name, begin, end - begin});
    if (index != nullptr) {
      const auto mapped = index->find(name);
      if (mapped != index->end() && mapped->second != file_name) continue;
    }
    order.emplace_back(begin, tensors_.size());
    tensors_.push_back({name, type_name, *std::move(shape)});
    places_.push_back({files_.size(), data + begin, known ? known->format : Format::none});
  }
  VOLVELLE_RETURN_IF_ERROR(check_disjoint(path, std::move(extents)));

  // JSON members come sorted by name; the file's order is that of its data.
  std::ranges::stable_sort(order);
  std::vector<SourceTensor> tensors;
  std::vector<Place> places;
  for (const auto& [offset, i] : order) {
    tensors.push_back(std::move(tensors_[i]));
    places.push_back(places_[i]);
  }
  const size_t first = tensors_.size() - order.size();
  std::ranges::move(tensors, tensors_.begin() + first);
  std::ranges::move(places, places_.begin() + first);
  files_.push_back(std::move(file));
  return {};
}

// Tensor name to file name, as model.safetensors.index.json states them.
Result<std::map<std::string, std::string>> read_index(const std::string& path) {
  VOLVELLE_ASSIGN_OR_RETURN(const json document, read_json(path));
  const json* map =
      document.is_object() && document.contains("weight_map") ? &document["weight_map"] : nullptr;
  if (map == nullptr || !map->is_object() || map->empty()) {
    return fail("{}: weight_map is missing, empty or not an object", path);
  }
  std::map<std::string, std::string> index;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string())
      return fail("{}: weight_map: the file of {} is not a string", path, tensor);
    const std::string& name = file.get_ref<const std::string&>();
    if (name.empty() || name == "." || name == ".." ||
        name.find_first_of(std::string_view("/\\\0", 3)) != name.npos) {
      return fail("{}: weight_map: the file of {} is not a plain file name", path, tensor);
    }
    index.emplace(tensor, name);
  }
  return index;
}

// How many shards "model-00001-of-00003.safetensors" says there are, or 0.
size_t shard_count(std::string_view stem) {
  const size_t of = stem.rfind("-of-");
  size_t count = 0;
  if (of == stem.npos || stem.size() - of - 4 > 6) return 0;
  for (const char digit : stem.substr(of + 4)) {
    if (digit < '0' || digit > '9') return 0;
    count = count * 10 + (digit - '0');
  }
  return count;
}

// The folder's weight files when no index says which: those that are called model…, or else all.
Result<std::vector<std::string>> list_shards(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> model_files;
  std::vector<std::string> all_files;
  bool pickled = false;
  for (std::filesystem::directory_iterator i(folder, error), end; !error && i != end;
       i.increment(error)) {
    const std::string name = i->path().filename().string();
    if (name.starts_with("pytorch_model") && name.ends_with(".bin")) pickled = true;
    if (!name.ends_with(".safetensors")) continue;
    all_files.push_back(name);
    if (name.starts_with("model")) model_files.push_back(name);
  }
  if (error) return fail("{}: cannot be listed: {}", folder, error.message());
  std::vector<std::string>& files = model_files.empty() ? all_files : model_files;
  if (files.empty() && pickled) {
    return fail(
        "{}: its weights are pytorch_model.bin, which can run code when it is read: load the model "
        "in "
        "transformers and save it as safetensors (save_pretrained)",
        folder);
  }
  if (files.empty()) {
    return fail(
        "{}: model.safetensors is missing, and so are its shards: fetch the weights as well",
        folder);
  }
  std::ranges::sort(files);
  const size_t count = shard_count(std::filesystem::path(files.front()).stem().string());
  if (count != 0 && count != files.size()) {
    return fail("{}: {} is one of {} shards, but {} are there: fetch the others", folder,
                files.front(), count, files.size());
  }
  return std::move(files);
}

}  // namespace

Result<std::unique_ptr<TensorSource>> open_safetensors(const std::string& path) {
  namespace fs = std::filesystem;
  auto source = std::make_unique<SafetensorsSource>();
  std::error_code ignored;
  const fs::path folder(path);
  const std::string index_path = (folder / "model.safetensors.index.json").string();
  std::map<std::string, std::string> index;
  if (!fs::is_directory(folder, ignored)) {
    VOLVELLE_RETURN_IF_ERROR(source->add(path, nullptr));
  } else if (fs::exists(folder / "model.safetensors", ignored)) {
    VOLVELLE_RETURN_IF_ERROR(source->add((folder / "model.safetensors").string(), nullptr));
  } else if (fs::exists(index_path, ignored)) {
    VOLVELLE_ASSIGN_OR_RETURN(index, read_index(index_path));
    std::set<std::string> files;
    for (const auto& [tensor, file] : index) files.insert(file);
    for (const std::string& file : files) {
      VOLVELLE_RETURN_IF_ERROR(source->add((folder / file).string(), &index));
    }
  } else {
    VOLVELLE_ASSIGN_OR_RETURN(const std::vector<std::string> files, list_shards(path));
    for (const std::string& file : files) {
      VOLVELLE_RETURN_IF_ERROR(source->add((folder / file).string(), nullptr));
    }
  }

  std::set<std::string_view> names;
  for (const SourceTensor& tensor : source->tensors()) {
    if (!names.insert(tensor.name).second) {
      return fail("{}: tensor {} is in two shards", path, tensor.name);
    }
  }
  for (const auto& [tensor, file] : index) {
    if (!names.contains(tensor)) {
      return fail("{}: tensor {} is not in {}, where it is said to be", index_path, tensor, file);
    }
  }
  return source;
}

}  // namespace volvelle
