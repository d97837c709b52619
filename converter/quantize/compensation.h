// Rounding to four bits in which the columns of a row make up for each other's errors. With H the
// second moments of a linear's inputs, rounding a row w to q costs (w - q) H (w - q)'. Where
// H = L D L', L being unit upper triangular, that is the sum over columns j of D_j r_j^2 with r_j =
// t_j - q_j and t_j = w_j + sum over k < j of (w_k - q_k) L_kj: so each column is rounded near t_j,
// and a block's scale is the one for which the sum over its columns is least. Frantar et al. 2022,
// arXiv:2210.17323, in the form of Chee et al. 2023, arXiv:2307.13304, section 3.

#ifndef VOLVELLE_CONVERTER_QUANTIZE_COMPENSATION_H_
#define VOLVELLE_CONVERTER_QUANTIZE_COMPENSATION_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "platforms/error.h"
#include "platforms/thread_pool.h"

namespace volvelle {

struct Compensation {
  size_t columns = 0;
  std::vector<float> feedback;  // L [columns, columns]; what is on and below the diagonal is not
  std::vector<float> worth;     // D [columns]
};

// L and D of H + diagonal, for H [columns, columns] symmetric and not negative, of which the lower
// triangle counts. What is added, the greater of 1 % of each own element and `damping` times their
// mean, stands for what rounding does to the inputs, and for inputs that the text has not.
Compensation compensate(std::vector<float> moments, size_t columns, float damping,
                        const ThreadPool& threads);

// The squared errors (w - q) H (w - q)' that remain, summed over rows.
//
//   x               [rows, columns]
//   codes, scales   as quantize_q4_rows has them
//   minima, minimum_scales  as quantize_q4_rows_with_minima has them; null: none
Result<double> quantize_q4_rows_compensated(const float* x, size_t rows, size_t columns,
                                            const Compensation& compensation, uint8_t* codes,
                                            uint16_t* scales, int8_t* minima, float* minimum_scales,
                                            size_t first_row = 0);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_QUANTIZE_COMPENSATION_H_
