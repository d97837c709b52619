// Files that lie: whatever a stored tokenizer says, it is refused with a sentence or it works.

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <random>
#include <string>

#include "converter/tokenizers/sentencepiece.h"
#include "converter/tokenizers/tokenizer_folder.h"
#include "runtime/tokenizer/character_map.h"
#include "runtime/tokenizer/double_array.h"
#include "runtime/tokenizer/normalizer.h"
#include "runtime/tokenizer/piece_table.h"
#include "runtime/tokenizer/regex.h"
#include "runtime/tokenizer/utf8.h"
#include "tests/tokenizer/vectors.h"

namespace volvelle {
namespace {

TokenizerSpec read(const std::string& pipeline) {
  auto spec = read_tokenizer_folder(kDataFolder + pipeline);
  REQUIRE_MESSAGE(spec.has_value(), spec.error().message);
  return *std::move(spec);
}

// Runs everything a tokenizer offers on awkward input.
void exercise(const Tokenizer& tokenizer) {
  const std::string texts[] = {"", "Hello there, it's 12345!\n\n  x",
                               "  \t\r\n \u00A0\u3000 a\u0301\u0327 \u65E5\u672C <0x41>",
                               "<s>[L] cat<|endoftext|><mask> \U0001F44B\U0001F3FD",
                               std::string("\xE6\x97 \xFF\x00\xC0\xAF", 8)};
  for (const std::string& text : texts) {
    for (const EncodeOptions options : {EncodeOptions{}, EncodeOptions{false, false}}) {
      const auto ids = tokenizer.encode(text, options);
      if (!ids.has_value()) {
        CHECK(!ids.error().message.empty());
        continue;
      }
      for (const int32_t id : *ids) CHECK(static_cast<size_t>(id) < tokenizer.vocabulary());
      CHECK(is_utf8(tokenizer.decode(*ids)));
      IncrementalDecoder stream(tokenizer, true);
      for (const int32_t id : *ids) CHECK(is_utf8(stream.push(id)));
      CHECK(is_utf8(stream.finish()));
    }
  }
  for (const size_t limit : {size_t{0}, size_t{9}, SIZE_MAX}) {
    const auto pair = tokenizer.encode_pair(texts[1], texts[2], {.limit = limit});
    if (!pair.has_value()) continue;
    CHECK(pair->ids.size() <= limit);
    CHECK(pair->types.size() == pair->ids.size());
    for (const int32_t id : pair->ids) CHECK(static_cast<size_t>(id) < tokenizer.vocabulary());
  }
  if (&tokenizer.target() != &tokenizer) exercise(tokenizer.target());
  const auto count = static_cast<int32_t>(tokenizer.vocabulary());
  const int32_t odd[] = {-1, INT32_MIN, INT32_MAX, count, count - 1, 0, count / 2};
  CHECK(is_utf8(tokenizer.decode(odd)));
}

// A spec may be changed at will: these are made from one that works.
void check_refused(TokenizerSpec spec, std::string_view word) {
  const auto tokenizer = Tokenizer::make(std::move(spec));
  REQUIRE(!tokenizer.has_value());
  CHECK_MESSAGE(tokenizer.error().message.contains(word), tokenizer.error().message);
}

}  // namespace

TEST_CASE("a stored tokenizer with flipped bits is refused or works") {
  constexpr int kRounds = 3000;
  for (const char* pipeline :
       {"added-flags", "llama2-metaspace", "llama2-legacy", "qwen2", "bloom", "wordpiece-plain",
        "unigram-bytes", "unigram-precompiled", "languages", "sentencepiece", "marian-small"}) {
    CAPTURE(pipeline);
    const StoredTokenizer whole = store(read(pipeline));
    std::mt19937 random(20240229);  // the seed
    int working = 0;
    for (int round = 0; round < kRounds; ++round) {
      CAPTURE(round);
      StoredTokenizer changed = whole;
      // The table is where most fields are; one round in four changes a segment instead.
      auto& bytes = round % 4 == 3 ? changed.segments : changed.table;
      const size_t flips = 1 + random() % 4;
      for (size_t i = 0; i < flips; ++i) {
        std::byte& byte = bytes[random() % bytes.size()];
        byte = random() % 3 == 0 ? static_cast<std::byte>(random())
                                 : byte ^ static_cast<std::byte>(1 << random() % 8);
      }
      if (round % 16 == 0) changed.segments.resize(random() % changed.segments.size());
      const auto tokenizer = load(changed);
      if (!tokenizer.has_value()) {
        CHECK(!tokenizer.error().message.empty());
        continue;
      }
      ++working;
      exercise(*tokenizer);
    }
    CHECK(working > 0);
    CHECK(working < kRounds);
  }
}

TEST_CASE("every field that points into the vocabulary is checked") {
  const TokenizerSpec good = read("llama2-legacy");
  const auto count = static_cast<int32_t>(good.vocabulary());
  const auto change = [&](auto edit, std::string_view word) {
    TokenizerSpec spec = good;
    edit(spec);
    check_refused(std::move(spec), word);
  };
  change([&](TokenizerSpec& s) { s.unknown = count; }, "unknown");
  change([&](TokenizerSpec& s) { s.unknown = -2; }, "unknown");
  change([&](TokenizerSpec& s) { s.bos = count; }, "bos");
  change([&](TokenizerSpec& s) { s.eos = {-1}; }, "eos");
  change([&](TokenizerSpec& s) { s.prefix = {count}; }, "prefix");
  change([&](TokenizerSpec& s) { s.suffix = {count}; }, "suffix");
  change([&](TokenizerSpec& s) { s.added.emplace_back(count, true, false, false, false, false); },
         "added");
  for (int field = 0; field < 3; ++field) {
    std::vector<Merge> merges(good.merges.begin(), good.merges.end());
    (field == 0   ? merges[7].left
     : field == 1 ? merges[7].right
                  : merges[7].result) = static_cast<uint32_t>(count);
    change([&](TokenizerSpec& s) { s.merges = merges; }, "merge 7");
  }
}

TEST_CASE("what a unigram or WordPiece model says of itself is checked") {
  const TokenizerSpec good = read("marian-small"), words = read("wordpiece-plain");
  const auto count = static_cast<int32_t>(good.vocabulary());
  const auto change = [](TokenizerSpec spec, auto edit, std::string_view word) {
    edit(spec);
    check_refused(std::move(spec), word);
  };
  for (const double odd : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    std::vector<double> scores(good.scores.begin(), good.scores.end());
    scores[5] = odd;
    change(good, [&](auto& s) { s.scores = scores; }, "scores");
  }
  change(good, [&](auto& s) { s.scores = s.scores.subspan(1); }, "entry_ids");
  std::vector<uint32_t> ids(good.entry_ids.begin(), good.entry_ids.end());
  ids[3] = static_cast<uint32_t>(count);
  change(good, [&](auto& s) { s.entry_ids = ids; }, "entry_ids");
  std::vector<double> many(good.vocabulary() + 1);
  change(good, [&](auto& s) { s.entry_ids = {}, s.scores = many; }, "scores");
  change(good, [&](auto& s) { s.languages = {count}; }, "languages");
  change(good, [&](auto& s) { s.pair = {{kSecondText, 0}, {kFirstText, 0}}; }, "pair");
  change(good, [&](auto& s) { s.pair = {{kFirstText, 0}, {kFirstText, 0}}; }, "pair");
  change(good, [&](auto& s) { s.pair = {{kFirstText, 0}, {count, 0}, {kSecondText, 0}}; }, "pair");
  change(good, [&](auto& s) { s.pair = {{kFirstText, 0}}; }, "pair");
  change(good, [&](auto& s) { s.pair.assign(1000, {0, 0}); }, "pair");
  change(good, [&](auto& s) { s.code_open = "\xFF"; }, "code_open");
  change(good, [&](auto& s) { s.target = std::make_shared<TokenizerSpec>(good); }, "target");
  change(words, [&](auto& s) { s.max_word_characters = 1 << 30; }, "max_word_characters");
  change(good, [&](auto& s) { s.character_map = {}; }, "character map");
  for (const size_t bytes : {size_t{1}, size_t{4}, size_t{100}}) {
    change(
        good, [&](auto& s) { s.character_map = s.character_map.substr(0, bytes); },
        "character_map");
  }
  // A trie of one label whose every unit has the next for its child: a key without end.
  std::vector<uint32_t> units(256, 'a');
  std::string endless("\0\4\0\0", 4);
  endless.append(reinterpret_cast<const char*>(units.data()), units.size() * sizeof(uint32_t));
  change(good, [&](auto& s) { s.character_map = endless; }, "circles");
}

TEST_CASE("a trie that leads in circles or out of bounds ends all the same") {
  std::mt19937 random(17);  // the seed
  const std::string text(5000, 'a');
  for (int round = 0; round < 500; ++round) {
    std::vector<uint32_t> units(1 + random() % 600);
    for (uint32_t& unit : units) {
      // Labels that lead on, and offsets that stay near.
      unit = random() % 4 == 0 ? static_cast<uint32_t>(random())
                               : 'a' | DoubleArray::kEndsHere | (random() % 512) << 10;
    }
    const DoubleArray trie(units);
    size_t found = 0;
    trie.prefixes(trie.root(), text, [&](size_t bytes, int64_t value) {
      CHECK(bytes <= DoubleArray::kMaxKeyBytes);
      CHECK(value >= 0);
      ++found;
      return true;
    });
    CHECK(found <= DoubleArray::kMaxKeyBytes);
    std::string map(4, '\0');
    const auto bytes = static_cast<uint32_t>(units.size() * 4);
    std::memcpy(map.data(), &bytes, 4);
    map.append(reinterpret_cast<const char*>(units.data()), bytes);
    map += std::string("x\0yy", 4);
    if (const auto made = CharacterMap::make(map); made.has_value()) {
      CHECK(is_utf8(made->map_longest(text)));
      CHECK(is_utf8(made->map_graphemes("a\u0301\u65E5" + text)));
    }
  }
}

TEST_CASE("a damaged SentencePiece model is refused or read, and never read past its end") {
  std::ifstream file(kDataFolder + std::string("sentencepiece/spiece.model"), std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(file)), {});
  REQUIRE(parse_sentencepiece(whole, "whole").has_value());
  for (size_t bytes = 0; bytes < whole.size(); bytes += 7) {
    const std::string cut = whole.substr(0, bytes);  // a copy, so that its end is the end
    const auto model = parse_sentencepiece(cut, "cut");
    if (!model.has_value()) CHECK(model.error().message.contains("cut"));
  }
  std::mt19937 random(23);  // the seed
  for (int round = 0; round < 3000; ++round) {
    std::string changed = whole;
    for (size_t i = 0; i < 1 + random() % 4; ++i) {
      changed[random() % changed.size()] = static_cast<char>(random());
    }
    (void)parse_sentencepiece(changed, "changed");
  }
  for (const std::string& message :
       {std::string("\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF"), std::string("\x0A\x7F"),
        std::string("\x0B"), std::string("\x0A\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01")}) {
    CHECK(!parse_sentencepiece(message, "odd").has_value());
  }
}

