// What the tokenizer and its readers promise beyond the recorded pipelines.

#include "runtime/tokenizer/tokenizer.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "converter/tokenizers/gguf_vocabulary.h"
#include "converter/tokenizers/tokenizer_json.h"
#include "runtime/tokenizer/bpe.h"
#include "runtime/tokenizer/piece_table.h"
#include "runtime/tokenizer/utf8.h"
#include "tests/tokenizer/vectors.h"

namespace volvelle {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// A folder that goes away with its test.
class Folder {
 public:
  Folder()
      : path_(fs::temp_directory_path() /
              std::format("volvelle_tokenizer_{}", std::random_device{}())) {
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  std::string write(const std::string& name, const std::string& text) const {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << text;
    return (path_ / name).string();
  }
  std::string path(const std::string& name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

json pipeline_json(const std::string& name) {
  std::ifstream file(kDataFolder + name + "/tokenizer.json");
  return json::parse(file);
}

Tokenizer open(const std::string& pipeline) {
  auto spec = read_tokenizer_json(kDataFolder + pipeline + "/tokenizer.json");
  REQUIRE_MESSAGE(spec.has_value(), spec.error().message);
  auto tokenizer = Tokenizer::make(*std::move(spec));
  REQUIRE_MESSAGE(tokenizer.has_value(), tokenizer.error().message);
  return *std::move(tokenizer);
}

using Ids = std::vector<int32_t>;

}  // namespace

TEST_CASE("merging with a heap equals looking at every neighbour") {
  // The simple form is the twin of the fast one.
  for (const char* pipeline : {"gpt2", "llama2-legacy"}) {
    const Tokenizer tokenizer = open(pipeline);
    const auto pieces = PieceTable::make(tokenizer.spec());
    REQUIRE(pieces.has_value());
    const auto bpe = Bpe::make(tokenizer.spec(), *pieces);
    REQUIRE(bpe.has_value());
    std::mt19937 random(7);  // the seed
    for (int round = 0; round < 2000; ++round) {
      // Words over few pieces, so that much merges and ties are common.
      Ids word(random() % 120);
      const uint32_t alphabet = 1 + random() % 30;
      for (int32_t& id : word) {
        const Merge& merge = tokenizer.spec().merges[random() % alphabet];
        id = static_cast<int32_t>(random() % 2 == 0 ? merge.left : merge.right);
      }
      Ids by_heap = word;
      bpe->merge_short(word, 0);
      bpe->merge_long(by_heap, 0);
      REQUIRE(by_heap == word);
    }
  }
}

TEST_CASE("a word of a megabyte is encoded in seconds and decodes to itself") {
  const Tokenizer tokenizer = open("llama3-ignore-merges");
  std::mt19937 random(11);  // the seed
  std::string word;
  for (int i = 0; i < 1'000'000; ++i) word += static_cast<char>('a' + random() % 26);
  for (const std::string& text : {word, std::string(1'000'000, ' '), std::string(1'000'000, 'a')}) {
    const auto ids = tokenizer.encode(text, {.add_special = false});
    REQUIRE(ids.has_value());
    CHECK(tokenizer.decode(*ids) == text);
  }
}

TEST_CASE("added tokens can be taken for text like any other") {
  const Tokenizer tokenizer = open("gpt2");
  const std::string text = "a<|endoftext|>b";
  const Ids recognised = *tokenizer.encode(text),
            plain = *tokenizer.encode(text, {.recognise_added = false});
  CHECK(std::ranges::count(recognised, 0) == 1);
  CHECK(std::ranges::count(plain, 0) == 0);
  CHECK(tokenizer.decode(plain) == text);
  CHECK(tokenizer.decode(recognised) == text);
  CHECK(tokenizer.decode(recognised, true) == "ab");
  CHECK(tokenizer.is_special(0));
  CHECK(!tokenizer.is_special(1));
  CHECK(tokenizer.piece(0) == "<|endoftext|>");
  CHECK(tokenizer.find("<|endoftext|>") == 0);
  CHECK(!tokenizer.find("no such piece").has_value());
  CHECK(tokenizer.piece(-1).empty());
  CHECK(tokenizer.piece(1 << 30).empty());
}

TEST_CASE("every maximal broken part of a text counts as one U+FFFD") {
  // Unicode 16, table 3-8 to 3-11.
  const std::pair<std::string, std::string> cases[] = {
      {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA"},
      {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA"},
      {"\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42",
       "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA\uFFFD\uFFFD"
       "B"},
      {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", "\uFFFD\uFFFD\uFFFD\uFFFDA"},
  };
  for (const auto& [broken, repaired] : cases) {
    std::string out;
    append_as_utf8(broken, out);
    CHECK(out == repaired);
    CHECK(!is_utf8(broken));
    CHECK(is_utf8(out));
  }
}

TEST_CASE(
    "an incremental decoder never gives out part of a character, and all of them in the end") {
  const std::string text =
      "na\u00EFve \u65E5\u672C\u8A9E \U0001F44B\U0001F3FD\U0001F1F3\U0001F1F4 end";
  for (const char* pipeline :
       {"gpt2", "llama2-legacy", "llama2-metaspace", "bytefallback-holes", "qwen2"}) {
    CAPTURE(pipeline);
    const Tokenizer tokenizer = open(pipeline);
    std::mt19937 random(3);  // the seed
    for (int round = 0; round < 200; ++round) {
      // First a real text, then ids at random: characters then begin and end anywhere.
      Ids ids = *tokenizer.encode(text, {.add_special = false});
      if (round > 0) {
        for (int32_t& id : ids) id = static_cast<int32_t>(random() % tokenizer.vocabulary());
      }
      IncrementalDecoder stream(tokenizer);
      std::string joined;
      for (const int32_t id : ids) {
        const std::string piece = stream.push(id);
        CHECK(is_utf8(piece));
        joined += piece;
      }
      joined += stream.finish();
      if (round == 0 || tokenizer.spec().byte_fallback == false)
        CHECK(joined == tokenizer.decode(ids));
      CHECK(stream.push(ids[0]) ==
            IncrementalDecoder(tokenizer).push(ids[0]));  // as new after finish()
    }
  }
}

TEST_CASE(
    "an incremental decoder holds bytes back until they are a character, and gives up at the end") {
  const Tokenizer tokenizer = open("llama2-legacy");
  const auto byte = [&](const char* piece) { return *tokenizer.find(piece); };
  IncrementalDecoder stream(tokenizer);
  CHECK(stream.push(byte("<0xE6>")).empty());
  CHECK(stream.push(byte("<0x97>")).empty());
  CHECK(stream.push(byte("<0xA5>")) == "\u65E5");
  CHECK(stream.push(byte("<0xE6>")).empty());
  CHECK(stream.finish() == "\uFFFD");
  CHECK(stream.finish().empty());
  CHECK(stream.push(*tokenizer.find("\u2581a")) == "a");  // the first blank is the prefix
  CHECK(stream.push(*tokenizer.find("\u2581a")) == " a");
}

TEST_CASE("components that are not supported are refused by name") {
  const Folder folder;
  const auto refused = [&](const json& changed, const std::string& word) {
    const auto spec = read_tokenizer_json(folder.write("tokenizer.json", changed.dump()));
    REQUIRE(!spec.has_value());
    CHECK_MESSAGE(spec.error().message.contains(word), spec.error().message);
    CHECK_MESSAGE(spec.error().message.contains("tokenizer.json"), spec.error().message);
  };
  const json good = pipeline_json("gpt2");
  const std::pair<const char*, const char*> components[] = {{"normalizer", "Imagined"},
                                                            {"pre_tokenizer", "UnicodeScripts"},
                                                            {"decoder", "CTC"},
                                                            {"post_processor", "Imagined"}};
  for (const auto& [section, type] : components) {
    json changed = good;
    changed[section] = {{"type", type}};
    refused(changed, type);
    const char* members = section == std::string("normalizer")      ? "normalizers"
                          : section == std::string("pre_tokenizer") ? "pretokenizers"
                          : section == std::string("decoder")       ? "decoders"
                                                                    : "processors";
    changed[section] = {{"type", "Sequence"}, {members, json::array({{{"type", type}}})}};
    refused(changed, type);
  }
  for (const char* type : {"WordLevel", "Imagined"}) {
    json changed = good;
    changed["model"]["type"] = type;
    refused(changed, type);
  }
  const auto model = [&](const char* key, json value, const std::string& word) {
    json changed = good;
    changed["model"][key] = std::move(value);
    refused(changed, word);
  };
  model("dropout", 0.1, "dropout");
  model("continuing_subword_prefix", "##", "continuing_subword_prefix");
  model("end_of_word_suffix", "</w>", "end_of_word_suffix");
  model("unk_token", "<nowhere>", "unk_token");
  model("merges", json::array({"a b c"}), "merges");
  model("merges", json::array({json::array({"a", "\u00FFq"})}), "merges");
  model("merges", "none", "merges");
  model("vocab", json::array(), "vocab");
  model("vocab", {{"a", -1}}, "id");
  model("vocab", {{"a", 1e15}}, "id");
  model("vocab", {{"a", 1}, {"b", 1}}, "both");
}

TEST_CASE("a tokenizer.json that is not what it should be gives a sentence") {
  const Folder folder;
  for (const std::string& text :
       {std::string(), std::string("[]"), std::string("{}"), std::string("{\"model\": 3}"),
        std::string("{\"model\": {\"type\": \"BPE\"}}"), std::string("{\"model\""),
        std::string("\xFF\xFE"), std::string(100'000, '[')}) {
    const auto spec = read_tokenizer_json(folder.write("tokenizer.json", text));
    REQUIRE(!spec.has_value());
    CHECK(spec.error().message.contains("tokenizer.json"));
  }
  CHECK(!read_tokenizer_json(folder.path("absent.json")).has_value());
}

TEST_CASE("changed values anywhere in a tokenizer.json never throw") {
  const Folder folder;
  std::mt19937 random(5);  // the seed
  const json values[] = {
      nullptr, true, -1, 1e300, "", "x", json::array(), json::object(), json::array({1, "a"})};
  for (const char* pipeline :
       {"added-flags", "llama2-metaspace", "roberta", "llama3-ignore-merges"}) {
    json whole = pipeline_json(pipeline);
    whole["model"]["vocab"] = {{"a", 0}, {"b", 1}, {"ab", 2}, {"<unk>", 3}};
    whole["model"]["merges"] = json::array({json::array({"a", "b"})});
    const json flat = whole.flatten();
    for (int round = 0; round < 150; ++round) {
      json changed = whole;
      auto member = flat.begin();
      std::advance(member, random() % flat.size());
      json::json_pointer pointer(member.key());
      for (uint32_t up = random() % 3; up > 0 && !pointer.empty(); --up) pointer.pop_back();
      changed[pointer] = values[random() % std::size(values)];
      const auto spec = read_tokenizer_json(folder.write("tokenizer.json", changed.dump()));
      if (!spec.has_value()) {
        CHECK(!spec.error().message.empty());
        continue;
      }
      const auto tokenizer = Tokenizer::make(*spec);
      if (tokenizer.has_value())
        CHECK(is_utf8(tokenizer->decode(*tokenizer->encode("abba <s> \u65E5"))));
    }
  }
}

TEST_CASE("bos, eos and chat templates come from the files beside tokenizer.json") {
  const Folder folder;
  const std::string path = folder.write("tokenizer.json", pipeline_json("llama2-legacy").dump());
  const auto read = [&](const json& config) {
    auto spec = read_tokenizer_json(path, folder.write("tokenizer_config.json", config.dump()));
    REQUIRE_MESSAGE(spec.has_value(), spec.error().message);
    return *std::move(spec);
  };
  TokenizerSpec spec = read(
      {{"bos_token", "<s>"}, {"eos_token", {{"content", "</s>"}}}, {"chat_template", "{{ a }}"}});
  CHECK(spec.bos == 1);
  CHECK(spec.eos == Ids{2});
  REQUIRE(spec.chat_templates.size() == 1);
  CHECK(spec.chat_templates[0].name == "default");
  CHECK(spec.chat_templates[0].text == "{{ a }}");

  spec = read({{"bos_token", nullptr},
               {"eos_token", "<nowhere>"},
               {"chat_template", json::array({{{"name", "tool_use"}, {"template", "t"}},
                                              {{"name", "default"}, {"template", "d"}}})}});
  CHECK(spec.bos == -1);
  CHECK(spec.eos.empty());
  REQUIRE(spec.chat_templates.size() == 2);
  CHECK(spec.chat_templates[0].text == "d");
  CHECK(spec.chat_templates[1].text == "t");

  folder.write("chat_template.jinja", "j");
  folder.write("additional_chat_templates/rag.jinja", "r");
  spec = read({{"chat_template", "{{ a }}"}});
  REQUIRE(spec.chat_templates.size() == 2);
  CHECK(spec.chat_templates[0].text == "j");
  CHECK(spec.chat_templates[1].name == "rag");

  const StoredTokenizer stored = store(spec);
  const auto loaded = load(stored);
  REQUIRE(loaded.has_value());
  CHECK(loaded->spec().chat_templates[0].text == "j");

  CHECK(read_tokenizer_json(path, folder.path("absent.json")).has_value());
}

TEST_CASE(
    "GGUF vocabularies of unknown kinds are refused by name, and broken ones with a sentence") {
  GgufVocabulary good{
      .model = "gpt2", .pre = "gpt-2", .tokens = {"a", "b", "ab"}, .merges = {"a b"}};
  REQUIRE(make_spec(good).has_value());
  const auto refused = [&](auto edit, std::string_view word) {
    GgufVocabulary changed = good;
    edit(changed);
    const auto spec = make_spec(changed);
    REQUIRE(!spec.has_value());
    CHECK_MESSAGE(spec.error().message.contains(word), spec.error().message);
  };
  refused([](auto& v) { v.pre = "imagined"; }, "imagined");
  for (const char* model : {"rwkv", "imagined"}) {
    refused([&](auto& v) { v.model = model; }, model);
  }
  refused([](auto& v) { v.tokens.clear(); }, "tokens");
  refused([](auto& v) { v.tokens[1] = "\xFF"; }, "UTF-8");
  refused([](auto& v) { v.merges[0] = "ab"; }, "merges");
  refused([](auto& v) { v.merges[0] = "a c"; }, "merges");
  refused([](auto& v) { v.model = "llama"; }, "scores");
  refused([](auto& v) { v.model = "t5"; }, "scores");
  refused([](auto& v) { v.model = "t5", v.scores = {0, 0, std::nanf("")}; }, "scores");
  refused([](auto& v) { v.model = "bert"; }, "[UNK]");
  refused([](auto& v) { v.model = "llama", v.scores = {0, 0, std::nanf("")}; }, "scores");
}

TEST_CASE(
    "pieces with scores merge by score, and neither control nor byte pieces are made by merging") {
  // sentencepiece's rule: of all neighbours whose join is a piece, the one of the best score.
  const GgufVocabulary vocabulary{.model = "llama",
                                  .tokens = {"<unk>", "<s>", "\u2581", "a", "b", "c", "ab", "bc",
                                             "abc", "\u2581a", "<0x64>", "ca"},
                                  .scores = {0, 0, -10, -11, -12, -13, -3, -2, -4, -5, 0, -1},
                                  .types = {2, 3, 1, 1, 1, 1, 1, 1, 1, 1, 6, 3},
                                  .bos = 1,
                                  .unknown = 0};
  auto spec = make_spec(vocabulary);
  REQUIRE_MESSAGE(spec.has_value(), spec.error().message);
  const auto tokenizer = Tokenizer::make(*std::move(spec));
  REQUIRE(tokenizer.has_value());
  CHECK(*tokenizer->encode("abc") == Ids{1, 2, 8});  // "bc", then "abc" before "▁a"
  CHECK(*tokenizer->encode("ab") == Ids{1, 2, 6});   // "ab" before "▁a"
  CHECK(*tokenizer->encode("a") == Ids{1, 9});
  CHECK(*tokenizer->encode("d\u00E9") == Ids{1, 2, 10, 0});  // a byte piece, and none for é
  CHECK(*tokenizer->encode("cc") == Ids{1, 2, 5, 5});
  CHECK(*tokenizer->encode("cb", {.add_special = false}) == Ids{2, 5, 4});
}

}  // namespace volvelle
