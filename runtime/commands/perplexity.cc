// volvelle eval perplexity

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <random>

#include "platforms/interrupt.h"
#include "runtime/commands/compute.h"
#include "runtime/commands/runtime_commands.h"

namespace volvelle {
namespace {

using nlohmann::ordered_json;

struct PerplexityOptions {
  std::string model, text, against;
  std::vector<size_t> lengths;
  bool json = false;
  ComputeOptions compute;
};

// A window's surprise: the sum of -ln p over the tokens that it predicts.
struct Window {
  double surprise = 0;
  size_t tokens = 0;
};

struct LengthResult {
  size_t length = 0;
  double perplexity = 0;
  std::optional<std::pair<double, double>> interval;  // none from a single window
  size_t tokens = 0;
  size_t windows = 0;
};

struct Agreement {
  std::vector<double> divergences;  // one for each predicted token
  size_t same_top = 0;
};

// ln of the sum of e^logit.
double log_sum_exp(std::span<const float> logits) {
  const double largest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum);
}

// KL(reference || model) in nats.
double divergence(std::span<const float> reference, std::span<const float> model) {
  const double reference_sum = log_sum_exp(reference), model_sum = log_sum_exp(model);
  double sum = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double log_p = reference[i] - reference_sum;
    sum += std::exp(log_p) * (log_p - (model[i] - model_sum));
  }
  return std::max(sum, 0.0);
}

double perplexity_of(std::span<const Window> windows) {
  double surprise = 0, tokens = 0;
  for (const Window& window : windows) {
    surprise += window.surprise;
    tokens += static_cast<double>(window.tokens);
  }
  return std::exp(surprise / tokens);
}

// The 95 % interval of the perplexity, from windows drawn anew with replacement (tokens of one
// window depend on each other, windows hardly). Efron and Tibshirani 1993, ch. 13: percentiles.
std::optional<std::pair<double, double>> bootstrap_interval(std::span<const Window> windows) {
  if (windows.size() < 2) return std::nullopt;
  constexpr size_t kResamples = 1000;
  std::mt19937_64 random(1);
  std::vector<double> figures;
  std::vector<Window> drawn(windows.size());
  for (size_t i = 0; i < kResamples; ++i) {
    for (Window& window : drawn) window = windows[random() % windows.size()];
    figures.push_back(perplexity_of(drawn));
  }
  std::ranges::sort(figures);
  return std::pair(figures[kResamples * 25 / 1000], figures[kResamples * 975 / 1000 - 1]);
}

// The value that a fraction `part` of the values (ascending) does not exceed.
double percentile(std::span<const double> values, double part) {
  const auto index = static_cast<size_t>(std::ceil(part * static_cast<double>(values.size())));
  return values[std::clamp<size_t>(index, 1, values.size()) - 1];
}

class Evaluation {
 public:
  Evaluation(Session& session, Session* reference, const ThreadPool& pool, size_t vocabulary)
      : session_(session), reference_(reference), pool_(pool), vocabulary_(vocabulary) {}

  // Feeds one window from an empty cache.
  Result<Window> run(std::span<const int32_t> tokens, Agreement* agreement) {
    Window window;
    session_.clear();
    if (agreement == nullptr) {
      VOLVELLE_RETURN_IF_ERROR(session_.feed_all(
          tokens, [&](size_t first, size_t rows, std::span<const float> logits) -> Result<> {
            count(tokens, first, rows, logits, &window);
            return {};
          }));
      return window;
    }
    // Both models in step, a few rows at a time, so that only those rows' logits are held.
    constexpr size_t kRows = 64;
    reference_->clear();
    for (size_t at = 0; at < tokens.size(); at += kRows) {
      const auto piece = tokens.subspan(at, std::min(kRows, tokens.size() - at));
      references_.resize(piece.size() * vocabulary_);
      VOLVELLE_RETURN_IF_ERROR(reference_->feed_all(
          piece, [&](size_t first, size_t, std::span<const float> logits) -> Result<> {
            std::ranges::copy(logits,
                              references_.begin() + static_cast<ptrdiff_t>(first * vocabulary_));
            return {};
          }));
      VOLVELLE_RETURN_IF_ERROR(session_.feed_all(
          piece, [&](size_t first, size_t rows, std::span<const float> logits) -> Result<> {
            count(tokens, at + first, rows, logits, &window);
            compare(tokens.size(), at, first, rows, logits, agreement);
            return {};
          }));
    }
    return window;
  }

