// A folder of its own for a test, removed with all that is in it.

#ifndef VOLVELLE_TESTS_SCRATCH_FOLDER_H_
#define VOLVELLE_TESTS_SCRATCH_FOLDER_H_

#include <string>
#include <string_view>
#include <vector>

namespace volvelle {

class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(std::string_view name) const;

  // Writes a file, and the folders it needs, below this one; returns its path.
  std::string write(std::string_view name, std::string_view text) const;
  std::vector<std::string> names() const;  // sorted

 private:
  std::string path_;
};

// All of a file, which must be there.
std::string read_file(const std::string& path);

}  // namespace volvelle

#endif  // VOLVELLE_TESTS_SCRATCH_FOLDER_H_
