// Whole pipelines against recorded references (Hugging Face tokenizers 0.23.3 and, for GGUF
// vocabularies, pipelines that were compared with llama.cpp and sentencepiece).

#include <doctest/doctest.h>

#include <filesystem>
#include <string>

#include "converter/sources/gguf.h"
#include "converter/tokenizers/gguf_vocabulary.h"
#include "converter/tokenizers/tokenizer_json.h"
#include "tests/tokenizer/vectors.h"

namespace volvelle {
namespace {

// Runs the vectors on the tokenizer of a spec, and again after a way through the stored form.
void check_both_ways(Result<TokenizerSpec> spec, const std::string& vectors) {
  REQUIRE_MESSAGE(spec.has_value(), spec.error().message);
  const StoredTokenizer stored = store(*spec);
  const auto direct = Tokenizer::make(*std::move(spec));
  REQUIRE_MESSAGE(direct.has_value(), direct.error().message);
  CHECK(check_vectors(*direct, vectors) > 50);
  const auto loaded = load(stored);
  REQUIRE_MESSAGE(loaded.has_value(), loaded.error().message);
  CHECK(check_vectors(*loaded, vectors) > 50);
}

}  // namespace

TEST_CASE(
    "every pipeline gives the reference's ids, texts and streams, read from JSON and from a stored "
    "table") {
  for (const char* name : {"added-flags", "bloom", "bytefallback-holes", "digits-bytelevel", "gpt2",
                           "gpt2-string-merges", "llama2-legacy", "llama2-metaspace",
                           "llama3-ignore-merges", "neox-spaces", "qwen2", "roberta"}) {
    SUBCASE(name) {
      const std::string folder = kDataFolder + std::string(name);
      check_both_ways(read_tokenizer_json(folder + "/tokenizer.json"), folder + "/vectors.jsonl");
    }
  }
}

TEST_CASE("real vocabularies give the references' ids, texts and streams") {
  // Unpacked vocabularies are too large to keep beside the tests.
  const char* unpacked = std::getenv("VOLVELLE_VOCABULARIES");
  if (unpacked == nullptr) {
    MESSAGE(
        "skipped: VOLVELLE_VOCABULARIES names no folder of unpacked vocabularies (vocabs/, "
        "vectors/)");
    return;
  }
  const std::string folder = unpacked;
  for (const char* name : {"gpt-2", "llama-bpe", "llama-spm", "qwen2", "smollm2"}) {
    SUBCASE(name) {
      const auto source = GgufTensorSource::open(folder + "/vocabs/" + name + ".gguf");
      REQUIRE_MESSAGE(source.has_value(), source.error().message);
      check_both_ways(read_gguf_tokenizer((*source)->metadata()),
                      folder + "/vectors/" + name + ".jsonl");
    }
  }
  SUBCASE("llama2js") {
    check_both_ways(read_tokenizer_json(folder + "/vocabs/llama2js.tokenizer.json"),
                    folder + "/vectors/llama2js.jsonl");
  }
}

}  // namespace volvelle
