// What the translation promises is checked by matching: expected matches follow Oniguruma's
// documented syntax (RE) and Unicode's White_Space.

#include "converter/tokenizers/oniguruma.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "runtime/tokenizer/regex.h"

namespace volvelle {
namespace {

// The matches of a translated pattern, in order.
std::vector<std::string> matches(const std::string& pattern, const std::string& text) {
  const auto translated = translate_oniguruma(pattern);
  REQUIRE_MESSAGE(translated.has_value(), translated.error().message);
  const auto regex = Regex::compile(*translated);
  REQUIRE_MESSAGE(regex.has_value(), regex.error().message);
  std::vector<TextRange> ranges;
  REQUIRE(regex->find_all(text, ranges).has_value());
  std::vector<std::string> found;
  for (const TextRange& range : ranges)
    found.push_back(text.substr(range.begin, range.end - range.begin));
  return found;
}

using Found = std::vector<std::string>;

}  // namespace

TEST_CASE("white space is Unicode's White_Space, in a class and outside") {
  const std::string spaces =
      "\t\n\v\f\r \u0085\u00A0\u1680\u2000\u200A\u2028\u2029\u202F\u205F\u3000";
  const std::string others = "\u180E\u200B\u2060\uFEFF";  // look like blanks, and are none
  CHECK(matches(R"(\s+)", spaces + others) == Found{spaces});
  CHECK(matches(R"([\s]+)", spaces + others) == Found{spaces});
  CHECK(matches(R"(\S+)", spaces + others) == Found{others});
  CHECK(matches(R"([\S]+)", spaces + others) == Found{others});
  CHECK(matches(R"([^\s]+)", spaces + others) == Found{others});
  CHECK(matches(R"([\s\S]+)", spaces + others) == Found{spaces + others});
}

TEST_CASE("word characters are letters, marks, decimal digits and connectors") {
  CHECK(matches(R"(\w+)", "ab\u0301_1\u2160 \u00BD-\u203F") == Found{"ab\u0301_1\u2160", "\u203F"});
  CHECK(matches(R"([^\w]+)", "ab-c") == Found{"-"});
  CHECK(matches(R"(\W+)", "ab-c") == Found{"-"});
}

TEST_CASE("brackets in brackets join their class") {
  CHECK(matches(R"( ?[^(\s|[.,!?])]+)", "one, (two) three!") == Found{"one", "two", " three"});
  CHECK(matches(R"([a[b[c]]d]+)", "xabcdx") == Found{"abcd"});
  CHECK(matches(R"([[:digit:]a]+)", "xa1x") == Found{"a1"});
  CHECK(matches(R"([]a]+)", "x]ax") == Found{"]a"});
  CHECK(matches(R"([^]a]+)", "]x]") == Found{"x"});
  CHECK(matches(R"([\]a]+)", "x]ax") == Found{"]a"});
}

TEST_CASE("line ends, vertical tabs and code points mean what they mean in Oniguruma") {
  CHECK(matches("^b$", "a\nb\nc") == Found{"b"});
  CHECK(matches(R"(\v)", "\n\v") == Found{"\v"});
  CHECK(matches(R"(\u00e9)", "e\u00E9") == Found{"\u00E9"});
}

TEST_CASE("what PCRE2 would read differently is refused by name") {
  for (const char* pattern : {R"(\h)", R"([\h])", R"(\Ra)", R"([a&&b])", R"([a[^b]])", R"([\W])",
                              "(?m:a)", "(?x:a b)", R"(\xE9)", R"(\u12)", "[a", "a\\"}) {
    CAPTURE(pattern);
    const auto translated = translate_oniguruma(pattern);
    REQUIRE(!translated.has_value());
    CHECK(translated.error().message.contains(pattern));
  }
}

}  // namespace volvelle
