// volvelle logits

#include <algorithm>
#include <optional>

#include "platforms/interrupt.h"
#include "runtime/commands/compute.h"
#include "runtime/commands/numpy.h"
#include "runtime/commands/runtime_commands.h"
#include "runtime/translator.h"

namespace volvelle {
namespace {

struct LogitsOptions {
  std::string model, tokens, decoder_tokens, output;
  std::optional<std::string> text;
  size_t chunk = 512;
  size_t first_position = 0;
  ComputeOptions compute;
};

// Of an encoder-decoder: after each of its decoder's tokens.
Result<> write_decoder_logits(const LogitsOptions& options,
                              const std::shared_ptr<const Model>& model,
                              std::span<const int32_t> source) {
  if (!model->generates()) {
    return fail("{}: is an encoder, which gives no logits; `volvelle embed` makes vectors with it",
                model->path());
  }
  if (options.first_position != 0 || options.compute.context != 0) {
    return fail("{}: is an encoder-decoder; --first-position and --context are for decoders alone",
                model->path());
  }
  if (options.decoder_tokens.empty()) {
    return fail("{}: is an encoder-decoder; give --decoder-tokens too, the start token first",
                model->path());
  }
  VOLVELLE_ASSIGN_OR_RETURN(const std::vector<int32_t> targets,
                            parse_tokens(options.decoder_tokens));
  VOLVELLE_ASSIGN_OR_RETURN(ThreadPool pool, make_pool(options.compute));
  VOLVELLE_ASSIGN_OR_RETURN(
      const std::unique_ptr<Translator> translator,
      Translator::open(model, pool,
                       {.longest_source = source.size(), .longest_target = targets.size()}));
  VOLVELLE_ASSIGN_OR_RETURN(const std::vector<float> logits, translator->logits(source, targets));
  VOLVELLE_ASSIGN_OR_RETURN(NumpyOutput output,
                            NumpyOutput::create(options.output, {options.model}));
  VOLVELLE_RETURN_IF_ERROR(output.begin(targets.size(), model->vocabulary()));
  VOLVELLE_RETURN_IF_ERROR(output.append(logits));
  return output.commit();
}

Result<> write_logits(const LogitsOptions& options) {
  VOLVELLE_ASSIGN_OR_RETURN(const std::shared_ptr<const Model> model,
                            open_model(options.model, options.compute));
  std::vector<int32_t> tokens;
  if (options.text.has_value()) {
    if (model->tokenizer() == nullptr) {
      return fail("{}: the file has no tokenizer for a text; give --tokens", model->path());
    }
    VOLVELLE_ASSIGN_OR_RETURN(tokens, model->tokenizer()->encode(*options.text));
    if (tokens.empty()) return fail("the text is empty; give some");
  } else {
    VOLVELLE_ASSIGN_OR_RETURN(tokens, parse_tokens(options.tokens));
  }
  if (model->encoder() != nullptr) return write_decoder_logits(options, model, tokens);
  if (!options.decoder_tokens.empty()) {
    return fail("{}: has no encoder before its decoder; --decoder-tokens is for those that have",
                model->path());
  }
  VOLVELLE_RETURN_IF_ERROR(model->check_tokens(model->decoder(), tokens));

  SessionOptions session_options{.cache = options.compute.kv,
                                 .context = options.compute.context,
                                 .chunk = options.chunk,
                                 .first_position = options.first_position};
  if (session_options.context == 0) session_options.context = tokens.size();
  VOLVELLE_ASSIGN_OR_RETURN(ThreadPool pool, make_pool(options.compute));
  VOLVELLE_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                            Session::open(model, pool, session_options));

  VOLVELLE_ASSIGN_OR_RETURN(NumpyOutput output,
                            NumpyOutput::create(options.output, {options.model}));
  Progress progress("computing", tokens.size());
  bool begun = false;
  VOLVELLE_RETURN_IF_ERROR(session->feed_all(
      tokens, [&](size_t first, size_t rows, std::span<const float> logits) -> Result<> {
        if (interrupted()) return fail("interrupted");
        if (!std::exchange(begun, true)) {
          VOLVELLE_RETURN_IF_ERROR(output.begin(tokens.size(), model->vocabulary()));
        }
        progress.update(first + rows);
        return output.append(logits);
      }));
  return output.commit();
}

}  // namespace

void add_logits_command(Program& program) {
  const auto options = std::make_shared<LogitsOptions>();
  CLI::App& command = program.add_command(
      {"logits", "Writes the logits after every token",
       "Examples:\n"
       "  volvelle logits model.vvl --tokens 1,2,3 -o logits.npy\n"
       "  volvelle logits model.vvl --tokens @ids.txt --chunk 1 --kv f32 -o decoded.npy\n"
       "  volvelle logits model.vvl -p \"Hello\" -o - > hello.npy\n\n"
       "The output is a NumPy file of float32 [tokens, vocabulary]. --chunk 1 feeds one token at a "
       "time, as decoding\n"
       "does; --first-position P begins at position P with an empty cache."},
      [options] { return write_logits(*options); });
  LogitsOptions& o = *options;
  add_model_option(command, o.model);
  require_one_of(command, {add_text_option(command, o.text), add_tokens_option(command, o.tokens)});
  command
      .add_option("--decoder-tokens", o.decoder_tokens,
                  "Of an encoder-decoder: its decoder's tokens, the start token first")
      ->type_name("1,2,3|@FILE");
  command.add_option("-o,--output", o.output, "The .npy file to write; - is standard output")
      ->required()
      ->type_name("OUT.npy");
  add_feeding_options(command, o.chunk, o.first_position);
  add_compute_options(command, o.compute);
}

}  // namespace volvelle
