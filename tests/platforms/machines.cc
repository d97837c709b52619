#include "tests/platforms/machines.h"

#include <doctest/doctest.h>

#include <format>
#include <fstream>
#include <string>
#include <utility>

namespace volvelle {

void lay_out_machine(const ScratchFolder& root, std::string_view name) {
  std::ifstream file(std::format("tests/platforms/machines/{}.txt", name));
  REQUIRE(file.is_open());
  for (std::string line; std::getline(file, line);) {
    const size_t equals = line.find(" = ");
    if (line.starts_with('#') || equals == std::string::npos) continue;
    std::string text = line.substr(equals + 3);
    for (const auto& [written, meant] : {std::pair("\\n", "\n"), std::pair("\\t", "\t")}) {
      for (size_t at; (at = text.find(written)) != std::string::npos;) text.replace(at, 2, meant);
    }
    root.write(line.substr(1, equals - 1), text + '\n');
  }
}

}  // namespace volvelle
