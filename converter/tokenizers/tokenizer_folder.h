// Finds and reads the tokenizer of a Hugging Face folder, in whichever files it lies:
// tokenizer.json; source.spm and target.spm with vocab.json (Marian) or a SentencePiece model with
// vocab.json (M2M100); a SentencePiece model alone, to which families add pieces (T5, XLM-RoBERTa,
// CamemBERT, DeBERTa, Pegasus, mBART, NLLB); vocab.txt (BERT). tokenizer_config.json says the rest.

#ifndef VOLVELLE_CONVERTER_TOKENIZERS_TOKENIZER_FOLDER_H_
#define VOLVELLE_CONVERTER_TOKENIZERS_TOKENIZER_FOLDER_H_

#include <string>

#include "platforms/error.h"
#include "runtime/tokenizer/spec.h"

namespace volvelle {

// Whether there are files of a tokenizer at all.
bool has_tokenizer(const std::string& folder);

Result<TokenizerSpec> read_tokenizer_folder(const std::string& folder);

// A SentencePiece model by itself: ids are its own, and nothing stands around a text.
Result<TokenizerSpec> read_sentencepiece_tokenizer(const std::string& path);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_TOKENIZERS_TOKENIZER_FOLDER_H_
