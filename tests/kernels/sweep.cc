#include "tests/kernels/sweep.h"

#include <doctest/doctest.h>
#include <hwy/highway.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "kernels/dot_product.h"

namespace volvelle {

void for_each_target(const std::function<void()>& body) {
  const bool dot_product = takes_dot_product();
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    INFO("on target ", std::string(hwy::TargetName(target)));
    take_dot_product(false);
    body();
#if HWY_ARCH_ARM_A64
    if ((target & HWY_ALL_NEON) != 0 && take_dot_product(true)) {
      INFO("with the dot product");
      body();
    }
#endif
  }
  hwy::SetSupportedTargetsForTest(0);
  take_dot_product(dot_product);
}

std::mt19937& random_engine() {
  static std::mt19937 engine = [] {
    const char* given = std::getenv("VOLVELLE_SEED");
    const unsigned seed = given ? std::strtoul(given, nullptr, 10) : std::random_device()();
    std::printf("random rows of VOLVELLE_SEED=%u\n", seed);
    return std::mt19937(seed);
  }();
  return engine;
}

bool leave_out() {
  static const bool brief = std::getenv("VOLVELLE_BRIEF") != nullptr;
  return brief && random_below(8) != 0;
}

size_t random_below(size_t end) {
  return std::uniform_int_distribution<size_t>(0, end - 1)(random_engine());
}

std::vector<float> random_row(size_t count, float from, float to) {
  std::uniform_real_distribution<float> distribution(from, to);
  std::vector<float> row(count);
  for (float& x : row) x = distribution(random_engine());
  return row;
}

}  // namespace volvelle
