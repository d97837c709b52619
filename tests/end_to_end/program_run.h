// Calls the built program and keeps what it wrote.

#ifndef VOLVELLE_TESTS_END_TO_END_PROGRAM_RUN_H_
#define VOLVELLE_TESTS_END_TO_END_PROGRAM_RUN_H_

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace volvelle {

struct Ran {
  int status = -1;  // 128 + the signal's number where a signal ended it
  std::string out, err;
  double seconds = 0;      // from its start to its end
  uint64_t own_bytes = 0;  // the most that watch_memory saw of memory that is no file's

  nlohmann::json json() const { return nlohmann::json::parse(out); }
};

// Whether an emulator runs the program, which takes memory of its own.
bool is_emulated();

struct Circumstances {
  std::string_view input = "";     // what standard input holds
  const char* out_path = nullptr;  // where standard output goes instead of into `out`
  double interrupt_after = 0;      // seconds until Ctrl-C; 0: never
  size_t address_space = 0;        // bytes that it may have (ulimit -v); 0: any
  bool watch_memory = false;       // look every millisecond
};
Ran run_program(const std::vector<std::string>& arguments, const Circumstances& circumstances);
inline Ran run_program(const std::vector<std::string>& arguments, std::string_view input = "") {
  return run_program(arguments, Circumstances{.input = input});
}

// A folder that is removed with everything in it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string operator/(std::string_view name) const { return (path_ / name).string(); }
  std::string write(std::string_view name, std::string_view text) const;  // returns the file's path

 private:
  std::filesystem::path path_;
};

std::string read_file(const std::string& path);

}  // namespace volvelle

#endif  // VOLVELLE_TESTS_END_TO_END_PROGRAM_RUN_H_
