#include "runtime/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <array>

#include "runtime/tokenizer/utf8.h"

namespace volvelle {
namespace {

constexpr char32_t kCharactersOfBytes = 0x144;  // 256 + 68

struct ByteCharacters {
  std::array<char32_t, 256> of_byte{};
  std::array<std::string, 256> text;
  std::array<int16_t, kCharactersOfBytes> of_character;

  ByteCharacters() {
    of_character.fill(-1);
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool itself = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
      of_byte[byte] = itself ? static_cast<char32_t>(byte) : next++;
      of_character[of_byte[byte]] = static_cast<int16_t>(byte);
      append_character(of_byte[byte], text[byte]);
    }
  }
};

const ByteCharacters& byte_characters() {
  static const ByteCharacters characters;
  return characters;
}

struct Part {
  TextRange range;
  bool is_match;
};

// What a split keeps of `parts`, which cover a text alternately.
void arrange(std::vector<Part>& parts, SplitBehavior behavior, std::vector<TextRange>& ranges) {
  ranges.clear();
  bool previous_match = false;
  const auto merge_matches = [&](bool backwards) {
    for (const Part& part : parts) {
      if (part.is_match && !previous_match && !ranges.empty()) {
        (backwards ? ranges.back().begin : ranges.back().end) =
            backwards ? part.range.begin : part.range.end;
      } else {
        ranges.push_back(part.range);
      }
      previous_match = part.is_match;
    }
  };
  switch (behavior) {
    case SplitBehavior::isolated:
      for (const Part& part : parts) ranges.push_back(part.range);
      break;
    case SplitBehavior::removed:
      for (const Part& part : parts) {
        if (!part.is_match) ranges.push_back(part.range);
      }
      break;
    case SplitBehavior::contiguous:
      for (const Part& part : parts) {
        if (part.is_match == previous_match && !ranges.empty()) {
          ranges.back().end = part.range.end;
        } else {
          ranges.push_back(part.range);
        }
        previous_match = part.is_match;
      }
      break;
    case SplitBehavior::merged_with_previous:
      merge_matches(false);
      break;
    case SplitBehavior::merged_with_next:
      std::ranges::reverse(parts);
      merge_matches(true);
      std::ranges::reverse(ranges);
      break;
  }
}

}  // namespace

char32_t character_of_byte(unsigned char byte) { return byte_characters().of_byte[byte]; }

int byte_of_character(char32_t character) {
  return character < kCharactersOfBytes ? byte_characters().of_character[character] : -1;
}

Result<PreTokenizer> PreTokenizer::make(std::span<const PreTokenizerStep> steps) {
  PreTokenizer pre_tokenizer;
  for (const PreTokenizerStep& step : steps) {
    Step made{step, std::nullopt};
    if (step.kind == PreTokenizerKind::split) {
      if (step.pattern.empty()) return fail("pre_tokenizers: a split has an empty pattern");
      if (!step.literal) {
        VOLVELLE_ASSIGN_OR_RETURN(made.regex, Regex::compile(step.pattern));
      }
    }
    if (step.kind == PreTokenizerKind::metaspace &&
        (step.text.empty() || step.text.size() != character_bytes(step.text[0]))) {
      return fail("pre_tokenizers: metaspace takes one character for a blank, not \"{}\"",
                  step.text);
    }
    pre_tokenizer.steps_.push_back(std::move(made));
  }
  return pre_tokenizer;
}

Result<void> PreTokenizer::split(const Step& step, std::string_view text,
                                 std::vector<TextRange>& ranges) {
  std::vector<TextRange> matches;
  if (step.regex.has_value()) {
    VOLVELLE_RETURN_IF_ERROR(step.regex->find_all(text, matches));
  } else {
    const std::string& literal = step.step.pattern;
    for (size_t at = text.find(literal); at != text.npos;
         at = text.find(literal, at + literal.size())) {
      matches.push_back({at, at + literal.size()});
    }
  }
  std::vector<Part> parts;
  size_t at = 0;
  for (const TextRange& match : matches) {
    if (match.begin > at) parts.push_back({{at, match.begin}, step.step.invert});
    parts.push_back({match, !step.step.invert});
    at = match.end;
  }
  if (at < text.size()) parts.push_back({{at, text.size()}, step.step.invert});
  arrange(parts, step.step.behavior, ranges);
  return {};
}

Result<void> PreTokenizer::apply(std::string_view text, bool at_start, Words& words) const {
  words.clear();
  words.add(text);
  Words next;
  std::vector<TextRange> ranges;
  std::string changed;
  for (const Step& made : steps_) {
    const PreTokenizerStep& step = made.step;
    next.clear();
    size_t begin = 0;
    for (const size_t end : words.ends) {
      std::string_view word = std::string_view(words.text).substr(begin, end - begin);
      switch (step.kind) {
        case PreTokenizerKind::split:
          VOLVELLE_RETURN_IF_ERROR(split(made, word, ranges));
          for (const TextRange& range : ranges)
            next.add(word.substr(range.begin, range.end - range.begin));
          break;
        case PreTokenizerKind::prefix_space:
          if (!word.starts_with(' ')) next.text += ' ';
          next.add(word);
          break;
        case PreTokenizerKind::byte_level:
          for (const char byte : word)
            next.text += byte_characters().text[static_cast<unsigned char>(byte)];
          next.ends.push_back(next.text.size());
          break;
        case PreTokenizerKind::metaspace: {
          changed.clear();
          const bool prefix = step.prepend == PrependScheme::always ||
                              (step.prepend == PrependScheme::first && at_start && begin == 0);
          if (prefix && !word.starts_with(' ') && !word.starts_with(step.text)) changed = step.text;
          for (const char byte : word) {
            if (byte == ' ') {
              changed += step.text;
            } else {
              changed += byte;
            }
          }
          std::string_view rest = changed;
          while (step.split && !rest.empty()) {
            const size_t cut = std::min(rest.find(step.text, 1), rest.size());
            next.add(rest.substr(0, cut));
            rest.remove_prefix(cut);
          }
          next.add(rest);
          break;
        }
      }
      begin = end;
    }
    std::swap(words, next);
  }
  return {};
}

}  // namespace volvelle
