#include "converter/sources/safetensors.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <format>
#include <string>
#include <vector>

#include "converter/sources/float16.h"
#include "tests/scratch_folder.h"
#include "tests/sources/damage.h"

namespace volvelle {
namespace {

std::string safetensors(std::string_view header, std::string_view data) {
  return bytes_of(uint64_t{header.size()}) + std::string(header) + std::string(data);
}

std::string floats(std::initializer_list<float> values) {
  std::string bytes;
  for (const float value : values) bytes += bytes_of(value);
  return bytes;
}

// A file with one tensor "w" whose entry is given.
std::string with_entry(std::string_view entry, size_t data_bytes = 16) {
  return safetensors(std::format(R"({{"w":{}}})", entry), std::string(data_bytes, '\0'));
}

std::string error_of(const std::string& path) {
  const auto source = open_safetensors(path);
  return source ? "" : source.error().message;
}

bool contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

// Reads all that can be read, a few rows at a time; whether it succeeds does not matter.
void read_everything(const TensorSource& source) {
  for (const SourceTensor& tensor : source.tensors()) {
    CHECK(source.find(tensor.name) == &tensor);
    for (uint64_t row = 0; row < tensor.rows(); ++row) {
      std::vector<float> values(tensor.columns());
      if (!source.read(tensor, row, 1, values)) break;
    }
  }
}

const std::string kValid = safetensors(
    R"({"__metadata__":{"format":"pt"},)"
    R"("b":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
    R"("a":{"dtype":"BF16","shape":[2,2],"data_offsets":[24,32]},)"
    R"("h":{"dtype":"F16","shape":[3],"data_offsets":[32,38]},)"
    R"("none":{"dtype":"F32","shape":[0,4],"data_offsets":[38,38]},)"
    R"("scalar":{"dtype":"F32","shape":[],"data_offsets":[38,42]},)"
    R"("ids":{"dtype":"I64","shape":[1],"data_offsets":[42,50]},)"
    R"("odd":{"dtype":"F4","shape":[4],"data_offsets":[50,52]}})",
    floats({1, 2, 3, -4, 5, 6}) + std::string("\x80\x3f\x00\x40\x40\x40\x80\x40", 8) +
        std::string("\x00\x3c\x00\xc0\x01\x00", 6) + floats({7}) + bytes_of(int64_t{5}) + "xy");

TEST_CASE("tensors are listed in the order of their data and read by rows") {
  const ScratchFolder folder;
  const auto opened = open_safetensors(folder.write("m.safetensors", kValid));
  REQUIRE(opened.has_value());
  const TensorSource& source = **opened;
  std::vector<std::string> names;
  for (const SourceTensor& tensor : source.tensors()) names.push_back(tensor.name);
  CHECK(names == std::vector<std::string>{"b", "a", "h", "none", "scalar", "ids", "odd"});
  CHECK(source.find("nothing") == nullptr);

  const auto rows_of = [&](const char* name, uint64_t first, uint64_t rows) {
    const SourceTensor& tensor = *source.find(name);
    std::vector<float> values(rows * tensor.columns());
    CHECK(source.read(tensor, first, rows, values).has_value());
    return values;
  };
  CHECK(rows_of("b", 0, 2) == std::vector<float>{1, 2, 3, -4, 5, 6});
  CHECK(rows_of("b", 1, 1) == std::vector<float>{-4, 5, 6});
  CHECK(rows_of("a", 0, 2) == std::vector<float>{1, 2, 3, 4});
  CHECK(rows_of("h", 0, 1) == std::vector<float>{1, -2, 0x1p-24f});
  CHECK(rows_of("scalar", 0, 1) == std::vector<float>{7});
  CHECK(source.find("none")->rows() == 0);
  CHECK(source.find("none")->columns() == 0);
}

TEST_CASE("a tensor that is no weight loads, and is refused by its type's name when read") {
  const ScratchFolder folder;
  const auto source = open_safetensors(folder.write("m.safetensors", kValid));
  REQUIRE(source.has_value());
  for (const auto& [name, type] : {std::pair("ids", "I64"), std::pair("odd", "F4")}) {
    const SourceTensor& tensor = *(*source)->find(name);
    std::vector<float> values(tensor.columns());
    const auto read = (*source)->read(tensor, 0, 1, values);
    REQUIRE(!read.has_value());
    CHECK(contains(read.error().message, std::format("tensor {} is of type {}", name, type)));
  }
}

TEST_CASE("rows that a tensor does not have are refused") {
  const ScratchFolder folder;
  const auto source = open_safetensors(folder.write("m.safetensors", kValid));
  REQUIRE(source.has_value());
  std::vector<float> values(6);
  const SourceTensor& tensor = *(*source)->find("b");
  CHECK(!(*source)->read(tensor, 1, 2, values).has_value());
  CHECK(!(*source)->read(tensor, 3, 0, {}).has_value());
  CHECK(!(*source)->read(tensor, ~uint64_t{0}, 2, values).has_value());
  CHECK(!(*source)->read(tensor, 0, 1, values).has_value());
}

TEST_CASE("a header that lies is refused with a sentence about what is wrong") {
  const struct {
    std::string bytes;
    std::string_view message;
  } cases[] = {
      {"", "cut short"},
      {"1234567", "cut short"},
      {bytes_of(uint64_t{1} << 60) + "{}", "its header claims"},
      {bytes_of(~uint64_t{0}) + "{}", "its header claims"},
      {bytes_of(uint64_t{3}) + "{}", "its header claims"},
      {safetensors("[]", ""), "not a JSON object"},
      {safetensors("{\"w\":", ""), "not valid JSON"},
      {safetensors("", ""), "not valid JSON"},
      {safetensors("{} x", ""), "not valid JSON"},
      {safetensors("{\"\xff\":1}", ""), "not valid JSON"},
      {safetensors(std::string(1000, '['), ""), "nested deeper"},
      {with_entry("3"), "tensor w: its entry is not an object"},
      {with_entry(R"({"shape":[4],"data_offsets":[0,16]})"), "tensor w: dtype"},
      {with_entry(R"({"dtype":1,"shape":[4],"data_offsets":[0,16]})"), "tensor w: dtype"},
      {with_entry(R"({"dtype":"F32","data_offsets":[0,16]})"), "tensor w: shape"},
      {with_entry(R"({"dtype":"F32","shape":[-4],"data_offsets":[0,16]})"), "tensor w: shape"},
      {with_entry(R"({"dtype":"F32","shape":[4.0],"data_offsets":[0,16]})"), "tensor w: shape"},
      {with_entry(R"({"dtype":"F32","shape":[4]})"), "tensor w: data_offsets"},
      {with_entry(R"({"dtype":"F32","shape":[4],"data_offsets":[0]})"), "tensor w: data_offsets"},
      {with_entry(R"({"dtype":"F32","shape":[4],"data_offsets":[16,0]})"),
       "tensor w: data_offsets 16 to 0"},
      {with_entry(R"({"dtype":"F32","shape":[4],"data_offsets":[1,17]})"),
       "tensor w: data_offsets 1 to 17"},
      {with_entry(R"({"dtype":"F32","shape":[3],"data_offsets":[0,16]})"),
       "tensor w: 3 values of type F32"},
      {with_entry(R"({"dtype":"F16","shape":[4],"data_offsets":[0,16]})"),
       "tensor w: 4 values of type F16"},
      {with_entry(R"({"dtype":"F32","shape":[4],"data_offsets":[0,15]})"),
       "tensor w: 4 values of type F32"},
      {with_entry(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})"),
       "does not fit 63 bits"},
      {with_entry(R"({"dtype":"F32","shape":[0,4294967296,4294967296],"data_offsets":[0,0]})"),
       "does not fit 63 bits"},
      {with_entry(R"({"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,16]})"),
       "tensor w: shape"},
      {with_entry(R"({"dtype":"ODD","shape":[4294967296],"data_offsets":[0,16]})"),
       "tensor w: 4294967296 values"},
      {safetensors(
           R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
           "ab"),
       "\"w\" stands twice"},
      {safetensors(
           R"({"v":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"w":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
           "abc"),
       "v and w overlap"},
  };
  const ScratchFolder folder;
  for (const auto& [bytes, message] : cases) {
    const std::string path = folder.write("m.safetensors", bytes);
    const std::string error = error_of(path);
    INFO(error);
    CHECK(error.starts_with(path + ": "));
    CHECK_MESSAGE(contains(error, message), message);
  }
}

