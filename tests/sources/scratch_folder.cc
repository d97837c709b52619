#include "tests/sources/scratch_folder.h"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace volvelle {

ScratchFolder::ScratchFolder() {
  path_ = (std::filesystem::temp_directory_path() / "volvelle-sources-XXXXXX").string();
  REQUIRE(::mkdtemp(path_.data()) != nullptr);
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string ScratchFolder::write(std::string_view name, std::string_view bytes) const {
  const std::string path = file(name);
  // A file that is cut to nothing and written again is flushed to the disk by ext4, which takes
  // milliseconds.
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return path;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE_MESSAGE(file.good(), path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::mt19937_64& random_engine() {
  static std::mt19937_64 engine = [] {
    const char* stated = std::getenv("VOLVELLE_SEED");
    const uint64_t seed = stated ? std::strtoull(stated, nullptr, 0) : 20240229;
    std::printf("seed %llu (VOLVELLE_SEED)\n", static_cast<unsigned long long>(seed));
    return std::mt19937_64(seed);
  }();
  return engine;
}

std::string damaged(std::string bytes) {
  std::mt19937_64& engine = random_engine();
  const auto below = [&](uint64_t end) { return engine() % end; };
  constexpr uint64_t kNumbers[] = {0,
                                   1,
                                   2,
                                   31,
                                   32,
                                   255,
                                   1 << 16,
                                   0x7fffffff,
                                   0x80000000,
                                   0xffffffff,
                                   uint64_t{1} << 40,
                                   uint64_t{1} << 61,
                                   0x7fffffffffffffff,
                                   0x8000000000000000,
                                   0xffffffffffffffff};
  for (uint64_t count = 1 + below(4); count > 0 && !bytes.empty(); --count) {
    const size_t at = below(bytes.size());
    switch (below(6)) {
      case 0:
        bytes[at] ^= static_cast<char>(1 << below(8));
        break;
      case 1:
        bytes[at] = static_cast<char>(below(256));
        break;
      case 2:
      case 3: {
        const uint64_t number = kNumbers[below(std::size(kNumbers))];
        std::memcpy(&bytes[at], &number, std::min<size_t>(bytes.size() - at, below(2) ? 4 : 8));
        break;
      }
      case 4:
        bytes.erase(at, 1 + below(8));
        break;
      default:
        bytes.insert(at, bytes.substr(at, 1 + below(8)));
    }
  }
  return bytes;
}

}  // namespace volvelle
