// Whole pipelines against recorded references (Hugging Face tokenizers 0.23.3 and, for GGUF
// vocabularies, pipelines that were compared with llama.cpp and sentencepiece).

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "converter/sources/gguf.h"
#include "converter/tokenizers/gguf_vocabulary.h"
#include "converter/tokenizers/tokenizer_folder.h"
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

TokenizerSpec read_folder(const std::string& folder) {
  auto spec = read_tokenizer_folder(folder);
  REQUIRE_MESSAGE(spec.has_value(), spec.error().message);
  return *std::move(spec);
}

}  // namespace

TEST_CASE("pairs of texts and limits give the reference's ids, types and counts") {
  for (const char* name : {"languages", "unigram-albert", "unigram-bytes", "unigram-precompiled",
                           "wordpiece-accents", "wordpiece-plain"}) {
    CAPTURE(name);
    const std::string folder = kDataFolder + std::string(name);
    const StoredTokenizer stored = store(read_folder(folder));
    const auto loaded = load(stored);
    REQUIRE_MESSAGE(loaded.has_value(), loaded.error().message);
    CHECK(check_pairs(*loaded, folder + "/pairs.jsonl") > 50);
  }
}

TEST_CASE("models of SentencePiece give its ids, and Marian's two those of their vocabulary") {
  for (const char* name :
       {"sentencepiece", "sentencepiece-bytes", "sentencepiece-bpe", "marian-small"}) {
    SUBCASE(name) {
      const std::string folder = kDataFolder + std::string(name);
      check_both_ways(read_tokenizer_folder(folder), folder + "/vectors.jsonl");
    }
  }
  SUBCASE("marian-small, what the model writes") {
    const std::string folder = kDataFolder + std::string("marian-small");
    const StoredTokenizer stored = store(read_folder(folder));
    const auto loaded = load(stored);
    REQUIRE_MESSAGE(loaded.has_value(), loaded.error().message);
    CHECK(&loaded->target() != &*loaded);
    CHECK(check_vectors(loaded->target(), folder + "/target_vectors.jsonl") > 50);
  }
}

TEST_CASE("checkpoints with a SentencePiece model alone give the ids that their families number") {
  for (const char* name : {"camembert-model", "m2m100-model", "mbart-model", "mbart50-model",
                           "nllb-model", "pegasus-model", "xlmr-model"}) {
    SUBCASE(name) {
      const std::string folder = kDataFolder + std::string(name);
      check_both_ways(read_tokenizer_folder(folder), folder + "/vectors.jsonl");
    }
  }
}

TEST_CASE(
    "every pipeline gives the reference's ids, texts and streams, read from JSON and from a stored "
    "table") {
  for (const char* name : {"added-flags",
                           "bert-cased",
                           "bert-uncased",
                           "bloom",
                           "bytefallback-holes",
                           "digits-bytelevel",
                           "gpt2",
                           "gpt2-string-merges",
                           "languages",
                           "llama2-legacy",
                           "llama2-metaspace",
                           "llama3-ignore-merges",
                           "neox-spaces",
                           "qwen2",
                           "roberta",
                           "t5-old",
                           "unigram-albert",
                           "unigram-bytes",
                           "unigram-never",
                           "unigram-precompiled",
                           "wordpiece-accents",
                           "wordpiece-plain"}) {
    SUBCASE(name) {
      const std::string folder = kDataFolder + std::string(name);
      check_both_ways(read_tokenizer_json(folder + "/tokenizer.json"), folder + "/vectors.jsonl");
    }
  }
}

TEST_CASE("real vocabularies give the references' ids, texts and streams") {
  // They are too large to keep beside the tests: the folder that VOLVELLE_TOKENIZER_DATA names has
  // vocabs/NAME.gguf or NAME.tokenizer.json, plain or packed as .xz, and vectors/NAME.jsonl.
  const char* named = std::getenv("VOLVELLE_TOKENIZER_DATA");
  if (named == nullptr) {
    MESSAGE("skipped: VOLVELLE_TOKENIZER_DATA names no folder of vocabularies");
    return;
  }
  const std::filesystem::path folder = named;
  REQUIRE(std::filesystem::exists(folder / "vocabs"));
  const auto unpacked = [&](const std::string& name) {
    const std::string plain = (folder / "vocabs" / name).string();
    if (std::filesystem::exists(plain)) return plain;
    const std::string target =
        (std::filesystem::temp_directory_path() / ("volvelle_" + name)).string();
    const std::string command = "xz -dc '" + plain + ".xz' > '" + target + "'";
    return std::system(command.c_str()) == 0 ? target : std::string();
  };
  for (const char* name :
       {"gpt-2", "llama-bpe", "llama-spm", "qwen2", "smollm2", "llama2js", "minilm"}) {
    SUBCASE(name) {
      const bool is_json = std::ranges::contains(
          std::array<std::string_view, 2>{"llama2js", "minilm"}, std::string_view(name));
      const std::string path = unpacked(name + std::string(is_json ? ".tokenizer.json" : ".gguf"));
      if (path.empty()) {
        MESSAGE("skipped: ", name, " could not be unpacked; install xz-utils");
        return;
      }
      const std::string vectors = (folder / "vectors" / (std::string(name) + ".jsonl")).string();
      if (is_json) {
        check_both_ways(read_tokenizer_json(path), vectors);
      } else {
        const auto source = GgufTensorSource::open(path);
        REQUIRE_MESSAGE(source.has_value(), source.error().message);
        check_both_ways(read_gguf_tokenizer((*source)->metadata()), vectors);
      }
    }
  }
}

}  // namespace volvelle