TEST_CASE("pieces must ascend, fill their bytes and be UTF-8") {
  TokenizerSpec spec = read("gpt2");
  std::vector<uint32_t> ends(spec.piece_ends.begin(), spec.piece_ends.end());
  const auto with = [&](std::vector<uint32_t>& changed) {
    TokenizerSpec copy = spec;
    copy.piece_ends = changed;
    return copy;
  };
  std::vector<uint32_t> swapped = ends;
  std::swap(swapped[5], swapped[6]);
  check_refused(with(swapped), "ascend");
  std::vector<uint32_t> beyond = ends;
  beyond.back() += 1;
  check_refused(with(beyond), "ascend");
  std::vector<uint32_t> shorter(ends.begin(), ends.end() - 1);
  check_refused(with(shorter), "ascend");
  std::string bytes(spec.piece_bytes);
  bytes[3] = '\xFF';
  TokenizerSpec broken = spec;
  broken.piece_bytes = bytes;
  check_refused(broken, "UTF-8");
  // Whole characters, but one is cut by the border of two pieces.
  const std::string accent = "\u00E9";
  const std::vector<uint32_t> halves = {1, 2};
  TokenizerSpec cut;
  cut.piece_bytes = accent;
  cut.piece_ends = halves;
  check_refused(cut, "UTF-8");
}

