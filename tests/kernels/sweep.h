// What the sweeps over kernels share: every instruction set this machine has, and random rows that
// can be drawn again.

#ifndef VOLVELLE_TESTS_KERNELS_SWEEP_H_
#define VOLVELLE_TESTS_KERNELS_SWEEP_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

namespace volvelle {

// One unit of the last place of floats in [1, 2), and the greatest relative error of one rounding.
inline constexpr double kUlp = 0x1p-23;
inline constexpr double kRounding = 0x1p-24;

// Calls body() once for each Highway target that is compiled in and that this CPU supports, and on
// Arm with and without the dot product.
void for_each_target(const std::function<void()>& body);

// Whether a sweep is to leave its next case out: seven of eight where VOLVELLE_BRIEF is set, none
// elsewhere. Emulated processors are a hundred times slower.
bool leave_out();

// Random numbers from a seed that is printed at first use; VOLVELLE_SEED in the environment repeats
// a run.
std::mt19937& random_engine();
size_t random_below(size_t end);
std::vector<float> random_row(size_t count, float from = -1, float to = 1);

}  // namespace volvelle

#endif  // VOLVELLE_TESTS_KERNELS_SWEEP_H_
