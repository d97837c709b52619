// How well a decoder predicts a text, how far its predictions are from another model's, and how
// near an encoder's vectors are to another's: what `eval perplexity` and `convert --report` tell.

#ifndef VOLVELLE_RUNTIME_COMMANDS_PREDICTION_H_
#define VOLVELLE_RUNTIME_COMMANDS_PREDICTION_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/attention.h"
#include "platforms/error.h"
#include "platforms/thread_pool.h"
#include "runtime/commands/program.h"
#include "runtime/model.h"

namespace volvelle {

struct PredictionOptions {
  std::shared_ptr<const Model> model;
  std::shared_ptr<const Model> reference;  // of the same checkpoint; null: none
  std::string text;
  std::string text_name;  // for errors, and what to do if it is too short:
  std::string if_short = "give a longer text or shorter --lengths";
  std::vector<size_t> lengths;       // of windows, in tokens; empty: 512, or what the model reaches
  CacheType cache = CacheType::kQ8;  // of the model; the reference's is float
  size_t context = 0;                // of the sessions, at least
  bool linears = false;              // measure each linear against the reference's
};

struct PredictionReport {
  struct Length {
    size_t length = 0;
    double perplexity = 0;
    std::optional<std::pair<double, double>> interval;  // 95 %; none from a single window
    size_t tokens = 0;                                  // that were predicted
    size_t windows = 0;
  };
  // Over the longest windows.
  struct Agreement {
    double kl_mean = 0, kl_p99 = 0, kl_p999 = 0;  // KL(reference || model), nats a prediction
    double top1 = 0;                              // predictions of the same likeliest token
  };
  // Of the same inputs, those that the reference's linear has.
  struct LinearError {
    std::string name;
    std::string type;
    double bits = 0;   // a weight
    double error = 0;  // squares of the outputs' distance by squares of the reference's outputs
  };

  std::vector<Length> lengths;
  std::optional<Agreement> agreement;
  std::vector<LinearError> linears;
};

// The text is cut into consecutive windows of each length, without a beginning token; each starts
// from an empty cache and every prediction in it counts.
Result<PredictionReport> predict(const PredictionOptions& options, ThreadPool& pool);

struct VectorReport {
  size_t texts = 0;
  double cosine_mean = 0, cosine_least = 0;  // of the model's vectors with the reference's
  std::vector<PredictionReport::LinearError> linears;
};

// Of encoders of the same checkpoint: the sentences of a text, cut at line ends and full stops, as
// vectors of the first task that makes such, else the mean of each one's tokens.
Result<VectorReport> compare_vectors(const std::shared_ptr<const Model>& model,
                                     const std::shared_ptr<const Model>& reference,
                                     const std::string& text, ThreadPool& pool);

nlohmann::ordered_json to_json(const VectorReport& report);
void print_vectors(const VectorReport& report);

nlohmann::ordered_json to_json(const PredictionReport& report);
// `against` names the reference.
void print_prediction(const PredictionReport& report, const std::string& against);

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_COMMANDS_PREDICTION_H_
