// Regular expressions of tokenizer.json are Oniguruma's (Ruby syntax); the runtime's are PCRE2's.
// Most are the same; this translates what differs.

#ifndef VOLVELLE_CONVERTER_TOKENIZERS_ONIGURUMA_H_
#define VOLVELLE_CONVERTER_TOKENIZERS_ONIGURUMA_H_

#include <string>
#include <string_view>

#include "platforms/error.h"

namespace volvelle {

// A PCRE2 pattern (UTF, UCP, MULTILINE) that matches what `pattern` matches: `\s` and `\w` become
// Unicode's own classes, nested brackets are unfolded, `\v` and `\u` are spelt out. What would mean
// something else is refused.
Result<std::string> translate_oniguruma(std::string_view pattern);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_TOKENIZERS_ONIGURUMA_H_
