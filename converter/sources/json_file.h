// JSON that came with a checkpoint: bounded in size and depth, and an error instead of an
// exception.

#ifndef VOLVELLE_CONVERTER_SOURCES_JSON_FILE_H_
#define VOLVELLE_CONVERTER_SOURCES_JSON_FILE_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "platforms/error.h"

namespace volvelle {

// Large vocabularies with merges take some 40 MB.
inline constexpr uint64_t kJsonBytesLimit = uint64_t{256} << 20;
inline constexpr int kJsonDepthLimit = 64;

// Of two members of one object with the same name, configurations take the last, as Python does.
enum class RepeatedNames { take_last, refuse };

// `path` names the text in errors.
Result<nlohmann::json> parse_json(std::string_view text, std::string_view path,
                                  RepeatedNames repeated = RepeatedNames::take_last);

Result<nlohmann::json> read_json(const std::string& path);

// The same, or null when there is no such file.
Result<nlohmann::json> read_json_if_present(const std::string& path);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_SOURCES_JSON_FILE_H_
