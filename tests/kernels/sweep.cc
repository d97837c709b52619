#include "tests/kernels/sweep.h"

#include <doctest/doctest.h>
#include <hwy/highway.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace volvelle {

void for_each_target(const std::function<void()>& body) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    INFO("on target ", std::string(hwy::TargetName(target)));
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
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
