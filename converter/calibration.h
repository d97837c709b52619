// What the linears of a model read while it reads a text: the model is run by our own runtime, once
// for as many linears as memory allows.

#ifndef VOLVELLE_CONVERTER_CALIBRATION_H_
#define VOLVELLE_CONVERTER_CALIBRATION_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "platforms/error.h"
#include "platforms/thread_pool.h"
#include "runtime/encoder.h"
#include "runtime/model.h"

namespace volvelle {

// A text that ships with the program; its source is stated at its head.
std::string_view calibration_text();

// Another one, which never calibrates: what it costs a model is measured on it.
std::string_view report_text();

// Of the inputs of one linear.
struct InputStatistics {
  size_t columns = 0;
  size_t rows = 0;  // that were seen
  // [columns, columns], sums of x_i x_j, of which the lower triangle counts; empty: not wanted.
  std::vector<float> moments;
  std::vector<float> sample;  // [sampled rows, columns]

  size_t sampled() const { return sample.size() / columns; }
};

class Calibration {
 public:
  // `model` has quantised linears. A decoder behind an encoder is given, as what it is to write,
  // the text that its encoder reads. Fails with a sentence where the model cannot read a text.
  static Result<std::unique_ptr<Calibration>> open(std::shared_ptr<const Model> model,
                                                   ThreadPool& pool, std::string_view text);

  struct Wanted {
    std::string name;  // of a weight
    bool moments = true;
  };

  // Told now and then what is being done, and of how many tokens.
  using Progress = std::function<void(std::string_view what, uint64_t done, uint64_t total)>;

  // Runs the model for the statistics of linears of these weights. Those of others are forgotten.
  Result<void> observe(std::span<const Wanted> linears, const Progress& progress);

  // Whether the last observation was of that linear, among others, and of its moments.
  bool has(const std::string& name, bool moments) const {
    const auto found = statistics_.find(name);
    return found != statistics_.end() && (!moments || !found->second.moments.empty());
  }

  // Of a linear that was observed; null: of none, or it never had an input.
  const InputStatistics* find(const std::string& name) const;

  // What moments of so many inputs take, in bytes.
  static uint64_t bytes(uint64_t columns);

  size_t tokens() const;
  bool cut() const { return cut_; }  // whether the text was longer than what is read of one

 private:
  class Watch;
  Calibration(std::shared_ptr<const Model> model, ThreadPool& pool)
      : model_(std::move(model)), pool_(pool) {}

  std::shared_ptr<const Model> model_;
  ThreadPool& pool_;
  std::vector<Sentence> windows_;
  std::vector<std::vector<int32_t>> targets_;  // of a decoder behind an encoder: for each window
  bool cut_ = false;
  std::map<std::string, InputStatistics> statistics_;
};

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_CALIBRATION_H_
