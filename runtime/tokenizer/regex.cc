#include "runtime/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstdint>

#include "runtime/tokenizer/utf8.h"

namespace volvelle {
namespace {

constexpr size_t kMaxPatternBytes = 16 * 1024;  // published tokenizers stay below 1 KiB

// Backtracking steps from one start: enough for a pattern that walks back over the whole text a few
// times
// (`\s*[\r\n]+` over blanks does so once), far too few for an exponential one.
uint32_t step_limit(size_t text_bytes) {
  return static_cast<uint32_t>(100'000 + 4 * std::min<size_t>(text_bytes, 500'000'000));
}
constexpr uint32_t kHeapLimitKibibytes = 256 * 1024;

template <typename T, void (*kFree)(T*)>
struct Deleter {
  void operator()(T* object) const { kFree(object); }
};
using CompileContext = std::unique_ptr<pcre2_compile_context,
                                       Deleter<pcre2_compile_context, pcre2_compile_context_free>>;
using MatchContext =
    std::unique_ptr<pcre2_match_context, Deleter<pcre2_match_context, pcre2_match_context_free>>;
using MatchData =
    std::unique_ptr<pcre2_match_data, Deleter<pcre2_match_data, pcre2_match_data_free>>;

std::string message(int code) {
  PCRE2_UCHAR text[256];
  return pcre2_get_error_message(code, text, sizeof(text)) < 0
             ? std::string("unknown error")
             : std::string(reinterpret_cast<const char*>(text));
}

PCRE2_SPTR units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

}  // namespace

void Regex::Free::operator()(void* code) const { pcre2_code_free(static_cast<pcre2_code*>(code)); }

Result<Regex> Regex::compile(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return fail("a regular expression of {} bytes is longer than the {} allowed", pattern.size(),
                kMaxPatternBytes);
  }
  if (!is_utf8(pattern)) return fail("a regular expression is not UTF-8");
  if (pattern.starts_with("(*"))
    return fail("regular expression \"{}\": verbs are not allowed", pattern);
  const CompileContext context(pcre2_compile_context_create(nullptr));
  if (context == nullptr) return fail("no memory for a regular expression");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  // \C could split a character.
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  pcre2_code* code =
      pcre2_compile(units(pattern), pattern.size(), options, &error, &offset, context.get());
  if (code == nullptr) {
    return fail("regular expression \"{}\": {} at byte {}", pattern, message(error), offset);
  }
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // where this fails, the interpreter does the work
  return Regex(code);
}

Result<void> Regex::find_all(std::string_view text, std::vector<TextRange>& matches) const {
  matches.clear();
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const MatchContext context(pcre2_match_context_create(nullptr));
  const MatchData data(pcre2_match_data_create_from_pattern(code, nullptr));
  if (context == nullptr || data == nullptr) return fail("no memory for a regular expression");
  pcre2_set_match_limit(context.get(), step_limit(text.size()));
  pcre2_set_heap_limit(context.get(), kHeapLimitKibibytes);
  size_t at = 0, last_end = SIZE_MAX;
  while (at <= text.size()) {
    const auto match = [&](uint32_t options) {
      return pcre2_match(code, units(text), text.size(), at, PCRE2_NO_UTF_CHECK | options,
                         data.get(), context.get());
    };
    int result = match(0);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = match(PCRE2_NO_JIT);
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0)
      return fail("a regular expression of the tokenizer gave up on this text: {}",
                  message(result));
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data.get());
    const size_t begin = range[0], end = range[1];
    if (begin < at || end < begin || end > text.size()) {
      return fail("a regular expression of the tokenizer matches backwards");
    }
    if (end > begin) {
      matches.push_back({begin, end});
      at = last_end = end;
      continue;
    }
    if (begin != last_end) matches.push_back({begin, end});
    if (begin == text.size()) break;
    at = begin + character_bytes(text[begin]);
  }
  return {};
}

}  // namespace volvelle
