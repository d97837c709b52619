// Matrices as NumPy files.

#ifndef VOLVELLE_RUNTIME_COMMANDS_NUMPY_H_
#define VOLVELLE_RUNTIME_COMMANDS_NUMPY_H_

#include <cstddef>
#include <string>

namespace volvelle {

// The start of an .npy file, version 1.0, of a float32 matrix. The whole is padded to a multiple of
// 64 bytes, so that the data may be mapped. Format: numpy.lib.format.
std::string npy_header(size_t rows, size_t columns);

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_COMMANDS_NUMPY_H_
