// Turns pieces back into text. One machine serves whole texts and streams: a stream differs in that
// joins let text through as it comes, and that a run of byte pieces is given out as soon as it is
// text.

#ifndef VOLVELLE_RUNTIME_TOKENIZER_DECODER_H_
#define VOLVELLE_RUNTIME_TOKENIZER_DECODER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "platforms/error.h"
#include "runtime/tokenizer/spec.h"

namespace volvelle {

Result<void> check_decoders(std::span<const DecoderStep> steps);

class PieceDecoder {
 public:
  // `steps` have been checked and outlive the decoder.
  PieceDecoder(std::span<const DecoderStep> steps, bool streaming);

  void push(std::string_view piece);
  void finish();  // what steps still hold goes to text()

  std::string& text() { return text_; }  // what has come out so far; the caller may take it
  bool inside_character() const;         // some step holds bytes that are no character yet

 private:
  struct State {
    std::string held;
    uint64_t stripped = 0;
    bool joined = false;  // pieces arrive as parts of one
    bool begun = false;   // a piece (joined: a byte of text that stays) has come
  };
  void give(size_t step, std::string_view piece);
  void give_bytes(size_t step);
  void strip_joined(size_t step, std::string_view piece);
  void flush(size_t step);

  std::span<const DecoderStep> steps_;
  bool streaming_;
  bool first_ = true;
  std::vector<State> states_;
  std::string text_;
};

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_TOKENIZER_DECODER_H_
