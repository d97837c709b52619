// How families of checkpoints number pieces: fairseq's dictionaries and others begin with pieces of
// their own, move the model's along and put names of languages and masks at the end. Needed where
// a checkpoint has its SentencePiece model alone, without a tokenizer.json.

#ifndef VOLVELLE_CONVERTER_TOKENIZERS_PIECE_ORDERS_H_
#define VOLVELLE_CONVERTER_TOKENIZERS_PIECE_ORDERS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "converter/tokenizers/sentencepiece.h"
#include "platforms/error.h"

namespace volvelle {

// Languages in the order of their ids. transformers' FAIRSEQ_LANGUAGE_CODES of each tokenizer.
enum class LanguageList { mbart, mbart50, nllb, m2m100, wmt21 };
std::vector<std::string> language_names(LanguageList list);

// Each puts a model's pieces, unknown, bos, eos and padding in the order of a family; what it adds
// are control pieces. Fails on models with fewer pieces than the family drops.

// <s> <pad> </s> <unk>, the model's but its first three, `languages`, <mask>.
// XLM-RoBERTa, mBART, NLLB.
Result<void> order_as_fairseq(const std::vector<std::string>& languages, SentencePieceModel& model);

// <s>NOTUSED <pad> </s>NOTUSED <unk> <unk>NOTUSED, the model's but its first, <mask>.
Result<void> order_as_camembert(SentencePieceModel& model);

// <pad> </s> <mask_1> <mask_2> <unk_2> ... and so on below `offset`, the model's but its first two.
Result<void> order_as_pegasus(int32_t offset, SentencePieceModel& model);

// The place of a piece; -1: there is none.
int32_t find_piece(const SentencePieceModel& model, std::string_view text);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_TOKENIZERS_PIECE_ORDERS_H_
