#include "converter/tokenizers/oniguruma.h"

#include <cctype>

namespace volvelle {
namespace {

// White_Space and UTS #18's word characters, as members of a class. PCRE2's own \s has U+180E
// besides, and its \w lacks some marks.
constexpr std::string_view kSpace = R"(\t-\r\x{85}\p{Z})";
constexpr std::string_view kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";

class Translator {
 public:
  explicit Translator(std::string_view pattern) : whole_(pattern), rest_(pattern) {}

  Result<std::string> translate() {
    int depth = 0;  // of nested brackets
    while (!rest_.empty()) {
      if (rest_[0] == '\\') {
        VOLVELLE_RETURN_IF_ERROR(escape(depth > 0));
      } else if (depth == 0) {
        if (rest_.starts_with("(?m") || rest_.starts_with("(?x")) return refuse(rest_.substr(0, 3));
        depth += rest_[0] == '[';
        take(1);
        if (depth == 1) begin_class();
      } else if (rest_.starts_with("&&")) {
        return refuse("&&");
      } else if (rest_.starts_with("[:")) {
        const size_t end = rest_.find(":]");
        if (end == rest_.npos) return refuse("[:");
        take(end + 2);
      } else if (rest_[0] == '[') {  // a class in a class joins it
        if (rest_.starts_with("[^")) return refuse("[^ in a class");
        if (++depth > 8) return refuse("deeply nested brackets");
        rest_.remove_prefix(1);
      } else if (rest_[0] == ']') {
        if (--depth == 0) {
          take(1);
        } else {
          rest_.remove_prefix(1);
        }
      } else {
        take(1);
      }
    }
    if (depth != 0) return fail("regular expression \"{}\": a bracket is not closed", whole_);
    return std::move(out_);
  }

 private:
  std::unexpected<Error> refuse(std::string_view what) const {
    return fail("regular expression \"{}\": {} is not supported", whole_, what);
  }

  void take(size_t bytes) {
    out_ += rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
  }

  // A bracket directly after the opening one is a member.
  void begin_class() {
    if (rest_.starts_with('^')) take(1);
    if (rest_.starts_with(']')) {
      out_ += '\\';
      take(1);
    }
  }

  void write_class(std::string_view members, bool negated, bool in_class) {
    if (in_class) {
      out_ += members;
    } else {
      out_ += negated ? "[^" : "[";
      out_ += members;
      out_ += ']';
    }
    rest_.remove_prefix(2);
  }

  Result<void> escape(bool in_class) {
    if (rest_.size() < 2) return refuse("a backslash at the end");
    switch (const char what = rest_[1]) {
      case 's':
        write_class(kSpace, false, in_class);
        return {};
      case 'S':
        // In a class PCRE2's own, and U+180E, which it takes for a blank.
        write_class(in_class ? R"(\S\x{180E})" : kSpace, true, in_class);
        return {};
      case 'w':
        write_class(kWord, false, in_class);
        return {};
      case 'W':
        if (in_class) return refuse("\\W in a class");
        write_class(kWord, true, false);
        return {};
      case 'v':
        out_ += "\\x0B";
        rest_.remove_prefix(2);
        return {};
      case 'u': {
        const std::string_view digits = rest_.substr(2, 4);
        if (digits.size() != 4) return refuse("\\u without four digits");
        for (const char digit : digits) {
          if (std::isxdigit(static_cast<unsigned char>(digit)) == 0)
            return refuse("\\u without four digits");
        }
        out_ += "\\x{";
        out_ += digits;
        out_ += '}';
        rest_.remove_prefix(6);
        return {};
      }
      default:
        // \h, \y and their like mean other things in PCRE2; bytes above 7F would be characters
        // there.
        if (std::string_view("hHRXOKGyYgkCNQE").contains(what)) return refuse(rest_.substr(0, 2));
        if (what == 'x' && !rest_.starts_with("\\x{") && rest_.size() > 2 && rest_[2] > '7')
          return refuse("\\x above 7F");
        take(2);
        return {};
    }
  }

  std::string_view whole_;
  std::string_view rest_;
  std::string out_;
};

}  // namespace

Result<std::string> translate_oniguruma(std::string_view pattern) {
  return Translator(pattern).translate();
}

}  // namespace volvelle
