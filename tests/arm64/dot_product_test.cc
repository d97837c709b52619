// The kernels that are compiled once more for Arm's dot product: they have it, the others have not,
// and the processor decides which are called.

#include "kernels/dot_product.h"

#include <doctest/doctest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace volvelle {
namespace {

std::string output_of(const std::string& command) {
  std::string text;
  FILE* const pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::array<char, 65536> bytes;
  while (const size_t count = fread(bytes.data(), 1, bytes.size(), pipe)) {
    text.append(bytes.data(), count);
  }
  REQUIRE(pclose(pipe) == 0);
  return text;
}

// Calls function(line) for each line about the object file `member` of the kernels' archive.
template <typename Function>
void for_each_line(const std::string& text, std::string_view member, const Function& function) {
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line(text.data() + at, end - at);
    at = end + 1;
    if (const size_t named = line.find(".cc.o:"); named != std::string_view::npos) {
      inside = line.substr(0, named + 5).ends_with(member);
    } else if (inside) {
      function(line);
    }
  }
}

constexpr std::string_view kDotProduct = "attention_dot_product.cc.o", kBaseline = "attention.cc.o";

TEST_CASE(
    "attention is compiled once with sdot and udot, for which the same loops else do without") {
  const std::string code =
      output_of(std::string(VOLVELLE_OBJDUMP) + " -d --no-show-raw-insn " + VOLVELLE_KERNELS);
  size_t with = 0, without = 0, lines = 0;
  for_each_line(code, kDotProduct, [&](std::string_view line) {
    with += line.contains("\tsdot\tv");
    without += line.contains("\tudot\tv");
  });
  CHECK(with >= 16);  // four rows by two vectors, and those of fewer
  CHECK(without >= 16);
  // Of the targets of attention.cc, those with bfloat16 may use them, in a namespace of their own.
  bool neon = false;
  for_each_line(code, kBaseline, [&](std::string_view line) {
    if (line.ends_with(">:")) neon = line.contains("N_NEON") && !line.contains("N_NEON_BF16");
    if (!neon) return;
    ++lines;
    CHECK_FALSE(line.contains("dot\tv"));
  });
  CHECK(lines > 1000);
}

TEST_CASE("nothing of it can stand in for code that other processors run") {
  const std::string symbols = output_of(std::string(VOLVELLE_NM) + " -C " + VOLVELLE_KERNELS);
  size_t own = 0;
  for_each_line(symbols, kDotProduct, [&](std::string_view line) {
    if (line.size() < 20 || line[17] == 'U' || line[17] == 't' || line[17] == 'r') return;
    CAPTURE(line);
    CHECK(line.contains("volvelle::N_DOT_PRODUCT::"));
    ++own;
  });
  CHECK(own > 10);
}

TEST_CASE("the processor decides whether the dot product is taken") {
  const char* const emulated = std::getenv("QEMU_CPU");
  const bool before = takes_dot_product();
  const bool can = take_dot_product(true);
  CHECK_FALSE(take_dot_product(false));
  take_dot_product(before);
  if (emulated == nullptr) return;
  const std::string_view processor = emulated;
  CAPTURE(processor);
  if (processor == "cortex-a72") {
    CHECK_FALSE(can);
    CHECK_FALSE(before);
  } else {
    CHECK(can);
    CHECK(before);
  }
}

}  // namespace
}  // namespace volvelle
