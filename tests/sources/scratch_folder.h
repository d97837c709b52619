// A folder that is gone when the test ends, a damaged copy of bytes, and random numbers that can be
// drawn again.

#ifndef VOLVELLE_TESTS_SOURCES_SCRATCH_FOLDER_H_
#define VOLVELLE_TESTS_SOURCES_SCRATCH_FOLDER_H_

#include <cstdint>
#include <random>
#include <string>
#include <string_view>

namespace volvelle {

class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string file(std::string_view name) const { return path_ + "/" + std::string(name); }
  // Writes the file and returns its path.
  std::string write(std::string_view name, std::string_view bytes) const;

 private:
  std::string path_;
};

std::string read_file(const std::string& path);

// The bytes of a trivially copyable value.
template <typename T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

// Seeded from VOLVELLE_SEED, or a fixed number; the seed is printed.
std::mt19937_64& random_engine();

// One to four damages: a flipped bit, a byte, or a small or huge number at any place; bytes cut out
// or doubled.
std::string damaged(std::string bytes);

}  // namespace volvelle

#endif  // VOLVELLE_TESTS_SOURCES_SCRATCH_FOLDER_H_
