#include "converter/tokenizers/bert_steps.h"

#include <string>
#include <utility>

#include "converter/tokenizers/oniguruma.h"

namespace volvelle {

// Each takes its class of today's Unicode without the characters that are newer, and adds those
// that have changed their class since.
const std::string_view kPunctuation =
    R"([!-/:-@\[-`{-~]|(?![\x{0}-\x{7F})"
    R"(\x{61D}\x{9FD}-\x{A76}\x{C77}-\x{C84}\x{1B4E}-\x{1B4F}\x{1B7D}-\x{1B7F})"
    R"(\x{2E43}-\x{2E63}\x{10D6E}-\x{10F89}\x{113D4}-\x{1145D}\x{11660}-\x{116B9})"
    R"(\x{1183B}-\x{11FFF}\x{12FF1}-\x{12FF2}\x{16D6D}-\x{16FE2}\x{1E5FF}-\x{1E95F})"
    R"(])\p{P}|[\x{166D}\x{111C9}])";
const std::string_view kNonspacingMarks =
    R"((?![\x{0}-\x{7F})"
    R"(\x{5C8}-\x{5C9}\x{7FD}\x{897}-\x{8E1}\x{9FE}\x{AFA}-\x{AFF}\x{B53}-\x{B55})"
    R"(\x{C04}-\x{C3C}\x{D00}\x{D3B}-\x{D3C}\x{D81}\x{EBA}\x{ECE}\x{180F}-\x{1886})"
    R"(\x{1ABF}-\x{1AF0}\x{1DF6}-\x{1DFB}\x{A82C}\x{A8C5}\x{A8FF}\x{A9BD}\x{10D24}-\x{10F85})"
    R"(\x{11070}-\x{11074}\x{110C2}\x{111C9}\x{111CF}\x{1123E}-\x{11241}\x{1133B})"
    R"(\x{113BB}-\x{1145E}\x{1182F}-\x{1612F}\x{16F4F}\x{16FE4}\x{1CF00}-\x{1D128})"
    R"(\x{1D25B}-\x{1D25C}\x{1E000}-\x{1E6F5}\x{1E944}-\x{1E94A})"
    R"(])\p{Mn}|[\x{1734}\x{1171E}])";
const std::string_view kMarks =
    R"((?![\x{0}-\x{7F})"
    R"(\x{5C8}-\x{5C9}\x{7FD}\x{897}-\x{8D3}\x{9FE}\x{AFA}-\x{AFF}\x{B53}-\x{B55})"
    R"(\x{C04}-\x{C3C}\x{CF3}-\x{D00}\x{D3B}-\x{D3C}\x{D81}\x{EBA}\x{ECE}\x{1715}\x{180F})"
    R"(\x{1ABF}-\x{1AF0}\x{1CF7}\x{1DF6}-\x{1DFA}\x{A82C}\x{A8FF}\x{10D24}-\x{10F85})"
    R"(\x{11070}-\x{11074}\x{110C2}\x{11145}-\x{11146}\x{111C9}\x{111CE}-\x{111CF}\x{11241})"
    R"(\x{1133B}\x{113B8}-\x{113E2}\x{1145E}\x{1182C}-\x{11B67}\x{11D31}-\x{1612F}\x{16F4F})"
    R"(\x{16F7F}-\x{16F87}\x{16FE4}-\x{16FF1}\x{1CF00}-\x{1D128}\x{1D250}-\x{1D281})"
    R"(\x{1E08F}-\x{1E6F5})"
    R"(])\p{M}|[\x{1CF2}\x{1CF3}])";

namespace {

constexpr std::string_view kDropped =  // controls, formats and private use; not tabs and line ends
    R"((?![)"
    R"(\x{9}-\x{A}\x{D}\x{890}-\x{8E2}\x{110CD}-\x{1343F})"
    R"(])[\p{Cc}\p{Cf}\p{Co}\x{FFFD}])";
constexpr std::string_view kIdeographs =
    R"([\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{F900}-\x{FAFF}\x{20000}-\x{2A6DF})"
    R"(\x{2A700}-\x{2B81F}\x{2B920}-\x{2CEAF}\x{2F800}-\x{2FA1F}])";

void replace(std::string pattern, std::string text, TokenizerSpec& spec) {
  spec.normalizers.push_back({.kind = NormalizerKind::replace,
                              .pattern = std::move(pattern),
                              .literal = false,
                              .text = std::move(text)});
}

}  // namespace

Result<void> append_bert_normalizer(const BertNormalizer& settings, TokenizerSpec& spec) {
  if (settings.clean_text) {
    replace(std::string(kDropped), "", spec);
    VOLVELLE_ASSIGN_OR_RETURN(std::string space, translate_oniguruma(R"(\s)"));
    replace(std::move(space), " ", spec);
  }
  if (settings.handle_chinese_chars) {
    replace(std::format("(?={})", kIdeographs), " ", spec);
    replace(std::format("(?<={})", kIdeographs), " ", spec);
  }
  if (settings.strip_accents) {
    spec.normalizers.push_back({.kind = NormalizerKind::nfd});
    replace(std::string(kNonspacingMarks), "", spec);
  }
  if (settings.lowercase) spec.normalizers.push_back({.kind = NormalizerKind::lowercase});
  return {};
}

Result<void> append_bert_pre_tokenizer(TokenizerSpec& spec) {
  VOLVELLE_ASSIGN_OR_RETURN(std::string space, translate_oniguruma(R"(\s)"));
  spec.pre_tokenizers.push_back({.pattern = std::move(space), .behavior = SplitBehavior::removed});
  spec.pre_tokenizers.push_back({.pattern = std::string(kPunctuation)});
  return {};
}

void set_bert_processing(int32_t cls, int32_t sep, bool doubled, TokenizerSpec& spec) {
  spec.prefix.insert(spec.prefix.begin(), cls);
  spec.suffix.push_back(sep);
  const uint8_t second = doubled ? 0 : 1;
  spec.pair = {{cls, 0}, {kFirstText, 0}, {sep, 0}};
  if (doubled) spec.pair.emplace_back(sep, 0);
  spec.pair.emplace_back(kSecondText, second);
  spec.pair.emplace_back(sep, second);
}

}  // namespace volvelle
