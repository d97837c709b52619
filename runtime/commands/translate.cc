// volvelle translate

#include <algorithm>

#include "platforms/interrupt.h"
#include "runtime/commands/compute.h"
#include "runtime/commands/runtime_commands.h"
#include "runtime/commands/sentences.h"
#include "runtime/translator.h"

namespace volvelle {
namespace {

struct TranslateOptions {
  std::string model, tokens, from, to;
  std::optional<std::string> text;
  std::optional<size_t> beams, new_tokens;
  std::optional<float> length_penalty;
  bool ids = false, json = false;
  ComputeOptions compute;
};

// What a translation may come to where nothing states a length.
constexpr size_t kNewTokens = 256;

Result<std::vector<int32_t>> source_of(const Model& model, const TranslateOptions& options) {
  if (!options.text.has_value()) return parse_tokens(options.tokens);
  VOLVELLE_ASSIGN_OR_RETURN(const Tokenizer* tokenizer, tokenizer_of(model));
  const Stack& stack = *model.encoder();
  EncodeOptions how{.limit = std::min(stack.context, stack.position_limit),
                    .language = options.from};
  VOLVELLE_ASSIGN_OR_RETURN(Encoding encoding, tokenizer->encode_text(*options.text, how));
  if (encoding.cut > 0) {
    print_notice("the text is cut by {} tokens to the {} that the model's positions hold",
                 encoding.cut, how.limit);
  }
  if (encoding.ids.empty()) return fail("the text is empty; give some");
  return std::move(encoding.ids);
}

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

Result<> translate(const TranslateOptions& options) {
  VOLVELLE_ASSIGN_OR_RETURN(const std::shared_ptr<const Model> model,
                            open_encoder(options.model, options.compute));
  if (!model->generates()) {
    return fail("{}: is an encoder without a decoder; `volvelle embed` makes vectors with it",
                options.model);
  }
  const Tokenizer* tokenizer = model->tokenizer();
  const bool text = tokenizer != nullptr && !options.ids && !options.json;
  VOLVELLE_ASSIGN_OR_RETURN(const std::vector<int32_t> source, source_of(*model, options));
  VOLVELLE_ASSIGN_OR_RETURN(const Generation settings, settings_of(*model, options));
  VOLVELLE_ASSIGN_OR_RETURN(ThreadPool pool, make_pool(options.compute));
  VOLVELLE_ASSIGN_OR_RETURN(const std::unique_ptr<Translator> translator,
                            Translator::open(model, pool,
                                             {.longest_source = source.size(),
                                              .longest_target = settings.max_length,
                                              .beams = settings.beams}));
  std::optional<IncrementalDecoder> decoder;
  if (text) decoder.emplace(tokenizer->target(), /*skip_special=*/true);
  const auto each = [&](int32_t token) -> Result<> {
    if (interrupted()) return fail("interrupted");
    if (decoder) {
      print(decoder->push(token));
      std::fflush(stdout);
    }
    return {};
  };
  VOLVELLE_ASSIGN_OR_RETURN(const Hypothesis best, translator->translate(source, settings, each));
  if (options.json) {
    nlohmann::ordered_json json = {{"ids", best.tokens}};
    if (settings.beams > 1) json["score"] = best.score;
    if (tokenizer != nullptr) json["text"] = tokenizer->target().decode(best.tokens, true);
    print("{}\n", to_text(json));
  } else if (!text) {
    std::string line;
    for (const int32_t id : best.tokens) line += (line.empty() ? "" : " ") + std::to_string(id);
    print("{}\n", line);
  } else if (settings.beams > 1) {
    print("{}\n", tokenizer->target().decode(best.tokens, /*skip_special=*/true));
  } else {
    print("{}\n", decoder->finish());
  }
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
       "  volvelle translate flan-t5.vvl -p \"Summarize: ...\" --beams 1 -n 60\n\n"
       "The checkpoint's own beams, length penalty, forced and forbidden tokens count unless "
       "options "
       "say otherwise.\n"
       "With one beam, text comes as it is found."},
      [options] { return translate(*options); });
  TranslateOptions& o = *options;
  add_model_option(command, o.model);
  require_one_of(command, {add_text_option(command, o.text), add_tokens_option(command, o.tokens)});
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
