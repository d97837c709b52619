#include "runtime/commands/numpy.h"

#include <filesystem>
#include <format>
#include <string_view>

#include "runtime/commands/program.h"

namespace volvelle {

std::string npy_header(size_t rows, size_t columns) {
  std::string fields =
      std::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, columns);
  constexpr size_t kPrefixBytes = 10, kAlignment = 64;
  fields.append((2 * kAlignment - (kPrefixBytes + fields.size() + 1) % kAlignment) % kAlignment,
                ' ');
  fields += '\n';
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(fields.size() & 0xff);
  header += static_cast<char>(fields.size() >> 8);
  return header + fields;
}

Result<NumpyOutput> NumpyOutput::create(const std::string& path,
                                        const std::vector<std::string>& inputs) {
  NumpyOutput output;
  if (path == "-") return output;
  for (const std::string& input : inputs) {
    std::error_code unknown;
    if (std::filesystem::equivalent(path, input, unknown)) {
      return fail("{}: is what the command reads; choose another name", path);
    }
  }
  VOLVELLE_ASSIGN_OR_RETURN(output.file_, OutputFile::create(path, {.overwrite = true}));
  return output;
}

Result<void> NumpyOutput::write(std::span<const std::byte> bytes) {
  if (file_) return file_->append(bytes);
  print(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  return {};
}

Result<void> NumpyOutput::begin(size_t rows, size_t columns) {
  const std::string header = npy_header(rows, columns);
  return write(std::as_bytes(std::span(header)));
}

Result<void> NumpyOutput::append(std::span<const float> values) {
  return write(std::as_bytes(values));
}

Result<void> NumpyOutput::commit() { return file_ ? file_->commit() : Result<void>(); }

}  // namespace volvelle
