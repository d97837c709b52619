#include "converter/commands/tokenizer_sources.h"

#include <filesystem>

#include "converter/sources/gguf.h"
#include "converter/tokenizers/gguf_vocabulary.h"
#include "converter/tokenizers/tokenizer_folder.h"
#include "converter/tokenizers/tokenizer_json.h"
#include "runtime/tokenizer/tokenizer.h"

namespace volvelle {
namespace {

namespace fs = std::filesystem;
using OpenedTokenizer = Result<std::shared_ptr<const Tokenizer>>;

OpenedTokenizer make(Result<TokenizerSpec> spec) {
  VOLVELLE_RETURN_IF_ERROR(spec);
  VOLVELLE_ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::make(*std::move(spec)));
  return std::make_shared<const Tokenizer>(std::move(tokenizer));
}

OpenedTokenizer open_gguf(const std::string& path) {
  VOLVELLE_ASSIGN_OR_RETURN(const auto source, GgufTensorSource::open(path));
  return make(read_gguf_tokenizer(source->metadata()));
}

OpenedTokenizer open_json(const std::string& path) {
  return make(read_tokenizer_json(path, fs::path(path).replace_filename("tokenizer_config.json")));
}

}  // namespace

void add_tokenizer_sources(Program& program) {
  const auto ends = [](const char* extension) {
    return [extension](const std::string& path) { return fs::path(path).extension() == extension; };
  };
  program.add_tokenizer_source("a .gguf file", ends(".gguf"), open_gguf);
  program.add_tokenizer_source("a tokenizer.json", ends(".json"), open_json);
  program.add_tokenizer_source(
      "a SentencePiece model",
      [](const std::string& path) {
        return fs::path(path).extension() == ".spm" || fs::path(path).extension() == ".model";
      },
      [](const std::string& path) { return make(read_sentencepiece_tokenizer(path)); });
  program.add_tokenizer_source(
      "a folder with one",
      [](const std::string& path) {
        std::error_code ignored;
        return fs::is_directory(path, ignored);
      },
      [](const std::string& path) { return make(read_tokenizer_folder(path)); });
}

}  // namespace volvelle
