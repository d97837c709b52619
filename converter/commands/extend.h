// `volvelle extend`.

#ifndef VOLVELLE_CONVERTER_COMMANDS_EXTEND_H_
#define VOLVELLE_CONVERTER_COMMANDS_EXTEND_H_

#include "runtime/commands/program.h"

namespace volvelle {

void add_extend_command(Program& program);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_COMMANDS_EXTEND_H_
