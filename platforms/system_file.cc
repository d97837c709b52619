#include "platforms/system_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>

namespace volvelle {
namespace {

constexpr size_t kMaxText = 1 << 20;  // /proc/cpuinfo of 256 cores takes a third of it
constexpr std::string_view kSpace = " \t\n";

std::string_view trim(std::string_view text) {
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) + 1 - first);
}

}  // namespace

std::optional<std::string> read_system_text(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return std::nullopt;
  std::string text;
  char piece[4096];
  ssize_t count = 0;
  while (text.size() < kMaxText) {
    count = ::read(descriptor, piece, sizeof(piece));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    text.append(piece, static_cast<size_t>(count));
  }
  ::close(descriptor);
  if (count < 0) return std::nullopt;
  // A device tree's strings end in a zero byte.
  while (!text.empty() && (text.back() == '\0' || kSpace.contains(text.back()))) text.pop_back();
  return text;
}

std::optional<int64_t> parse_number(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::optional<int64_t> read_system_number(const std::string& path) {
  const auto text = read_system_text(path);
  return text ? parse_number(*text) : std::nullopt;
}

std::optional<std::string_view> find_field(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    const size_t colon = line.find(':');
    if (colon != std::string_view::npos && trim(line.substr(0, colon)) == key) {
      return trim(line.substr(colon + 1));
    }
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return std::nullopt;
}

}  // namespace volvelle
