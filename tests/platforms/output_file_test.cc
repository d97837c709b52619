#include "platforms/output_file.h"

#include <doctest/doctest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <string_view>
#include <vector>

#include "platforms/interrupt.h"
#include "tests/scratch_folder.h"

namespace volvelle {
namespace {

using Names = std::vector<std::string>;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

template <typename T>
std::string message(const Result<T>& result) {
  return result ? "" : result.error().message;
}

// Runs `body` in a process of its own; returns how it ended, as waitpid tells.
template <typename Body>
int in_process(const Body& body) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    body();
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return status;
}

TEST_CASE("an output file appears whole at its commit and not before") {
  for (const bool visible : {false, true}) {
    CAPTURE(visible);
    ScratchFolder folder;
    auto file = OutputFile::create(folder / "model", {.visible = visible});
    REQUIRE_MESSAGE(file.has_value(), message(file));
    CHECK(file->append(bytes_of("head")).has_value());
    CHECK(file->pad_to(64).has_value());
    CHECK(file->position() == 64);
    CHECK(file->pad_to(64).has_value());
    CHECK(file->append(bytes_of("tail")).has_value());
    CHECK(file->write_at(1, bytes_of("EA")).has_value());
    CHECK(file->position() == 68);
    CHECK_FALSE(std::filesystem::exists(folder / "model"));

    CHECK(message(file->commit()) == "");
    CHECK(folder.names() == Names{"model"});
    CHECK(read_file(folder / "model") == "hEAd" + std::string(60, '\0') + "tail");
    CHECK_FALSE(file->append(bytes_of("x")).has_value());
    CHECK_FALSE(file->commit().has_value());
  }
}

TEST_CASE("padding reaches every alignment that a model file uses") {
  ScratchFolder folder;
  auto file = OutputFile::create(folder / "model");
  REQUIRE(file.has_value());
  for (const uint64_t alignment : {1, 64, 4096, 16384, 65536}) {
    CHECK(file->append(bytes_of("x")).has_value());
    CHECK(file->pad_to(alignment).has_value());
    CHECK(file->position() % alignment == 0);
  }
  CHECK(file->commit().has_value());
  CHECK(std::filesystem::file_size(folder / "model") == file->position());
}

TEST_CASE("bytes that were not appended yet cannot be replaced") {
  ScratchFolder folder;
  auto file = OutputFile::create(folder / "model");
  REQUIRE(file.has_value());
  CHECK(file->append(bytes_of("four")).has_value());
  CHECK(file->write_at(4, {}).has_value());
  CHECK_FALSE(file->write_at(3, bytes_of("xy")).has_value());
  CHECK_FALSE(file->write_at(UINT64_MAX, bytes_of("x")).has_value());
}

TEST_CASE("a file that is given up leaves nothing") {
  for (const bool visible : {false, true}) {
    ScratchFolder folder;
    {
      auto file = OutputFile::create(folder / "model", {.visible = visible});
      REQUIRE(file.has_value());
      CHECK(file->append(bytes_of("part")).has_value());
      if (visible) CHECK(folder.names().size() == 1);
    }
    CHECK(folder.names().empty());
  }
}

TEST_CASE("a name that is taken is refused unless asked to overwrite") {
  for (const bool visible : {false, true}) {
    CAPTURE(visible);
    ScratchFolder folder;
    folder.write("model", "old");
    CHECK(message(OutputFile::create(folder / "model", {.visible = visible}))
              .ends_with("model: exists already; choose another name or ask to overwrite it"));

    auto late = OutputFile::create(folder / "late", {.visible = visible});
    REQUIRE(late.has_value());
    folder.write("late", "came meanwhile");
    CHECK(message(late->commit()).contains("exists already"));
    CHECK(read_file(folder / "late") == "came meanwhile");

    auto file = OutputFile::create(folder / "model", {.overwrite = true, .visible = visible});
    REQUIRE(file.has_value());
    CHECK(file->append(bytes_of("new")).has_value());
    CHECK(read_file(folder / "model") == "old");
    CHECK(message(file->commit()) == "");
    CHECK(read_file(folder / "model") == "new");
  }
}

TEST_CASE("a name that no file can have is refused with its reason") {
  ScratchFolder folder;
  CHECK(message(OutputFile::create("")).contains("has no name"));
  CHECK(message(OutputFile::create(folder.path())).contains("is a folder"));
  CHECK(message(OutputFile::create(folder / "no/model")).contains("folder does not exist"));
  CHECK(
      message(OutputFile::create("/dev/full", {.overwrite = true})).contains("not a regular file"));
  if (::geteuid() != 0) {
    REQUIRE(::chmod(folder.path().c_str(), 0500) == 0);
    CHECK(message(OutputFile::create(folder / "model")).contains("may not write to that folder"));
  }
}

TEST_CASE("a file that outgrows its limit says so and leaves nothing") {
  ScratchFolder folder;
  const int status = in_process([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {.rlim_cur = 10'000, .rlim_max = 10'000};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(1);
    auto file = OutputFile::create(folder / "model");
    if (!file) ::_exit(2);
    const auto result = file->append(bytes_of(std::string(20'000, 'x')));
    if (!message(result).contains("may not grow that large")) ::_exit(3);
    if (file->commit().has_value()) ::_exit(4);
  });
  CHECK(status == 0);
  CHECK(folder.names().empty());
}

TEST_CASE("a full disk is told in a sentence and leaves nothing") {
  ScratchFolder folder;
  std::filesystem::create_directory(folder / "disk");
  const std::string disk = folder / "disk";
  if (::mount("volvelle-test", disk.c_str(), "tmpfs", 0, "size=64k") != 0) {
    MESSAGE("not tried: only root may make a small disk");
    return;
  }
  {
    auto file = OutputFile::create(disk + "/model");
    CHECK(file.has_value());
    if (file) {
      CHECK(message(file->expect(1 << 20)).contains("make room or write elsewhere"));
      CHECK(file->expect(1000).has_value());
      CHECK(
          message(file->append(bytes_of(std::string(1 << 20, 'x')))).contains("the disk is full"));
      CHECK(message(file->commit()).contains("an earlier write failed"));
    }
  }
  CHECK(std::filesystem::is_empty(disk));
  ::umount(disk.c_str());
}

TEST_CASE("a process that is killed while writing leaves no file") {
  ScratchFolder folder;
  const auto write_and_die = [&](bool visible, auto die) {
    return in_process([&] {
      const InterruptScope scope;
      auto file = OutputFile::create(folder / "model", {.visible = visible});
      if (!file || !file->append(bytes_of("part"))) ::_exit(1);
      die();
    });
  };
  // A second Ctrl-C or SIGTERM does not wait for the program to notice the first.
  for (const int signal : {SIGINT, SIGTERM}) {
    const int status = write_and_die(true, [&] {
      std::raise(signal);
      if (!interrupted()) ::_exit(2);
      std::raise(signal);
    });
    CHECK(WIFSIGNALED(status));
    CHECK(WTERMSIG(status) == signal);
    CHECK(folder.names().empty());
  }
  // Where the file system makes nameless files, nothing can stay even after SIGKILL.
  auto probe = OutputFile::create(folder / "probe");
  REQUIRE(probe.has_value());
  if (folder.names().empty()) {
    const int status = write_and_die(false, [] { std::raise(SIGKILL); });
    CHECK(WTERMSIG(status) == SIGKILL);
    CHECK(folder.names().empty());
  } else {
    MESSAGE("not tried: no nameless files here");
  }
}

}  // namespace
}  // namespace volvelle
