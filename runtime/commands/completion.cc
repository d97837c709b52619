// volvelle completion

#include "runtime/commands/runtime_commands.h"

namespace volvelle {
namespace {

std::vector<const CLI::App*> subcommands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* command) { return !command->get_name().empty(); });
}

// Every option of `command`, those of its option groups and its own commands included.
std::vector<const CLI::Option*> options_of(const CLI::App& command) {
  std::vector<const CLI::Option*> options = command.get_options();
  for (const CLI::App* part : command.get_subcommands([](const CLI::App*) { return true; })) {
    for (const CLI::Option* option : options_of(*part)) options.push_back(option);
  }
  return options;
}

std::string words_of(const CLI::App& command) {
  std::string words;
  for (const CLI::App* part : subcommands(command)) words += part->get_name() + " ";
  for (const CLI::Option* option : options_of(command)) {
    for (const std::string& name : option->get_snames()) words += "-" + name + " ";
    for (const std::string& name : option->get_lnames()) words += "--" + name + " ";
  }
  return words;
}

std::string bash_completion(const CLI::App& app) {
  std::string cases;
  std::string names;
  for (const CLI::App* command : subcommands(app)) {
    cases += std::format("    {}) words=\"{}\" ;;\n", command->get_name(), words_of(*command));
    names += command->get_name() + " ";
  }
  return std::format(
      "_volvelle() {{\n"
      "  local words=\n"
      "  case \"${{COMP_WORDS[1]}}\" in\n{}  esac\n"
      "  [ \"$COMP_CWORD\" -eq 1 ] && words=\"{}--help --version\"\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"${{COMP_WORDS[COMP_CWORD]}}\"))\n"
      "}}\n"
      "complete -o default -F _volvelle volvelle\n",
      cases, names);
}

std::string fish_quoted(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "'";
}

std::string fish_completion(const CLI::App& app) {
  std::string lines =
      "complete -c volvelle -n __fish_use_subcommand -l help\ncomplete -c volvelle -n "
      "__fish_use_subcommand -l version\n";
  for (const CLI::App* command : subcommands(app)) {
    lines += std::format("complete -c volvelle -n __fish_use_subcommand -a {} -d {}\n",
                         command->get_name(), fish_quoted(command->get_description()));
    const std::string seen = std::format("complete -c volvelle -n '__fish_seen_subcommand_from {}'",
                                         command->get_name());
    for (const CLI::App* part : subcommands(*command))
      lines += std::format("{} -a {}\n", seen, part->get_name());
    for (const CLI::Option* option : options_of(*command)) {
      if (option->get_snames().empty() && option->get_lnames().empty()) continue;
      lines += seen;
      for (const std::string& name : option->get_snames()) lines += " -s " + name;
      for (const std::string& name : option->get_lnames()) lines += " -l " + name;
      lines += " -d " + fish_quoted(option->get_description()) + "\n";
    }
  }
  return lines;
}

}  // namespace

void add_completion_command(Program& program) {
  const auto shell = std::make_shared<std::string>();
  CLI::App& command = program.add_command(
      {"completion", "Writes what a shell needs to complete commands and options",
       "Examples:\n"
       "  volvelle completion bash > /etc/bash_completion.d/volvelle\n"
       "  source <(volvelle completion zsh)\n"
       "  volvelle completion fish > ~/.config/fish/completions/volvelle.fish"},
      [&program, shell]() -> Result<> {
        if (*shell == "fish") {
          print(fish_completion(program.app()));
        } else {
          if (*shell == "zsh") print("autoload -U +X bashcompinit && bashcompinit\n");
          print(bash_completion(program.app()));
        }
        return {};
      });
  command.add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
}

}  // namespace volvelle
