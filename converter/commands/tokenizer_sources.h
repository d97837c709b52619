// What `volvelle tokenize` and its like read where the converter is built: tokenizers of
// checkpoints.

#ifndef VOLVELLE_CONVERTER_COMMANDS_TOKENIZER_SOURCES_H_
#define VOLVELLE_CONVERTER_COMMANDS_TOKENIZER_SOURCES_H_

#include "runtime/commands/program.h"

namespace volvelle {

void add_tokenizer_sources(Program& program);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_COMMANDS_TOKENIZER_SOURCES_H_
