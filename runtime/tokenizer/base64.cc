#include "runtime/tokenizer/base64.h"

#include <array>
#include <cstdint>

namespace volvelle {
namespace {

constexpr std::array<int8_t, 256> kDigits = [] {
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::array<int8_t, 256> digits;
  digits.fill(-1);
  for (size_t i = 0; i < kAlphabet.size(); ++i) {
    digits[static_cast<unsigned char>(kAlphabet[i])] = static_cast<int8_t>(i);
  }
  return digits;
}();

}  // namespace

std::optional<std::string> decode_base64(std::string_view text) {
  while (text.ends_with('=')) text.remove_suffix(1);
  if (text.size() % 4 == 1) return std::nullopt;
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3 + 2);
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const int8_t digit = kDigits[static_cast<unsigned char>(c)];
    if (digit < 0) return std::nullopt;
    bits = (bits << 6 | static_cast<uint32_t>(digit)) & 0xffff;
    if ((count += 6) >= 8) bytes += static_cast<char>(bits >> (count -= 8) & 0xff);
  }
  return bytes;
}

}  // namespace volvelle
