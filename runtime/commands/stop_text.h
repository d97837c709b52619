// Ends a stream of text before the first of several stop texts to be complete, however the pieces
// of the stream cut through them: what may be the beginning of a stop text is held back until it is
// decided.

#ifndef VOLVELLE_RUNTIME_COMMANDS_STOP_TEXT_H_
#define VOLVELLE_RUNTIME_COMMANDS_STOP_TEXT_H_

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace volvelle {

class StopText {
 public:
  explicit StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {
    std::erase(stops_, std::string());
  }

  // The text that is certain to stand before every stop text. Nothing more comes once one was
  // found.
  std::string push(std::string_view piece) {
    if (stopped_) return {};
    held_ += piece;
    size_t sure = held_.size();
    size_t end = held_.npos;  // of the stop text that is complete first; of equals, the longest
    for (const std::string& stop : stops_) {
      const size_t at = held_.find(stop);
      if (at == held_.npos || at + stop.size() > end) continue;
      sure = at + stop.size() < end ? at : std::min(sure, at);
      end = at + stop.size();
      stopped_ = true;
    }
    if (!stopped_) {
      for (const std::string& stop : stops_) {
        const size_t first = held_.size() - std::min(held_.size(), stop.size() - 1);
        for (size_t at = first; at < sure; ++at) {
          if (stop.starts_with(std::string_view(held_).substr(at))) sure = at;
        }
      }
    }
    std::string text = held_.substr(0, sure);
    held_.erase(0, sure);
    return text;
  }

  // What was held back, when the stream is over.
  std::string finish() { return stopped_ ? std::string() : std::exchange(held_, {}); }

  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_COMMANDS_STOP_TEXT_H_
