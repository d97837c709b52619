#include "tests/tokenizer/vectors.h"

#include <doctest/doctest.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "runtime/tokenizer/base64.h"
#include "runtime/tokenizer/stored.h"

namespace volvelle {
namespace {

using nlohmann::json;

// The segments' offsets in a test start after a gap, so that offset 0 is nothing's.
constexpr size_t kFirstOffset = 64;

size_t for_each_row(const std::string& path, const std::function<void(const json&)>& check) {
  std::ifstream file(path);
  REQUIRE_MESSAGE(file.good(), path);
  size_t rows = 0;
  for (std::string line; std::getline(file, line); ++rows) {
    const json row = json::parse(line);
    CAPTURE(path);
    CAPTURE(row["id"].get<std::string>());
    check(row);
  }
  return rows;
}

}  // namespace

size_t check_vectors(const Tokenizer& tokenizer, const std::string& path) {
  return for_each_row(path, [&](const json& row) {
    const std::string text = row.contains("text")
                                 ? row["text"].get<std::string>()
                                 : decode_base64(row["base64"].get<std::string>()).value();
    const auto expected = row["ids"].get<std::vector<int32_t>>();
    const auto expected_special = row.value("ids_special", expected);
    const auto ids = tokenizer.encode(text, {.add_special = false});
    REQUIRE(ids.has_value());
    CHECK(*ids == expected);
    if (!row.contains("source")) {  // the rows from llama.cpp's files say nothing of special tokens
      const auto special = tokenizer.encode(text);
      REQUIRE(special.has_value());
      CHECK(*special == expected_special);
    }

    const std::string decoded = row.contains("decode") ? row["decode"].get<std::string>() : text;
    if (row.contains("decode") || row.value("decode_is_text", false)) {
      CHECK(tokenizer.decode(expected) == decoded);
      CHECK(tokenizer.decode(expected, true) == row.value("decode_skip", decoded));
      // Whatever the recorded stream, the pieces joined are the text.
      IncrementalDecoder stream(tokenizer);
      std::string joined;
      for (size_t i = 0; i < expected.size(); ++i) {
        const std::string piece = stream.push(expected[i]);
        joined += piece;
        if (!row.contains("stream")) continue;
        CAPTURE(i);
        const json& given = row["stream"][i];
        CHECK(piece == (given.is_null() ? std::string() : given.get<std::string>()));
      }
      CHECK(joined + stream.finish() == decoded);
    }
  });
}

size_t check_pairs(const Tokenizer& tokenizer, const std::string& path) {
  return for_each_row(path, [&](const json& row) {
    const std::string text = row["text"];
    const EncodeOptions options{.limit = row.value("limit", SIZE_MAX)};
    const auto encoding = row.contains("pair")
                              ? tokenizer.encode_pair(text, row["pair"].get<std::string>(), options)
                              : tokenizer.encode_text(text, options);
    REQUIRE_MESSAGE(encoding.has_value(), encoding.error().message);
    CHECK(encoding->ids == row["ids"].get<std::vector<int32_t>>());
    CHECK(encoding->types == row["types"].get<std::vector<uint8_t>>());
    CHECK(encoding->cut == row.value("cut", size_t{0}));
  });
}

StoredTokenizer store(const TokenizerSpec& spec) {
  StoredTokenizer stored;
  stored.segments.resize(kFirstOffset);
  flatbuffers::FlatBufferBuilder builder;
  const auto tokenizer = store_tokenizer(
      spec, builder, [&](std::span<const std::byte> bytes) -> Result<file::Segment> {
        const file::Segment segment(stored.segments.size(), bytes.size(), 0);
        stored.segments.insert(stored.segments.end(), bytes.begin(), bytes.end());
        stored.segments.resize((stored.segments.size() + 63) / 64 * 64);
        return segment;
      });
  REQUIRE(tokenizer.has_value());
  const auto tensors = builder.CreateVector(std::vector<flatbuffers::Offset<file::Tensor>>());
  const auto stacks = builder.CreateVector(std::vector<flatbuffers::Offset<file::Stack>>());
  file::ModelBuilder model(builder);
  model.add_tensors(tensors);
  model.add_stacks(stacks);
  model.add_tokenizer(*tokenizer);
  file::FinishModelBuffer(builder, model.Finish());
  const auto bytes = std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize()));
  stored.table.assign(bytes.begin(), bytes.end());
  return stored;
}

Result<Tokenizer> load(const StoredTokenizer& stored) {
  flatbuffers::Verifier verifier(reinterpret_cast<const uint8_t*>(stored.table.data()),
                                 stored.table.size());
  if (!file::VerifyModelBuffer(verifier)) return fail("the table is damaged");
  const file::Model* model = file::GetModel(stored.table.data());
  if (model->tokenizer() == nullptr) return fail("there is no tokenizer");
  auto spec = view_tokenizer(
      *model->tokenizer(), [&](const file::Segment& segment) -> Result<std::span<const std::byte>> {
        if (segment.offset() > stored.segments.size() ||
            segment.bytes() > stored.segments.size() - segment.offset()) {
          return fail("a segment lies outside the file");
        }
        return std::span(stored.segments).subspan(segment.offset(), segment.bytes());
      });
  if (!spec.has_value()) return std::unexpected(spec.error());
  return Tokenizer::make(*std::move(spec));
}

}  // namespace volvelle
