#include "runtime/commands/program.h"

namespace volvelle {

void add_runtime_commands(Program&) {}

}  // namespace volvelle
