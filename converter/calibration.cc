#include "converter/calibration.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <utility>

#include "converter/quantize/outer_products.h"
#include "platforms/interrupt.h"
#include "runtime/linear.h"
#include "runtime/session.h"
#include "runtime/tokenizer/utf8.h"

namespace volvelle {
namespace {

constexpr size_t kWindow = 512;  // tokens that are read together
// More of a text improves the rounding hardly, and takes its time.
constexpr size_t kMostBytes = size_t{64} << 10, kMostTokens = 16384;
constexpr size_t kLeastTokens = 32;
constexpr size_t kSampleStride = 16;  // of each so many rows one is kept, from the first on

// What a decoder behind an encoder reads that is to write the text of `tokens`.
Result<std::vector<int32_t>> target_of(const Model& model, std::span<const int32_t> tokens) {
  const Tokenizer& source = *model.tokenizer();
  std::vector<int32_t> target = {model.generation().decoder_start};
  if (model.generation().forced_bos >= 0) target.push_back(model.generation().forced_bos);
  if (&source.target() == &source) {
    target.insert(target.end(), tokens.begin(), tokens.end());
  } else {
    VOLVELLE_ASSIGN_OR_RETURN(
        const std::vector<int32_t> written,
        source.target().encode(source.decode(tokens), {.add_special = false}));
    target.insert(target.end(), written.begin(), written.end());
  }
  target.resize(std::min({target.size(), kWindow, model.decoder().position_limit}));
  VOLVELLE_RETURN_IF_ERROR(model.check_tokens(model.decoder(), target));
  return target;
}

}  // namespace

// Gathers the statistics of linears that have an entry.
class Calibration::Watch final : public LinearObserver {
 public:
  Watch(std::map<std::string, InputStatistics>& statistics, const ThreadPool& pool)
      : statistics_(statistics), pool_(pool) {}

  void see(const Tensor& weight, size_t r, const float* x) override {
    const size_t columns = weight.columns;
    if (!statistics_.contains(weight.name)) return;
    {
      const std::lock_guard lock(mutex_);  // the first row of all makes room
      if (rows_.size() < (r + 1) * columns) rows_.resize((r + kRowsPerTask) * columns);
      std::copy_n(x, columns, rows_.begin() + r * columns);
    }
  }

  void saw(const Tensor& weight, size_t rows) override {
    const auto entry = statistics_.find(weight.name);
    if (entry == statistics_.end()) return;
    InputStatistics& own = entry->second;
    const size_t columns = own.columns;
    constexpr size_t kRows = 32;
    const size_t tasks = own.moments.empty() ? 0 : (columns + kRows - 1) / kRows;
    pool_.parallel_for(tasks, [&](size_t task, size_t) {
      const size_t first = task * kRows, last = std::min(columns, first + kRows);
      const float* const x = rows_.data();
      add_outer_products({x + first, columns}, {x, columns}, rows, last - first, last,
                         {own.moments.data() + first * columns, columns});
    });
    for (size_t row = 0; row < rows; row += kSampleStride) {
      const auto from = rows_.begin() + row * columns;
      own.sample.insert(own.sample.end(), from, from + columns);
    }
    own.rows += rows;
  }

