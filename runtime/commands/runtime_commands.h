// The runtime's commands, one file each; runtime_commands.cc adds them all.

#ifndef VOLVELLE_RUNTIME_COMMANDS_RUNTIME_COMMANDS_H_
#define VOLVELLE_RUNTIME_COMMANDS_RUNTIME_COMMANDS_H_

#include <optional>

#include "runtime/commands/program.h"

namespace volvelle {

void add_run_command(Program& program);
void add_logits_command(Program& program);
void add_tokenize_command(Program& program);
void add_detokenize_command(Program& program);
void add_inspect_command(Program& program);
void add_bench_command(Program& program);
void add_perplexity_command(Program& program);
void add_completion_command(Program& program);
void add_embed_command(Program& program);
void add_fill_command(Program& program);
void add_classify_command(Program& program);
void add_translate_command(Program& program);

// -p/--prompt TEXT, where "-" is standard input.
CLI::Option* add_text_option(CLI::App& command, std::optional<std::string>& text);

// --tokens 1,2,3|@FILE.
CLI::Option* add_tokens_option(CLI::App& command, std::string& tokens);

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_COMMANDS_RUNTIME_COMMANDS_H_
