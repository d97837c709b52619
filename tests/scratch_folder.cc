#include "tests/scratch_folder.h"

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
  // A file that is cut to nothing and written again is flushed to the disk by ext4, which takes
  // milliseconds.
  std::filesystem::remove(path);
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

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE_MESSAGE(file.good(), path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace volvelle
