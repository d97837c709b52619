// The program where the converter is not built: it reads `.vvl` files only.

#include "runtime/commands/program.h"

int main(int argc, char** argv) {
  volvelle::Program program;
  volvelle::add_runtime_commands(program);
  for (const char* command : {"convert", "extend"}) {
    program.add_absent_command(
        command,
        "this program reads .vvl files only; the one that is built with the converter makes "
        "and changes them (-DVOLVELLE_CONVERTER=ON)");
  }
  return program.run(argc, argv);
}
