#include "runtime/commands/sentences.h"

#include <algorithm>

#include "runtime/commands/compute.h"
#include "runtime/commands/runtime_commands.h"

namespace volvelle {
namespace {

// Tokens that a sentence may have, and whose they are.
struct Limit {
  size_t tokens;
  const char* reason;
};

Limit limit_of(const Model& model, const TextShape& shape) {
  const size_t positions = encoder_limit(model);
  if (shape.max_tokens > 0 && shape.max_tokens < positions) {
    return {shape.max_tokens, "that the checkpoint allows a text"};
  }
  return {positions, "that the model's positions hold"};
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    if (line.ends_with('\r')) line.pop_back();
    lines.push_back(std::move(line));
    begin = end + 1;
  }
  return lines;
}

// Of models that have none, types do not count, whatever the tokenizer says.
Sentence sentence_of(const Model& model, Encoding encoding) {
  if (model.encoder()->token_types == nullptr) return {std::move(encoding.ids), {}};
  return {std::move(encoding.ids), {encoding.types.begin(), encoding.types.end()}};
}

// A long text as several, each with the special tokens of its own and after the prompt.
Result<void> split(const Tokenizer& tokenizer, const TextShape& shape, const std::string& text,
                   size_t index, size_t limit, Sentences& sentences) {
  VOLVELLE_ASSIGN_OR_RETURN(const Encoding empty, tokenizer.encode_text(""));
  VOLVELLE_ASSIGN_OR_RETURN(const std::vector<int32_t> before,
                            tokenizer.encode(shape.prompt, {.add_special = false}));
  const size_t around = empty.ids.size() + before.size();
  if (around >= limit) return fail("{} positions hold no text", limit);
  VOLVELLE_ASSIGN_OR_RETURN(const std::vector<int32_t> plain,
                            tokenizer.encode(text, {.add_special = false}));
  std::vector<int32_t> prefix = tokenizer.spec().prefix, suffix = tokenizer.spec().suffix;
  if (!shape.language.empty()) {
    VOLVELLE_ASSIGN_OR_RETURN(const int32_t language, tokenizer.language(shape.language));
    const auto other = [&](int32_t id) {
      return std::ranges::contains(tokenizer.spec().languages, id);
    };
    std::ranges::replace_if(prefix, other, language);
    std::ranges::replace_if(suffix, other, language);
  }
  const size_t room = limit - around;
  for (size_t first = 0; first < plain.size(); first += room) {
    Sentence part;
    part.tokens.assign(prefix.begin(), prefix.end());
    part.tokens.insert(part.tokens.end(), before.begin(), before.end());
    const size_t count = std::min(room, plain.size() - first);
    part.tokens.insert(part.tokens.end(), plain.begin() + first, plain.begin() + first + count);
    part.tokens.insert(part.tokens.end(), suffix.begin(), suffix.end());
    sentences.all.push_back(std::move(part));
    sentences.text_of.push_back(index);
  }
  return {};
}

std::unexpected<Error> refuse_length(size_t index, size_t count, Limit limit,
                                     std::string_view ways) {
  return fail("text {} has {} tokens, more than the {} {}; --overflow {} does with that", index + 1,
              count, limit.tokens, limit.reason, ways);
}

Result<void> add_text(const Model& model, const Tokenizer& tokenizer,
                      const SentenceOptions& options, const TextShape& shape, Limit limit,
                      const std::string& text, Sentences& sentences, size_t& cut) {
  const size_t index = sentences.texts.size();
  const std::string whole = shape.prompt + text;
  EncodeOptions how{.language = shape.language};
  if (options.overflow == "truncate") how.limit = limit.tokens;
  VOLVELLE_ASSIGN_OR_RETURN(Encoding encoding,
                            options.pair.empty() ? tokenizer.encode_text(whole, how)
                                                 : tokenizer.encode_pair(whole, options.pair, how));
  if (encoding.cut > 0) ++cut;
  const size_t count = encoding.ids.size();
  if (count == 0) return fail("text {} has no tokens", index + 1);
  if (count > limit.tokens && options.overflow == "error") {
    return refuse_length(index, count, limit, options.many ? "truncate or split" : "truncate");
  }
  sentences.texts.push_back(text);
  if (count > limit.tokens) {
    return split(tokenizer, shape, text, index, limit.tokens, sentences);
  }
  sentences.all.push_back(sentence_of(model, std::move(encoding)));
  sentences.text_of.push_back(index);
  return {};
}

}  // namespace

size_t encoder_limit(const Model& model) {
  const Stack& stack = *model.encoder();
  return std::min(stack.context, stack.position_limit);
}

