// WordPiece, Unigram and their tries against simple forms of the same, and the ways in which
// checkpoints keep such tokenizers.

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "converter/tokenizers/double_array_builder.h"
#include "converter/tokenizers/gguf_vocabulary.h"
#include "converter/tokenizers/sentencepiece.h"
#include "converter/tokenizers/spec_storage.h"
#include "converter/tokenizers/tokenizer_folder.h"
#include "runtime/tokenizer/double_array.h"
#include "tests/scratch_folder.h"
#include "tests/tokenizer/vectors.h"

namespace volvelle {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

Tokenizer make(Result<TokenizerSpec> spec) {
  REQUIRE_MESSAGE(spec.has_value(), spec.error().message);
  auto tokenizer = Tokenizer::make(*std::move(spec));
  REQUIRE_MESSAGE(tokenizer.has_value(), tokenizer.error().message);
  return *std::move(tokenizer);
}

}  // namespace

TEST_CASE("a trie holds its keys and nothing else, whatever their number and bytes") {
  std::mt19937 random(29);  // the seed
  for (const size_t count :
       {size_t{0}, size_t{1}, size_t{2}, size_t{40}, size_t{3000}, size_t{60'000}}) {
    CAPTURE(count);
    std::map<std::string, uint32_t> twin;
    std::vector<std::string> texts;
    for (size_t i = 0; i < count; ++i) {
      std::string key(1 + random() % 9, ' ');
      const uint32_t letters = random() % 8 == 0 ? 255 : 7;
      for (char& c : key) c = static_cast<char>(1 + random() % letters);
      texts.push_back(key);
    }
    std::vector<std::pair<std::string_view, uint32_t>> keys;
    for (uint32_t i = 0; i < count; ++i) {
      keys.emplace_back(texts[i], i);
      twin[texts[i]] = i;
    }
    const auto units = build_double_array(keys);
    REQUIRE(units.has_value());
    const DoubleArray trie(*units);
    for (int round = 0; round < 5000; ++round) {
      std::string text = count > 0 ? texts[random() % count] : "";
      for (uint32_t more = random() % 4; more > 0; --more)
        text += static_cast<char>(1 + random() % 9);
      if (random() % 3 == 0) text.erase(0, 1);
      std::map<size_t, int64_t> found, expected;
      trie.prefixes(trie.root(), text, [&](size_t bytes, int64_t value) {
        found[bytes] = value;
        return true;
      });
      for (size_t bytes = 1; bytes <= text.size(); ++bytes) {
        if (const auto at = twin.find(text.substr(0, bytes)); at != twin.end())
          expected[bytes] = at->second;
      }
      REQUIRE(found == expected);
    }
  }
  CHECK(!build_double_array({{std::string_view("a\0b", 3), 0}}).has_value());
  CHECK(!build_double_array({{std::string(2000, 'a'), 0}}).has_value());
}

TEST_CASE("no way to cut a word has a greater sum of scores than the one taken") {
  // The twin tries every way.
  std::mt19937 random(31);  // the seed
  for (int round = 0; round < 60; ++round) {
    std::map<std::string, float> scores;
    GgufVocabulary vocabulary{.model = "t5", .tokens = {"<unk>"}, .scores = {0}, .types = {2}};
    std::vector<std::string> texts = {"a", "b", "\u2581"};
    for (int i = 0; i < 14; ++i) {
      std::string text;
      for (uint32_t length = 1 + random() % 4; length > 0; --length) text += "abc"[random() % 3];
      if (!std::ranges::contains(texts, text) && text != "c") texts.push_back(text);
    }
    for (const std::string& text : texts) {
      scores[text] = -1 - static_cast<float>(random() % 1000) / 128;
      vocabulary.tokens.push_back(text);
      vocabulary.scores.push_back(scores[text]);
      vocabulary.types.push_back(1);
    }
    vocabulary.unknown = 0;
    const Tokenizer tokenizer = make(make_spec(vocabulary));
    float least = 0;
    for (const auto& [text, score] : scores) least = std::min(least, score);
    const auto best = [&](auto&& self, const std::string& word) -> float {
      if (word.empty()) return 0;
      float sum = -std::numeric_limits<float>::infinity();
      bool alone = false;
      for (const auto& [text, score] : scores) {
        if (!word.starts_with(text)) continue;
        alone |= text.size() == (word.starts_with("\u2581") ? 3 : 1);
        sum = std::max(sum, score + self(self, word.substr(text.size())));
      }
      if (!alone) sum = std::max(sum, least - 10 + self(self, word.substr(1)));
      return sum;
    };
    for (int words = 0; words < 20; ++words) {
      std::string word;
      for (uint32_t length = 1 + random() % 9; length > 0; --length) word += "abc"[random() % 3];
      CAPTURE(word);
      float sum = 0;
      const Ids ids = *tokenizer.encode(word, {.add_special = false});
      for (const int32_t id : ids) {
        const auto at = scores.find(std::string(tokenizer.piece(id)));
        if (at != scores.end()) sum += at->second;
      }
      // Runs of unknown characters are one id: their price is counted from the word.
      if (!word.contains('c')) CHECK(sum == doctest::Approx(best(best, "\u2581" + word)));
    }
  }
}

TEST_CASE("a folder with vocab.txt is BERT's tokenizer, as its configuration says") {
  for (const char* name : {"bert-cased", "bert-uncased"}) {
    CAPTURE(name);
    const std::string from = kDataFolder + std::string(name);
    const json vocabulary = json::parse(read_file(from + "/tokenizer.json"))["model"]["vocab"];
    std::vector<std::string> pieces(vocabulary.size());
    for (const auto& [piece, id] : vocabulary.items()) pieces[id.get<size_t>()] = piece;
    std::string text;
    for (const std::string& piece : pieces) text += piece + "\n";
    const ScratchFolder folder;
    folder.write("vocab.txt", text);
    const bool lowercase = name == std::string("bert-uncased");
    folder.write("tokenizer_config.json", json{{"do_lower_case", lowercase}}.dump());
    CHECK(has_tokenizer(folder.path()));
    const Tokenizer tokenizer = make(read_tokenizer_folder(folder.path()));
    CHECK(check_vectors(tokenizer, from + "/vectors.jsonl") > 50);
    folder.write("vocab.txt", "a\nb\n");
    const auto lacking = read_tokenizer_folder(folder.path());
    REQUIRE(!lacking.has_value());
    CHECK(lacking.error().message.contains("[UNK]"));
  }
}

TEST_CASE("GGUF's BERT vocabularies give the ids of the tokenizer they were made from") {
  const std::string from = kDataFolder + std::string("bert-uncased");
  const json vocabulary = json::parse(read_file(from + "/tokenizer.json"))["model"]["vocab"];
  std::vector<std::string> pieces(vocabulary.size());
  for (const auto& [piece, id] : vocabulary.items()) {
    // The format's own spelling: "##x" is "x", and others have a blank's sign before them.
    const bool special = id < 5;
    pieces[id.get<size_t>()] = special                   ? piece
                               : piece.starts_with("##") ? piece.substr(2)
                                                         : "\u2581" + piece;
  }
  GgufVocabulary given{.model = "bert", .tokens = {pieces.begin(), pieces.end()}};
  given.types.assign(pieces.size(), 1);
  std::fill_n(given.types.begin(), 5, 3);
  CHECK(check_vectors(make(make_spec(given)), from + "/vectors.jsonl") > 50);
}

TEST_CASE(
    "GGUF's unigram vocabularies give the ids of the SentencePiece model they were made from") {
  const std::string from = kDataFolder + std::string("sentencepiece");
  const auto model = read_sentencepiece(from + "/spiece.model");
  REQUIRE(model.has_value());
  GgufVocabulary given{.model = "t5", .unknown = model->unknown, .add_eos = false};
  given.character_map = model->character_map;
  for (const SentencePieceModel::Piece& piece : model->pieces) {
    given.tokens.push_back(piece.text);
    given.scores.push_back(piece.score);
    given.types.push_back(piece.type);
  }
  CHECK(check_vectors(make(make_spec(given)), from + "/vectors.jsonl") > 50);
}

TEST_CASE("a text's language may be another one of the tokenizer's") {
  const Tokenizer tokenizer = make(read_tokenizer_folder(kDataFolder + std::string("languages")));
  const int32_t english = *tokenizer.find("eng_Latn"), german = *tokenizer.find("deu_Latn");
  CHECK(tokenizer.encode("reading")->front() == english);
  const auto encoding = tokenizer.encode_text("reading", {.language = "deu_Latn"});
  REQUIRE(encoding.has_value());
  CHECK(encoding->ids.front() == german);
  CHECK(encoding->ids.size() == tokenizer.encode("reading")->size());
  CHECK(tokenizer.encode_pair("a", "b", {.language = "deu_Latn"})->ids.front() == german);
  for (const char* name : {"tlh_Latn", "<mask>", "</s>", "reading"}) {
    CAPTURE(name);
    const auto refused = tokenizer.encode_text("reading", {.language = name});
    REQUIRE(!refused.has_value());
    CHECK(refused.error().message.contains(name));
  }
  const Tokenizer mbart = make(read_tokenizer_folder(kDataFolder + std::string("mbart-model")));
  CHECK(mbart.encode("reading")->back() == *mbart.find("de_DE"));
  CHECK(mbart.encode("reading", {.language = "ro_RO"})->back() == *mbart.find("ro_RO"));
  CHECK(!mbart.encode("reading", {.language = "<mask>"}).has_value());
  const Tokenizer none = make(read_tokenizer_folder(kDataFolder + std::string("gpt2")));
  CHECK(!none.encode("reading", {.language = "deu_Latn"}).has_value());

  // The configuration chooses; an older file has the language at the end (transformers, NLLB).
  const ScratchFolder folder;
  json older = json::parse(read_file(kDataFolder + std::string("languages/tokenizer.json")));
  std::ranges::rotate(older["post_processor"]["single"],
                      older["post_processor"]["single"].begin() + 1);
  folder.write("tokenizer.json", older.dump());
  const auto ids = [&](const json& config) {
    folder.write("tokenizer_config.json", config.dump());
    return *make(read_tokenizer_folder(folder.path())).encode("reading");
  };
  CHECK(ids({{"tokenizer_class", "NllbTokenizer"}}) == *tokenizer.encode("reading"));
  CHECK(ids({{"tokenizer_class", "NllbTokenizer"}, {"legacy_behaviour", true}}).back() == english);
  CHECK(ids({{"tokenizer_class", "NllbTokenizer"}, {"src_lang", "deu_Latn"}}) == encoding->ids);
  folder.write("tokenizer_config.json", json{{"src_lang", "tlh_Latn"}}.dump());
  CHECK(!read_tokenizer_folder(folder.path()).has_value());
}

TEST_CASE("pieces that vocab.json numbers have its ids, and languages follow them (M2M100)") {
  const auto model = read_sentencepiece(kDataFolder + std::string("sentencepiece/spiece.model"));
  REQUIRE(model.has_value());
  json vocabulary = json::object();
  for (const char* piece : {"<s>", "<pad>", "</s>", "<unk>"})
    vocabulary.emplace(piece, vocabulary.size());
  for (const SentencePieceModel::Piece& piece : model->pieces) {
    vocabulary.emplace(piece.text, vocabulary.size());
  }
  const ScratchFolder folder;
  const std::string spm = "sentencepiece.bpe.model";
  folder.write(spm, read_file(kDataFolder + std::string("sentencepiece/spiece.model")));
  folder.write("vocab.json", vocabulary.dump());
  // Languages that no file lists are those of the family: Afrikaans, Amharic, Arabic, ...
  const Tokenizer unlisted = make(read_tokenizer_folder(folder.path()));
  CHECK(unlisted.find("__ar__") == static_cast<int32_t>(vocabulary.size()) + 2);
  folder.write("special_tokens_map.json",
               json{{"additional_special_tokens", {"__en__", "__de__"}}}.dump());
  const Tokenizer tokenizer = make(read_tokenizer_folder(folder.path()));
  const Tokenizer plain = make(read_tokenizer_folder(kDataFolder + std::string("sentencepiece")));
  CHECK(*tokenizer.language("de") == *tokenizer.find("__de__"));
  CHECK(*tokenizer.language("__de__") == *tokenizer.find("__de__"));
  CHECK(!tokenizer.language("</s>").has_value());
  const auto size = static_cast<int32_t>(vocabulary.size());
  for (const char* text : {"reading", "The quick brown fox", "\u1e9e"}) {
    Ids expected = {size};
    const Ids ids = *plain.encode(text);
    for (const int32_t id : ids) {
      expected.push_back(vocabulary[std::string(plain.piece(id))].get<int32_t>());
    }
    expected.push_back(2);
    CHECK(*tokenizer.encode(text) == expected);
    expected[0] = size + 1;
    CHECK(*tokenizer.encode(text, {.language = "__de__"}) == expected);
  }
}

TEST_CASE("families add their own pieces to a SentencePiece model") {
  const ScratchFolder folder;
  folder.write("spiece.model", read_file(kDataFolder + std::string("sentencepiece/spiece.model")));
  const auto model = read_sentencepiece(folder / "spiece.model");
  REQUIRE(model.has_value());
  const auto size = static_cast<int32_t>(model->pieces.size());
  const auto read = [&](const json& config) {
    folder.write("tokenizer_config.json", config.dump());
    return read_tokenizer_folder(folder.path());
  };
  const Tokenizer plain = make(read({{"tokenizer_class", "Unnamed"}}));
  const Ids ids = *plain.encode("The quick brown fox");
  const Tokenizer t5 = make(read({{"tokenizer_class", "T5Tokenizer"}, {"extra_ids", 3}}));
  CHECK(t5.find("<extra_id_2>") == size);
  CHECK(t5.find("<extra_id_0>") == size + 2);
  Ids expected = ids;
  expected.push_back(2);
  CHECK(*t5.encode("The quick brown fox") == expected);
  const Tokenizer xlmr = make(read({{"tokenizer_class", "XLMRobertaTokenizerFast"}}));
  expected = {0};
  for (const int32_t id : ids) expected.push_back(id + 1);
  expected.push_back(2);
  CHECK(*xlmr.encode("The quick brown fox") == expected);
  CHECK(xlmr.find("<mask>") == size + 1);
  const auto refused = [&](const json& config, const char* part) {
    CAPTURE(config.dump());
    const auto made = read(config);
    REQUIRE(!made.has_value());
    CHECK(made.error().message.contains(part));
  };
  refused({{"tokenizer_class", "AlbertTokenizer"}}, "AlbertTokenizer");
  refused({{"tokenizer_class", "MBartTokenizer"}, {"src_lang", "tlh_XX"}}, "tlh_XX");
  refused({{"tokenizer_class", "PegasusTokenizer"}, {"offset", 0}}, "offset");
  refused({{"tokenizer_class", "PegasusTokenizer"}, {"offset", -1}}, "offset");
  refused({{"tokenizer_class", "T5Tokenizer"}, {"extra_ids", "many"}}, "extra_ids");
}

}  // namespace volvelle
