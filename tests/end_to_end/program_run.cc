#include "tests/end_to_end/program_run.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <thread>

#include "platforms/system_file.h"

namespace volvelle {

namespace {

// What a process holds that no file could give back: RssAnon and RssShmem, both in kB.
uint64_t own_bytes(pid_t process) {
  const std::string status = read_file("/proc/" + std::to_string(process) + "/status");
  uint64_t bytes = 0;
  for (const char* field : {"RssAnon", "RssShmem"}) {
    const auto value = find_field(status, field);
    if (value.has_value()) bytes += std::stoull(std::string(*value)) * 1024;
  }
  return bytes;
}

}  // namespace

bool is_emulated() { return *VOLVELLE_EMULATOR != 0; }

Ran run_program(const std::vector<std::string>& arguments, const Circumstances& circumstances) {
  const auto& [input, out_path, interrupt_after, address_space, watch_memory] = circumstances;
  const TemporaryFolder folder;
  const std::string in = folder.write("in", input);
  const std::string out = out_path != nullptr ? out_path : folder.write("out", "");
  const std::string err = folder.write("err", "");
  std::vector<char*> argv;
  for (const char* word : {VOLVELLE_EMULATOR, VOLVELLE_PROGRAM}) {
    if (*word != 0) argv.push_back(const_cast<char*>(word));
  }
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);

  const auto start = std::chrono::steady_clock::now();
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) {
    const int in_file = open(in.c_str(), O_RDONLY), out_file = open(out.c_str(), O_WRONLY);
    const int err_file = open(err.c_str(), O_WRONLY);
    if (dup2(in_file, 0) < 0 || dup2(out_file, 1) < 0 || dup2(err_file, 2) < 0) _exit(126);
    if (address_space > 0) {
      const rlimit limit = {address_space, address_space};
      if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(126);
    }
    execvp(argv[0], argv.data());
    _exit(127);
  }
  if (interrupt_after > 0) {
    std::this_thread::sleep_for(std::chrono::duration<double>(interrupt_after));
    kill(child, SIGINT);
  }
  int status = 0;
  Ran ran;
  while (watch_memory && waitpid(child, &status, WNOHANG) == 0) {
    ran.own_bytes = std::max(ran.own_bytes, own_bytes(child));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (!watch_memory) waitpid(child, &status, 0);
  ran.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  ran.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  ran.err = read_file(err);
  if (out_path == nullptr) ran.out = read_file(out);
  return ran;
}

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "volvelle-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder can be made");
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TemporaryFolder::write(std::string_view name, std::string_view text) const {
  const std::filesystem::path path = path_ / name;
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
  return path.string();
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace volvelle
