#include "runtime/commands/machine_limits.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "platforms/clock.h"
#include "platforms/memory.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/commands/machine_limits.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace volvelle::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Reads `count` words (a multiple of 8 vectors' worth is read; the rest is left) and returns
// something that depends on all of them. Each vector of a round has a sum of its own: with fewer,
// the compiler joins them and loads out of order, which processors prefetch a third less well.
uint64_t read_words(const uint64_t* words, size_t count) {
  const hn::ScalableTag<uint64_t> d;
  const size_t lanes = hn::Lanes(d);
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0, s4 = s0, s5 = s0, s6 = s0, s7 = s0;
  for (size_t i = 0; i + 8 * lanes <= count; i += 8 * lanes) {
    s0 = hn::Xor(s0, hn::Load(d, words + i));
    s1 = hn::Xor(s1, hn::Load(d, words + i + lanes));
    s2 = hn::Xor(s2, hn::Load(d, words + i + 2 * lanes));
    s3 = hn::Xor(s3, hn::Load(d, words + i + 3 * lanes));
    s4 = hn::Xor(s4, hn::Load(d, words + i + 4 * lanes));
    s5 = hn::Xor(s5, hn::Load(d, words + i + 5 * lanes));
    s6 = hn::Xor(s6, hn::Load(d, words + i + 6 * lanes));
    s7 = hn::Xor(s7, hn::Load(d, words + i + 7 * lanes));
  }
  return hn::ReduceSum(d, hn::Xor(hn::Xor(hn::Xor(s0, s1), hn::Xor(s2, s3)),
                                  hn::Xor(hn::Xor(s4, s5), hn::Xor(s6, s7))));
}

// Sums products of int8 `rounds` times in each of 12 registers, enough to hide an instruction's
// latency; `products` gets their number. On x86 one side is unsigned, as the instructions there
// want it.
int32_t sum_products(size_t rounds, uint64_t* products) {
  const hn::ScalableTag<int32_t> d32;
  const hn::Repartition<int8_t, decltype(d32)> d8;
#if HWY_ARCH_X86
  const auto a = hn::BitCast(hn::Repartition<uint8_t, decltype(d32)>(), hn::Iota(d32, 3));
#else
  const auto a = hn::BitCast(d8, hn::Iota(d32, 3));
#endif
  const auto b = hn::BitCast(d8, hn::Iota(d32, 5));
  // The sums start apart, or the compiler would find them equal and form one.
  auto s0 = hn::Set(d32, 0), s1 = hn::Set(d32, 1), s2 = hn::Set(d32, 2), s3 = hn::Set(d32, 3);
  auto s4 = hn::Set(d32, 4), s5 = hn::Set(d32, 5), s6 = hn::Set(d32, 6), s7 = hn::Set(d32, 7);
  auto s8 = hn::Set(d32, 8), s9 = hn::Set(d32, 9), s10 = hn::Set(d32, 10), s11 = hn::Set(d32, 11);
  for (size_t i = 0; i < rounds; ++i) {
    s0 = hn::SumOfMulQuadAccumulate(d32, a, b, s0);
    s1 = hn::SumOfMulQuadAccumulate(d32, a, b, s1);
    s2 = hn::SumOfMulQuadAccumulate(d32, a, b, s2);
    s3 = hn::SumOfMulQuadAccumulate(d32, a, b, s3);
    s4 = hn::SumOfMulQuadAccumulate(d32, a, b, s4);
    s5 = hn::SumOfMulQuadAccumulate(d32, a, b, s5);
    s6 = hn::SumOfMulQuadAccumulate(d32, a, b, s6);
    s7 = hn::SumOfMulQuadAccumulate(d32, a, b, s7);
    s8 = hn::SumOfMulQuadAccumulate(d32, a, b, s8);
    s9 = hn::SumOfMulQuadAccumulate(d32, a, b, s9);
    s10 = hn::SumOfMulQuadAccumulate(d32, a, b, s10);
    s11 = hn::SumOfMulQuadAccumulate(d32, a, b, s11);
  }
  *products = rounds * 12 * hn::Lanes(d8);
  const auto sum =
      hn::Add(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)), hn::Add(hn::Add(s4, s5), hn::Add(s6, s7)));
  return hn::GetLane(hn::Add(sum, hn::Add(hn::Add(s8, s9), hn::Add(s10, s11))));
}

}  // namespace volvelle::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#if defined(__aarch64__) && defined(__linux__)
#include <arm_neon.h>
#include <sys/auxv.h>
#endif

