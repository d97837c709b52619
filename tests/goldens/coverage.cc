#include "tests/goldens/coverage.h"

#include <algorithm>
#include <array>
#include <format>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string_view>
#include <variant>
#include <vector>

#include "converter/families/family.h"

namespace volvelle {
namespace {

constexpr const char* kReadme = "README.md";
constexpr std::string_view kBegin = "<!-- coverage: written by test_goldens -->\n";
constexpr std::string_view kEnd = "<!-- end of coverage -->\n";

// Architectures of GGUF that no family reads yet.
constexpr std::array<std::string_view, 2> kUnreadArchitectures = {"gptj", "llama4"};

// Families whose GGUF files say that they are llama, and are.
constexpr std::array<std::string_view, 2> kLlamaInGguf = {"mistral", "mixtral"};

constexpr const char* kNoPositions = "no positions";
constexpr std::array<std::string_view, 10> kSchemes = {
    "rotary, half pairs",
    "rotary, half pairs, part of a head",
    "rotary, interleaved pairs",
    "rotary, interleaved, part of a head",
    "ALiBi",
    "learned table",
    "sinusoids",
    "T5's buckets",
    "Shaw's tables",
    kNoPositions,
};

// As the file calls them, and as people do.
constexpr std::array<std::pair<std::string_view, std::string_view>, 8> kScalings = {{
    {"none", "none"},
    {"linear", "linear"},
    {"ntk", "NTK"},
    {"dynamic_ntk", "dynamic"},
    {"yarn", "YaRN"},
    {"longrope", "LongRoPE"},
    {"llama3", "Llama 3"},
    {"proportional", "prop."},
}};

std::string_view scheme_of(const Rotary& rotary, size_t head_dim) {
  const bool part = rotary.dial.width() < head_dim;
  return kSchemes[(rotary.pairing == Pairing::kHalf ? 0 : 2) + (part ? 1 : 0)];
}

template <typename Row>
std::string line(const Row& cells) {
  std::string text = "|";
  for (const auto& cell : cells) text += std::format(" {} |", cell);
  return text + "\n";
}

std::string rule(size_t columns) {
  std::string text = "|";
  while (columns-- > 0) text += "---|";
  return text + "\n";
}

}  // namespace

void Coverage::add(const Golden& golden, const Model& model) {
  families_.emplace(model.family(), golden.source.extension() == ".gguf");
  const Stack& stack = model.decoder();
  if (const AdditiveTable* table = stack.additive) {
    schemes_.emplace(table->learned ? "learned table" : "sinusoids", "none");
  }
  for (const Block& block : stack.blocks) {
    const Attention& attention = block.attention;
    if (attention.rotary != nullptr) add(*attention.rotary, attention.head_dim);
    if (attention.slopes != nullptr) schemes_.emplace("ALiBi", "none");
    if (attention.buckets != nullptr) schemes_.emplace("T5's buckets", "none");
    if (attention.relative != nullptr) schemes_.emplace("Shaw's tables", "none");
    if (!attention.has_position() && stack.additive == nullptr) {
      schemes_.emplace(kNoPositions, "none");
    }
  }
}

void Coverage::add_encoder(const std::string& family, bool gguf) {
  families_.emplace(family, gguf);
}

Run& this_run() {
  static Run run;
  return run;
}

void Coverage::add(const Rotary& rotary, size_t head_dim) {
  schemes_.emplace(scheme_of(rotary, head_dim), rotary.scaling.kind);
}

std::string Coverage::tables() const {
  const auto known = [](const auto& list, std::string_view name) {
    return std::ranges::contains(list, name);
  };
  const auto tick = [](bool covered) { return covered ? "✓" : ""; };

  // Three families to a line, one below the other.
  constexpr size_t kColumns = 3;
  const std::span<const Family> all = families();
  const size_t lines = (all.size() + kColumns - 1) / kColumns;
  std::vector<std::string_view> titles;
  for (size_t column = 0; column < kColumns; ++column) {
    titles.insert(titles.end(), {"family", "HF", "GGUF"});
  }
  std::string text = line(titles) + rule(titles.size());
  for (size_t row = 0; row < lines; ++row) {
    std::vector<std::string> cells;
    for (size_t i = row; i < lines * kColumns; i += lines) {
      if (i >= all.size()) {
        cells.insert(cells.end(), kColumns, "");
        continue;
      }
      const std::string name(all[i].name);
      const bool gguf = families_.contains({name, true});
      const bool in_gguf = !all[i].gguf_architecture.empty() || known(kUnreadArchitectures, name);
      cells.push_back(name);
      cells.push_back(tick(families_.contains({name, false})));
      cells.push_back(known(kLlamaInGguf, name) ? "llama"
                      : name == "umt5"          ? "t5"
                      : in_gguf                 ? tick(gguf)
                                                : "–");
    }
    text += line(cells);
  }
  text +=
      "\n✓: a golden of the family passed. Empty: none yet. –: GGUF has no such architecture. "
      "llama, t5: "
      "what its GGUF files say.\n\n";

  std::vector<std::string_view> scalings = {"positions"};
  for (const auto& [kind, name] : kScalings) scalings.push_back(name);
  text += line(scalings) + rule(scalings.size());
  for (const std::string_view scheme : kSchemes) {
    std::vector<std::string> cells = {std::string(scheme)};
    for (const auto& [kind, name] : kScalings) {
      const bool covered = schemes_.contains({std::string(scheme), std::string(kind)});
      // Proportional scaling has a frequency for each pair of a whole head.
      const bool exists = kind == "none" || (scheme.starts_with("rotary") &&
                                             !(kind == "proportional" && scheme.contains("part")));
      cells.push_back(exists ? tick(covered) : "–");
    }
    text += line(cells);
  }
  return text +
         "\nColumns are scalings of rotary positions. ✓: a golden passed. Empty: none yet. –: "
         "there "
         "is no such thing.\n";
}

ReadmeSection::ReadmeSection() {
  std::ifstream stream(kReadme, std::ios::binary);
  file_ = {std::istreambuf_iterator<char>(stream), {}};
  begin_ = file_.find(kBegin);
  end_ = file_.find(kEnd);
  if (begin_ == std::string::npos || end_ == std::string::npos || end_ < begin_) {
    throw std::runtime_error(std::format("{} lacks the lines\n{}{}", kReadme, kBegin, kEnd));
  }
  begin_ += kBegin.size();
}

std::string ReadmeSection::text() const { return file_.substr(begin_, end_ - begin_); }

void ReadmeSection::rewrite(const std::string& text) const {
  std::ofstream(kReadme, std::ios::binary) << file_.substr(0, begin_) << text << file_.substr(end_);
}

}  // namespace volvelle