 private:
  std::map<std::string, InputStatistics>& statistics_;
  const ThreadPool& pool_;
  std::mutex mutex_;
  std::vector<float> rows_;
};

Result<std::unique_ptr<Calibration>> Calibration::open(std::shared_ptr<const Model> model,
                                                       ThreadPool& pool, std::string_view text) {
  const Tokenizer* const tokenizer = model->tokenizer();
  if (tokenizer == nullptr) return fail("{}: has no tokenizer to read a text with", model->path());
  const bool decodes = model->encoder() == nullptr;  // alone
  if (!decodes && model->generates() && model->generation().decoder_start < 0) {
    return fail("{}: does not say which token its decoder starts with", model->path());
  }
  const Stack& stack = decodes ? model->decoder() : *model->encoder();
  const size_t window = std::min(kWindow, stack.position_limit);
  std::unique_ptr<Calibration> result(new Calibration(model, pool));

  const size_t bytes = text.size();
  if (bytes > kMostBytes) {
    size_t end = kMostBytes;
    while (end > 0 && is_continuation(text[end])) --end;
    text = text.substr(0, end);
  }
  VOLVELLE_ASSIGN_OR_RETURN(std::vector<int32_t> tokens,
                            tokenizer->encode(text, {.add_special = false}));
  VOLVELLE_RETURN_IF_ERROR(model->check_tokens(stack, tokens));
  if (tokens.size() < kLeastTokens) {
    return fail("it has {} tokens, too few to learn from; give some thousand", tokens.size());
  }
  result->cut_ = text.size() < bytes || tokens.size() > kMostTokens;
  tokens.resize(std::min(tokens.size(), kMostTokens));
  // Special tokens stand around an encoder's texts, and before every other window of a decoder's:
  // both beginnings occur.
  VOLVELLE_ASSIGN_OR_RETURN(const std::vector<int32_t> special,
                            tokenizer->encode("", {.add_special = true}));
  VOLVELLE_RETURN_IF_ERROR(model->check_tokens(stack, special));
  size_t length = decodes ? window : std::min<size_t>(window, 64);
  if (length <= special.size()) return fail("its positions end before a text begins");
  for (size_t first = 0; first < tokens.size();) {
    Sentence sentence;
    const bool begins = !decodes || result->windows_.size() % 2 == 0;
    const size_t room = length - (begins ? special.size() : 0);
    const size_t count = std::min(room, tokens.size() - first);
    const size_t before = begins ? (decodes ? special.size() : special.size() / 2) : 0;
    sentence.tokens.assign(special.begin(), special.begin() + before);
    sentence.tokens.insert(sentence.tokens.end(), tokens.begin() + first,
                           tokens.begin() + first + count);
    if (begins) {
      sentence.tokens.insert(sentence.tokens.end(), special.begin() + before, special.end());
    }
    if (!decodes && model->generates()) {
      VOLVELLE_ASSIGN_OR_RETURN(std::vector<int32_t> target,
                                target_of(*model, std::span(tokens).subspan(first, count)));
      result->targets_.push_back(std::move(target));
    }
    first += count;
    result->windows_.push_back(std::move(sentence));
  }
  return result;
}

Result<void> Calibration::observe(std::span<const Wanted> linears, const Progress& progress) {
  statistics_.clear();
  for (const auto& [name, moments] : linears) {
    const auto tensor = std::ranges::find(model_->tensors(), name, &Tensor::name);
    if (tensor == model_->tensors().end()) continue;
    const size_t columns = tensor->columns;
    statistics_[name] = {.columns = columns,
                         .moments = std::vector<float>(moments ? columns * columns : 0)};
  }
  Watch watch(statistics_, pool_);
  uint64_t done = 0;
  // After each window; it ends the run when the user wants that.
  const auto advance = [&](const Sentence& window) -> Result<void> {
    progress("calibrating", done += window.tokens.size(), tokens());
    return interrupted() ? fail("interrupted") : Result<void>();
  };
  std::unique_ptr<Session> session;
  if (model_->generates()) {
    SessionOptions options{.cache = CacheType::kF32, .observer = &watch};
    for (size_t i = 0; i < windows_.size(); ++i) {
      const auto& read = targets_.empty() ? windows_[i].tokens : targets_[i];
      options.context = std::max(options.context, read.size());
    }
    VOLVELLE_ASSIGN_OR_RETURN(session, Session::open(model_, pool_, options));
  }
  if (model_->encoder() == nullptr) {
    for (const Sentence& window : windows_) {
      session->clear();
      VOLVELLE_RETURN_IF_ERROR(session->feed(window.tokens));
      VOLVELLE_RETURN_IF_ERROR(advance(window));
    }
    return {};
  }
  VOLVELLE_ASSIGN_OR_RETURN(const std::unique_ptr<Encoder> encoder,
                            Encoder::open(model_, pool_, nullptr, kWindow, &watch));
  return encoder->run(
      windows_, [&](size_t window, size_t rows, std::span<const float> values) -> Result<void> {
        if (session != nullptr) {
          VOLVELLE_RETURN_IF_ERROR(session->read_source(values, rows));
          VOLVELLE_RETURN_IF_ERROR(session->feed(targets_[window]));
        }
        return advance(windows_[window]);
      });
}

const InputStatistics* Calibration::find(const std::string& name) const {
  const auto entry = statistics_.find(name);
  return entry == statistics_.end() || entry->second.rows == 0 ? nullptr : &entry->second;
}

uint64_t Calibration::bytes(uint64_t columns) { return columns * columns * sizeof(float); }

size_t Calibration::tokens() const {
  size_t tokens = 0;
  for (const Sentence& window : windows_) tokens += window.tokens.size();
  return tokens;
}

}  // namespace volvelle