namespace volvelle {
namespace {

HWY_EXPORT(read_words);
HWY_EXPORT(sum_products);

constexpr int kPasses = 5;

// Keeps the compiler from leaving out work whose result nobody uses.
template <typename T>
void keep(T value) {
  asm volatile("" : : "r"(value) : "memory");
}

#if defined(__aarch64__) && defined(__linux__)
// Highway takes SDOT only together with bfloat16 instructions, which boards such as a Pi 5 do not
// have.
__attribute__((target("arch=armv8.2-a+dotprod"))) int32_t sum_products_sdot(size_t rounds,
                                                                            uint64_t* products) {
  constexpr size_t kSums = 12;
  int8x16_t a = vdupq_n_s8(3), b = vdupq_n_s8(5);
  asm volatile("" : "+w"(a), "+w"(b));
  int32x4_t sums[kSums];  // start apart, as above
  for (size_t k = 0; k < kSums; ++k) sums[k] = vdupq_n_s32(static_cast<int32_t>(k));
  for (size_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (size_t k = 0; k < kSums; ++k) sums[k] = vdotq_s32(sums[k], a, b);
  }
  for (size_t k = 1; k < kSums; ++k) sums[0] = vaddq_s32(sums[0], sums[k]);
  *products = rounds * kSums * 16;
  return vgetq_lane_s32(sums[0], 0);
}
#endif

int32_t sum_products_best(size_t rounds, uint64_t* products) {
#if defined(__aarch64__) && defined(__linux__)
  if ((getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0) return sum_products_sdot(rounds, products);
#endif
  return HWY_DYNAMIC_DISPATCH(sum_products)(rounds, products);
}

size_t last_level_cache_bytes() {
  long bytes = 0;
#ifdef _SC_LEVEL3_CACHE_SIZE
  bytes = std::max({bytes, sysconf(_SC_LEVEL3_CACHE_SIZE), sysconf(_SC_LEVEL2_CACHE_SIZE)});
#endif
  return static_cast<size_t>(bytes);
}

// Four times the last cache, 256 MB at least; but an eighth of the memory at most.
size_t buffer_bytes() {
  constexpr size_t kLeast = size_t{256} << 20, kMost = size_t{1} << 30;
  const size_t wanted = std::clamp(4 * last_level_cache_bytes(), kLeast, kMost);
  const auto memory =
      static_cast<size_t>(std::max(0l, sysconf(_SC_PHYS_PAGES))) * sysconf(_SC_PAGESIZE);
  return std::max(size_t{32} << 20, std::min(wanted, memory / 8));
}

}  // namespace

double measure_read_bandwidth(const ThreadPool& pool) {
  constexpr size_t kPartBytes = size_t{4} << 20;
  const size_t parts = buffer_bytes() / kPartBytes;
  auto buffer = AlignedBuffer::make(parts * kPartBytes, AlignedBuffer::Pages::kHuge);
  if (!buffer.has_value()) return 0;
  std::byte* const bytes = buffer->bytes().data();
  // Threads that take their parts in one order, each a run of neighbours, as rows of a weight are
  // taken.
  pool.parallel_for(parts, [&](size_t part, size_t) {
    std::memset(bytes + part * kPartBytes, static_cast<int>(part % 251 + 1), kPartBytes);
  });
  double best = 0;
  const auto read = HWY_DYNAMIC_POINTER(read_words);
  for (int pass = 0; pass < kPasses; ++pass) {
    const double start = monotonic_seconds();
    pool.parallel_for(parts, [&](size_t part, size_t) {
      keep(read(reinterpret_cast<const uint64_t*>(bytes + part * kPartBytes),
                kPartBytes / sizeof(uint64_t)));
    });
    best = std::max(best, static_cast<double>(parts * kPartBytes) / (monotonic_seconds() - start));
  }
  return best;
}

double measure_int8_peak(const ThreadPool& pool) {
  constexpr size_t kRounds = 1 << 20;
  std::vector<uint64_t> products(pool.threads());
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const double start = monotonic_seconds();
    pool.parallel_for(pool.threads(), [&](size_t index, size_t) {
      keep(sum_products_best(kRounds, &products[index]));
    });
    const double seconds = monotonic_seconds() - start;
    double sum = 0;
    for (const uint64_t count : products) sum += static_cast<double>(count);
    best = std::max(best, 2 * sum / seconds);
  }
  return best;
}

}  // namespace volvelle

#endif  // HWY_ONCE
