// Tensors on their way into a file, and the container around them.

#include <doctest/doctest.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <format>
#include <fstream>
#include <iterator>

#include "converter/quantize/q4.h"
#include "converter/quantize/q8.h"
#include "converter/weights.h"
#include "converter/writer.h"
#include "runtime/file_format.h"
#include "tests/converter/tiny_checkpoint.h"

namespace volvelle {
namespace {

namespace fs = std::filesystem;

struct TemporaryFile {
  std::string path =
      (fs::temp_directory_path() / std::format("volvelle-weights-{}.vvl", ::getpid())).string();
  ~TemporaryFile() { fs::remove(path); }

  std::string bytes() const {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
};

template <typename T>
std::vector<T> values(const std::string& bytes, const file::Segment& segment) {
  std::vector<T> result(segment.bytes() / sizeof(T));
  std::memcpy(result.data(), bytes.data() + segment.offset(), segment.bytes());
  return result;
}

struct Written {
  StoredTensor tensor;
  std::string bytes;
};

Result<Written> write(const recipe::Tensor& tensor, const Storage& storage,
                      const TensorSource& source, size_t threads = 1) {
  const TemporaryFile file;
  ModelWriter writer = *ModelWriter::create(file.path, true);
  const ThreadPool pool = *ThreadPool::make(threads);
  VOLVELLE_ASSIGN_OR_RETURN(StoredTensor stored,
                            write_tensor(tensor, storage, source, pool, writer, [](uint64_t) {}));
  VOLVELLE_RETURN_IF_ERROR(writer.finish(std::as_bytes(std::span("table", 5))));
  return Written{stored, file.bytes()};
}

Result<Written> write(const recipe::Tensor& tensor, file::TensorType type,
                      const TensorSource& source, size_t threads = 1) {
  return write(tensor, Storage{type}, source, threads);
}

// Rows of a head as GGUF's conversion stores them: reshape(heads, 2, head_dim / 2), the middle axes
// swapped.
std::vector<float> interleave(const std::vector<float>& rows, size_t head_rows, size_t columns) {
  std::vector<float> result(rows.size());
  for (size_t row = 0; row < rows.size() / columns; ++row) {
    const size_t head = row / head_rows, half = row % head_rows / (head_rows / 2),
                 i = row % (head_rows / 2);
    std::copy_n(&rows[row * columns], columns,
                &result[(head * head_rows + 2 * i + half) * columns]);
  }
  return result;
}

TEST_CASE("interleaved rows come out in half order, whatever the slices") {
  for (const auto& [head_rows, heads, columns] :
       {std::tuple{4, 3, 5}, {2, 4, 3}, {64, 9, 576}, {128, 40, 300}}) {
    CAPTURE(head_rows);
    std::vector<float> half(head_rows * heads * columns);
    for (size_t i = 0; i < half.size(); ++i) half[i] = static_cast<float>(i);
    MemorySource source;
    const uint64_t rows = head_rows * heads, width = columns, head = head_rows;
    source.add("q", {rows, width}, interleave(half, head_rows, columns));
    source.add("bias", {rows}, interleave({half.begin(), half.begin() + rows}, head_rows, 1));

    const recipe::Tensor matrix{
        "q", recipe::Use::kLinear, rows, width, {{&source.tensors()[0], rows, head}}};
    const Result<Written> written = write(matrix, file::TensorType::f32, source, 2);
    REQUIRE(written);
    CHECK(values<float>(written->bytes, written->tensor.data) == half);

    const recipe::Tensor bias{
        "b", recipe::Use::kVector, 1, rows, {{&source.tensors()[1], rows, head}}};
    const Result<Written> vector = write(bias, file::TensorType::f32, source);
    REQUIRE(vector);
    CHECK(values<float>(vector->bytes, vector->tensor.data) ==
          std::vector<float>(half.begin(), half.begin() + rows));
  }
}

TEST_CASE("parts lie one below the other, and a part without a source is zeros") {
  MemorySource source;
  source.add("a", {2}, std::vector<float>{1, 2});
  source.add("c", {1}, std::vector<float>{5});
  const recipe::Tensor bias{"bias",
                            recipe::Use::kVector,
                            1,
                            5,
                            {{&source.tensors()[0], 2}, {nullptr, 2}, {&source.tensors()[1], 1}}};
  const Result<Written> written = write(bias, file::TensorType::f32, source);
  REQUIRE(written);
  CHECK(values<float>(written->bytes, written->tensor.data) == std::vector<float>{1, 2, 0, 0, 5});
}

TEST_CASE("rows come out at unit length where it is asked for, and rows of zeros as they are") {
  MemorySource source;
  source.add("head", {3, 2}, std::vector<float>{3, 4, 0, 0, -6e-20f, 8e-20f});
  recipe::Part part{&source.tensors()[0], 3};
  part.unit = true;
  const auto written =
      write({"head", recipe::Use::kHead, 3, 2, {part}}, file::TensorType::f32, source);
  REQUIRE(written);
  CHECK(values<float>(written->bytes, written->tensor.data) ==
        std::vector<float>{0.6f, 0.8f, 0, 0, -0.6f, 0.8f});
}

TEST_CASE("rows of a stack of matrices are read wherever they lie in it") {
  MemorySource source;
  source.add("stack", {2, 3, 2}, std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  CHECK(source.tensors()[0].rows() == 6);
  CHECK(source.tensors()[0].columns() == 2);
  recipe::Part part{&source.tensors()[0], 2};
  part.first_row = 3;
  const auto written =
      write({"expert", recipe::Use::kLinear, 2, 2, {part}}, file::TensorType::f32, source);
  REQUIRE(written);
  CHECK(values<float>(written->bytes, written->tensor.data) == std::vector<float>{7, 8, 9, 10});
}

TEST_CASE("slices and threads change nothing in what is quantised") {
  constexpr uint64_t kRows = 1500, kColumns = 333;  // two slices; no multiple of 32
  std::vector<float> weights(kRows * kColumns);
  for (size_t i = 0; i < weights.size(); ++i)
    weights[i] = static_cast<float>(i * 7919 % 1000) / 500 - 1;
  MemorySource source;
  source.add("w", {kRows, kColumns}, weights);
  const recipe::Tensor tensor{
      "w", recipe::Use::kLinear, kRows, kColumns, {{&source.tensors()[0], kRows}}};

  std::vector<uint8_t> q4(kRows * q4_blocks(kColumns) * 16);
  std::vector<uint16_t> q4_scales(kRows * q4_blocks(kColumns));
  REQUIRE(quantize_q4_rows(weights.data(), kRows, kColumns, q4.data(), q4_scales.data()));
  std::vector<int8_t> q8(kRows * kColumns);
  std::vector<float> q8_scales(kRows);
  REQUIRE(quantize_q8_rows(weights.data(), kRows, kColumns, q8.data(), q8_scales.data()));
  for (const size_t threads : {1u, 3u}) {
    CAPTURE(threads);
    const Result<Written> four = write(tensor, file::TensorType::q4, source, threads);
    REQUIRE(four);
    CHECK(values<uint8_t>(four->bytes, four->tensor.data) == q4);
    CHECK(values<uint16_t>(four->bytes, four->tensor.scales) == q4_scales);
    const Result<Written> eight = write(tensor, file::TensorType::q8, source, threads);
    REQUIRE(eight);
    CHECK(values<int8_t>(eight->bytes, eight->tensor.data) == q8);
    CHECK(values<float>(eight->bytes, eight->tensor.scales) == q8_scales);
  }
}

TEST_CASE("side columns keep the weights that the others, in whatever form, leave out") {
  constexpr uint64_t kRows = 700, kColumns = 576;  // two slices
  std::vector<float> weights(kRows * kColumns);
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i] = static_cast<float>(i * 7919 % 1000) / 500 - 1;
  }
  const std::vector<uint32_t> columns = {0, 31, 300, 575};
  std::vector<float> rest = weights, chosen;
  for (uint64_t row = 0; row < kRows; ++row) {
    for (const uint32_t column : columns) {
      chosen.push_back(std::exchange(rest[row * kColumns + column], 0.0f));
    }
  }
  MemorySource all, others;
  all.add("w", {kRows, kColumns}, weights);
  others.add("w", {kRows, kColumns}, rest);
  const auto tensor = [](const MemorySource& source) -> recipe::Tensor {
    return {"w", recipe::Use::kLinear, kRows, kColumns, {{&source.tensors()[0], kRows}}};
  };
  for (const Storage& form : {Storage{.type = file::TensorType::q8},
                              Storage{.type = file::TensorType::q4, .minima = true},
                              Storage{.type = file::TensorType::q4, .rotation = 64}}) {
    Storage with_side = form;
    with_side.side_columns = columns;
    const Result<Written> written = write(tensor(all), with_side, all, 2);
    const Result<Written> plain = write(tensor(others), form, others, 1);
    REQUIRE(written);
    REQUIRE(plain);
    CHECK(values<uint8_t>(written->bytes, written->tensor.data) ==
          values<uint8_t>(plain->bytes, plain->tensor.data));
    const std::vector<int8_t> side = values<int8_t>(written->bytes, written->tensor.side);
    const std::vector<float> scales = values<float>(written->bytes, written->tensor.side_scales);
    REQUIRE(side.size() == kRows * columns.size());
    REQUIRE(scales.size() == kRows);
    size_t wrong = 0;
    for (size_t i = 0; i < chosen.size(); ++i) {
      const uint64_t row = i / columns.size(), column = i % columns.size();
      // Half a step of the row's greatest by 127.
      const float off = std::fabs(side[column * kRows + row] * scales[row] - chosen[i]);
      wrong += off > 0.501f / 127;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("rotated rows are stored as their products with the Hadamard matrix") {
  constexpr uint64_t kRows = 5, kColumns = 192, kBlock = 64;
  std::vector<float> weights(kRows * kColumns), rotated(weights.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i] = static_cast<float>(i * 7919 % 1000) / 500 - 1;
  }
  // Sylvester's matrix in closed form: (-1)^popcount(i & j) / 8.
  for (size_t i = 0; i < weights.size(); ++i) {
    double sum = 0;
    for (size_t j = 0; j < kBlock; ++j) {
      const double weight = weights[i / kBlock * kBlock + j];
      sum += std::popcount(i % kBlock & j) % 2 == 0 ? weight : -weight;
    }
    rotated[i] = static_cast<float>(sum / 8);
  }
  MemorySource source;
  source.add("w", {kRows, kColumns}, weights);
  const recipe::Tensor tensor{
      "w", recipe::Use::kLinear, kRows, kColumns, {{&source.tensors()[0], kRows}}};
  const Result<Written> written = write(tensor, {file::TensorType::q8, kBlock}, source);
  REQUIRE(written);
  CHECK(written->tensor.storage.rotation == kBlock);
  const auto codes = values<int8_t>(written->bytes, written->tensor.data);
  const auto scales = values<float>(written->bytes, written->tensor.scales);
  for (size_t i = 0; i < codes.size(); ++i) {
    const float scale = scales[i / kColumns];
    // Half a step, or what the search for the best scale cut off a row's greatest values.
    if (std::abs(codes[i]) < 127) CHECK(std::fabs(codes[i] * scale - rotated[i]) <= 0.501f * scale);
    CHECK(std::signbit(codes[i] * scale) == std::signbit(codes[i] == 0 ? 0.0f : rotated[i]));
  }
}

TEST_CASE("a weight that is not finite is refused with its tensor's name and its place") {
  for (const uint32_t rotation : {0u, 2u}) {
    MemorySource source;
    source.add("odd", {1, 4}, std::vector<float>{1, 2, 3, NAN});
    const recipe::Tensor tensor{"w", recipe::Use::kLinear, 1, 4, {{&source.tensors()[0], 1}}};
    const Result<Written> written = write(tensor, {file::TensorType::q8, rotation}, source);
    REQUIRE(!written);
    CHECK(written.error().message.contains("tensor odd"));
    CHECK(written.error().message.contains("column 3"));
  }
  for (const file::TensorType type : file::EnumValuesTensorType()) {
    MemorySource source;
    source.add("odd", {1, 3}, std::vector<float>{1, NAN, 2});
    const recipe::Tensor tensor{"w", recipe::Use::kLinear, 1, 3, {{&source.tensors()[0], 1}}};
    const Result<Written> written = write(tensor, type, source);
    REQUIRE(!written);
    CHECK(written.error().message.contains("tensor odd"));
  }
}

TEST_CASE("segments are aligned and checksummed, and the file appears only when whole") {
  const TemporaryFile file;
  std::vector<file::Segment> segments;
  {
    ModelWriter writer = *ModelWriter::create(file.path, false);
    for (const size_t size : {1u, 63u, 64u, 65535u, 65536u, 100000u, 3u}) {
      const std::vector<std::byte> bytes(size, std::byte{static_cast<unsigned char>(size)});
      segments.push_back(*writer.write_segment(bytes));
    }
    CHECK(writer.write_segment({})->bytes() == 0);
    CHECK(!fs::exists(file.path));
    REQUIRE(writer.finish(std::as_bytes(std::span("table", 5))));
  }
  const std::string bytes = file.bytes();
  uint64_t end = kFirstSegmentOffset;
  for (const file::Segment& segment : segments) {
    CAPTURE(segment.bytes());
    CHECK(segment.offset() % (segment.bytes() >= kLargeSegmentBytes ? kLargeSegmentAlignment
                                                                    : kSegmentAlignment) ==
          0);
    CHECK(segment.offset() >= end);
    end = segment.offset() + segment.bytes();
    REQUIRE(end <= bytes.size());
    CHECK(segment.checksum() ==
          checksum(std::as_bytes(std::span(bytes.data() + segment.offset(), segment.bytes()))));
  }
  HeaderSlot slot;
  std::memcpy(&slot, bytes.data(), sizeof(slot));
  CHECK(slot.magic == kFileMagic);
  CHECK(slot.checksum == header_checksum(slot));
  CHECK(slot.file_bytes == bytes.size());
  CHECK(bytes.substr(slot.table_offset, slot.table_bytes) == "table");
}

TEST_CASE("a file that is not finished leaves nothing") {
  const TemporaryFile file;
  {
    ModelWriter writer = *ModelWriter::create(file.path, false);
    REQUIRE(writer.write_segment(std::vector<std::byte>(100)));
  }
  CHECK(!fs::exists(file.path));
}

}  // namespace
}  // namespace volvelle
