// The pictures of `inspect --plot`: XML that any reader takes, whatever the numbers and names are.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/commands/chart.h"
#include "runtime/commands/position_plots.h"
#include "runtime/commands/svg.h"
#include "tests/goldens/golden.h"
#include "tests/scratch_folder.h"

namespace volvelle {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool is_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '-'; }

// Whether `text` holds no markup but the five entities that XML knows.
bool is_character_data(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c == '<' || (c < 0x20 && c != '\n')) return false;
    if (c != '&') continue;
    const std::string_view rest = text.substr(i + 1);
    if (!std::ranges::any_of(
            std::initializer_list<std::string_view>{"lt;", "gt;", "amp;", "quot;", "apos;"},
            [&](std::string_view entity) { return rest.starts_with(entity); })) {
      return false;
    }
  }
  return true;
}

// What is wrong with a document in the part of XML that needs no declarations of types; empty:
// nothing. XML 1.0, sections 2.1 (well-formed documents) and 3.1 (tags).
std::string malformed(std::string_view xml) {
  constexpr std::string_view kProlog = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
  if (!xml.starts_with(kProlog)) return "prolog";
  xml.remove_prefix(kProlog.size());
  std::vector<std::string> open;
  bool rooted = false;
  while (!xml.empty()) {
    const std::string_view data = xml.substr(0, xml.find('<'));
    if (!is_character_data(data)) return "text: " + std::string(data);
    if (open.empty() && data.find_first_not_of('\n') != data.npos) return "text outside the root";
    xml.remove_prefix(data.size());
    if (xml.empty()) break;
    const size_t end = xml.find('>');
    if (end == xml.npos) return "a tag without an end";
    std::string_view tag = xml.substr(1, end - 1);
    xml.remove_prefix(end + 1);
    const bool closes = tag.starts_with('/'), empty = tag.ends_with('/');
    if (closes) tag.remove_prefix(1);
    if (empty) tag.remove_suffix(1);
    const auto name_end = std::ranges::find_if_not(tag, is_name);
    const std::string name(tag.begin(), name_end);
    tag.remove_prefix(name.size());
    if (name.empty()) return "a tag without a name";
    if (closes) {
      if (open.empty() || open.back() != name || !tag.empty()) return "</" + name;
      open.pop_back();
      continue;
    }
    if (open.empty() && rooted) return "a second root";
    rooted = true;
    while (!tag.empty()) {
      const size_t equals = tag.find("=\"");
      if (!tag.starts_with(' ') || equals == tag.npos ||
          !std::all_of(tag.begin() + 1, tag.begin() + equals, is_name)) {
        return name + ": attribute" + std::string(tag);
      }
      const size_t quote = tag.find('"', equals + 2);
      if (quote == tag.npos || !is_character_data(tag.substr(equals + 2, quote - equals - 2))) {
        return name + ": value" + std::string(tag);
      }
      tag.remove_prefix(quote + 1);
    }
    if (!empty) open.push_back(name);
  }
  return open.empty() && rooted ? "" : "unclosed";
}

TEST_CASE("the check of documents finds what is malformed") {
  const std::string prolog = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
  CHECK(malformed(prolog + "<a b=\"c\"><d/>e &amp; f</a>\n") == "");
  for (const char* bad : {"", "<a>", "<a></b>", "<a b=c/>", "<a>&x;</a>", "<a/><a/>",
                          "<a b=\"<\"/>", "<a><b></a></b>", "x<a/>", "<a \x01=\"1\"/>"}) {
    CAPTURE(bad);
    CHECK(malformed(prolog + bad) != "");
  }
}

const std::string kHostile =
    "</text><script>alert(\"1\")</script> & 'x' ]]> \xff\xc0\x80 \x01\x1b[31m é";

TEST_CASE("text from a file is escaped, and what XML cannot hold is replaced") {
  CHECK(xml_text("a<b>&\"é") == "a&lt;b&gt;&amp;&quot;é");
  CHECK(xml_text("\x01\xff") == "\uFFFD\uFFFD");
  CHECK(xml_text(std::string(500, 'x')).size() < 130);
  for (const std::string& svg :
       {plot_rotary(kHostile, {}, {}, {}, 0, 0), plot_slopes(kHostile, {}, 0),
        plot_biases(kHostile, {}, 0, 0, 0), plot_sinusoids(kHostile, {}, 0, 0)}) {
    CHECK(malformed(svg) == "");
    CHECK_FALSE(svg.contains("<script"));
    CHECK_FALSE(svg.contains("nan"));
    CHECK_FALSE(svg.contains("inf"));
  }
}

TEST_CASE("numbers that are none, all alike or extreme leave a drawing that holds") {
  const std::vector<float> odd = {0, -1, 1e-38f, 1e38f, static_cast<float>(kInfinity), NAN, 1};
  const std::vector<float> zeros(8, 0.0f);
  const RowReader rows = [&](size_t row, float* values) { std::copy_n(&odd[row % 4], 3, values); };
  for (const std::string& svg :
       {plot_rotary("m", odd, zeros, odd, 2048, 8192), plot_slopes("m", odd, 1 << 24),
        plot_biases("m", odd, 1, odd.size(), -3), plot_sinusoids("m", zeros, 2, 4),
        plot_row_norms("m", 9, 3, rows), plot_row_likeness("m", 9, 3, rows)}) {
    CHECK(malformed(svg) == "");
    for (const char* word : {"\"nan", "\"-nan", "\"inf", "\"-inf", "Lnan", " nan", " inf"}) {
      CHECK_FALSE(svg.contains(word));
    }
  }
}

TEST_CASE("ticks are round numbers within their ends") {
  CHECK(ticks(0, 100, false) == std::vector<double>{0, 20, 40, 60, 80, 100});
  CHECK(ticks(-1, 1, false).size() >= 4);
  CHECK(ticks(1, 10000, true) == std::vector<double>{1, 10, 100, 1000, 10000});
  CHECK(ticks(1e-30, 1e30, true).size() <= 9);
}

TEST_CASE("each position of a model is drawn into a folder that is made for it") {
  const ScratchFolder folder;
  for (const auto& [golden, names] :
       {std::pair{"gemma3_spelling_5",
                  std::vector<std::string>{"position-0-rotary.svg", "position-1-rotary.svg"}},
        {"phi3_longrope", {"position-0-rotary.svg"}},
        {"bloom", {"position-0-slopes.svg"}},
        {"gpt2", {"position-0-norms.svg", "position-0-likeness.svg"}}}) {
    const auto model = convert_to_model(std::string("tests/goldens/") + golden, "q8");
    const std::string into = folder / (std::string("plots/") + golden);
    for (int again = 0; again < 2; ++again) {  // what is there is replaced
      const auto plots = plot_positions(*model, into);
      REQUIRE_MESSAGE(plots.has_value(), (plots ? "" : plots.error().message));
      REQUIRE(plots->size() == names.size());
      for (size_t i = 0; i < names.size(); ++i) {
        CHECK((*plots)[i].path == into + "/" + names[i]);
        const std::string svg = read_file((*plots)[i].path);
        CHECK(malformed(svg) == "");
        CHECK(svg.contains(golden));  // the title
        CHECK(svg.contains("<path"));
      }
    }
  }
  const std::string file = folder.write("file", "x");
  const auto refused = plot_positions(*convert_to_model("tests/goldens/bloom", "q8"), file);
  REQUIRE(!refused.has_value());
  CHECK(refused.error().message.contains("cannot be made a folder"));
}

}  // namespace
}  // namespace volvelle
