#include "runtime/tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "runtime/tokenizer/utf8.h"

namespace volvelle {
namespace {

bool is_ascii(std::string_view text) {
  return std::ranges::all_of(text,
                             [](char byte) { return static_cast<unsigned char>(byte) < 0x80; });
}

// utf8proc sorts marks by insertion, so a text of nothing but marks would take the square of its
// length. From this many in a row on, they are sorted here first; no language stacks so many
// (Unicode's stream-safe format ends at 30).
constexpr int kManyMarks = 64;

bool has_many_marks(std::string_view text) {
  int marks = 0;
  while (!text.empty()) {
    const Utf8Step step = next_character(text);
    text.remove_prefix(step.bytes);
    const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(step.character));
    marks = category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ? marks + 1 : 0;
    if (marks == kManyMarks) return true;
  }
  return false;
}

// `text` decomposed, with its marks in canonical order.
std::string decompose(std::string_view text, int options) {
  std::vector<utf8proc_int32_t> characters;
  while (!text.empty()) {
    const Utf8Step step = next_character(text);
    text.remove_prefix(step.bytes);
    utf8proc_int32_t parts[32];  // the longest decomposition has 18
    int boundary = 0;
    const auto count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(step.character), parts, 32,
                                static_cast<utf8proc_option_t>(options), &boundary);
    characters.insert(characters.end(), parts, parts + std::clamp<utf8proc_ssize_t>(count, 0, 32));
  }
  const auto order = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
  for (auto at = characters.begin(); at != characters.end();) {
    const auto end = std::find_if(at, characters.end(), [&](auto c) { return order(c) == 0; });
    std::ranges::stable_sort(at, end, {}, order);
    at = end == characters.end() ? end : end + 1;
  }
  std::string out;
  for (const utf8proc_int32_t c : characters) append_character(static_cast<char32_t>(c), out);
  return out;
}

Result<std::string> normal_form(std::string_view text, int options) {
  if (is_ascii(text)) return std::string(text);  // is in every form
  std::string decomposed;
  if (has_many_marks(text)) {
    decomposed =
        decompose(text, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (options & UTF8PROC_COMPAT));
    text = decomposed;
  }
  utf8proc_uint8_t* bytes = nullptr;
  const auto length = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                   static_cast<utf8proc_ssize_t>(text.size()), &bytes,
                                   static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(bytes, &std::free);
  if (length < 0) return fail("a text cannot be normalised: {}", utf8proc_errmsg(length));
  return std::string(reinterpret_cast<const char*>(bytes), static_cast<size_t>(length));
}

std::string lowercase(std::string_view text) {
  std::string lower;
  lower.reserve(text.size());
  while (!text.empty()) {
    const Utf8Step step = next_character(text);
    text.remove_prefix(step.bytes);
    if (step.character == 0x130) {  // the one character whose lower case is two
      lower += "i\xCC\x87";
    } else {
      append_character(
          static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(step.character))),
          lower);
    }
  }
  return lower;
}

std::string replace(std::string_view text, std::string_view pattern, std::string_view with) {
  std::string out;
  for (;;) {
    const size_t found = text.find(pattern);
    out += text.substr(0, found);
    if (found == std::string_view::npos) return out;
    out += with;
    text.remove_prefix(found + pattern.size());
  }
}

Result<std::string> replace(std::string_view text, const Regex& pattern, std::string_view with) {
  std::vector<TextRange> matches;
  VOLVELLE_RETURN_IF_ERROR(pattern.find_all(text, matches));
  std::string out;
  size_t at = 0;
  for (const TextRange& match : matches) {
    out += text.substr(at, match.begin - at);
    out += with;
    at = match.end;
  }
  out += text.substr(at);
  return out;
}

std::string_view strip(std::string_view text, bool left, bool right) {
  while (left && !text.empty()) {
    const Utf8Step step = next_character(text);
    if (!is_white_space(step.character)) break;
    text.remove_prefix(step.bytes);
  }
  while (right && !text.empty()) {
    size_t begin = text.size() - 1;
    while (begin > 0 && is_continuation(text[begin])) --begin;
    if (!is_white_space(next_character(text.substr(begin)).character)) break;
    text.remove_suffix(text.size() - begin);
  }
  return text;
}

}  // namespace

Result<Normalizer> Normalizer::make(std::span<const NormalizerStep> steps,
                                    const CharacterMap* character_map) {
  Normalizer normalizer;
  normalizer.character_map_ = character_map;
  for (const NormalizerStep& step : steps) {
    Step made{step, std::nullopt};
    if ((step.kind == NormalizerKind::character_map || step.kind == NormalizerKind::grapheme_map) &&
        character_map == nullptr) {
      return fail("normalizers: there is no character map");
    }
    if (step.kind == NormalizerKind::replace) {
      if (step.pattern.empty()) return fail("normalizers: a replacement has an empty pattern");
      if (!step.literal) {
        VOLVELLE_ASSIGN_OR_RETURN(made.regex, Regex::compile(step.pattern));
      }
    }
    normalizer.steps_.push_back(std::move(made));
  }
  return normalizer;
}

Result<std::string> Normalizer::apply(std::string_view raw) const {
  std::string text(raw);
  for (const auto& [step, regex] : steps_) {
    switch (step.kind) {
      case NormalizerKind::nfc: {
        VOLVELLE_ASSIGN_OR_RETURN(text, normal_form(text, UTF8PROC_STABLE | UTF8PROC_COMPOSE));
        break;
      }
      case NormalizerKind::nfd: {
        VOLVELLE_ASSIGN_OR_RETURN(text, normal_form(text, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE));
        break;
      }
      case NormalizerKind::nfkc: {
        VOLVELLE_ASSIGN_OR_RETURN(
            text, normal_form(text, UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT));
        break;
      }
      case NormalizerKind::nfkd: {
        VOLVELLE_ASSIGN_OR_RETURN(
            text, normal_form(text, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT));
        break;
      }
      case NormalizerKind::lowercase:
        text = lowercase(text);
        break;
      case NormalizerKind::prepend:
        if (!text.empty()) text.insert(0, step.text);
        break;
      case NormalizerKind::replace:
        if (regex.has_value()) {
          VOLVELLE_ASSIGN_OR_RETURN(text, replace(text, *regex, step.text));
        } else {
          text = replace(text, step.pattern, step.text);
        }
        break;
      case NormalizerKind::strip:
        text = strip(text, step.left, step.right);
        break;
      case NormalizerKind::character_map:
        text = character_map_->map_longest(text);
        break;
      case NormalizerKind::grapheme_map:
        text = character_map_->map_graphemes(text);
        break;
    }
  }
  return text;
}

}  // namespace volvelle
