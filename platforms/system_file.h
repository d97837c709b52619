// The small text files under /sys and /proc in which the kernel describes the machine. Whatever is
// absent, unreadable or not of the expected form is simply not known (std::nullopt): boards differ
// in what they tell. Every reader of them takes the `root` that stands before /sys and /proc, so
// that the recorded trees of other machines can be read as well ("" is this machine).

#ifndef VOLVELLE_PLATFORMS_SYSTEM_FILE_H_
#define VOLVELLE_PLATFORMS_SYSTEM_FILE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace volvelle {

// The file's text without white space at its end; at most its first MiB.
std::optional<std::string> read_system_text(const std::string& path);

// A decimal number that is all of `text`, or of the file's text.
std::optional<int64_t> parse_number(std::string_view text);
std::optional<int64_t> read_system_number(const std::string& path);

// The value of the first line "key<white space>: value", as in /proc/cpuinfo and /proc/self/status.
std::optional<std::string_view> find_field(std::string_view text, std::string_view key);

// Calls function(piece) for each piece of `text` between separators.
template <typename Function>
void for_each_piece(std::string_view text, char separator, const Function& function) {
  while (true) {
    const size_t end = text.find(separator);
    function(text.substr(0, end));
    if (end == std::string_view::npos) return;
    text.remove_prefix(end + 1);
  }
}

}  // namespace volvelle

#endif  // VOLVELLE_PLATFORMS_SYSTEM_FILE_H_
