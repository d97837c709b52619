// The whole program: the runtime's commands and the converter's.

#include "converter/commands/convert.h"
#include "converter/commands/extend.h"
#include "converter/commands/tokenizer_sources.h"
#include "runtime/commands/program.h"

int main(int argc, char** argv) {
  volvelle::Program program;
  volvelle::add_tokenizer_sources(program);
  volvelle::add_runtime_commands(program);
  volvelle::add_convert_command(program);
  volvelle::add_extend_command(program);
  return program.run(argc, argv);
}
