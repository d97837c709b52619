// `volvelle convert`.

#ifndef VOLVELLE_CONVERTER_COMMANDS_CONVERT_H_
#define VOLVELLE_CONVERTER_COMMANDS_CONVERT_H_

#include "runtime/commands/program.h"

namespace volvelle {

void add_convert_command(Program& program);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_COMMANDS_CONVERT_H_
