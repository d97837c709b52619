// What goldens that passed have shown to be right, as the tables of README.md.

#ifndef VOLVELLE_TESTS_GOLDENS_COVERAGE_H_
#define VOLVELLE_TESTS_GOLDENS_COVERAGE_H_

#include <set>
#include <string>
#include <utility>

#include "runtime/model.h"
#include "tests/goldens/golden.h"

namespace volvelle {

class Coverage {
 public:
  // Takes note of a golden whose logits came out right, and of what the model says of itself.
  void add(const Golden& golden, const Model& model);

  // The same of an encoder, or of one with its decoder.
  void add_encoder(const std::string& family, bool gguf);

  // A rotary scaling that showed itself right on a dial that the converter was asked for.
  void add(const Rotary& rotary, size_t head_dim);

  // Families by format, then schemes of positions by scaling, in Markdown.
  std::string tables() const;

 private:
  std::set<std::pair<std::string, bool>> families_;        // of a GGUF file
  std::set<std::pair<std::string, std::string>> schemes_;  // and their scalings
};

// What has passed in this run, and whether encoders have been tried.
struct Run {
  Coverage passed;
  bool encoders_tried = false;
};
Run& this_run();

// The section of README.md between the two comments that mark it.
class ReadmeSection {
 public:
  ReadmeSection();
  std::string text() const;
  void rewrite(const std::string& text) const;

 private:
  std::string file_;
  size_t begin_ = 0, end_ = 0;
};

}  // namespace volvelle

#endif  // VOLVELLE_TESTS_GOLDENS_COVERAGE_H_