TEST_CASE("a file cut at any length is refused") {
  const ScratchFolder folder;
  for (size_t size = 0; size < kValid.size(); ++size) {
    CAPTURE(size);
    CHECK(error_of(folder.write("m.safetensors", kValid.substr(0, size))) != "");
  }
}

TEST_CASE("a damaged file is refused or read without harm") {
  const ScratchFolder folder;
  int refused = 0;
  for (int i = 0; i < 5000; ++i) {
    const auto source = open_safetensors(folder.write("m.safetensors", damaged(kValid)));
    if (source) {
      read_everything(**source);
    } else {
      CHECK(!source.error().message.empty());
      ++refused;
    }
  }
  CHECK(refused > 1000);
}

std::string one_tensor(std::string_view name, float value) {
  return safetensors(
      std::format(R"({{"{}":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}}})", name),
      bytes_of(value));
}

TEST_CASE("shards are found by the index, or else by their names") {
  const ScratchFolder folder;
  folder.write("model-00001-of-00002.safetensors", one_tensor("first", 1));
  CHECK(contains(error_of(folder.path()), "is one of 2 shards, but 1 are there"));
  folder.write("model-00002-of-00002.safetensors", one_tensor("second", 2));
  folder.write("consolidated.safetensors", one_tensor("elsewhere", 3));
  const auto unindexed = open_safetensors(folder.path());
  REQUIRE(unindexed.has_value());
  CHECK((*unindexed)->tensors().size() == 2);

  const auto indexed = [&](std::string_view map) {
    folder.write("model.safetensors.index.json",
                 std::format(R"({{"metadata":{{}},"weight_map":{}}})", map));
    return open_safetensors(folder.path());
  };
  const auto both = indexed(
      R"({"first":"model-00001-of-00002.safetensors","elsewhere":"consolidated.safetensors"})");
  REQUIRE(both.has_value());
  CHECK((*both)->find("second") == nullptr);
  float value = 0;
  CHECK((*both)->read(*(*both)->find("elsewhere"), 0, 1, std::span(&value, 1)).has_value());
  CHECK(value == 3);

  for (const auto& [map, message] : std::vector<std::pair<std::string_view, std::string_view>>{
           {"[]", "weight_map is missing"},
           {"{}", "weight_map is missing"},
           {R"({"first":1})", "is not a string"},
           {R"({"first":"../model.safetensors"})", "not a plain file name"},
           {R"({"first":".."})", "not a plain file name"},
           {R"({"first":"a\u0000b"})", "not a plain file name"},
           {R"({"first":"absent.safetensors"})", "absent.safetensors: cannot be opened"},
           {R"({"third":"consolidated.safetensors"})",
            "tensor third is not in consolidated.safetensors"}}) {
    const auto source = indexed(map);
    REQUIRE(!source.has_value());
    INFO(source.error().message);
    CHECK_MESSAGE(contains(source.error().message, message), message);
  }
}

