#include "platforms/mapped_file.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <string_view>
#include <vector>

#include "tests/scratch_folder.h"

namespace volvelle {
namespace {

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

// The error's sentence; "" when there is none.
std::string refusal(const std::string& path) {
  const auto file = MappedFile::open(path);
  return file ? "" : file.error().message;
}

TEST_CASE("a mapped file shows the file's bytes, also after it has moved") {
  ScratchFolder folder;
  const auto text = std::string(100'000, 'v') + "olvelle";
  auto first = MappedFile::open(folder.write("model", text));
  REQUIRE(first.has_value());
  CHECK(text_of(*first) == text);

  MappedFile second = *std::move(first);
  CHECK(text_of(second) == text);
  auto other = MappedFile::open(folder.write("other", "x"));
  REQUIRE(other.has_value());
  second = *std::move(other);
  CHECK(text_of(second) == "x");
}

TEST_CASE("a mapping keeps the bytes it had when another file takes the name") {
  ScratchFolder folder;
  auto file = MappedFile::open(folder.write("model", "old"));
  REQUIRE(file.has_value());
  std::filesystem::rename(folder.write("new", "changed"), folder / "model");
  CHECK(text_of(*file) == "old");
}

TEST_CASE("what cannot be mapped is refused with a sentence that names it") {
  ScratchFolder folder;
  CHECK(refusal(folder / "absent") == folder / "absent: there is no such file; check the path");
  CHECK(refusal(folder.path()).ends_with(": is a folder, not a file; name a file in it"));
  CHECK(refusal(folder.write("empty", "")).contains("empty: is empty"));
  CHECK(refusal("/dev/null").contains("is not a regular file"));
  const std::string pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(refusal(pipe).contains("is not a regular file"));  // and does not wait for a writer
  if (::geteuid() != 0) {                                  // root may read everything
    const std::string closed = folder.write("closed", "x");
    REQUIRE(::chmod(closed.c_str(), 0) == 0);
    CHECK(refusal(closed).contains("this user may not read it"));
  }
}

TEST_CASE("advice leaves the bytes as they are and a range outside the file is refused") {
  ScratchFolder folder;
  const std::string text(50'000, 'x');
  const auto file = MappedFile::open(folder.write("model", text));
  REQUIRE(file.has_value());
  CHECK(file->advise_willneed(0, 50'000).has_value());
  CHECK(file->drop(4097, 20'000).has_value());
  CHECK(file->drop(50'000, 0).has_value());
  CHECK(text_of(*file) == text);
  constexpr size_t kMax = std::numeric_limits<size_t>::max();
  CHECK_FALSE(file->drop(0, 50'001).has_value());
  CHECK_FALSE(file->advise_willneed(50'001, 0).has_value());
  CHECK_FALSE(file->advise_willneed(2, kMax).has_value());
  CHECK_FALSE(file->drop(kMax, 2).has_value());
  file->expect_random();
  file->prefer_large_pages();
  CHECK(text_of(*file) == text);
}

// How many pages of the file the system holds.
size_t pages_held(const MappedFile& file) {
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> held((file.bytes().size() + page - 1) / page);
  void* const first = const_cast<std::byte*>(file.bytes().data());
  if (::mincore(first, file.bytes().size(), held.data()) != 0) return held.size();
  return static_cast<size_t>(
      std::ranges::count_if(held, [](unsigned char flags) { return (flags & 1) != 0; }));
}

TEST_CASE("of a file that is read at random, only what is touched is read") {
  ScratchFolder folder;
  const std::string path = folder.write("model", std::string(size_t{32} << 20, 'x'));
  const int descriptor = ::open(path.c_str(), O_RDWR);
  REQUIRE(descriptor >= 0);
  REQUIRE(::fsync(descriptor) == 0);
  ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
  ::close(descriptor);
  const auto file = MappedFile::open(path);
  REQUIRE(file.has_value());
  // A file system in memory forgets nothing, and an emulator of processors passes no advice on.
  if (pages_held(*file) > 0 || std::getenv("QEMU_CPU") != nullptr) return;
  file->expect_random();
  CHECK(file->bytes()[size_t{20} << 20] == std::byte{'x'});
  CHECK(pages_held(*file) >= 1);
  CHECK(pages_held(*file) <= 16);  // one, of up to 64 KiB
}

}  // namespace
}  // namespace volvelle
