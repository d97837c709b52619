#include "converter/sources/gguf.h"

#include <doctest/doctest.h>

#include <bit>
#include <format>
#include <functional>
#include <string>
#include <vector>

#include "tests/scratch_folder.h"
#include "tests/sources/damage.h"

namespace volvelle {
namespace {

bool contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

std::string string_bytes(std::string_view text) {
  return bytes_of(uint64_t{text.size()}) + std::string(text);
}

// Writes a GGUF file field by field, so that any of them may lie.
struct GgufWriter {
  std::string magic = "GGUF";
  uint32_t version = 3;
  uint64_t alignment = 32;
  std::vector<std::string> values;   // whole entries
  std::vector<std::string> tensors;  // whole entries
  std::string data;

  template <typename T>
  GgufWriter& value(std::string_view key, GgufType type, const T& value) {
    return raw(key, type, bytes_of(value));
  }
  GgufWriter& text(std::string_view key, std::string_view text) {
    return raw(key, GgufType::string, string_bytes(text));
  }
  GgufWriter& array(std::string_view key, GgufType element, uint64_t count,
                    std::string_view bytes) {
    return raw(key, GgufType::array, bytes_of(element) + bytes_of(count) + std::string(bytes));
  }
  GgufWriter& raw(std::string_view key, GgufType type, std::string_view bytes) {
    values.push_back(string_bytes(key) + bytes_of(type) + std::string(bytes));
    return *this;
  }
  // `shape` is fastest first, as in the file.
  GgufWriter& tensor(std::string_view name, std::vector<uint64_t> shape, uint32_t type,
                     uint64_t offset) {
    std::string entry = string_bytes(name) + bytes_of(static_cast<uint32_t>(shape.size()));
    for (const uint64_t dimension : shape) entry += bytes_of(dimension);
    tensors.push_back(entry + bytes_of(type) + bytes_of(offset));
    return *this;
  }
  std::string bytes() const {
    std::string file = magic + bytes_of(version) + bytes_of(uint64_t{tensors.size()}) +
                       bytes_of(uint64_t{values.size()});
    for (const std::string& value : values) file += value;
    for (const std::string& tensor : tensors) file += tensor;
    if (!tensors.empty()) file.resize((file.size() + alignment - 1) / alignment * alignment);
    return file + data;
  }
};

std::string error_of(const std::string& path) {
  const auto source = GgufTensorSource::open(path);
  return source ? "" : source.error().message;
}

GgufWriter small() {
  GgufWriter file;
  file.text("general.architecture", "llama")
      .value("count.u8", GgufType::u8, uint8_t{200})
      .value("count.i8", GgufType::i8, int8_t{-3})
      .value("count.u32", GgufType::u32, uint32_t{4000000000})
      .value("count.u64", GgufType::u64, ~uint64_t{0})
      .value("count.i64", GgufType::i64, int64_t{7})
      .value("real.f32", GgufType::f32, 0.5f)
      .value("real.f64", GgufType::f64, -0.25)
      .value("flag", GgufType::boolean, uint8_t{1})
      .array("words", GgufType::string, 3,
             string_bytes("a") + string_bytes("") + string_bytes("Ġthe"))
      .array("heads", GgufType::i32, 2, bytes_of(int32_t{-8}) + bytes_of(int32_t{9}))
      .array("nested", GgufType::array, 1, bytes_of(GgufType::u8) + bytes_of(uint64_t{2}) + "ab")
      .tensor("f", {2, 3}, 0, 0)     // 24 bytes
      .tensor("q", {32, 2}, 8, 32)   // Q8_0: 68 bytes
      .tensor("h", {4}, 1, 128)      // F16: 8 bytes
      .tensor("odd", {4}, 99, 160)   // a type nobody knows
      .tensor("ids", {2}, 26, 160);  // I32
  for (const float value : {1.f, 2.f, 3.f, 4.f, 5.f, 6.f}) file.data += bytes_of(value);
  file.data.resize(32);
  for (int row = 0; row < 2; ++row) {
    file.data += bytes_of(static_cast<uint16_t>(row == 0 ? 0x3c00 : 0x3800));  // 1, 0.5
    for (int i = 0; i < 32; ++i) file.data += static_cast<char>(i - 16);
  }
  file.data.resize(128);
  for (const uint16_t half : {0x3c00, 0x4000, 0xc000, 0x0000}) file.data += bytes_of(half);
  file.data.resize(168);
  return file;
}

void read_everything(const GgufTensorSource& source) {
  for (const SourceTensor& tensor : source.tensors()) {
    CHECK(source.find(tensor.name) == &tensor);
    for (uint64_t row = 0; row < tensor.rows(); ++row) {
      std::vector<float> values(tensor.columns());
      if (!source.read(tensor, row, 1, values)) break;
    }
  }
  const GgufMetadata& metadata = source.metadata();
  volatile double sum = 0;  // so that no read is left out
  for (const GgufValue& value : metadata.values()) {
    CHECK(metadata.find(value.key) == &value);
    if (const auto number = metadata.unsigned_integer(value.key))
      sum = sum + static_cast<double>(*number);
    if (const auto number = metadata.real(value.key)) sum = sum + *number;
    if (const auto flag = metadata.boolean(value.key)) sum = sum + *flag;
    if (const auto text = metadata.text(value.key)) sum = sum + static_cast<double>(text->size());
    if (const auto strings = metadata.strings(value.key)) {
      uint64_t count = 0;
      for (const std::string_view text : *strings) {
        sum = sum + text.empty() ? 0 : text.back();
        ++count;
      }
      CHECK(count == strings->size());
    }
    if (const auto numbers = metadata.numbers(value.key)) {
      for (uint64_t i = 0; i < numbers->size(); ++i) {
        sum = sum + numbers->real(i) + static_cast<double>(numbers->integer(i));
      }
    }
  }
}

TEST_CASE("metadata is read by key and type") {
  const ScratchFolder folder;
  const auto source = GgufTensorSource::open(folder.write("m.gguf", small().bytes()));
  REQUIRE(source.has_value());
  const GgufMetadata& metadata = (*source)->metadata();
  CHECK(metadata.text("general.architecture") == "llama");
  CHECK(metadata.unsigned_integer("count.u8") == 200u);
  CHECK(metadata.unsigned_integer("count.u32") == 4000000000u);
  CHECK(metadata.unsigned_integer("count.u64") == ~uint64_t{0});
  CHECK(metadata.unsigned_integer("count.i64") == 7u);
  CHECK(metadata.real("real.f32") == 0.5);
  CHECK(metadata.real("real.f64") == -0.25);
  CHECK(metadata.real("count.i8") == -3.0);
  CHECK(metadata.boolean("flag") == true);
  const auto words = metadata.strings("words");
  REQUIRE(words.has_value());
  CHECK(std::vector<std::string_view>(words->begin(), words->end()) ==
        std::vector<std::string_view>{"a", "", "Ġthe"});
  const auto heads = metadata.numbers("heads");
  REQUIRE(heads.has_value());
  CHECK(heads->size() == 2);
  CHECK(heads->integral());
  CHECK(heads->integer(0) == -8);
  CHECK(heads->real(1) == 9);
  const auto one = metadata.numbers("count.u64");
  REQUIRE(one.has_value());
  CHECK(one->size() == 1);
  CHECK(one->integer(0) == std::numeric_limits<int64_t>::max());

  const auto message = [](const auto& result) {
    return result ? std::string() : result.error().message;
  };
  CHECK(contains(message(metadata.text("absent")), "m.gguf: metadata absent is missing"));
  CHECK(contains(message(metadata.unsigned_integer("count.i8")), "count.i8 is negative"));
  CHECK(contains(message(metadata.unsigned_integer("real.f32")),
                 "real.f32 is of type f32 where an integer"));
  CHECK(contains(message(metadata.unsigned_integer("flag")), "flag is of type bool"));
  CHECK(contains(message(metadata.text("words")), "words is an array of string where a string"));
  CHECK(contains(message(metadata.strings("heads")), "heads is an array of i32"));
  CHECK(contains(message(metadata.numbers("nested")), "nested is an array of array"));
  CHECK(contains(message(metadata.boolean("count.u8")), "count.u8 is of type u8 where a boolean"));
}

TEST_CASE(
    "tensors have PyTorch's shapes and are read by rows; types that are no weights are named") {
  const ScratchFolder folder;
  for (const uint32_t version : {2u, 3u}) {
    GgufWriter file = small();
    file.version = version;
    const auto opened = GgufTensorSource::open(folder.write("m.gguf", file.bytes()));
    REQUIRE(opened.has_value());
    const GgufTensorSource& source = **opened;
    CHECK(source.find("f")->shape == std::vector<uint64_t>{3, 2});
    std::vector<float> row(2);
    CHECK(source.read(*source.find("f"), 1, 1, row).has_value());
    CHECK(row == std::vector<float>{3, 4});
    std::vector<float> q(32);
    CHECK(source.find("q")->type == "Q8_0");
    CHECK(source.read(*source.find("q"), 1, 1, q).has_value());
    CHECK(q.front() == -8);
    CHECK(q.back() == 7.5);
    std::vector<float> h(4);
    CHECK(source.read(*source.find("h"), 0, 1, h).has_value());
    CHECK(h == std::vector<float>{1, 2, -2, 0});
    CHECK(!source.read(*source.find("h"), 1, 1, h).has_value());
    const auto odd = source.read(*source.find("odd"), 0, 1, h);
    REQUIRE(!odd.has_value());
    CHECK(contains(odd.error().message, "tensor odd is of type number 99"));
    const auto ids = source.read(*source.find("ids"), 0, 1, row);
    REQUIRE(!ids.has_value());
    CHECK(contains(ids.error().message, "tensor ids is of type I32"));
  }
}

TEST_CASE("a GGUF file that lies is refused with a sentence about what is wrong") {
  const auto changed = [](const std::function<void(GgufWriter&)>& change) {
    GgufWriter file = small();
    change(file);
    return file.bytes();
  };
  const auto patched = [](size_t at, auto number) {
    std::string bytes = small().bytes();
    return bytes.replace(at, sizeof(number), bytes_of(number));
  };
  const struct {
    std::string bytes;
    std::string_view message;
  } cases[] = {
      {"", "ends within its magic number"},
      {changed([](auto& f) { f.magic = "GGML"; }), "does not begin with GGUF"},
      {changed([](auto& f) { f.version = 1; }), "is GGUF version 1; versions 2 and 3"},
      {changed([](auto& f) { f.version = 4; }), "is GGUF version 4"},
      {changed([](auto& f) { f.version = std::byteswap(3u); }), "big-endian"},
      {patched(8, uint64_t{1} << 60), "tensors do not fit the file"},
      {patched(16, ~uint64_t{0}), "metadata values and"},
      {patched(24, ~uint64_t{0}), "ends within a metadata key"},
      {changed([](auto& f) { f.raw("x", GgufType{13}, "a"); }),
       "metadata x: there is no value type 13"},
      {changed([](auto& f) { f.raw("x", GgufType{0xffffffff}, "a"); }), "there is no value type"},
      {changed([](auto& f) { f.array("x", GgufType::f64, uint64_t{1} << 61, ""); }),
       "metadata x: 2305843009213693952 elements"},
      {changed([](auto& f) { f.array("x", GgufType::string, 100000, ""); }),
       "metadata x: 100000 elements"},
      {changed([](auto& f) {
         std::string nest;
         for (int i = 0; i < 100; ++i) nest += bytes_of(GgufType::array) + bytes_of(uint64_t{1});
         f.array("x", GgufType::array, 1, nest + bytes_of(GgufType::u8) + bytes_of(uint64_t{0}));
       }),
       "nested deeper"},
      {changed([](auto& f) { f.value("flag", GgufType::u8, uint8_t{1}); }),
       "metadata flag stands there twice"},
      {changed([](auto& f) { f.text(std::string(70000, 'k'), "v"); }),
       "a metadata key has 70000 bytes"},
      {changed([](auto& f) { f.tensor("f", {1}, 0, 136); }), "tensor f is there twice"},
      {changed([](auto& f) { f.value("general.alignment", GgufType::u32, 0u); }),
       "general.alignment is 0"},
      {changed([](auto& f) { f.value("general.alignment", GgufType::u32, 12u); }),
       "general.alignment is 12"},
      {changed([](auto& f) { f.value("general.alignment", GgufType::u32, 0xfffffff8u); }),
       "general.alignment is 4294967288"},
      {changed([](auto& f) { f.text("general.alignment", "32"); }),
       "general.alignment is of type string"},
      {changed([](auto& f) { f.tensor("x", {1, 1, 1, 1, 1}, 0, 0); }), "tensor x has 5 dimensions"},
      {changed([](auto& f) { f.tensor("x", {31}, 8, 0); }),
       "tensor x: rows of 31 values are not made of Q8_0's blocks of 32"},
      {changed([](auto& f) { f.tensor("x", {}, 12, 0); }), "tensor x: rows of 1 values"},
      {changed([](auto& f) { f.tensor("x", {1u << 31, 1u << 31, 4}, 0, 0); }),
       "tensor x: the product of its shape"},
      {changed([](auto& f) { f.tensor("x", {uint64_t{1} << 61}, 0, 0); }),
       "tensor x: its 2305843009213693952 values"},
      {changed([](auto& f) { f.tensor("x", {uint64_t{1} << 61}, 99, 0); }),
       "tensor x: its 2305843009213693952 values"},
      {changed([](auto& f) { f.tensor("x", {8}, 0, 160); }),
       "tensor x: its 8 values of type F32 at offset 160"},
      {changed([](auto& f) { f.tensor("x", {1}, 0, ~uint64_t{0} - 1); }), "tensor x"},
      {changed([](auto& f) { f.tensor("x", {1}, 0, 20); }), "overlap at byte 20"},
      {changed([](auto& f) { f.value("split.count", GgufType::u16, uint16_t{2}); }),
       "is one of 2 shards, but is not called"},
  };
  const ScratchFolder folder;
  for (const auto& [bytes, message] : cases) {
    const std::string path = folder.write("m.gguf", bytes);
    const std::string error = error_of(path);
    INFO(error);
    CHECK(error.starts_with(path + ": "));
    CHECK_MESSAGE(contains(error, message), message);
  }
}

TEST_CASE("a GGUF file cut at any length is refused") {
  const ScratchFolder folder;
  const std::string bytes = small().bytes();
  for (size_t size = 0; size < bytes.size(); ++size) {
    CAPTURE(size);
    CHECK(error_of(folder.write("m.gguf", bytes.substr(0, size))) != "");
  }
}

TEST_CASE("a GGUF file with any number at any place is refused or read without harm") {
  const ScratchFolder folder;
  const std::string bytes = small().bytes();
  int refused = 0;
  for (size_t at = 0; at < bytes.size() - 8; ++at) {
    for (const uint64_t number :
         {uint64_t{0}, uint64_t{1}, uint64_t{0x7fffffff}, uint64_t{0xffffffff}, ~uint64_t{0}}) {
      std::string changed = bytes;
      changed.replace(at, 8, bytes_of(number));
      const auto source = GgufTensorSource::open(folder.write("m.gguf", changed));
      if (source) {
        read_everything(**source);
      } else {
        CHECK(!source.error().message.empty());
        ++refused;
      }
    }
  }
  CHECK(refused > 1000);
}

TEST_CASE("a damaged GGUF file is refused or read without harm") {
  const ScratchFolder folder;
  const std::string bytes = small().bytes();
  int refused = 0;
  for (int i = 0; i < 5000; ++i) {
    const auto source = GgufTensorSource::open(folder.write("m.gguf", damaged(bytes)));
    if (source) {
      read_everything(**source);
    } else {
      CHECK(!source.error().message.empty());
      ++refused;
    }
  }
  CHECK(refused > 1000);
}

std::string shard(uint16_t number, uint16_t count, int32_t tensors, float value) {
  GgufWriter file;
  file.value("split.no", GgufType::u16, number)
      .value("split.count", GgufType::u16, count)
      .value("split.tensors.count", GgufType::i32, tensors)
      .tensor(std::format("t{}", number), {1}, 0, 0);
  file.data = bytes_of(value);
  return file.bytes();
}

TEST_CASE("with any one shard all of them are opened") {
  const ScratchFolder folder;
  const auto name = [](int i) { return std::format("big-{:05}-of-00003.gguf", i); };
  for (uint16_t i = 0; i < 3; ++i) folder.write(name(i + 1), shard(i, 3, 3, i + 1.0f));
  for (int i = 1; i <= 3; ++i) {
    const auto source = GgufTensorSource::open(folder / name(i));
    REQUIRE(source.has_value());
    CHECK((*source)->tensors().size() == 3);
    CHECK((*source)->metadata().unsigned_integer("split.no") == 0u);
    float value = 0;
    CHECK((*source)->read(*(*source)->find("t2"), 0, 1, std::span(&value, 1)).has_value());
    CHECK(value == 3);
  }

  const auto first = folder / name(1);
  folder.write(name(3), shard(1, 3, 3, 0));
  CHECK(contains(error_of(first), "split.no is 1, but the file's name says 2"));
  folder.write(name(3), shard(2, 3, 3, 0));
  folder.write(name(1), shard(0, 3, 4, 0));
  CHECK(contains(error_of(first), "split.tensors.count is 4, but the shards have 3"));
  folder.write(name(1), shard(0, 2, 3, 0));
  CHECK(contains(error_of(first), "split.count is 2, but the file's name says 3"));
  folder.write(name(1), shard(0, 3, 3, 0));
  folder.write(name(2), GgufWriter().bytes());
  CHECK(contains(error_of(first), "metadata split.no is missing"));
  std::remove((folder / name(2)).c_str());
  CHECK(contains(error_of(first), name(2) + ": cannot be opened"));
}

TEST_CASE("a model's GGUF file holds the tensors that its golden was made from") {
  // Made by tests/goldens/make.py with every type of 32 values to a block.
  const auto source = GgufTensorSource::open("tests/goldens/gguf_llama_32_blocks/model.gguf");
  REQUIRE(source.has_value());
  CHECK((*source)->tensors().size() == 21);
  for (const SourceTensor& tensor : (*source)->tensors()) {
    std::vector<float> all(tensor.rows() * tensor.columns());
    REQUIRE((*source)->read(tensor, 0, tensor.rows(), all).has_value());
    std::vector<float> last(tensor.columns());
    REQUIRE((*source)->read(tensor, tensor.rows() - 1, 1, last).has_value());
    CHECK(
        std::equal(last.begin(), last.end(), all.end() - static_cast<std::ptrdiff_t>(last.size())));
  }
}

}  // namespace
}  // namespace volvelle
