#include "runtime/commands/prediction.h"

#include <algorithm>
#include <cmath>
#include <format>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <span>

#include "platforms/interrupt.h"
#include "runtime/encoder.h"
#include "runtime/linear.h"
#include "runtime/session.h"

namespace volvelle {
namespace {

// A window's surprise: the sum of -ln p over the tokens that it predicts.
struct Window {
  double surprise = 0;
  size_t tokens = 0;
};

struct Comparison {
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
  Result<Window> run(std::span<const int32_t> tokens, Comparison* comparison) {
    Window window;
    session_.clear();
    if (comparison == nullptr) {
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
            compare(tokens.size(), at, first, rows, logits, comparison);
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
               Comparison* comparison) {
    const size_t predicted = std::min(rows, tokens - 1 - (at + first));
    const size_t begin = comparison->divergences.size();
    comparison->divergences.resize(begin + predicted);
    std::vector<uint8_t> same(predicted);
    pool_.parallel_for(predicted, [&](size_t row, size_t) {
      const std::span<const float> reference(&references_[(first + row) * vocabulary_],
                                             vocabulary_);
      const auto model = logits.subspan(row * vocabulary_, vocabulary_);
      comparison->divergences[begin + row] = divergence(reference, model);
      same[row] = std::ranges::max_element(reference) - reference.begin() ==
                  std::ranges::max_element(model) - model.begin();
    });
    comparison->same_top += static_cast<size_t>(std::ranges::count(same, 1));
  }

  Session& session_;
  Session* reference_;
  const ThreadPool& pool_;
  size_t vocabulary_;
  std::vector<float> references_;
  std::vector<double> values_;
};

std::string type_of(const Tensor& weight) {
  switch (weight.type) {
    case TensorType::kF32:
      return "f32";
    case TensorType::kQ8:
      return "q8";
    case TensorType::kQ4:
      return weight.minima.bytes.empty() ? "q4" : "q4 with minima";
  }
  return "";
}

// Lets the model's linears run on what the reference's read.
class LinearWatch final : public LinearObserver {
 public:
  LinearWatch(const Model& model, const Model& reference, const ThreadPool& pool)
      : model_(model), reference_(reference), pool_(pool) {
    reference.for_each_linear([&](const Linear& linear, double) {
      pairs_[linear.weight->name].reference = {linear.weight, nullptr};
    });
    model.for_each_linear([&](const Linear& linear, double) {
      const auto pair = pairs_.find(linear.weight->name);
      if (pair != pairs_.end()) pair->second.model = {linear.weight, nullptr};
    });
  }

  void see(const Tensor& weight, size_t r, const float* x) override {
    if (r % kStride != 0) return;
    const std::lock_guard lock(mutex_);
    const size_t first = r / kStride * weight.columns;
    if (rows_.size() < first + weight.columns) rows_.resize(first + weight.columns);
    std::copy_n(x, weight.columns, rows_.begin() + static_cast<ptrdiff_t>(first));
  }

  void saw(const Tensor& weight, size_t rows) override {
    const auto pair = pairs_.find(weight.name);
    if (pair == pairs_.end() || pair->second.model.weight == nullptr || !status_) return;
    status_ = measure(pair->second, (rows + kStride - 1) / kStride);
  }

  // Those that had inputs, in the model's order.
  Result<std::vector<PredictionReport::LinearError>> errors() const {
    VOLVELLE_RETURN_IF_ERROR(status_);
    std::vector<PredictionReport::LinearError> errors;
    model_.for_each_linear([&](const Linear& linear, double) {
      const Tensor& weight = *linear.weight;
      const auto found = pairs_.find(weight.name);
      if (found == pairs_.end() || found->second.size == 0 || embeds(weight)) return;
      const double count = static_cast<double>(weight.rows) * static_cast<double>(weight.columns);
      errors.push_back({weight.name, type_of(weight),
                        8 * static_cast<double>(weight.bytes()) / count,
                        found->second.distance / found->second.size});
    });
    return errors;
  }

 private:
  static constexpr size_t kStride = 16;  // of each so many rows one counts