TEST_CASE("a tensor in two shards is refused, unless the index says which one counts") {
  const ScratchFolder folder;
  folder.write("model-00001-of-00002.safetensors", one_tensor("w", 1));
  folder.write("model-00002-of-00002.safetensors", one_tensor("w", 2));
  CHECK(contains(error_of(folder.path()), "tensor w is in two shards"));
  folder.write("model.safetensors.index.json",
               R"({"weight_map":{"w":"model-00002-of-00002.safetensors"}})");
  const auto source = open_safetensors(folder.path());
  REQUIRE(source.has_value());
  float value = 0;
  CHECK((*source)->read((*source)->tensors()[0], 0, 1, std::span(&value, 1)).has_value());
  CHECK(value == 2);
}

TEST_CASE("a file that is cut while it is open gives an error") {
  const ScratchFolder folder;
  const std::string path = folder.write("m.safetensors", kValid);
  const auto source = open_safetensors(path);
  REQUIRE(source.has_value());
  std::filesystem::resize_file(path, kValid.size() - 40);
  std::vector<float> values(6);
  const auto read = (*source)->read(*(*source)->find("b"), 0, 2, values);
  REQUIRE(!read.has_value());
  CHECK(contains(read.error().message, "was cut at byte"));
}

}  // namespace
}  // namespace volvelle
