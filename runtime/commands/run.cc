// volvelle run

#include <unistd.h>

#include <algorithm>
#include <optional>

#include "platforms/clock.h"
#include "platforms/interrupt.h"
#include "platforms/memory.h"
#include "runtime/commands/compute.h"
#include "runtime/commands/machine_limits.h"
#include "runtime/commands/runtime_commands.h"
#include "runtime/commands/stop_text.h"
#include "runtime/prompt_lookup.h"
#include "runtime/sampler.h"

namespace volvelle {
namespace {

struct RunOptions {
  std::string model, tokens;
  std::optional<std::string> text;
  size_t new_tokens = 128;
  size_t chunk = 512;
  size_t first_position = 0;
  SamplerOptions sampler;
  std::optional<float> temperature, top_p, min_p;
  std::optional<size_t> top_k;
  std::vector<std::string> stop;
  bool ignore_eos = false, ids = false, stats = false, speculate = true;
  ComputeOptions compute;
};

// Where new tokens go: to standard output, as ids or as text that stops before a stop text.
class Writer {
 public:
  Writer(const Tokenizer* tokenizer, const std::vector<std::string>& stop) : stop_(stop) {
    if (tokenizer != nullptr) decoder_.emplace(*tokenizer, /*skip_special=*/true);
  }

  // Whether more is wanted.
  bool write(int32_t token) {
    if (!decoder_.has_value()) {
      print("{}{}", first_ ? "" : " ", token);
      first_ = false;
    } else {
      print(stop_.push(decoder_->push(token)));
    }
    std::fflush(stdout);
    return !stop_.stopped();
  }

  void finish() {
    if (decoder_.has_value()) {
      print(stop_.push(decoder_->finish()));
      print(stop_.finish());
    }
    print("\n");
    std::fflush(stdout);
  }

 private:
  std::optional<IncrementalDecoder> decoder_;
  StopText stop_;
  bool first_ = true;
};

// What became of the tokens after the first.
struct Decoding {
  size_t tokens = 0;
  double seconds = 0;
  double bytes = 0;  // of weights and cache that it read
  size_t drafted = 0, accepted = 0;
};

void print_stats(const Session& session, const Model& model, const ThreadPool& pool, size_t prompt,
                 double prompt_seconds, const Decoding& decoding) {
  std::string text = std::format("prefill  {} tokens in {:.3f} s: {:.1f} tokens/s\n", prompt,
                                 prompt_seconds, static_cast<double>(prompt) / prompt_seconds);
  const auto memory = memory_use();  // before bandwidth is measured, which takes some of its own
  if (decoding.tokens > 0) {
    const double read = decoding.bytes / decoding.seconds;
    const double limit = measure_read_bandwidth(pool);
    text += std::format(
        "decode   {} tokens in {:.3f} s: {:.1f} tokens/s, {:.1f} GB/s of weights and cache, {:.0f} "
        "% of the {:.1f} GB/s that memory gives to {} thread{}\n",
        decoding.tokens, decoding.seconds, static_cast<double>(decoding.tokens) / decoding.seconds,
        read / 1e9, 100 * read / limit, limit / 1e9, pool.threads(),
        pool.threads() == 1 ? "" : "s");
  }
  if (decoding.drafted > 0) {
    text +=
        std::format("drafts   {} of {} tokens were right\n", decoding.accepted, decoding.drafted);
  }
  text += std::format("memory   {} of cache, {} of packed weights, file of {}{}\n",
                      format_bytes(session.cache_bytes()), format_bytes(session.packed_bytes()),
                      format_bytes(model.file_bytes()),
                      memory.has_value() ? ", peak " + format_bytes(memory->peak) : "");
  std::fflush(stdout);
  std::fputs(text.c_str(), stderr);
}

Result<> run(const RunOptions& options) {
  SamplerOptions sampling = options.sampler;
  const bool draws =
      options.top_k.has_value() || options.top_p.has_value() || options.min_p.has_value();
  sampling.temperature = options.temperature.value_or(draws ? 1 : 0);
  sampling.top_k = options.top_k.value_or(0);
  sampling.top_p = options.top_p.value_or(1);
  sampling.min_p = options.min_p.value_or(0);
  VOLVELLE_RETURN_IF_ERROR(check(sampling));
  VOLVELLE_ASSIGN_OR_RETURN(const std::shared_ptr<const Model> model,
                            open_decoder(options.model, options.compute));
  const Tokenizer* tokenizer = model->tokenizer();

  std::vector<int32_t> tokens;
  if (options.text.has_value()) {
    if (tokenizer == nullptr) {
      return fail(
          "{}: the file has no tokenizer for a text; give --tokens, or convert again from a source "
          "that has one",
          model->path());
    }
    VOLVELLE_ASSIGN_OR_RETURN(tokens, tokenizer->encode(*options.text));
    if (tokens.empty()) return fail("the prompt is empty; give some text");
  } else {
    VOLVELLE_ASSIGN_OR_RETURN(tokens, parse_tokens(options.tokens));
  }

  // The prompt and what is asked for, or as much of it as positions reach.
  const size_t last = model->decoder().context;
  SessionOptions session_options{.cache = options.compute.kv,
                                 .context = options.compute.context,
                                 .chunk = options.chunk,
                                 .first_position = options.first_position};
  if (options.compute.context == 0 && options.first_position < last) {
    session_options.context =
        std::min(tokens.size() + options.new_tokens, last - options.first_position);
  }
  VOLVELLE_ASSIGN_OR_RETURN(ThreadPool pool, make_pool(options.compute));
  VOLVELLE_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                            Session::open(model, pool, session_options));