  // Whether its rows are looked up as well, and so no figures of linears count it.
  bool embeds(const Tensor& weight) const {
    return (model_.generates() && model_.decoder().embedding == &weight) ||
           (model_.encoder() != nullptr && model_.encoder()->embedding == &weight);
  }

  struct Pair {
    Linear model, reference;  // without biases
    double distance = 0, size = 0;
  };

  Result<std::vector<float>> run(const Model& model, const Linear& linear, size_t rows) const {
    PackedWeights packed;
    VOLVELLE_ASSIGN_OR_RETURN(LinearOperator op, LinearOperator::make(model, linear, packed));
    VOLVELLE_ASSIGN_OR_RETURN(
        const LinearScratch scratch,
        LinearScratch::make(rows, linear.weight->padded_columns(), pool_.threads()));
    std::vector<float> x(rows_.begin(),
                         rows_.begin() + static_cast<ptrdiff_t>(rows * linear.inputs()));
    x.resize(x.size() + XNN_EXTRA_BYTES / sizeof(float));
    std::vector<float> y(rows * linear.outputs());
    VOLVELLE_RETURN_IF_ERROR(op.run(x.data(), rows, y.data(), scratch, pool_));
    return y;
  }

  Result<void> measure(Pair& pair, size_t rows) const {
    VOLVELLE_ASSIGN_OR_RETURN(const std::vector<float> own, run(model_, pair.model, rows));
    VOLVELLE_ASSIGN_OR_RETURN(const std::vector<float> right,
                              run(reference_, pair.reference, rows));
    for (size_t i = 0; i < right.size(); ++i) {
      pair.distance += (double{own[i]} - right[i]) * (double{own[i]} - right[i]);
      pair.size += double{right[i]} * right[i];
    }
    return {};
  }

  const Model& model_;
  const Model& reference_;
  const ThreadPool& pool_;
  std::map<std::string, Pair> pairs_;
  std::mutex mutex_;
  std::vector<float> rows_;
  Result<void> status_;
};

// Over one window: packing each linear anew for every window would take long, and one tells enough.
Result<std::vector<PredictionReport::LinearError>> linear_errors(const PredictionOptions& options,
                                                                 std::span<const int32_t> tokens,
                                                                 ThreadPool& pool) {
  LinearWatch watch(*options.model, *options.reference, pool);
  VOLVELLE_ASSIGN_OR_RETURN(
      const std::unique_ptr<Session> session,
      Session::open(options.reference, pool,
                    {.cache = CacheType::kF32, .context = tokens.size(), .observer = &watch}));
  VOLVELLE_RETURN_IF_ERROR(session->feed(tokens));
  return watch.errors();
}

nlohmann::ordered_json to_json(std::span<const PredictionReport::LinearError> linears) {
  auto json = nlohmann::ordered_json::array();
  for (const PredictionReport::LinearError& linear : linears) {
    json.push_back({{"name", linear.name},
                    {"type", linear.type},
                    {"bits", linear.bits},
                    {"error", linear.error}});
  }
  return json;
}

void print_linears(std::span<const PredictionReport::LinearError> linears) {
  if (linears.empty()) return;
  print("\n{:<44} {:<15} {:>6} {:>10}\n", "linear", "type", "bits", "error");
  for (const PredictionReport::LinearError& linear : linears) {
    print("{:<44} {:<15} {:>6.2f} {:>8.4f} %\n", printable(linear.name), linear.type, linear.bits,
          100 * linear.error);
  }
}

}  // namespace

Result<PredictionReport> predict(const PredictionOptions& options, ThreadPool& pool) {
  const Model& model = *options.model;
  if (model.tokenizer() == nullptr) {
    return fail(
        "{}: the file has no tokenizer for a text; convert again from a source that has one",
        model.path());
  }
  VOLVELLE_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens,
                            model.tokenizer()->encode(options.text, {.add_special = false}));
  VOLVELLE_RETURN_IF_ERROR(model.check_tokens(model.decoder(), tokens));