 private:
  // Row r of the logits predicts token first + r + 1; the last token of a window predicts nothing
  // in it.
  void count(std::span<const int32_t> tokens, size_t first, size_t rows,
             std::span<const float> logits, Window* window) {
    const size_t predicted = std::min(rows, tokens.size() - 1 - first);
    values_.resize(predicted);
    pool_.parallel_for(predicted, [&](size_t row, size_t) {
      const auto all = logits.subspan(row * vocabulary_, vocabulary_);
      values_[row] = log_sum_exp(all) - all[tokens[first + row + 1]];
    });
    window->surprise = std::accumulate(values_.begin(), values_.end(), window->surprise);
    window->tokens += predicted;
  }

  void compare(size_t tokens, size_t at, size_t first, size_t rows, std::span<const float> logits,
               Agreement* agreement) {
    const size_t predicted = std::min(rows, tokens - 1 - (at + first));
    const size_t begin = agreement->divergences.size();
    agreement->divergences.resize(begin + predicted);
    std::vector<uint8_t> same(predicted);
    pool_.parallel_for(predicted, [&](size_t row, size_t) {
      const std::span<const float> reference(&references_[(first + row) * vocabulary_],
                                             vocabulary_);
      const auto model = logits.subspan(row * vocabulary_, vocabulary_);
      agreement->divergences[begin + row] = divergence(reference, model);
      same[row] = std::ranges::max_element(reference) - reference.begin() ==
                  std::ranges::max_element(model) - model.begin();
    });
    agreement->same_top += static_cast<size_t>(std::ranges::count(same, 1));
  }

  Session& session_;
  Session* reference_;
  const ThreadPool& pool_;
  size_t vocabulary_;
  std::vector<float> references_;
  std::vector<double> values_;
};

