// volvelle tokenize, volvelle detokenize

#include <array>
#include <fstream>
#include <iostream>
#include <optional>

#include "platforms/interrupt.h"
#include "runtime/commands/runtime_commands.h"
#include "runtime/tokenizer/base64.h"
#include "runtime/tokenizer/tokenizer.h"

namespace volvelle {
namespace {

using nlohmann::ordered_json;

// Prints what `convert` makes of each line's JSON object.
Result<> for_each_line(const std::string& path,
                       const std::function<Result<ordered_json>(const ordered_json&)>& convert) {
  std::ifstream file;
  if (path != "-") {
    file.open(path);
    if (!file) return fail("{}: cannot be read; give a file with one JSON object a line", path);
  }
  std::istream& lines = path == "-" ? std::cin : file;
  const std::string name = path == "-" ? "standard input" : path;
  std::string line;
  for (size_t number = 1; std::getline(lines, line); ++number) {
    if (interrupted()) return fail("interrupted");
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    const ordered_json row = ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!row.is_object()) return fail("{}: line {} is no JSON object", name, number);
    const auto converted = convert(row);
    if (!converted.has_value())
      return fail("{}: line {}: {}", name, number, converted.error().message);
    print("{}\n", to_text(*converted));
  }
  if (lines.bad()) return fail("{}: reading it failed", name);
  return {};
}

Result<std::string> text_of(const ordered_json& row) {
  if (const auto text = row.find("text"); text != row.end() && text->is_string())
    return text->get<std::string>();
  if (const auto base64 = row.find("base64"); base64 != row.end() && base64->is_string()) {
    auto bytes = decode_base64(base64->get_ref<const std::string&>());
    if (!bytes.has_value()) return fail("\"base64\" is not base64");
    return *std::move(bytes);
  }
  return fail("it has neither \"text\" nor \"base64\", a string");
}

Result<std::vector<int32_t>> ids_of(const ordered_json& row) {
  const auto ids = row.find("ids");
  if (ids == row.end() || !ids->is_array()) return fail("it has no \"ids\", a list of numbers");
  std::vector<int32_t> tokens;
  tokens.reserve(ids->size());
  for (const ordered_json& id : *ids) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > INT32_MAX) {
      return fail("\"ids\" holds {}, which is no token id", printable(to_text(id).substr(0, 40)));
    }
    tokens.push_back(id.get<int32_t>());
  }
  return tokens;
}

struct TokenizeOptions {
  std::string source, file, lines, language;
  std::optional<std::string> text, pair;
  size_t limit = SIZE_MAX;
  bool no_special = false, plain = false, target = false, json = false;
};

Result<Encoding> encode(const Tokenizer& tokenizer, const std::string& text,
                        const std::optional<std::string>& pair, const TokenizeOptions& options) {
  const EncodeOptions encode{.add_special = !options.no_special,
                             .recognise_added = !options.plain,
                             .limit = options.limit,
                             .language = options.language};
  return pair.has_value() ? tokenizer.encode_pair(text, *pair, encode)
                          : tokenizer.encode_text(text, encode);
}

ordered_json described(const Encoding& encoding, bool is_pair) {
  ordered_json row{{"ids", encoding.ids}};
  if (is_pair) row["types"] = encoding.types;
  if (encoding.cut > 0) row["cut"] = encoding.cut;
  return row;
}

const Tokenizer& side(const Tokenizer& tokenizer, bool target) {
  return target ? tokenizer.target() : tokenizer;
}

Result<> tokenize(const Program& program, const TokenizeOptions& options) {
  VOLVELLE_ASSIGN_OR_RETURN(const auto opened, program.open_tokenizer(options.source));
  const Tokenizer& tokenizer = side(*opened, options.target);
  if (!options.lines.empty()) {
    return for_each_line(options.lines, [&](const ordered_json& row) -> Result<ordered_json> {
      VOLVELLE_ASSIGN_OR_RETURN(const std::string text, text_of(row));
      std::optional<std::string> pair = options.pair;
      if (const auto second = row.find("pair"); second != row.end()) {
        if (!second->is_string()) return fail("\"pair\" is no string");
        pair = second->get<std::string>();
      }
      VOLVELLE_ASSIGN_OR_RETURN(const Encoding encoding, encode(tokenizer, text, pair, options));
      return described(encoding, pair.has_value());
    });
  }
  std::string text = options.text.value_or("");
  if (!options.file.empty()) {
    VOLVELLE_ASSIGN_OR_RETURN(text, read_text(options.file));
  }
  VOLVELLE_ASSIGN_OR_RETURN(const Encoding encoding,
                            encode(tokenizer, text, options.pair, options));
  if (encoding.cut > 0) {
    print_notice("{} tokens are cut off to keep to the limit of {}", encoding.cut, options.limit);
  }
  if (options.json) {
    print("{}\n", to_text(described(encoding, options.pair.has_value())));
    return {};
  }
  for (size_t i = 0; i < encoding.ids.size(); ++i) {
    print("{}{}", i == 0 ? "" : ",", encoding.ids[i]);
  }
  print("\n");
  return {};
}