  constexpr size_t kDefaultLength = 512;
  std::vector<size_t> lengths = options.lengths;
  if (lengths.empty()) lengths.push_back(std::min(kDefaultLength, model.decoder().context));
  const size_t longest = *std::ranges::max_element(lengths);
  if (tokens.size() < longest) {
    return fail("{}: it has {} tokens, fewer than a window of {}; {}", options.text_name,
                tokens.size(), longest, options.if_short);
  }
  const SessionOptions session_options{.cache = options.cache,
                                       .context = std::max(longest, options.context)};
  VOLVELLE_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                            Session::open(options.model, pool, session_options));
  std::unique_ptr<Session> reference;
  if (options.reference != nullptr) {
    if (options.reference->vocabulary() != model.vocabulary()) {
      return fail(
          "{}: a vocabulary of {} cannot be compared with the {} of {}; give a file of the same "
          "checkpoint",
          options.reference->path(), options.reference->vocabulary(), model.vocabulary(),
          model.path());
    }
    SessionOptions exact = session_options;
    exact.cache = CacheType::kF32;
    VOLVELLE_ASSIGN_OR_RETURN(reference, Session::open(options.reference, pool, exact));
  }

  Evaluation evaluation(*session, reference.get(), pool, model.vocabulary());
  Progress progress("reading", lengths.size() * tokens.size());
  PredictionReport report;
  Comparison comparison;  // over the longest windows
  for (const size_t length : lengths) {
    std::vector<Window> windows;
    const bool compared =
        reference != nullptr && length == longest && comparison.divergences.empty();
    for (size_t at = 0; at + length <= tokens.size(); at += length) {
      if (interrupted()) return fail("interrupted");
      VOLVELLE_ASSIGN_OR_RETURN(
          const Window window,
          evaluation.run(std::span(tokens).subspan(at, length), compared ? &comparison : nullptr));
      windows.push_back(window);
      progress.advance(length);
    }
    PredictionReport::Length result{.length = length,
                                    .perplexity = perplexity_of(windows),
                                    .interval = bootstrap_interval(windows),
                                    .windows = windows.size()};
    for (const Window& window : windows) result.tokens += window.tokens;
    report.lengths.push_back(result);
  }
  if (reference == nullptr) return report;
  std::vector<double>& divergences = comparison.divergences;
  std::ranges::sort(divergences);
  const auto count = static_cast<double>(std::max<size_t>(divergences.size(), 1));
  report.agreement = {
      .kl_mean = std::accumulate(divergences.begin(), divergences.end(), 0.0) / count,
      .kl_p99 = percentile(divergences, 0.99),
      .kl_p999 = percentile(divergences, 0.999),
      .top1 = static_cast<double>(comparison.same_top) / count};
  if (options.linears) {
    VOLVELLE_ASSIGN_OR_RETURN(
        report.linears,
        linear_errors(options, std::span(tokens).first(std::min(longest, kDefaultLength)), pool));
  }
  return report;
}

nlohmann::ordered_json to_json(const PredictionReport& report) {
  using nlohmann::ordered_json;
  ordered_json json = {{"lengths", ordered_json::array()}};
  for (const PredictionReport::Length& result : report.lengths) {
    ordered_json row = {{"length", result.length},
                        {"perplexity", result.perplexity},
                        {"tokens", result.tokens},
                        {"windows", result.windows},
                        {"interval", nullptr}};
    if (result.interval) row["interval"] = {result.interval->first, result.interval->second};
    json["lengths"].push_back(std::move(row));
  }
  if (const auto& agreement = report.agreement) {
    json["against"] = {{"kl_mean", agreement->kl_mean},
                       {"kl_p99", agreement->kl_p99},
                       {"kl_p999", agreement->kl_p999},
                       {"top1", agreement->top1}};
  }
  if (!report.linears.empty()) json["linears"] = to_json(report.linears);
  return json;
}

