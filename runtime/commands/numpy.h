// Matrices as NumPy files.

#ifndef VOLVELLE_RUNTIME_COMMANDS_NUMPY_H_
#define VOLVELLE_RUNTIME_COMMANDS_NUMPY_H_

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "platforms/error.h"
#include "platforms/output_file.h"

namespace volvelle {

// The start of an .npy file, version 1.0, of a float32 matrix. The whole is padded to a multiple of
// 64 bytes, so that the data may be mapped. Format: numpy.lib.format.
std::string npy_header(size_t rows, size_t columns);

// Where a command's matrix goes: a file that appears when it is whole, or standard output.
class NumpyOutput {
 public:
  // Begins `path`; "-" is standard output. Refused with a sentence: what OutputFile refuses, and
  // one of `inputs`, the files that the command reads. A file of that name is replaced.
  static Result<NumpyOutput> create(const std::string& path,
                                    const std::vector<std::string>& inputs);

  // The header comes once, then floats, row by row.
  Result<void> begin(size_t rows, size_t columns);
  Result<void> append(std::span<const float> values);
  Result<void> commit();

 private:
  Result<void> write(std::span<const std::byte> bytes);

  std::optional<OutputFile> file_;  // none: standard output
};

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_COMMANDS_NUMPY_H_