Task embedding_task(const Model& model) {
  const Task* stated = model.encoder()->task(TaskKind::kEmbed);
  return stated != nullptr ? *stated : Task{.pooling = Pooling::kMean};
}

size_t Sentences::longest() const {
  size_t most = 1;
  for (const Sentence& sentence : all) most = std::max(most, sentence.tokens.size());
  return most;
}

void add_sentence_options(CLI::App& command, SentenceOptions& options, bool many) {
  options.many = many;
  std::vector<const CLI::Option*> sources = {add_text_option(command, options.text),
                                             add_tokens_option(command, options.tokens)};
  if (many) {
    sources.push_back(command
                          .add_option("--lines", options.lines,
                                      "A file of texts, one a line; - is standard input")
                          ->type_name("FILE"));
  } else {
    command.add_option("--pair", options.pair, "A second text, for models of two")
        ->type_name("TEXT");
  }
  require_one_of(command, sources);
  std::vector<std::string> ways = {"truncate", "error"};
  if (many) ways.push_back("split");
  command
      .add_option("--overflow", options.overflow,
                  many ? "Texts longer than the model takes: truncate (default), error or split"
                       : "Texts longer than the model takes: truncate (default) or error")
      ->check(CLI::IsMember(ways).description(""))
      ->type_name("HOW");
}

Result<const Tokenizer*> tokenizer_of(const Model& model) {
  if (model.tokenizer() != nullptr) return model.tokenizer();
  return fail(
      "{}: the file has no tokenizer for a text; give --tokens, or convert again from a "
      "source that has one",
      model.path());
}

Result<Sentences> read_sentences(const Model& model, const SentenceOptions& options,
                                 const TextShape& shape) {
  Sentences sentences;
  const Limit limit = limit_of(model, shape);
  if (!options.text.has_value() && options.lines.empty()) {
    if (!options.pair.empty()) return fail("--pair: needs a text before it, not --tokens");
    VOLVELLE_ASSIGN_OR_RETURN(std::vector<int32_t> tokens, parse_tokens(options.tokens));
    if (tokens.size() > limit.tokens) {
      if (options.overflow == "split") {
        return fail("{} tokens are more than the {} {}, and only texts can be split", tokens.size(),
                    limit.tokens, limit.reason);
      }
      if (options.overflow == "error") return refuse_length(0, tokens.size(), limit, "truncate");
      print_notice("{} tokens are cut to the {} {}", tokens.size(), limit.tokens, limit.reason);
      tokens.resize(limit.tokens);
    }
    sentences.all.push_back({std::move(tokens), {}});
    sentences.text_of.push_back(0);
    sentences.texts.emplace_back();
    return sentences;
  }
  VOLVELLE_ASSIGN_OR_RETURN(const Tokenizer* tokenizer, tokenizer_of(model));
  std::vector<std::string> texts;
  if (options.text.has_value()) {
    texts.push_back(*options.text);
  } else {
    VOLVELLE_ASSIGN_OR_RETURN(const std::string whole, read_text(options.lines));
    texts = lines_of(whole);
    if (texts.empty()) return fail("{}: has no lines", options.lines);
  }
  if (!shape.prompt.empty()) {
    VOLVELLE_ASSIGN_OR_RETURN(const Encoding bare, tokenizer->encode_text(shape.prompt));
    if (bare.ids.size() >= limit.tokens) {
      return fail("the prompt has {} tokens, which leaves a text no room in the {} {}",
                  bare.ids.size(), limit.tokens, limit.reason);
    }
  }
  size_t cut = 0;
  for (const std::string& text : texts) {
    if (shape.keeps_blank && text.find_first_not_of(" \t") == std::string::npos) {
      sentences.texts.push_back(text);
      continue;
    }
    VOLVELLE_RETURN_IF_ERROR(
        add_text(model, *tokenizer, options, shape, limit, text, sentences, cut));
  }
  if (cut > 0) {
    print_notice("{} of {} texts {} cut to the {} tokens {}", cut, texts.size(),
                 cut == 1 ? "is" : "are", limit.tokens, limit.reason);
  }
  return sentences;
}

Result<std::shared_ptr<const Model>> open_encoder(const std::string& path,
                                                  const ComputeOptions& options) {
  VOLVELLE_ASSIGN_OR_RETURN(std::shared_ptr<const Model> model, open_model(path, options));
  if (model->encoder() != nullptr) return model;
  return fail("{}: has no encoder; `volvelle run` continues a text with it", path);
}

}  // namespace volvelle
