#include "kernels/dot_product.h"

#include <atomic>

#include "hwy/highway.h"

#if HWY_ARCH_ARM_A64 && defined(__linux__)
#include <sys/auxv.h>
#ifndef HWCAP_ASIMDDP
#define HWCAP_ASIMDDP (1 << 20)  // Linux, arch/arm64/include/uapi/asm/hwcap.h
#endif
#endif

namespace volvelle {
namespace {

bool processor_has_it() {
#if HWY_ARCH_ARM_A64 && defined(__linux__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
  return false;
#endif
}

std::atomic<bool>& taken() {
#if HWY_ARCH_ARM_A64
  static std::atomic<bool> taken = processor_has_it();
#else
  static std::atomic<bool> taken = false;
#endif
  return taken;
}

}  // namespace

bool takes_dot_product() { return taken().load(std::memory_order_relaxed); }

bool take_dot_product(bool wanted) { return taken() = wanted && processor_has_it(); }

}  // namespace volvelle