  if (options.text.has_value() && !options.ids && isatty(STDOUT_FILENO) && isatty(STDERR_FILENO)) {
    std::fputs(("\x1b[2m" + printable(*options.text) + "\x1b[0m").c_str(), stderr);
  }
  if (tokenizer == nullptr && !options.ids)
    print_notice("{}: the file has no tokenizer; ids follow", model->path());
  const double start = monotonic_seconds();
  VOLVELLE_ASSIGN_OR_RETURN(std::span<const float> logits, prefill(*model, *session, tokens));
  const size_t prompt = tokens.size();
  const double prefilled = monotonic_seconds();

  std::vector<int32_t> eos = model->generation().eos;
  if (eos.empty() && tokenizer != nullptr) eos = tokenizer->spec().eos;
  Sampler sampler(sampling, model->vocabulary());
  Writer writer(options.ids ? nullptr : tokenizer, options.stop);
  tokens.reserve(std::min(prompt + options.new_tokens, session->context() + 1));
  bool more = options.new_tokens > 0;
  // Draws the token that follows the last.
  const auto write_next = [&](std::span<const float> following) {
    const int32_t token = sampler.sample(following, tokens);
    tokens.push_back(token);
    const bool ends = !options.ignore_eos && std::ranges::contains(eos, token);
    more = writer.write(token) && !ends && !interrupted() &&
           tokens.size() < prompt + options.new_tokens;
  };
  if (more) write_next(logits);
  const size_t first_decoded = tokens.size();
  PromptLookup lookup;
  Decoding decoding;
  std::vector<int32_t> fed;
  bool full = false;
  while (more && !(full = session->tokens() == session->context())) {
    // The last token, which is not fed yet, and what may follow it. Each is right if it is what
    // would have been drawn without it.
    fed.assign(1, tokens.back());
    if (options.speculate && !session->length_matters()) {
      const size_t most = std::min({session->context() - session->tokens(), session->chunk(),
                                    prompt + options.new_tokens - tokens.size()});
      const std::span<const int32_t> draft = lookup.draft(tokens, most - 1);
      fed.insert(fed.end(), draft.begin(), draft.end());
    }
    const size_t drafted = fed.size() - 1, before = tokens.size();
    decoding.bytes +=
        static_cast<double>(model->weight_bytes_per_token() + session->cache_bytes_per_token());
    bool right = true;
    VOLVELLE_RETURN_IF_ERROR(session->feed_all(
        fed, [&](size_t first, size_t rows, std::span<const float> following) -> Result<> {
          for (size_t row = first; row < first + rows && right && more; ++row) {
            write_next(following.subspan((row - first) * model->vocabulary(), model->vocabulary()));
            right = row < drafted && tokens.back() == fed[row + 1];
          }
          return {};
        }));
    const size_t written = tokens.size() - before;  // the last of which is not fed yet
    if (written < fed.size()) session->take_back(std::span(fed).subspan(written));
    if (drafted > 0) lookup.judge(drafted, written - 1);
    decoding.drafted += drafted, decoding.accepted += written - 1;
  }
  decoding.tokens = tokens.size() - first_decoded;
  decoding.seconds = monotonic_seconds() - prefilled;
  writer.finish();
  if (full) {
    print_notice("the context of {} tokens is full; {}", session->context(),
                 session->context() + options.first_position < last
                     ? "ask for a larger --context"
                     : remedy_for_length(model->decoder()));
  }
  if (options.stats) {
    print_stats(*session, *model, pool, prompt, prefilled - start, decoding);
  }
  return {};
}

}  // namespace

