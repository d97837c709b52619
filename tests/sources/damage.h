// Damaged copies of bytes, and random numbers that can be drawn again.

#ifndef VOLVELLE_TESTS_SOURCES_DAMAGE_H_
#define VOLVELLE_TESTS_SOURCES_DAMAGE_H_

#include <random>
#include <string>

namespace volvelle {

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

#endif  // VOLVELLE_TESTS_SOURCES_DAMAGE_H_