TEST_CASE("steps that could blow a text up are refused") {
  TokenizerSpec spec = read("gpt2");
  TokenizerSpec grown = spec;
  for (int i = 0; i < 8; ++i) {
    grown.normalizers.push_back(
        {.kind = NormalizerKind::replace, .pattern = "a", .text = "aaaaaaaa"});
  }
  check_refused(grown, "grow");
  TokenizerSpec many = spec;
  many.pre_tokenizers.resize(100, many.pre_tokenizers[0]);
  check_refused(many, "steps");
  TokenizerSpec doubled = spec;
  doubled.pre_tokenizers.resize(20, {.kind = PreTokenizerKind::byte_level});
  check_refused(doubled, "grow");
  TokenizerSpec shouting = spec;
  shouting.decoders.assign(4, {.kind = DecoderKind::replace, .pattern = "a", .text = "aaaaaaaa"});
  check_refused(shouting, "grow");
  TokenizerSpec empty = spec;
  empty.decoders.assign(1, {.kind = DecoderKind::replace});
  check_refused(empty, "empty pattern");
}

TEST_CASE(
    "a regular expression that backtracks without end gives an error, and a broken one is "
    "refused") {
  const std::string text(5000, 'a');
  for (const char* pattern : {"(a+)+b", "(a|aa)+$b", "(a*)*b", "^(?:a?){60}a{60}b"}) {
    CAPTURE(pattern);
    const auto regex = Regex::compile(pattern);
    REQUIRE_MESSAGE(regex.has_value(), regex.error().message);
    std::vector<TextRange> matches;
    const auto result = regex->find_all(text + "c", matches);
    if (!result.has_value()) CHECK(result.error().message.contains("gave up"));
  }
  for (const char* pattern :
       {"(", "[", "a{2,1}", "\\", "\\C", "(*LIMIT_MATCH=4000000000)a", "(?<n>a)(?<n>b)",
        "\\p{Nonsense}", "((((((a{1,9999}){1,9999}){1,9999}))))", "\xFF"}) {
    CAPTURE(pattern);
    const auto regex = Regex::compile(pattern);
    REQUIRE(!regex.has_value());
    CHECK(!regex.error().message.empty());
  }
  CHECK(!Regex::compile(std::string(1 << 20, 'a')).has_value());
}

