// Text to token ids and back. A `Tokenizer` runs the pipeline that a `TokenizerSpec` describes; it
// never changes after it is made, so any number of threads may use one. An `IncrementalDecoder`
// gives text out as ids arrive and never splits a character.

#ifndef VOLVELLE_RUNTIME_TOKENIZER_TOKENIZER_H_
#define VOLVELLE_RUNTIME_TOKENIZER_TOKENIZER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "platforms/error.h"
#include "runtime/tokenizer/spec.h"

namespace volvelle {

struct EncodeOptions {
  bool add_special = true;  // the ids that the tokenizer puts around every text
  bool recognise_added =
      true;  // added tokens written in the text; without it they are text like any other
  // Tokens at most, special ones included. What is too long loses its end; of two texts the longer
  // one does first, until both are equally long (`longest_first` of Hugging Face tokenizers).
  size_t limit = SIZE_MAX;
  // The piece that names the text's language, for tokenizers that put one around every text (NLLB's
  // "deu_Latn", mBART's "de_DE"); "": the tokenizer's own choice.
  std::string_view language = {};
};

struct Encoding {
  std::vector<int32_t> ids;
  std::vector<uint8_t> types;  // of each id: which text it belongs to, in the model's eyes
  size_t cut = 0;              // tokens that the limit took away
};

class Tokenizer {
 public:
  // Checks all of `spec`: what this accepts can encode any text and decode any ids. Errors name the
  // field at fault.
  static Result<Tokenizer> make(TokenizerSpec spec);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Ids of `text`, in which every maximal part that is not UTF-8 counts as one U+FFFD. Fails only
  // where a regular expression of the tokenizer gives up (PCRE2's limits), or where the options ask
  // for what there is not: a language, or a limit below the special tokens.
  Result<std::vector<int32_t>> encode(std::string_view text, EncodeOptions options = {}) const;

  // The same, with all that is known of the ids; all are of type 0.
  Result<Encoding> encode_text(std::string_view text, EncodeOptions options = {}) const;

  // Two texts in one input, as the tokenizer joins them. Fails also where it has no rule for that.
  Result<Encoding> encode_pair(std::string_view first, std::string_view second,
                               EncodeOptions options = {}) const;

  // Text of `ids`, always UTF-8. Ids outside the vocabulary and unused ones have no text.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  size_t vocabulary() const;
  std::string_view piece(int32_t id) const;  // as the vocabulary spells it; "" outside it
  std::optional<int32_t> find(std::string_view piece) const;  // the id of a piece
  // The piece of a language, by its name or, of names such as "__de__", what stands between.
  Result<int32_t> language(std::string_view name) const;
  bool is_special(int32_t id) const;
  const TokenizerSpec& spec() const;

  // The tokenizer of what the model writes: this one, but for models with a second vocabulary.
  const Tokenizer& target() const;

 private:
  friend class IncrementalDecoder;
  struct Parts;

  Result<std::vector<int32_t>> encode_plain(std::string_view text, bool recognise_added) const;

  // What decoding starts from: the piece of `id`, "" if it is to be skipped.
  std::string_view shown(int32_t id, bool skip_special) const;

  explicit Tokenizer(std::unique_ptr<const Parts> parts);
  std::unique_ptr<const Parts> parts_;
};

// Decodes ids one at a time. The pieces of text it gives out, joined, are the text of all ids; text
// is held back while it ends inside a character or in U+FFFD (which more ids may still turn into a
// character). The tokenizer must outlive it.
class IncrementalDecoder {
 public:
  explicit IncrementalDecoder(const Tokenizer& tokenizer, bool skip_special = false);
  IncrementalDecoder(IncrementalDecoder&&) noexcept;
  IncrementalDecoder& operator=(IncrementalDecoder&&) noexcept;
  ~IncrementalDecoder();

  std::string push(int32_t id);  // "": nothing yet
  std::string finish();          // what was held back; the decoder is then as new

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_TOKENIZER_TOKENIZER_H_