Result<> measure(const PerplexityOptions& options) {
  VOLVELLE_ASSIGN_OR_RETURN(const std::shared_ptr<const Model> model,
                            open_decoder(options.model, options.compute));
  if (model->tokenizer() == nullptr) {
    return fail(
        "{}: the file has no tokenizer for a text; convert again from a source that has one",
        model->path());
  }
  VOLVELLE_ASSIGN_OR_RETURN(const std::string text, read_text(options.text));
  VOLVELLE_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens,
                            model->tokenizer()->encode(text, {.add_special = false}));
  VOLVELLE_RETURN_IF_ERROR(model->check_tokens(model->decoder(), tokens));

  constexpr size_t kDefaultLength = 512;
  std::vector<size_t> lengths = options.lengths;
  if (lengths.empty()) lengths.push_back(std::min(kDefaultLength, model->decoder().context));
  const size_t longest = *std::ranges::max_element(lengths);
  if (tokens.size() < longest) {
    return fail(
        "{}: it has {} tokens, fewer than a window of {}; give a longer text or shorter --lengths",
        options.text == "-" ? "standard input" : options.text, tokens.size(), longest);
  }

  VOLVELLE_ASSIGN_OR_RETURN(ThreadPool pool, make_pool(options.compute));
  const SessionOptions session_options{.cache = options.compute.kv,
                                       .context = std::max(longest, options.compute.context)};
  VOLVELLE_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                            Session::open(model, pool, session_options));
  std::unique_ptr<Session> reference;
  if (!options.against.empty()) {
    VOLVELLE_ASSIGN_OR_RETURN(const std::shared_ptr<const Model> other,
                              open_decoder(options.against, options.compute));
    if (other->vocabulary() != model->vocabulary()) {
      return fail(
          "{}: a vocabulary of {} cannot be compared with the {} of {}; give a file of the same "
          "checkpoint",
          options.against, other->vocabulary(), model->vocabulary(), options.model);
    }
    VOLVELLE_ASSIGN_OR_RETURN(reference, Session::open(other, pool, session_options));
  }

  Evaluation evaluation(*session, reference.get(), pool, model->vocabulary());
  Progress progress("reading", lengths.size() * tokens.size());
  std::vector<LengthResult> results;
  Agreement agreement;  // over the longest windows
  for (const size_t length : lengths) {
    std::vector<Window> windows;
    const bool compared =
        reference != nullptr && length == longest && agreement.divergences.empty();
    for (size_t at = 0; at + length <= tokens.size(); at += length) {
      if (interrupted()) return fail("interrupted");
      VOLVELLE_ASSIGN_OR_RETURN(
          const Window window,
          evaluation.run(std::span(tokens).subspan(at, length), compared ? &agreement : nullptr));
      windows.push_back(window);
      progress.advance(length);
    }
    LengthResult result{.length = length,
                        .perplexity = perplexity_of(windows),
                        .interval = bootstrap_interval(windows),
                        .windows = windows.size()};
    for (const Window& window : windows) result.tokens += window.tokens;
    results.push_back(result);
  }
  std::vector<double>& divergences = agreement.divergences;
  std::ranges::sort(divergences);
  const auto count = static_cast<double>(std::max<size_t>(divergences.size(), 1));
  const double mean = std::accumulate(divergences.begin(), divergences.end(), 0.0) / count;
  const double top1 = static_cast<double>(agreement.same_top) / count;

  if (options.json) {
    ordered_json json = {{"lengths", ordered_json::array()}};
    for (const LengthResult& result : results) {
      ordered_json row = {{"length", result.length},
                          {"perplexity", result.perplexity},
                          {"tokens", result.tokens},
                          {"windows", result.windows},
                          {"interval", nullptr}};
      if (result.interval) row["interval"] = {result.interval->first, result.interval->second};
      json["lengths"].push_back(std::move(row));
    }
    if (reference != nullptr) {
      json["against"] = {{"kl_mean", mean},
                         {"kl_p99", percentile(divergences, 0.99)},
                         {"kl_p999", percentile(divergences, 0.999)},
                         {"top1", top1}};
    }
    print("{}\n", to_text(json));
    return {};
  }
  print("{:>8} {:>12} {:>23} {:>9} {:>8}\n", "length", "perplexity", "95 % interval", "tokens",
        "windows");
  for (const LengthResult& result : results) {
    const std::string interval =
        result.interval
            ? std::format("{:.4f} to {:.4f}", result.interval->first, result.interval->second)
            : "-";
    print("{:>8} {:>12.4f} {:>23} {:>9} {:>8}\n", result.length, result.perplexity, interval,
          result.tokens, result.windows);
  }
  if (reference != nullptr) {
    print(
        "\nagainst {}, windows of {}: KL mean {:.5f}, 99 % {:.5f}, 99.9 % {:.5f}; same likeliest "
        "token {:.2f} %\n",
        printable(options.against), longest, mean, percentile(divergences, 0.99),
        percentile(divergences, 0.999), 100 * top1);
  }
  return {};
}

}  // namespace

void add_perplexity_command(Program& program) {
  const auto options = std::make_shared<PerplexityOptions>();
  CLI::App& command = program.add_command(
      {"eval perplexity", "Measures how well a model predicts a text",
       "Examples:\n"
       "  volvelle eval perplexity model.vvl --text book.txt\n"
       "  volvelle eval perplexity model.vvl --text book.txt --lengths 512,1024,2048 --json\n"
       "  volvelle eval perplexity q4.vvl --text book.txt --against f32.vvl\n\n"
       "The text is cut into consecutive windows of each length (a last, shorter part is left "
       "out), without a beginning\n"
       "token; each window starts from an empty cache and every prediction in it counts. The "
       "interval is a bootstrap\n"
       "over windows. --against adds the divergence KL(OTHER || M) of every prediction, over the "
       "longest windows."},
      [options] { return measure(*options); });
  PerplexityOptions& o = *options;
  add_model_option(command, o.model);
  command.add_option("--text", o.text, "The text; - is standard input")->required()->type_name("F");
  command
      .add_option("--lengths", o.lengths,
                  "Tokens of a window (default 512, or the model's context where that is less)")
      ->delimiter(',')
      ->check(between(size_t{2}, size_t{1} << 31))
      ->type_name("N,…");
  command.add_option("--against", o.against, "A file of the same checkpoint to compare with")
      ->type_name("OTHER.vvl");
  command.add_flag("--json", o.json, "Write one JSON object");
  add_compute_options(command, o.compute);
}

}  // namespace volvelle
