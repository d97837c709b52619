#include "converter/sources/packed_linears.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tests/scratch_folder.h"
#include "tests/sources/damage.h"

namespace volvelle {
namespace {

using nlohmann::json;

struct Entry {
  std::string type;
  std::vector<uint64_t> shape;
  std::string bytes;
};

template <typename T>
std::string bytes_of_all(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// A folder of these tensors, with that quantization_config.
struct PackedFolder {
  std::map<std::string, Entry> tensors;
  json settings;

  void write(const ScratchFolder& folder) const {
    json header;
    std::string data;
    for (const auto& [name, entry] : tensors) {
      header[name] = {{"dtype", entry.type},
                      {"shape", entry.shape},
                      {"data_offsets", {data.size(), data.size() + entry.bytes.size()}}};
      data += entry.bytes;
    }
    const std::string text = header.dump();
    folder.write("model.safetensors", bytes_of(uint64_t{text.size()}) + text + data);
    folder.write("config.json", json{{"quantization_config", settings}}.dump());
  }

  Result<HfFolder> open() const {
    const ScratchFolder scratch;
    write(scratch);
    VOLVELLE_ASSIGN_OR_RETURN(HfFolder folder, open_hf_folder(scratch.path()));
    VOLVELLE_RETURN_IF_ERROR(unpack_linears(folder));
    return folder;
  }

  std::string error() const {
    const auto folder = open();
    return folder ? "" : folder.error().message;
  }
};

constexpr uint64_t kInputs = 16, kOutputs = 8, kGroup = 8;

// Input i of output o has the code (i + 3 o) % 16; group g the zero point g + 2 + o % 3 and the
// scale 1 + g + o / 4.
float meant(uint64_t input, uint64_t output, uint64_t group) {
  const auto code = static_cast<float>((input + 3 * output) % 16);
  const auto zero = static_cast<float>(group + 2 + output % 3);
  return (code - zero) * (1 + static_cast<float>(group) + static_cast<float>(output) / 4);
}

std::vector<float> scales() {
  std::vector<float> values;
  for (uint64_t g = 0; g < kInputs / kGroup; ++g) {
    for (uint64_t o = 0; o < kOutputs; ++o) {
      values.push_back(1 + static_cast<float>(g) + static_cast<float>(o) / 4);
    }
  }
  return values;
}

// Zero points less `offset`, output o of a word at place places[o].
std::vector<uint32_t> zeros(uint32_t offset, const std::vector<uint32_t>& places) {
  std::vector<uint32_t> words(kInputs / kGroup);
  for (uint64_t g = 0; g < words.size(); ++g) {
    for (uint64_t o = 0; o < kOutputs; ++o) {
      words[g] |= static_cast<uint32_t>(g + 2 + o % 3 - offset) << 4 * places[o];
    }
  }
  return words;
}

PackedFolder gptq(const std::string& format, uint32_t offset) {
  std::vector<uint32_t> codes(kInputs / 8 * kOutputs), groups;
  for (uint64_t i = 0; i < kInputs; ++i) {
    for (uint64_t o = 0; o < kOutputs; ++o) {
      codes[i / 8 * kOutputs + o] |= static_cast<uint32_t>((i + 3 * o) % 16) << i % 8 * 4;
    }
    groups.push_back(static_cast<uint32_t>(i % 2));  // scattered
  }
  return {{{"a.qweight", {"I32", {kInputs / 8, kOutputs}, bytes_of_all(codes)}},
           {"a.qzeros", {"I32", {2, 1}, bytes_of_all(zeros(offset, {0, 1, 2, 3, 4, 5, 6, 7}))}},
           {"a.scales", {"F32", {2, kOutputs}, bytes_of_all(scales())}},
           {"a.g_idx", {"I32", {kInputs}, bytes_of_all(groups)}},
           {"norm.weight", {"F32", {2}, bytes_of_all(std::vector<float>{1, 2})}}},
          {{"quant_method", "gptq"},
           {"checkpoint_format", format},
           {"bits", 4},
           {"group_size", kGroup}}};
}

PackedFolder awq() {
  const std::vector<uint32_t> places = {0, 4, 1, 5, 2, 6, 3, 7};
  std::vector<uint32_t> codes(kInputs);
  for (uint64_t i = 0; i < kInputs; ++i) {
    for (uint64_t o = 0; o < kOutputs; ++o) {
      codes[i] |= static_cast<uint32_t>((i + 3 * o) % 16) << 4 * places[o];
    }
  }
  return {{{"a.qweight", {"I32", {kInputs, 1}, bytes_of_all(codes)}},
           {"a.qzeros", {"I32", {2, 1}, bytes_of_all(zeros(0, places))}},
           {"a.scales", {"F32", {2, kOutputs}, bytes_of_all(scales())}}},
          {{"quant_method", "awq"}, {"version", "GEMM"}, {"bits", 4}, {"group_size", kGroup}}};
}

// The formats are restated above, from their descriptions in the header.
TEST_CASE("packed linears read as the weights that they mean, any rows of them") {
  for (const auto& [packed, scattered] : {std::pair{awq(), false}, std::pair{gptq("gptq", 1), true},
                                          std::pair{gptq("gptq_v2", 0), true}}) {
    CAPTURE(packed.settings.dump());
    const ScratchFolder scratch;
    packed.write(scratch);
    auto folder = open_hf_folder(scratch.path());
    REQUIRE(folder.has_value());
    REQUIRE(unpack_linears(*folder).has_value());
    CHECK(!folder->config.contains("quantization_config"));
    CHECK(folder->tensors->tensors().size() == (scattered ? 2 : 1));
    const SourceTensor* const weight = folder->tensors->find("a.weight");
    REQUIRE(weight != nullptr);
    CHECK(weight->shape == std::vector<uint64_t>{kOutputs, kInputs});
    for (uint64_t first = 0; first < kOutputs; ++first) {
      for (uint64_t rows = 0; rows <= kOutputs - first; ++rows) {
        std::vector<float> values(rows * kInputs);
        REQUIRE(folder->tensors->read(*weight, first, rows, values).has_value());
        for (uint64_t i = 0; i < values.size(); ++i) {
          const uint64_t input = i % kInputs;
          const uint64_t group = scattered ? input % 2 : input / kGroup;
          CHECK(values[i] == meant(input, first + i / kInputs, group));
        }
      }
    }
    std::vector<float> values(kInputs);
    CHECK(!folder->tensors->read(*weight, kOutputs, 1, values).has_value());
    CHECK(!folder->tensors->read(*weight, 0, 2, values).has_value());
  }
}

TEST_CASE("a kind of quantisation that cannot be read is refused with what can be") {
  const auto error = [](const PackedFolder& from, const char* key, const json& value) {
    PackedFolder changed = from;
    changed.settings[key] = value;
    return changed.error();
  };
  CHECK(error(awq(), "quant_method", "fp8").contains("\"fp8\"; weights packed by \"awq\" and"));
  CHECK(error(awq(), "bits", 3).contains("bits is 3; 4 of awq can be read"));
  CHECK(error(awq(), "bits", 8).contains("bits is 8; 4 of awq"));
  CHECK(error(gptq("gptq", 1), "bits", 3).contains("bits is 3; 4 and 8 of gptq"));
  CHECK(error(awq(), "version", "gemv").contains("the format is \"gemv\"; awq's \"gemm\""));
  CHECK(gptq("marlin", 1).error().contains("the format is \"marlin\"; \"gptq\" and \"gptq_v2\""));
  CHECK(error(awq(), "version", "gptq_v2").contains("the format is"));
  CHECK(error(awq(), "group_size", 0).contains("group_size is 0"));
  CHECK(error(awq(), "group_size", "x").contains("group_size is \"x\""));
  CHECK(error(gptq("gptq", 1), "dynamic", {{"a", {{"bits", 8}}}}).contains("packed alike"));
  CHECK(error(gptq("gptq", 1), "dynamic", json::object()).empty());
  PackedFolder bare = awq();
  bare.settings = "awq";
  CHECK(bare.error().contains("quant_method is null"));
}

TEST_CASE("tensors of a packed linear that do not fit each other are named") {
  const auto error = [](PackedFolder packed, const char* tensor, const Entry& entry) {
    packed.tensors[tensor] = entry;
    return packed.error();
  };
  const std::string word(4, '\0');
  CHECK(error(awq(), "a.qweight", {"I32", {1}, word}).contains("a.qweight is no matrix"));
  CHECK(error(awq(), "a.qweight", {"I32", {0, 4}, ""}).contains("a.qweight is no matrix"));
  CHECK(error(awq(), "a.qweight", {"I32", {1, 1}, word}).contains("a.scales is 2 by 8"));
  CHECK(error(awq(), "a.qweight", {"I64", {1, 1}, word + word}).contains("of type I64"));
  CHECK(error(awq(), "a.qzeros", {"I32", {1, 1}, word}).contains("a.qzeros is 1 by 1"));
  CHECK(error(awq(), "a.scales", {"F32", {1, 1}, word}).contains("a.scales is 1 by 1"));
  CHECK(error(awq(), "a.weight", {"F32", {1}, word}).contains("are the same weights"));
  CHECK(error(gptq("gptq", 1), "a.g_idx", {"I32", {1}, word}).contains("for each of 16 inputs"));
  std::vector<int32_t> groups(kInputs);
  groups[5] = -1;
  CHECK(error(gptq("gptq", 1), "a.g_idx", {"I32", {kInputs}, bytes_of_all(groups)})
            .contains("input 5 is of group -1; there are 2"));
  groups[5] = 2;
  CHECK(error(gptq("gptq", 1), "a.g_idx", {"I32", {kInputs}, bytes_of_all(groups)})
            .contains("input 5 is of group 2; there are 2"));
  PackedFolder ragged = awq();  // as many groups as before, the last of which were a part of one
  ragged.settings["group_size"] = kGroup + 1;
  CHECK(ragged.error().contains("a.qweight has 16 inputs, which are no whole groups of 9"));
  PackedFolder missing = awq();
  missing.tensors.erase("a.qzeros");
  CHECK(missing.error().contains("a.qzeros is missing"));
  missing.tensors.erase("a.qweight");
  CHECK(missing.error().contains("there is no tensor ….qweight"));
}

TEST_CASE("damaged packed checkpoints give errors and no faults") {
  const ScratchFolder folder;
  for (int i = 0; i < 300; ++i) {
    const PackedFolder packed = i % 2 == 0 ? awq() : gptq("gptq", 1);
    packed.write(folder);
    const std::string name = i % 3 == 0 ? "config.json" : "model.safetensors";
    folder.write(name, damaged(read_file(folder / name)));
    auto opened = open_hf_folder(folder.path());
    if (!opened || !unpack_linears(*opened)) continue;
    for (const SourceTensor& tensor : opened->tensors->tensors()) {
      if (tensor.columns() > 1 << 16) continue;
      std::vector<float> values(tensor.columns());
      if (tensor.rows() > 0) (void)opened->tensors->read(tensor, tensor.rows() - 1, 1, values);
    }
  }
}

}  // namespace
}  // namespace volvelle
