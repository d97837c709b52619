// Reads `tokenizer.json` of Hugging Face tokenizers (version 1.0) and what `tokenizer_config.json`
// and `chat_template.jinja` beside it add.

#ifndef VOLVELLE_CONVERTER_TOKENIZERS_TOKENIZER_JSON_H_
#define VOLVELLE_CONVERTER_TOKENIZERS_TOKENIZER_JSON_H_

#include <optional>
#include <string>

#include "platforms/error.h"
#include "runtime/tokenizer/spec.h"

namespace volvelle {

// `path` is the tokenizer.json. `config_path`, a tokenizer_config.json that may be absent, names
// bos, eos and chat templates; a chat_template.jinja in its folder wins. Components that this
// version cannot run are refused by name.
Result<TokenizerSpec> read_tokenizer_json(
    const std::string& path, const std::optional<std::string>& config_path = std::nullopt);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_TOKENIZERS_TOKENIZER_JSON_H_
