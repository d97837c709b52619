#include "runtime/commands/stop_text.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace volvelle {
namespace {

TEST_CASE("text that may begin a stop text is held back until it is decided") {
  StopText stop({"END"});
  CHECK(stop.push("one E") == "one ");
  CHECK(stop.push("N") == "");
  CHECK(stop.push("E") == "EN");
  CHECK(stop.push("NDless") == "");
  CHECK(stop.stopped());
  CHECK(stop.push("more") == "");
  CHECK(stop.finish() == "");
}

TEST_CASE("text held back at the end is given out") {
  StopText stop({"</s>"});
  CHECK(stop.push("a </") == "a ");
  CHECK(stop.finish() == "</");
}

TEST_CASE(
    "whatever cuts a text into pieces, what comes out ends before the first complete stop text") {
  // Twin: every end in the whole text is tried, first to last.
  std::mt19937 random(20240607);
  const auto word = [&](size_t least, size_t most) {
    std::string text(least + random() % (most - least + 1), 'a');
    for (char& c : text) c = static_cast<char>('a' + random() % 2);
    return text;
  };
  for (int round = 0; round < 5000; ++round) {
    const std::string text = word(0, 30);
    std::vector<std::string> stops(random() % 3);
    for (std::string& stop : stops) stop = word(1, 5);
    std::string expected = text;
    for (size_t end = 1; end <= text.size() && expected == text; ++end) {
      for (const std::string& stop : stops) {
        if (!text.substr(0, end).ends_with(stop)) continue;
        expected = expected.substr(0, std::min(expected.size(), end - stop.size()));
      }
    }

    StopText stop(stops);
    std::string out;
    for (size_t at = 0; at < text.size();) {
      const size_t count = std::min<size_t>(random() % 4, text.size() - at);
      out += stop.push(text.substr(at, count));
      at += count;
    }
    out += stop.finish();
    CAPTURE(text);
    CHECK(out == expected);
  }
}

}  // namespace
}  // namespace volvelle
