#include "runtime/commands/program.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "platforms/interrupt.h"
#include "runtime/tokenizer/utf8.h"

namespace volvelle {
namespace {

constexpr int kInputAtFault = 1;
constexpr int kWrongUsage = 2;
constexpr const char* kVersion = VOLVELLE_VERSION;

// Whether a terminal may obey a character instead of showing it: second controls, Unicode's order
// of writing, its line separators and marks without width. Joiners belong to words and stay.
bool steers(char32_t c) {
  return (c >= 0x80 && c <= 0x9f) || c == 0x61c || c == 0x180e || c == 0x200b || c == 0x200e ||
         c == 0x200f || (c >= 0x2028 && c <= 0x202e) || (c >= 0x2060 && c <= 0x206f) ||
         c == 0xfeff || (c >= 0xfff9 && c <= 0xfffb) || (c >= 0xe0000 && c <= 0xe007f);
}

}  // namespace

Program::Program() : app_("Volvelle runs transformers on small devices.", "volvelle") {
  app_.set_version_flag("--version", std::string("volvelle ") + kVersion);
  app_.require_subcommand(0, 1);
  app_.get_formatter()->column_width(34);
  app_.footer(
      "Each command has a --help of its own, with examples. \"-\" is standard input or output.");
}

CLI::App& Program::add_command(const CommandText& text, Action action) {
  CLI::App* parent = &app_;
  std::string name = text.name;
  if (const size_t blank = name.find(' '); blank != std::string::npos) {
    const std::string group = name.substr(0, blank);
    name.erase(0, blank + 1);
    const auto groups =
        app_.get_subcommands([&](CLI::App* command) { return command->get_name() == group; });
    parent = groups.empty() ? app_.add_subcommand(group)->require_subcommand(1) : groups.front();
    const std::string summary = parent->get_description();
    parent->description(summary.empty() ? text.summary : summary + "; " + text.summary);
  }
  CLI::App* command = parent->add_subcommand(name, text.summary);
  command->footer(text.details);
  command->final_callback([this, action = std::move(action)] { chosen_ = action; });
  return *command;
}

void Program::add_absent_command(const std::string& name, std::string sentence) {
  absent_.emplace(name, std::move(sentence));
}

void Program::add_tokenizer_source(std::string form,
                                   std::function<bool(const std::string&)> accepts,
                                   TokenizerOpener open) {
  tokenizer_sources_.push_back({std::move(form), std::move(accepts), std::move(open)});
}

Result<std::shared_ptr<const Tokenizer>> Program::open_tokenizer(const std::string& source) const {
  for (auto kind = tokenizer_sources_.rbegin(); kind != tokenizer_sources_.rend(); ++kind) {
    if (kind->accepts(source)) return kind->open(source);
  }
  if (std::error_code ignored; !std::filesystem::exists(source, ignored))
    return fail("{}: there is no such file or folder; check the path", printable(source));
  return fail("{}: no tokenizer is read from this; give {}", printable(source),
              tokenizer_sources());
}

std::string Program::tokenizer_sources() const {
  std::string text;
  for (size_t i = 0; i < tokenizer_sources_.size(); ++i) {
    if (i > 0) text += i + 1 == tokenizer_sources_.size() ? " or " : ", ";
    text += tokenizer_sources_[i].form;
  }
  return text;
}

// What is to be said to whom asks for a command that there is not.
std::string Program::missing_command(const std::string& name) const {
  if (const auto reason = absent_.find(name); reason != absent_.end()) return reason->second;
  std::string names;
  for (const CLI::App* command : app_.get_subcommands({})) {
    names += (names.empty() ? "" : ", ") + command->get_name();
  }
  return std::format("there is no command {}; there are {} (see volvelle --help)", name, names);
}

int Program::run(int argc, const char* const* argv) {
  end_quietly_on_broken_pipe();
  ignore_file_size_limits();
  try {
    app_.parse(argc, argv);
    if (!chosen_) throw CLI::CallForHelp();
  } catch (const CLI::CallForHelp& help) {
    if (app_.get_subcommands().empty() && argc < 2) {
      std::fputs(app_.help().c_str(), stderr);
      return kWrongUsage;
    }
    return app_.exit(help);
  } catch (const CLI::Success& success) {  // --version
    return app_.exit(success);
  } catch (const CLI::ParseError& error) {
    const CLI::App* command = &app_;
    if (app_.get_subcommands().empty() && argc > 1 && argv[1][0] != '-') {
      print_notice(missing_command(argv[1]));
      return kWrongUsage;
    }
    std::string name = "volvelle";
    for (auto chosen = command->get_subcommands(); !chosen.empty();
         chosen = command->get_subcommands()) {
      command = chosen.front();
      name += " " + command->get_name();
    }
    print_notice("{} (see {} --help)", error.what(), name);
    return kWrongUsage;
  }

  const InterruptScope scope;
  Result<> result;
  try {
    result = chosen_();
  } catch (const std::bad_alloc&) {
    result = fail("memory is short; close other programs, or try a smaller --context");
  } catch (const std::exception& error) {
    result = fail("{}", error.what());
  }
  if (result.has_value() && (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)) {
    result = fail("standard output: {}", std::strerror(errno));
  }
  std::fflush(stdout);
  if (interrupted()) return interrupt_status();
  if (result.has_value()) return 0;
  print_notice(result.error().message);
  return kInputAtFault;
}

void require_one_of(CLI::App& command, std::vector<const CLI::Option*> options) {
  command.parse_complete_callback([options = std::move(options)] {
    size_t given = 0;
    std::string names;
    for (const CLI::Option* option : options) {
      given += option->count() > 0;
      names += (names.empty() ? "" : ", ") + option->get_name();
    }
    if (given != 1) throw CLI::RequiredError::Option(1, 1, given, names);
  });
}

// ---- Output -------------------------------------------------------------------------------------

void print(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

void print_notice(std::string_view sentence) {
  std::fflush(stdout);
  // One line, and safe to show: a sentence may quote what a file says.
  const std::string line = std::format("volvelle: {}\n", printable(sentence));
  std::fwrite(line.data(), 1, line.size(), stderr);
}

std::string to_text(const nlohmann::ordered_json& json, int indent) {
  return json.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Utf8Step step = next_character(text);
    const char32_t character = step.character;
    if (step.state != Utf8State::whole) {
      for (const char c : text.substr(0, step.bytes)) {
        out += std::format("\\x{:02x}", static_cast<unsigned char>(c));
      }
    } else if (character < 0x20 || character == 0x7f) {
      out += std::format("\\x{:02x}", static_cast<uint32_t>(character));
    } else if (steers(character)) {
      out += std::format("\\u{:04x}", static_cast<uint32_t>(character));
    } else {
      out += text.substr(0, step.bytes);
    }
    text.remove_prefix(step.bytes);
  }
  return out;
}

std::string format_count(uint64_t count) {
  std::string digits = std::to_string(count);
  for (size_t end = digits.size(); end > 3; end -= 3) digits.insert(end - 3, ",");
  return digits;
}

Progress::Progress(std::string what, uint64_t total)
    : what_(std::move(what)),
      total_(std::max<uint64_t>(total, 1)),
      terminal_(isatty(STDERR_FILENO) == 1),
      start_(Clock::now()),
      last_(start_) {}

Progress::~Progress() {
  if (drawn_) std::fputs("\r\x1b[K", stderr);
}

void Progress::update(uint64_t done) {
  using namespace std::chrono_literals;
  done_ = std::min(done, total_);
  if (!terminal_) return;
  const auto now = Clock::now();
  if (now - start_ < 1s || now - last_ < 100ms) return;
  last_ = now;
  drawn_ = true;
  constexpr size_t kWidth = 32;
  const double fraction = static_cast<double>(done_) / static_cast<double>(total_);
  const auto filled = static_cast<size_t>(fraction * kWidth);
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double left = fraction > 0 ? seconds / fraction - seconds : 0;
  const std::string line =
      std::format("\r\x1b[K{} [{}{}] {:3.0f} %, {:.0f} s left", what_, std::string(filled, '#'),
                  std::string(kWidth - filled, '.'), fraction * 100, left);
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
}

// ---- Input --------------------------------------------------------------------------------------

Result<std::string> read_text(const std::string& path) {
  std::FILE* file = path == "-" ? stdin : std::fopen(path.c_str(), "rb");
  const char* name = path == "-" ? "standard input" : path.c_str();
  if (file == nullptr) return fail("{}: cannot be opened: {}", name, std::strerror(errno));
  std::string text;
  std::vector<char> buffer(64 * 1024);
  while (const size_t count = std::fread(buffer.data(), 1, buffer.size(), file))
    text.append(buffer.data(), count);
  const bool broken = std::ferror(file) != 0;
  const int error = errno;
  if (file != stdin) std::fclose(file);
  if (broken) return fail("{}: cannot be read: {}", name, std::strerror(error));
  return text;
}

Result<std::vector<int32_t>> parse_tokens(const std::string& text) {
  std::string read;
  std::string_view ids = text;
  std::string where = "the list of tokens";
  if (text.starts_with('@')) {
    VOLVELLE_ASSIGN_OR_RETURN(read, read_text(text.substr(1)));
    ids = read;
    where = text.substr(1) == "-" ? "standard input" : text.substr(1);
  }
  constexpr std::string_view kSeparators = ", \t\r\n";
  std::vector<int32_t> tokens;
  for (size_t begin = ids.find_first_not_of(kSeparators); begin != ids.npos;
       begin = ids.find_first_not_of(kSeparators, begin)) {
    const size_t end = std::min(ids.find_first_of(kSeparators, begin), ids.size());
    const std::string_view word = ids.substr(begin, end - begin);
    int32_t token = 0;
    const auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), token);
    if (error != std::errc() || rest != word.data() + word.size() || token < 0) {
      return fail("{}: \"{}\" is no token id; give numbers from 0 up, separated by commas", where,
                  printable(word.substr(0, 40)));
    }
    tokens.push_back(token);
    begin = end;
  }
  if (tokens.empty()) return fail("{}: no token id in it; give at least one", where);
  return tokens;
}

}  // namespace volvelle