void print_prediction(const PredictionReport& report, const std::string& against) {
  print("{:>8} {:>12} {:>23} {:>9} {:>8}\n", "length", "perplexity", "95 % interval", "tokens",
        "windows");
  for (const PredictionReport::Length& result : report.lengths) {
    const std::string interval =
        result.interval
            ? std::format("{:.4f} to {:.4f}", result.interval->first, result.interval->second)
            : "-";
    print("{:>8} {:>12.4f} {:>23} {:>9} {:>8}\n", result.length, result.perplexity, interval,
          result.tokens, result.windows);
  }
  if (const auto& agreement = report.agreement) {
    size_t longest = 0;
    for (const PredictionReport::Length& result : report.lengths) {
      longest = std::max(longest, result.length);
    }
    print(
        "\nagainst {}, windows of {}: KL mean {:.5f}, 99 % {:.5f}, 99.9 % {:.5f}; same likeliest "
        "token {:.2f} %\n",
        printable(against), longest, agreement->kl_mean, agreement->kl_p99, agreement->kl_p999,
        100 * agreement->top1);
  }
  print_linears(report.linears);
}

Result<VectorReport> compare_vectors(const std::shared_ptr<const Model>& model,
                                     const std::shared_ptr<const Model>& reference,
                                     const std::string& text, ThreadPool& pool) {
  constexpr size_t kMostTokens = 128;
  if (model->tokenizer() == nullptr) return fail("{}: has no tokenizer for a text", model->path());
  std::vector<Sentence> sentences;
  for (size_t first = 0; first < text.size();) {
    const size_t end = std::min(text.find_first_of(".\n", first), text.size() - 1) + 1;
    const std::string piece = text.substr(first, end - first);
    first = end;
    if (piece.find_first_not_of(" .\n") == std::string::npos) continue;
    VOLVELLE_ASSIGN_OR_RETURN(std::vector<int32_t> tokens, model->tokenizer()->encode(piece, {}));
    tokens.resize(std::min({tokens.size(), kMostTokens, model->encoder()->position_limit}));
    sentences.push_back({std::move(tokens), {}});
  }
  if (sentences.empty()) return fail("the text has no sentences; give another");
  // The mean of what comes out for each sentence.
  const auto vectors_of = [&](const std::shared_ptr<const Model>& from,
                              LinearObserver* observer) -> Result<std::vector<std::vector<float>>> {
    const auto& tasks = from->encoder()->tasks;
    const auto pools = [](const Task& task) { return task.pooling != Pooling::kNone; };
    const auto task = std::ranges::find_if(tasks, pools);
    VOLVELLE_ASSIGN_OR_RETURN(
        const std::unique_ptr<Encoder> encoder,
        Encoder::open(from, pool, task == tasks.end() ? nullptr : &*task, 512, observer));
    std::vector<std::vector<float>> vectors;
    VOLVELLE_RETURN_IF_ERROR(encoder->run(
        sentences, [&](size_t, size_t rows, std::span<const float> values) -> Result<void> {
          std::vector<float> mean(encoder->width());
          for (size_t i = 0; i < rows * mean.size(); ++i) mean[i % mean.size()] += values[i];
          vectors.push_back(std::move(mean));
          return {};
        }));
    return vectors;
  };
  LinearWatch watch(*model, *reference, pool);
  VOLVELLE_ASSIGN_OR_RETURN(const auto own, vectors_of(model, nullptr));
  VOLVELLE_ASSIGN_OR_RETURN(const auto right, vectors_of(reference, &watch));
  VectorReport report{.texts = sentences.size(), .cosine_least = 1};
  for (size_t i = 0; i < own.size(); ++i) {
    double product = 0, squares = 0, others = 0;
    for (size_t j = 0; j < own[i].size(); ++j) {
      product += double{own[i][j]} * right[i][j];
      squares += double{own[i][j]} * own[i][j], others += double{right[i][j]} * right[i][j];
    }
    const double cosine = product / std::sqrt(squares * others);
    report.cosine_mean += cosine / static_cast<double>(own.size());
    report.cosine_least = std::min(report.cosine_least, cosine);
  }
  VOLVELLE_ASSIGN_OR_RETURN(report.linears, watch.errors());
  return report;
}

nlohmann::ordered_json to_json(const VectorReport& report) {
  return {{"texts", report.texts},
          {"cosine_mean", report.cosine_mean},
          {"cosine_least", report.cosine_least},
          {"linears", to_json(report.linears)}};
}

void print_vectors(const VectorReport& report) {
  print("vectors of {} texts: cosine mean {:.5f}, least {:.5f}\n", report.texts, report.cosine_mean,
        report.cosine_least);
  print_linears(report.linears);
}

}  // namespace volvelle
