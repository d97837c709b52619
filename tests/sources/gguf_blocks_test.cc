#include "converter/sources/gguf_blocks.h"

#include <doctest/doctest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "converter/sources/json_file.h"

namespace volvelle {
namespace {

std::vector<char> read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE_MESSAGE(file.good(), path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST_CASE("every block type decodes to the bits of the reference") {
  // From gguf.quants.dequantize: tests/goldens/make.py gguf_blocks.
  const std::string folder = "tests/goldens/gguf_blocks/";
  const auto index = read_json(folder + "index.json");
  REQUIRE(index.has_value());
  CHECK(index->size() == 15);
  for (const auto& entry : *index) {
    const std::string name = entry["type"].get<std::string>();
    CAPTURE(name);
    const GgufBlockType* type = find_gguf_block_type(entry["id"].get<uint32_t>());
    REQUIRE(type != nullptr);
    CHECK(type == find_gguf_block_type(name));
    CHECK(type->values == entry["weights_per_block"]);
    CHECK(type->bytes == entry["bytes_per_block"]);
    const std::vector<char> blocks = read_all(folder + name + ".blocks");
    const std::vector<char> floats = read_all(folder + name + ".floats");
    const size_t count = entry["blocks"].get<size_t>();
    REQUIRE(blocks.size() == count * type->bytes);
    REQUIRE(floats.size() == count * type->values * sizeof(float));
    // One byte off, so that an aligned load would be seen.
    std::vector<uint8_t> shifted(blocks.size() + 1);
    std::memcpy(shifted.data() + 1, blocks.data(), blocks.size());
    std::vector<float> values(count * type->values);
    type->decode(shifted.data() + 1, count, values.data());
    size_t different = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      different += std::memcmp(&values[i], floats.data() + i * sizeof(float), sizeof(float)) != 0;
    }
    CHECK(different == 0);
  }
}

}  // namespace
}  // namespace volvelle