void add_run_command(Program& program) {
  const auto options = std::make_shared<RunOptions>();
  CLI::App& command = program.add_command(
      {"run", "Continues a text",
       "Examples:\n"
       "  volvelle run model.vvl -p \"The capital of France is\" -n 40\n"
       "  volvelle run model.vvl -p - --temperature 0.8 --top-p 0.95 --seed 7 < story.txt\n"
       "  volvelle run model.vvl --tokens 504,3575 --ids\n"
       "  volvelle run model.vvl -p $'Q: Why?\\nA:' --stop \"Q:\" --stats\n\n"
       "Standard output holds the new text alone. The likeliest token is taken unless "
       "--temperature or one of --top-k,\n"
       "--top-p and --min-p is given (these alone mean a temperature of 1); the same seed draws "
       "the same tokens on every\n"
       "machine. It ends at the model's end token, a stop text, -n tokens, or where the context is "
       "full.\n"
       "Standard input is taken whole: a newline at its end belongs to the text."},
      [options] { return run(*options); });
  RunOptions& o = *options;
  add_model_option(command, o.model);
  require_one_of(command, {add_text_option(command, o.text), add_tokens_option(command, o.tokens)});
  command.add_option("-n,--new-tokens", o.new_tokens, "New tokens at most (default 128)")
      ->check(between(size_t{0}, size_t{1} << 31))
      ->type_name("N");
  const auto number = [&](const char* name, auto& value, const char* what, double least,
                          double most) {
    command.add_option(name, value, what)->check(between(least, most))->type_name("X");
  };
  constexpr double kMost = 1e6;
  number("--temperature", o.temperature, "Draw tokens; 0 takes the likeliest", 0, kMost);
  command.add_option("--top-k", o.top_k, "Draw among the K likeliest; 0 is all")
      ->check(between(size_t{0}, size_t{1} << 31))
      ->type_name("K");
  number("--top-p", o.top_p, "Draw among the likeliest that make up this probability", 0, 1);
  number("--min-p", o.min_p, "Leave out what is less likely than this part of the likeliest", 0, 1);
  number("--repeat-penalty", o.sampler.repetition_penalty,
         "Makes tokens that were there less likely; 1 is off", 1e-3, kMost);
  command.add_option("--seed", o.sampler.seed, "What the drawing starts from (default 0)")
      ->type_name("N");
  command
      .add_option_function<std::string>(
          "--stop",
          [&o](const std::string& stop) {
            if (!stop.empty()) o.stop.push_back(stop);
          },
          "End before this text; may be given several times")
      ->trigger_on_parse()
      ->type_name("TEXT");
  command.add_flag("--ignore-eos", o.ignore_eos, "Go on after the model's end token");
  command.add_flag("--ids", o.ids, "Write the new token ids, on one line, instead of text");
  command.add_flag("--speculate,!--no-speculate", o.speculate,
                   "Guess tokens from what was said before and check several at once: the same "
                   "text, sooner (default)");
  command.add_flag("--stats", o.stats, "Write speed and memory to standard error afterwards");
  add_feeding_options(command, o.chunk, o.first_position);
  add_compute_options(command, o.compute);
}

}  // namespace volvelle
