// The program where the converter is not built: it reads `.vvl` files only.

#include "runtime/commands/program.h"

int main(int argc, char** argv) {
  volvelle::Program program;
  volvelle::add_runtime_commands(program);
  return program.run(argc, argv);
}
