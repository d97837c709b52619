// How BERT prepares text, as steps that the runtime has: regular expressions whose classes are
// spelt out, because the reference's tables of Unicode are older than those of any library here.

#ifndef VOLVELLE_CONVERTER_TOKENIZERS_BERT_STEPS_H_
#define VOLVELLE_CONVERTER_TOKENIZERS_BERT_STEPS_H_

#include <cstdint>
#include <string_view>

#include "platforms/error.h"
#include "runtime/tokenizer/spec.h"

namespace volvelle {

// Classes of characters as the unicode_categories crate of Hugging Face tokenizers 0.23 has them
// (about Unicode 8), found by asking it for every character.
extern const std::string_view kPunctuation;      // P*, and ASCII's
extern const std::string_view kNonspacingMarks;  // Mn
extern const std::string_view kMarks;  // M*, of the crate unicode-normalization-alignments

struct BertNormalizer {
  bool clean_text = true;            // drops controls; white space becomes blanks
  bool handle_chinese_chars = true;  // puts blanks around CJK ideographs
  bool strip_accents = true;
  bool lowercase = true;
};

Result<void> append_bert_normalizer(const BertNormalizer& settings, TokenizerSpec& spec);

// White space goes, punctuation stands alone.
Result<void> append_bert_pre_tokenizer(TokenizerSpec& spec);

// [CLS] text [SEP], and [CLS] first [SEP] second [SEP] with types 0 and 1. `doubled`: RoBERTa's
// way, with two [SEP] between and type 0 everywhere.
void set_bert_processing(int32_t cls, int32_t sep, bool doubled, TokenizerSpec& spec);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_TOKENIZERS_BERT_STEPS_H_
