// What goes into an encoder, as commands are given it: one text, a pair, lines of a file, or ids;
// and what is done about texts that are longer than the model takes.

#ifndef VOLVELLE_RUNTIME_COMMANDS_SENTENCES_H_
#define VOLVELLE_RUNTIME_COMMANDS_SENTENCES_H_

#include <optional>
#include <string>
#include <vector>

#include "runtime/commands/compute.h"
#include "runtime/commands/program.h"
#include "runtime/encoder.h"
#include "runtime/model.h"

namespace volvelle {

struct SentenceOptions {
  std::optional<std::string> text;
  std::string pair, tokens, lines;
  std::string overflow = "truncate";  // or "error" or, of many texts, "split"
  bool many = false;
};

struct Sentences {
  std::vector<Sentence> all;
  std::vector<size_t> text_of;     // [all]: which text each is, or is a part of
  std::vector<std::string> texts;  // as given; empty for ids
  size_t longest() const;
};

// -p, --tokens and, where `many`, --lines and --overflow. One of the first three is required.
void add_sentence_options(CLI::App& command, SentenceOptions& options, bool many);

// What a task wants of texts.
struct TextShape {
  size_t max_tokens = 0;     // 0: as many as the model has positions
  std::string prompt;        // stands before each
  std::string language;      // of each, as the tokenizer calls it; empty: as it has them
  bool keeps_blank = false;  // a line without text stays one, with no sentence
};

// Encodes what was given. Notices tell what was cut; errors name the text and the limit.
Result<Sentences> read_sentences(const Model& model, const SentenceOptions& options,
                                 const TextShape& shape = {});

// The tokenizer, or a sentence that the model has none.
Result<const Tokenizer*> tokenizer_of(const Model& model);

// Tokens that a sentence may have.
size_t encoder_limit(const Model& model);

// What makes vectors: the model's own task, or else the mean of a sentence's rows.
Task embedding_task(const Model& model);

// Tokens that go through an encoder together, unless a sentence is longer: their rows stay in a
// second-level cache.
inline constexpr size_t kEncoderChunk = 128;

// The model at `path`, which must have an encoder and a task of this kind.
Result<std::shared_ptr<const Model>> open_encoder(const std::string& path,
                                                  const ComputeOptions& options);

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_COMMANDS_SENTENCES_H_
