// Base64 (RFC 4648), in which texts and tables that are not UTF-8 stand in JSON.

#ifndef VOLVELLE_RUNTIME_TOKENIZER_BASE64_H_
#define VOLVELLE_RUNTIME_TOKENIZER_BASE64_H_

#include <optional>
#include <string>
#include <string_view>

namespace volvelle {

// The bytes that `text`, padded or not, stands for; nothing where it is not base64.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_TOKENIZER_BASE64_H_