TEST_CASE("a table whose entries all share one slot is refused instead of searched for ever") {
  std::vector<uint32_t> slots;
  const auto same_hash = [](uint32_t) { return uint64_t{42}; };
  CHECK(!fill_slots(100'000, slots, same_hash, [](uint32_t, uint32_t) { return false; }));
  // Equal entries are no collision: the last one stays.
  REQUIRE(fill_slots(100'000, slots, same_hash, [](uint32_t, uint32_t) { return true; }));
  CHECK(slot_entry(slots[42]) == 99'999);
}

TEST_CASE("normal forms of long runs of marks equal those of the same marks in short runs") {
  // Two classes of marks in turn, behind one letter: canonical order puts all of the lower class
  // first.
  const NormalizerStep nfc{.kind = NormalizerKind::nfc};
  const auto normalizer = Normalizer::make(std::span(&nfc, 1));
  REQUIRE(normalizer.has_value());
  for (const int pairs : {3, 20, 40, 3000}) {
    CAPTURE(pairs);
    std::string text = "x", above, below;
    for (int i = 0; i < pairs; ++i) text += "\u0300\u0316";  // classes 230 and 220
    for (int i = 0; i < pairs; ++i) above += "\u0300", below += "\u0316";
    const auto normal = normalizer->apply(text);
    REQUIRE(normal.has_value());
    CHECK(*normal == "x" + below + above);
    // U+0344 is a mark that decomposes into two; behind "e" a first U+0301 composes.
    std::string decomposing = "e";
    for (int i = 0; i < pairs; ++i) decomposing += "\u0316\u0301\u0344";
    std::string expected = "\u00E9" + below;
    for (int i = 0; i < pairs; ++i)
      expected += std::string(i == 0 ? "" : "\u0301") + "\u0308\u0301";
    CHECK(*normalizer->apply(decomposing) == expected);
  }
}

}  // namespace volvelle