struct DetokenizeOptions {
  std::string source, ids, lines;
  bool skip_special = false, stream = false, target = false, json = false;
};

ordered_json detokenized(const Tokenizer& tokenizer, std::span<const int32_t> ids,
                         const DetokenizeOptions& options) {
  if (!options.stream) return {{"text", tokenizer.decode(ids, options.skip_special)}};
  IncrementalDecoder decoder(tokenizer, options.skip_special);
  ordered_json pieces = ordered_json::array();
  for (const int32_t id : ids) pieces.push_back(decoder.push(id));
  if (std::string rest = decoder.finish(); !rest.empty()) pieces.push_back(std::move(rest));
  return {{"pieces", std::move(pieces)}};
}

Result<> detokenize(const Program& program, const DetokenizeOptions& options) {
  VOLVELLE_ASSIGN_OR_RETURN(const auto opened, program.open_tokenizer(options.source));
  const Tokenizer& tokenizer = side(*opened, options.target);
  if (!options.lines.empty()) {
    return for_each_line(options.lines, [&](const ordered_json& row) -> Result<ordered_json> {
      VOLVELLE_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, ids_of(row));
      return detokenized(tokenizer, ids, options);
    });
  }
  VOLVELLE_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, parse_tokens(options.ids));
  if (options.stream || options.json) {
    print("{}\n", to_text(detokenized(tokenizer, ids, options)));
  } else {
    print("{}\n", tokenizer.decode(ids, options.skip_special));
  }
  return {};
}

// The positional SOURCE that both commands begin with.
void add_source_option(CLI::App& command, const Program& program, std::string& source) {
  command.add_option("source", source, "Where the tokenizer is: " + program.tokenizer_sources())
      ->required()
      ->type_name("SOURCE");
}

}  // namespace

void add_tokenize_command(Program& program) {
  const auto options = std::make_shared<TokenizeOptions>();
  CLI::App& command =
      program.add_command({"tokenize", "Turns text into token ids",
                           "Examples:\n"
                           "  volvelle tokenize model.vvl -p \"Hello there\"\n"
                           "  volvelle tokenize model.vvl --file book.txt --no-special --json\n"
                           "  volvelle tokenize model.vvl --jsonl texts.jsonl\n"
                           "  volvelle tokenize bert.vvl -p \"Is it?\" --pair \"It is.\" --json\n\n"
                           "--jsonl reads one {\"text\":…} or {\"base64\":…} a line, with a "
                           "\"pair\":… where a second text goes with it, and writes one "
                           "{\"ids\":[…]} a line; pairs have \"types\":[…] too, and what the limit "
                           "cuts has \"cut\":N."},
                          [&program, options] { return tokenize(program, *options); });
  add_source_option(command, program, options->source);
  require_one_of(
      command,
      {add_text_option(command, options->text),
       command.add_option("--file", options->file, "A file with the text; - is standard input")
           ->type_name("F"),
       command
           .add_option("--jsonl", options->lines, "A file with a text a line; - is standard input")
           ->type_name("F")});
  command.add_flag("--no-special", options->no_special,
                   "Leave out the ids that stand around every text");
  command.add_flag("--plain", options->plain,
                   "Added tokens written in the text are text like any other");
  command.add_option("--pair", options->pair, "A second text, joined as the model wants pairs")
      ->type_name("TEXT");
  command.add_option("--limit", options->limit, "Cut what is longer, special tokens included")
      ->type_name("N");
  command
      .add_option("--language", options->language,
                  "The text's language, as the tokenizer names it: deu_Latn, de_DE, __de__")
      ->type_name("NAME");
  command.add_flag("--target", options->target, "The tokenizer of what the model writes");
  command.add_flag("--json", options->json, "Write {\"ids\":[…]}");
}

void add_detokenize_command(Program& program) {
  const auto options = std::make_shared<DetokenizeOptions>();
  CLI::App& command = program.add_command(
      {"detokenize", "Turns token ids into text",
       "Examples:\n"
       "  volvelle detokenize model.vvl --ids 19556,665\n"
       "  volvelle detokenize model.vvl --ids 19556,665 --stream\n"
       "  volvelle detokenize model.vvl --jsonl ids.jsonl --skip-special\n\n"
       "--jsonl reads one {\"ids\":[…]} a line and writes one {\"text\":…} a line.\n"
       "--stream writes {\"pieces\":[…]}: what each id adds to the text, \"\" while inside a "
       "character."},
      [&program, options] { return detokenize(program, *options); });
  add_source_option(command, program, options->source);
  require_one_of(
      command,
      {command.add_option("--ids", options->ids, "Token ids; @FILE reads them from a file")
           ->type_name("1,2,3|@FILE"),
       command.add_option("--jsonl", options->lines, "A file with ids a line; - is standard input")
           ->type_name("F")});
  command.add_flag("--skip-special", options->skip_special, "Special tokens have no text");
  command.add_flag("--target", options->target, "The tokenizer of what the model writes");
  command.add_flag("--stream", options->stream, "Write {\"pieces\":[…]}, a piece for each id");
  command.add_flag("--json", options->json, "Write {\"text\":…}");
}

}  // namespace volvelle
