#include "tests/sources/damage.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

namespace volvelle {

std::mt19937_64& random_engine() {
  static std::mt19937_64 engine = [] {
    const char* stated = std::getenv("VOLVELLE_SEED");
    const uint64_t seed = stated ? std::strtoull(stated, nullptr, 0) : 20240229;
    std::printf("seed %llu (VOLVELLE_SEED)\n", static_cast<unsigned long long>(seed));
    return std::mt19937_64(seed);
  }();
  return engine;
}

std::string damaged(std::string bytes) {
  std::mt19937_64& engine = random_engine();
  const auto below = [&](uint64_t end) { return engine() % end; };
  constexpr uint64_t kNumbers[] = {0,
                                   1,
                                   2,
                                   31,
                                   32,
                                   255,
                                   1 << 16,
                                   0x7fffffff,
                                   0x80000000,
                                   0xffffffff,
                                   uint64_t{1} << 40,
                                   uint64_t{1} << 61,
                                   0x7fffffffffffffff,
                                   0x8000000000000000,
                                   0xffffffffffffffff};
  for (uint64_t count = 1 + below(4); count > 0 && !bytes.empty(); --count) {
    const size_t at = below(bytes.size());
    switch (below(6)) {
      case 0:
        bytes[at] ^= static_cast<char>(1 << below(8));
        break;
      case 1:
        bytes[at] = static_cast<char>(below(256));
        break;
      case 2:
      case 3: {
        const uint64_t number = kNumbers[below(std::size(kNumbers))];
        std::memcpy(&bytes[at], &number, std::min<size_t>(bytes.size() - at, below(2) ? 4 : 8));
        break;
      }
      case 4:
        bytes.erase(at, 1 + below(8));
        break;
      default:
        bytes.insert(at, bytes.substr(at, 1 + below(8)));
    }
  }
  return bytes;
}

}  // namespace volvelle
