// volvelle translate

#include <algorithm>
#include <utility>

#include "platforms/interrupt.h"
#include "runtime/commands/compute.h"
#include "runtime/commands/runtime_commands.h"
#include "runtime/commands/sentences.h"
#include "runtime/translator.h"

namespace volvelle {
namespace {

struct TranslateOptions {
  std::string model, from, to;
  SentenceOptions input;
  std::optional<size_t> beams, new_tokens;
  std::optional<float> length_penalty;
  bool ids = false, json = false;
  ComputeOptions compute;
};

// What a translation may come to where nothing states a length.
constexpr size_t kNewTokens = 256;

Result<Generation> settings_of(const Model& model, const TranslateOptions& options) {
  Generation settings = model.generation();
  if (options.beams) settings.beams = *options.beams;
  if (options.length_penalty) settings.length_penalty = *options.length_penalty;
  if (options.new_tokens) {
    settings.max_length = *options.new_tokens + 1;
  } else if (settings.max_length == 0) {
    settings.max_length = kNewTokens + 1;
  }
  if (settings.eos.empty() && model.tokenizer() != nullptr) {
    settings.eos = model.tokenizer()->spec().eos;
  }
  if (!options.to.empty()) {
    VOLVELLE_ASSIGN_OR_RETURN(const Tokenizer* tokenizer, tokenizer_of(model));
    VOLVELLE_ASSIGN_OR_RETURN(settings.forced_bos, tokenizer->target().language(options.to));
  }
  return settings;
}

// What a text's parts came to, one after the other.
struct Translation {
  std::string text;
  std::vector<int32_t> ids;
  double score = 0;
};

// As it is printed. One of many lines stays a line.
std::string line_of(const Translation& translation, const TranslateOptions& options,
                    const Generation& settings, const Tokenizer* tokenizer) {
  if (options.json) {
    nlohmann::ordered_json json = {{"ids", translation.ids}};
    if (settings.beams > 1) json["score"] = translation.score;
    if (tokenizer != nullptr) json["text"] = translation.text;
    return to_text(json);
  }
  std::string line;
  if (tokenizer == nullptr || options.ids) {
    for (const int32_t id : translation.ids) line += (line.empty() ? "" : " ") + std::to_string(id);
    return line;
  }
  line = translation.text;
  if (!options.input.lines.empty()) {
    std::ranges::replace_if(line, [](char c) { return c == '\n' || c == '\r'; }, ' ');
  }
  return line;
}

Result<> translate(const TranslateOptions& options) {
  VOLVELLE_ASSIGN_OR_RETURN(const std::shared_ptr<const Model> model,
                            open_encoder(options.model, options.compute));
  if (!model->generates()) {
    return fail("{}: is an encoder without a decoder; `volvelle embed` makes vectors with it",
                options.model);
  }
  const Tokenizer* tokenizer = model->tokenizer();
  const bool text = tokenizer != nullptr && !options.ids && !options.json;
  const bool lines = !options.input.lines.empty();
  if (options.input.text && options.input.text->empty())
    return fail("the text is empty; give some");
  VOLVELLE_ASSIGN_OR_RETURN(
      const Sentences sources,
      read_sentences(*model, options.input, {.language = options.from, .keeps_blank = lines}));
  VOLVELLE_ASSIGN_OR_RETURN(const Generation settings, settings_of(*model, options));
  VOLVELLE_ASSIGN_OR_RETURN(ThreadPool pool, make_pool(options.compute));
  const size_t longest = sources.longest();
  VOLVELLE_ASSIGN_OR_RETURN(
      const std::unique_ptr<Translator> translator,
      Translator::open(
          model, pool,
          {.longest_source = sources.all.size() > 1 ? std::max(kEncoderChunk, longest) : longest,
           .longest_target = settings.max_length,
           .beams = settings.beams}));
  const bool streams = text && settings.beams == 1 && sources.all.size() == 1 && !lines;
  std::optional<IncrementalDecoder> decoder;
  if (streams) decoder.emplace(tokenizer->target(), /*skip_special=*/true);
  const auto each = [&](int32_t token) -> Result<> {
    if (interrupted()) return fail("interrupted");
    if (decoder) {
      print(decoder->push(token));
      std::fflush(stdout);
    }
    return {};
  };

  Translation whole;  // of the text at hand, so far
  size_t at = 0;      // its number
  const auto finish = [&](size_t next) {
    for (; at < next; ++at) {
      if (decoder) {
        print("{}\n", decoder->finish());
      } else {
        print("{}\n", line_of(std::exchange(whole, {}), options, settings, tokenizer));
      }
      std::fflush(stdout);
    }
  };
  VOLVELLE_RETURN_IF_ERROR(translator->translate_all(
      sources.all, settings,
      [&](size_t i, Hypothesis best) -> Result<> {
        if (interrupted()) return fail("interrupted");
        finish(sources.text_of[i]);
        if (tokenizer != nullptr) {
          const std::string part = tokenizer->target().decode(best.tokens, /*skip_special=*/true);
          whole.text += (whole.text.empty() || part.empty() ? "" : " ") + part;
        }
        whole.ids.insert(whole.ids.end(), best.tokens.begin(), best.tokens.end());
        whole.score += best.score;
        return {};
      },
      each));
  finish(sources.texts.size());
  return {};
}

}  // namespace

void add_translate_command(Program& program) {
  const auto options = std::make_shared<TranslateOptions>();
  CLI::App& command = program.add_command(
      {"translate",
       "Translates, summarises or answers a text: what an encoder-decoder was made for",
       "Examples:\n"
       "  volvelle translate opus-mt-en-de.vvl -p \"The house is wonderful.\"\n"
       "  volvelle translate nllb.vvl -p \"Good morning\" --from eng_Latn --to deu_Latn --beams 5\n"
       "  volvelle translate flan-t5.vvl -p \"Summarize: ...\" --beams 1 -n 60\n"
       "  volvelle translate opus-mt-en-de.vvl --lines english.txt > german.txt\n\n"
       "The checkpoint's own beams, length penalty, forced and forbidden tokens count unless "
       "options "
       "say otherwise.\n"
       "With one beam, text comes as it is found. Of --lines, each line's translation is a line, "
       "in "
       "order; a blank line\n"
       "stays one. A text that is split has its parts' translations with blanks between them, and "
       "the sum of their scores."},
      [options] { return translate(*options); });
  TranslateOptions& o = *options;
  add_model_option(command, o.model);
  add_sentence_options(command, o.input, /*many=*/true);
  command
      .add_option("--beams", o.beams, "Hypotheses that are followed (default: as the model says)")
      ->check(between(size_t{1}, size_t{64}))
      ->type_name("N");
  command.add_option("-n,--new-tokens", o.new_tokens, "New tokens at most")
      ->check(between(size_t{1}, size_t{1} << 24))
      ->type_name("N");
  command.add_option("--length-penalty", o.length_penalty, "Above 1: longer, below: shorter")
      ->check(between(-10.0, 10.0))
      ->type_name("X");
  command.add_option("--from", o.from, "The text's language, as the tokenizer calls it")
      ->type_name("LANGUAGE");
  command.add_option("--to", o.to, "The language to translate into")->type_name("LANGUAGE");
  command.add_flag("--ids", o.ids, "Print the new ids on one line");
  command.add_flag("--json", o.json, "Print ids, text and, of several beams, the score as JSON");
  add_thread_options(command, o.compute);
  add_packing_option(command, o.compute);
}

}  // namespace volvelle
