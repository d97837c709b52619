// The file of packed weights: that it is found, that it changes nothing, and that nothing which is
// wrong with it does any harm.

#include "runtime/packed_weights.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/file_format.h"
#include "runtime/session.h"
#include "tests/goldens/golden.h"
#include "tests/scratch_folder.h"

namespace volvelle {
namespace {

const std::vector<int32_t> kTokens = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5};

// A model file in a folder of its own.
struct Written {
  ScratchFolder folder;
  std::string path, packed;

  Written(const std::string& golden, const std::string& weights)
      : path(folder / "tiny.vvl"), packed(packed_path(path)) {
    const auto bytes = convert_to_bytes(read_golden(golden).source, weights);
    folder.write("tiny.vvl", {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }

  std::vector<float> logits(PackedIn packed_in) const {
    ThreadPool pool = *ThreadPool::make(1);
    const auto model = Model::load(path, packed_in);
    if (!model) FAIL(model.error().message);
    const auto session = Session::open(*model, pool, {.chunk = 8});
    if (!session) FAIL(session.error().message);
    return logits_of(**session, kTokens);
  }

  // Whether a session would find all its weights in the file.
  bool found() const {
    const auto model = Model::load(path);
    PackedWeights weights;
    weights.use_file(packed, Model::linears_of((*model)->decoder()));
    return weights.found();
  }
};

TEST_CASE("the file's name follows the model's") {
  CHECK(packed_path("a/b.vvl") == "a/b.vvlpack");
  CHECK(packed_path("a/b.vvl", "encoder") == "a/b.encoder.vvlpack");
  CHECK(packed_path("model") == "model.vvlpack");
}

TEST_CASE("a model computes the same to the bit from packed weights in a file") {
  // Widths that are whole units of memory, and others.
  for (const std::string golden :
       {"llama_grouped_heads", "llama_wide_heads_biases", "llama_odd_widths", "bloom"}) {
    for (const std::string weights : {"q8", "q4"}) {
      CAPTURE(golden);
      CAPTURE(weights);
      const Written model(golden, weights);
      const std::vector<float> expected = model.logits(PackedIn::kMemory);
      CHECK_FALSE(std::filesystem::exists(model.packed));
      CHECK(model.logits(PackedIn::kFile) == expected);  // writes the file
      REQUIRE(model.found());
      const auto written = std::filesystem::last_write_time(model.packed);
      CHECK(model.logits(PackedIn::kFile) == expected);  // reads it
      CHECK(std::filesystem::last_write_time(model.packed) == written);
      CHECK(model.folder.names() == std::vector<std::string>{"tiny.vvl", "tiny.vvlpack"});
    }
  }
}

TEST_CASE("float weights are never packed into a file") {
  const Written model("llama_grouped_heads", "f32");
  CHECK(model.logits(PackedIn::kFile) == model.logits(PackedIn::kMemory));
  CHECK(model.folder.names() == std::vector<std::string>{"tiny.vvl"});
}

TEST_CASE("where the folder cannot be written to, weights are packed in memory") {
  const Written model("llama_grouped_heads", "q8");
  const std::vector<float> expected = model.logits(PackedIn::kMemory);
  // A folder has the name, which nobody can write a file to, whatever rights he has.
  std::filesystem::create_directory(model.packed);
  CHECK(model.logits(PackedIn::kFile) == expected);
  CHECK(std::filesystem::is_directory(model.packed));
}

TEST_CASE("other weights of the same shapes are not taken for the model's") {
  const Written model("llama_grouped_heads", "q4"), other("llama_yarn", "q4");
  CHECK(other.logits(PackedIn::kFile) == other.logits(PackedIn::kMemory));
  std::filesystem::copy_file(other.packed, model.packed);
  CHECK_FALSE(model.found());
  CHECK(model.logits(PackedIn::kFile) == model.logits(PackedIn::kMemory));
  CHECK(model.found());  // it was written anew
}

// A line of the file's table, and where it is: the head has 16 bytes of magic, version and count,
// then the table's offset and its checksum.
struct Entry {
  uint64_t key, offset, bytes, checksum;
};

std::vector<Entry> entries_of(const std::string& file, uint64_t& table) {
  std::memcpy(&table, file.data() + 16, sizeof(table));
  std::vector<Entry> entries((file.size() - table) / sizeof(Entry));
  std::memcpy(entries.data(), file.data() + table, entries.size() * sizeof(Entry));
  return entries;
}

// Each byte of the head and the table is flipped in turn, and a sample of those of the weights; and
// the file is cut at each of some lengths.
TEST_CASE("a damaged or shortened file of packed weights is made anew") {
  const Written model("llama_grouped_heads", "q4");
  const std::vector<float> expected = model.logits(PackedIn::kFile);
  const std::string whole = read_file(model.packed);
  const auto put = [&](const std::string& bytes) {
    std::filesystem::remove(model.packed);
    model.folder.write("tiny.vvlpack", bytes);
  };
  uint64_t table = 0;
  std::vector<size_t> places;
  for (size_t at = 0; at < 32; ++at) places.push_back(at);
  for (const Entry& entry : entries_of(whole, table)) {
    for (size_t at = 0; at < entry.bytes; at += 997) places.push_back(entry.offset + at);
    places.push_back(entry.offset + entry.bytes - 1);
  }
  for (size_t at = table; at < whole.size(); ++at) places.push_back(at);
  for (const size_t at : places) {
    CAPTURE(at);
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    put(flipped);
    CHECK_FALSE(model.found());
  }
  for (const size_t length :
       {size_t{0}, size_t{1}, size_t{63}, size_t{64}, whole.size() / 2, whole.size() - 1}) {
    CAPTURE(length);
    put(whole.substr(0, length));
    CHECK_FALSE(model.found());
    CHECK(model.logits(PackedIn::kFile) == expected);
    CHECK(read_file(model.packed) == whole);
  }
}

// Whoever can write a table can write its checksum.
TEST_CASE("a table that lies about places and sizes is not believed") {
  const Written model("llama_grouped_heads", "q8");
  const std::vector<float> expected = model.logits(PackedIn::kFile);
  const std::string whole = read_file(model.packed);
  uint64_t table = 0;
  const std::vector<Entry> entries = entries_of(whole, table);
  REQUIRE(entries.size() > 2);
  for (size_t entry = 0; entry < entries.size(); ++entry) {
    for (const size_t field : {1, 2}) {  // offset, bytes
      for (const uint64_t lie : {uint64_t{0}, uint64_t{8}, uint64_t{64}, uint64_t{whole.size()},
                                 uint64_t{whole.size()} / 64 * 64, ~uint64_t{0}, ~uint64_t{63}}) {
        std::string bytes = whole;
        const size_t at = table + entry * sizeof(Entry) + field * sizeof(uint64_t);
        if (std::memcmp(bytes.data() + at, &lie, sizeof(lie)) == 0) continue;
        std::memcpy(bytes.data() + at, &lie, sizeof(lie));
        const uint64_t sum =
            checksum(std::as_bytes(std::span(bytes.data() + table, bytes.size() - table)));
        std::memcpy(bytes.data() + 24, &sum, sizeof(sum));
        std::filesystem::remove(model.packed);
        model.folder.write("tiny.vvlpack", bytes);
        CAPTURE(entry);
        CAPTURE(field);
        CAPTURE(lie);
        CHECK_FALSE(model.found());
      }
    }
  }
  CHECK(model.logits(PackedIn::kFile) == expected);
}

}  // namespace
}  // namespace volvelle
