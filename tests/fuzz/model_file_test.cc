// Damaged and lying model files: each is refused with a sentence, or runs. Nothing here may crash,
// also under AddressSanitizer and UndefinedBehaviorSanitizer, which is how tests/run.sh runs it
// once more.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tests/fuzz/container.h"

namespace volvelle {
namespace {

TEST_CASE("the undamaged file runs, with every type of weight") {
  for (const char* weights : {"f32", "q8", "q4"})
    CHECK(try_model(small_model(weights).bytes) == Outcome::kRan);
}

TEST_CASE("a file cut short anywhere is refused") {
  const Container model = small_model("q4");
  std::vector<size_t> lengths = {0, 1, 7, 8, 63, 64, 65, 4095, 4096, 4160, 65535, 65536};
  for (size_t length = 0; length < model.bytes.size(); length += 997) lengths.push_back(length);
  for (size_t back = 1; back < 200; ++back) lengths.push_back(model.bytes.size() - back);
  for (size_t length : lengths) {
    CAPTURE(length);
    CHECK(try_model({model.bytes.begin(), model.bytes.begin() + length}) == Outcome::kRefused);
  }
}

TEST_CASE("a flipped bit in the header, the table or a dial is noticed") {
  const Container model = small_model("q4");
  std::mt19937 random(1);
  const HeaderSlot slot = model.slot();
  const auto flip = [&](size_t position) {
    std::vector<std::byte> bytes = model.bytes;
    bytes[position] ^= std::byte(1 << random() % 8);
    CAPTURE(position);
    CHECK(try_model(bytes) == Outcome::kRefused);
  };
  for (size_t i = 0; i < sizeof(HeaderSlot); ++i) {
    // A slot whose reserved field changed has a wrong checksum as well.
    flip(i);
  }
  for (size_t i = 0; i < 500; ++i) flip(slot.table_offset + random() % slot.table_bytes);
  const file::Rotary* rotary = file::GetModel(model.bytes.data() + slot.table_offset)
                                   ->positions()
                                   ->Get(0)
                                   ->scheme_as_Rotary();
  REQUIRE(rotary != nullptr);
  for (const file::Segment* segment : {rotary->coarse(), rotary->fine()}) {
    for (size_t i = 0; i < 50; ++i) flip(segment->offset() + random() % segment->bytes());
  }
}

TEST_CASE("a flipped bit in a weight is noticed when the weight is packed") {
  const Container model = small_model("q8");
  std::mt19937 random(2);
  const auto* tensors = file::GetModel(model.bytes.data() + model.slot().table_offset)->tensors();
  for (const file::Tensor* tensor : *tensors) {
    for (const file::Segment* segment : {tensor->data(), tensor->scales()}) {
      if (segment->bytes() == 0) continue;
      std::vector<std::byte> bytes = model.bytes;
      bytes[segment->offset() + random() % segment->bytes()] ^= std::byte(1 << random() % 8);
      CAPTURE(tensor->name()->str());
      CHECK(try_model(bytes) == Outcome::kRefused);
    }
  }
}

TEST_CASE("a header that lies in any field is refused") {
  const Container model = small_model("q4");
  const std::vector<uint64_t> lies = {0,
                                      1,
                                      63,
                                      64,
                                      4096,
                                      1ull << 20,
                                      1ull << 31,
                                      1ull << 32,
                                      1ull << 62,
                                      UINT64_MAX - 63,
                                      UINT64_MAX,
                                      INT64_MAX,
                                      kMaxTableBytes,
                                      kMaxTableBytes + 1,
                                      model.bytes.size(),
                                      model.bytes.size() + 1};
  for (uint64_t HeaderSlot::* field : {&HeaderSlot::table_offset, &HeaderSlot::table_bytes}) {
    for (uint64_t lie : lies) {
      Container copy = model;
      HeaderSlot slot = copy.slot();
      if (slot.*field == lie) continue;
      slot.*field = lie;
      copy.set_slot(slot);
      CAPTURE(lie);
      CHECK(try_model(copy.bytes) == Outcome::kRefused);
    }
  }
  Container longer = model;
  HeaderSlot slot = longer.slot();
  slot.file_bytes = longer.bytes.size() + 1;
  longer.set_slot(slot);
  CHECK(try_model(longer.bytes) == Outcome::kRefused);
  Container newer = model;
  slot = newer.slot();
  for (const uint32_t version : {0u, kFileVersion + 1, UINT32_MAX}) {
    slot.version = version;
    newer.set_slot(slot);
    CHECK(try_model(newer.bytes) == Outcome::kRefused);
  }
  slot.version = 1;  // an older file says less, and what it says is read alike
  newer.set_slot(slot);
  CHECK(try_model(newer.bytes) == Outcome::kRan);
}

TEST_CASE("a table that lies in any of its words is refused or runs") {
  for (const char* weights : {"f32", "q8", "q4"}) {
    Container model = small_model(weights);
    const size_t words = model.table().size() / 4;
    size_t refused = 0, tried = 0;
    for (size_t word = 0; word < words; ++word) {
      uint32_t honest;
      std::memcpy(&honest, model.table().data() + 4 * word, 4);
      for (uint32_t lie : {0u, 1u, honest + 1, honest - 1, honest ^ 0x100u, 0x7fffffffu,
                           0xffffffffu, 0x7fc00000u}) {
        if (lie == honest) continue;
        Container copy = model;
        std::memcpy(copy.table().data() + 4 * word, &lie, 4);
        copy.sign();
        refused += try_model(copy.bytes) == Outcome::kRefused;
        ++tried;
      }
    }
    MESSAGE(std::string(weights), ": ", tried, " lies, ", refused, " refused");
    CHECK(refused >
          tried /
              4);  // many words are names, paddings or checksums of weights that nothing reads here
  }
}

TEST_CASE("a table of any scheme and layout that lies in a word is refused or runs") {
  for (const char* golden : {"t5_decoder",
                             "transformer_relative",
                             "bert_relative_key_query",
                             "xglm_odd_width",
                             "bloom",
                             "mixtral",
                             "gemma3_seven_layers",
                             "opt_norms_after",
                             "llama4",
                             "phi3_longrope",
                             "llama_dynamic",
                             "persimmon",
                             "cohere_query_key_norms",
                             "bert_classify",
                             "bert_fill",
                             "t5",
                             "marian",
                             "m2m_100",
                             "deberta_v3_fill",
                             "deberta_v2_tag",
                             "jina_bert_code",
                             "modernbert_fill",
                             "electra_tag",
                             "transformer_translator_relative",
                             "sentence_cls_dense"}) {
    CAPTURE(golden);
    const Container model = small_model("q8", golden);
    REQUIRE(try_model(model.bytes) == Outcome::kRan);
    std::mt19937 random(4);
    Container copy = model;
    size_t refused = 0;
    for (size_t at = 0; at + 4 <= copy.table().size(); at += 4) {
      uint32_t honest;
      std::memcpy(&honest, copy.table().data() + at, 4);
      const uint32_t lies[] = {0,
                               1,
                               honest + 1,
                               honest - 1,
                               honest ^ 0x100u,
                               0x7fffffffu,
                               0xffffffffu,
                               0x7fc00000u,
                               static_cast<uint32_t>(random())};
      for (int i = 0; i < 2; ++i) {
        const uint32_t lie = lies[random() % std::size(lies)];
        std::memcpy(copy.table().data() + at, &lie, 4);
        copy.sign();
        CAPTURE(at);
        refused += try_model(copy.bytes) == Outcome::kRefused;
      }
      std::memcpy(copy.table().data() + at, &honest, 4);
    }
    CHECK(refused > 100);
  }
}

TEST_CASE("a table that lacks any of its fields is refused or runs") {
  for (const char* weights : {"f32", "q4"}) {
    const Container model = small_model(weights);
    Container copy = model;
    for (size_t entry = 0; entry + 2 <= copy.table().size(); entry += 2) {
      const auto bytes = copy.table().subspan(entry, 2);  // a field that is absent has the offset 0
      const std::array<std::byte, 2> honest = {bytes[0], bytes[1]};
      std::ranges::fill(bytes, std::byte{0});
      copy.sign();
      CAPTURE(entry);
      (void)try_model(copy.bytes);
      std::ranges::copy(honest, bytes.begin());
    }
  }
}

TEST_CASE("random damage to many bytes at once is refused or runs") {
  const Container model = small_model("q4");
  const unsigned seed = 3;
  std::mt19937 random(seed);
  for (int round = 0; round < 2000; ++round) {
    CAPTURE(round);
    Container copy = model;
    for (size_t changes = 1 + random() % 8; changes > 0; --changes) {
      copy.table()[random() % copy.table().size()] = std::byte(random());
    }
    copy.sign();
    (void)try_model(copy.bytes);
  }
}

TEST_CASE("of two header slots the newer valid one counts") {
  Container model = small_model("q4");
  HeaderSlot newer = model.slot();
  newer.generation += 1;
  newer.checksum = header_checksum(newer);
  std::memcpy(model.bytes.data() + kSlotOffsets[1], &newer, sizeof newer);
  CHECK(try_model(model.bytes) == Outcome::kRan);

  SUBCASE("a torn newer slot leaves the older in force") {
    model.bytes[kSlotOffsets[1] + 20] ^= std::byte{1};
    CHECK(try_model(model.bytes) == Outcome::kRan);
  }
  SUBCASE(
      "a newer slot that points nowhere is refused, for the older file is no longer what was "
      "meant") {
    newer.table_offset = 1ull << 40;
    newer.checksum = header_checksum(newer);
    std::memcpy(model.bytes.data() + kSlotOffsets[1], &newer, sizeof newer);
    CHECK(try_model(model.bytes) == Outcome::kRefused);
  }
}

}  // namespace
}  // namespace volvelle
