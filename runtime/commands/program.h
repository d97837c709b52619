// The `volvelle` program: a set of commands that register themselves, on CLI11. The runtime brings
// the commands that a board needs (`add_runtime_commands`), the converter adds its own where it is
// built; main() adds and runs.
//
// What every command keeps to: results go to standard output, notices and progress to standard
// error; the exit status is 0 when done, 1 when the input is at fault (one sentence, "volvelle:
// …"), 2 for wrong usage, and 128 + the signal's number after Ctrl-C or SIGTERM.

#ifndef VOLVELLE_RUNTIME_COMMANDS_PROGRAM_H_
#define VOLVELLE_RUNTIME_COMMANDS_PROGRAM_H_

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <format>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "platforms/error.h"
#include "platforms/format_bytes.h"

namespace volvelle {

class Tokenizer;

struct CommandText {
  std::string name;     // "run"; "eval perplexity" is command `perplexity` of the group `eval`
  std::string summary;  // one line
  std::string details;  // after the options: examples, one a line, then what else is worth saying
};

class Program {
 public:
  using Action = std::function<Result<>()>;
  using TokenizerOpener =
      std::function<Result<std::shared_ptr<const Tokenizer>>(const std::string& source)>;

  Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Adds a command, which runs `action` once its options are parsed. Options are added to the
  // returned CLI::App, with variables that `action` shares (a std::shared_ptr to a struct of
  // options). Wrong usage is what CLI11 finds: state it as checks, needs(), excludes() and option
  // groups; an option's callback may throw CLI::ValidationError.
  CLI::App& add_command(const CommandText& text, Action action);

  // What to say to whom asks for `name`, a command that another build of the program has.
  void add_absent_command(const std::string& name, std::string sentence);

  // Adds a kind of source that tokenizers can be read from. `form` is a word for people ("a .gguf
  // file"); `accepts` tells by the path's name or kind whether `open` is to be asked. Later
  // additions are asked first.
  void add_tokenizer_source(std::string form, std::function<bool(const std::string&)> accepts,
                            TokenizerOpener open);

  // The tokenizer of any added source.
  Result<std::shared_ptr<const Tokenizer>> open_tokenizer(const std::string& source) const;
  std::string tokenizer_sources() const;  // "a .vvl file, a .gguf file or …", for --help

  // Parses, runs, reports; returns the exit status.
  int run(int argc, const char* const* argv);

  const CLI::App& app() const { return app_; }

 private:
  struct TokenizerSource {
    std::string form;
    std::function<bool(const std::string&)> accepts;
    TokenizerOpener open;
  };

  std::string missing_command(const std::string& name) const;

  CLI::App app_;
  std::map<std::string, std::string> absent_;
  std::vector<TokenizerSource> tokenizer_sources_;
  Action chosen_;
};

// Makes it wrong usage to give none of `options` or several.
void require_one_of(CLI::App& command, std::vector<const CLI::Option*> options);

// A number from `least` to `most`; --help leaves these out.
template <typename T>
CLI::Validator between(T least, T most) {
  // Range lets what is not a number pass.
  const CLI::Validator number(
      [](const std::string& text) -> std::string {
        T value;
        if (CLI::detail::lexical_cast(text, value) && value == value) return {};
        return text + " is not a number";
      },
      "");
  return (number & CLI::Range(least, most)).description("");
}

// Every command of the runtime.
void add_runtime_commands(Program& program);

// ---- Output -------------------------------------------------------------------------------------

// Writes to standard output. A failure to write is reported when the command ends.
void print(std::string_view text);
template <typename... Args>
  requires(sizeof...(Args) > 0)
void print(std::format_string<Args...> format, Args&&... args) {
  print(std::string_view(std::format(format, std::forward<Args>(args)...)));
}

// Writes "volvelle: …" as a line of its own to standard error, with control characters escaped.
void print_notice(std::string_view sentence);
template <typename... Args>
  requires(sizeof...(Args) > 0)
void print_notice(std::format_string<Args...> format, Args&&... args) {
  print_notice(std::string_view(std::format(format, std::forward<Args>(args)...)));
}

// JSON as text; bytes that are no UTF-8 become U+FFFD. `indent` < 0: on one line.
std::string to_text(const nlohmann::ordered_json& json, int indent = -1);

// `text` with control characters, those that turn the order of writing and broken UTF-8 escaped:
// safe to show on a terminal whatever file it came from.
std::string printable(std::string_view text);

std::string format_count(uint64_t count);  // "12,345"

// A bar on standard error, only when that is a terminal and the work has taken over a second; gone
// when it ends.
class Progress {
 public:
  // `what` stands before the bar ("packing"); `total` counts steps, bytes or tokens.
  Progress(std::string what, uint64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(uint64_t done);
  void advance(uint64_t steps) { update(done_ + steps); }

 private:
  using Clock = std::chrono::steady_clock;

  std::string what_;
  uint64_t total_;
  uint64_t done_ = 0;
  bool terminal_;
  bool drawn_ = false;
  Clock::time_point start_, last_;
};

// ---- Input --------------------------------------------------------------------------------------

// All of a file; "-" is standard input.
Result<std::string> read_text(const std::string& path);

// Token ids "1,2,3" (blanks and newlines separate as well), or "@FILE" ("@-": standard input) that
// holds them.
Result<std::vector<int32_t>> parse_tokens(const std::string& text);

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_COMMANDS_PROGRAM_H_
