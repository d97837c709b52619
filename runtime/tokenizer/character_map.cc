#include "runtime/tokenizer/character_map.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "runtime/tokenizer/utf8.h"

namespace volvelle {
namespace {

constexpr size_t kShortGrapheme = 6;  // bytes; only shorter ones are looked up whole
constexpr size_t kMaxVisits = 8;      // of each unit, on average

// Bytes of the grapheme cluster (Unicode's UAX #29, extended) that `text` begins with.
size_t grapheme_bytes(std::string_view text) {
  Utf8Step step = next_character(text);
  size_t bytes = step.bytes;
  utf8proc_int32_t state = 0;
  while (bytes < text.size()) {
    const auto previous = static_cast<utf8proc_int32_t>(step.character);
    step = next_character(text.substr(bytes));
    if (utf8proc_grapheme_break_stateful(previous, static_cast<utf8proc_int32_t>(step.character),
                                         &state)) {
      break;
    }
    bytes += step.bytes;
  }
  return bytes;
}

}  // namespace

Result<CharacterMap> CharacterMap::make(std::string_view bytes) {
  CharacterMap map;
  if (bytes.empty()) return map;
  uint32_t trie_bytes = 0;
  if (bytes.size() < sizeof(trie_bytes)) return fail("character_map: is cut off");
  std::memcpy(&trie_bytes, bytes.data(), sizeof(trie_bytes));
  bytes.remove_prefix(sizeof(trie_bytes));
  if (trie_bytes > bytes.size() || trie_bytes % sizeof(uint32_t) != 0 || trie_bytes == 0) {
    return fail("character_map: a trie of {} bytes does not fit into {}", trie_bytes, bytes.size());
  }
  if (reinterpret_cast<uintptr_t>(bytes.data()) % alignof(uint32_t) != 0) {
    return fail("character_map: does not lie at a multiple of 4");
  }
  map.trie_ =
      DoubleArray({reinterpret_cast<const uint32_t*>(bytes.data()), trie_bytes / sizeof(uint32_t)});
  map.forms_ = bytes.substr(trie_bytes);
  if (!is_utf8(map.forms_)) return fail("character_map: its texts are not UTF-8");
  VOLVELLE_RETURN_IF_ERROR(map.measure_growth(trie_bytes / sizeof(uint32_t)));
  return map;
}

std::string_view CharacterMap::form(int64_t value) const {
  const auto at = static_cast<size_t>(value);
  if (value < 0 || at >= forms_.size() || is_continuation(forms_[at])) return {};
  return forms_.substr(at, forms_.find('\0', at) - at);
}

// Visits every key. Equal ends of keys may share units; a map that grows beyond that is none.
Result<void> CharacterMap::measure_growth(size_t units) {
  struct Place {
    DoubleArray::Node node;
    size_t bytes;
  };
  std::vector<Place> places = {{trie_.root(), 0}};
  for (size_t visits = 0; !places.empty(); ++visits) {
    const Place place = places.back();
    places.pop_back();
    if (visits > kMaxVisits * units || place.bytes > DoubleArray::kMaxKeyBytes) {
      return fail("character_map: its trie runs in circles");
    }
    if (place.bytes > 0) {
      growth_ = std::max(growth_, static_cast<double>(form(trie_.value(place.node)).size()) /
                                      static_cast<double>(place.bytes));
    }
    for (int byte = 1; byte < 256; ++byte) {
      DoubleArray::Node child = place.node;
      if (trie_.step(child, static_cast<char>(byte))) places.push_back({child, place.bytes + 1});
    }
  }
  return {};
}

CharacterMap::Found CharacterMap::find(std::string_view text, bool longest) const {
  Found found;
  trie_.prefixes(trie_.root(), text, [&](size_t bytes, int64_t value) {
    const std::string_view text_of_key = form(value);
    const bool inside = bytes < text.size() && is_continuation(text[bytes]);
    if (text_of_key.data() == nullptr || inside) return true;  // the map lies
    found = {bytes, text_of_key};
    return longest;
  });
  return found;
}

std::string CharacterMap::map_longest(std::string_view text) const {
  std::string out;
  while (!text.empty()) {
    const Found found = find(text, true);
    const size_t bytes = found.bytes > 0 ? found.bytes : character_bytes(text[0]);
    out += found.bytes > 0 ? found.form : text.substr(0, bytes);
    text.remove_prefix(bytes);
  }
  return out;
}

std::string CharacterMap::map_graphemes(std::string_view text) const {
  std::string out;
  while (!text.empty()) {
    std::string_view grapheme = text.substr(0, grapheme_bytes(text));
    text.remove_prefix(grapheme.size());
    if (grapheme.size() < kShortGrapheme) {
      if (const Found found = find(grapheme, false); found.bytes > 0) {
        out += found.form;
        continue;
      }
    }
    while (!grapheme.empty()) {
      const std::string_view character = grapheme.substr(0, character_bytes(grapheme[0]));
      const Found found = find(character, false);
      out += found.bytes > 0 ? found.form : character;
      grapheme.remove_prefix(character.size());
    }
  }
  return out;
}

}  // namespace volvelle
