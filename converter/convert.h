// From a checkpoint to a model file: opens the source, lets its family describe it, bakes the
// positions and streams the weights.

#ifndef VOLVELLE_CONVERTER_CONVERT_H_
#define VOLVELLE_CONVERTER_CONVERT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "converter/positions/scaling_spec.h"
#include "platforms/error.h"
#include "platforms/thread_pool.h"
#include "runtime/model.h"

namespace volvelle {

enum class WeightType { kF32, kQ8, kQ4 };

struct ConvertOptions {
  std::string source;  // a folder, a .safetensors file in one, a .gguf file, or a hub name
  std::string output;
  WeightType weights = WeightType::kQ4;
  std::optional<uint64_t> context;  // positions that the dials must reach; default the model's own
  std::optional<ScalingSpec> scaling;  // instead of the checkpoint's own
  bool tokenizer = true;               // false: leave it out
  bool force = false;                  // replace the output
  // q4: bits that a weight of the linears takes in the mean, at most; the best mix is looked for.
  std::optional<double> bits = {};
  // Linears, or a head, that are stored otherwise than `weights` says: a pattern of their names, as
  // the shell has them, and how. Of several that fit, the last one counts.
  std::vector<std::pair<std::string, WeightType>> keep = {};
  bool keep_grid = true;         // q4: weights that lie on a four-bit grid stay on it
  std::string calibration = {};  // q4: a text that the model reads first; empty: none
  std::vector<std::string> ignored_keys;
  bool will_read = false;  // a text, with the model: refuse what cannot before anything is done

  bool rounds_to_q4() const;  // any linear

  // Told now and then what is being done, of weights or of a text's tokens, and how much of it.
  using Progress = std::function<void(std::string_view what, uint64_t done, uint64_t total)>;
  Progress progress = [](std::string_view, uint64_t, uint64_t) {};
};

struct ConvertReport {
  struct Layers {  // neighbours that are alike
    uint64_t first = 0;
    uint64_t last = 0;
    std::string position;  // "rotary, base 10000, width 64, half pairs"
    std::string mask;      // "causal", "causal, window 4096"
  };
  struct Part {
    std::string name;
    std::string type;
    uint64_t bytes = 0;
    uint64_t tensors = 0;  // 0: it has none
  };
  struct Linear {
    std::string name;
    std::string type;  // "q4, grid kept"
    uint32_t rotation = 0;
    uint64_t side_columns = 0;
    double bits = 0;  // a weight
  };

  std::string name;
  std::string origin;
  std::string family;
  std::string licence;
  uint64_t width = 0;
  uint64_t vocabulary = 0;
  uint64_t layer_count = 0;
  uint64_t parameters = 0;
  uint64_t context = 0;
  uint64_t trained_context = 0;
  bool head = false;  // of a decoder
  bool tied = false;
  bool tokenizer = false;
  std::vector<Layers> layers;
  std::vector<Part> parts;  // of the file
  std::vector<Linear> linears;
  double linear_bits = 0;  // the mean of all linears
  uint64_t file_bytes = 0;
  double seconds = 0;
  std::vector<std::string> notices;  // sentences for the user
};

// Writes `options.output`, which appears only when whole.
Result<ConvertReport> convert(const ConvertOptions& options, ThreadPool& threads);

// The model alone: of a file beside `options.output` that is gone as soon as it is mapped.
Result<std::shared_ptr<const Model>> convert_and_map(ConvertOptions options, ThreadPool& threads);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_CONVERT_H_
