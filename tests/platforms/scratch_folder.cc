#include "tests/platforms/scratch_folder.h"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <format>
#include <fstream>
#include <iterator>

namespace volvelle {

ScratchFolder::ScratchFolder()
    : path_((std::filesystem::temp_directory_path() / "volvelle-test-XXXXXX").string()) {
  REQUIRE(::mkdtemp(path_.data()) != nullptr);
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string ScratchFolder::operator/(std::string_view name) const {
  return std::format("{}/{}", path_, name);
}

std::string ScratchFolder::write(std::string_view name, std::string_view text) const {
  const std::string path = *this / name;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

std::vector<std::string> ScratchFolder::names() const {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path_)) {
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

void ScratchFolder::lay_out_machine(std::string_view name) const {
  std::ifstream file(std::format("tests/platforms/machines/{}.txt", name));
  REQUIRE(file.is_open());
  for (std::string line; std::getline(file, line);) {
    const size_t equals = line.find(" = ");
    if (line.starts_with('#') || equals == std::string::npos) continue;
    std::string text = line.substr(equals + 3);
    for (const auto& [written, meant] : {std::pair("\\n", "\n"), std::pair("\\t", "\t")}) {
      for (size_t at; (at = text.find(written)) != std::string::npos;) text.replace(at, 2, meant);
    }
    write(line.substr(1, equals - 1), text + '\n');
  }
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace volvelle
