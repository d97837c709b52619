#include "runtime/commands/numpy.h"

#include <format>

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

}  // namespace volvelle
