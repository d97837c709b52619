// In what form each tensor is written: four or eight bits, on the checkpoint's own grid or rotated,
// with which inputs beside the rounded ones. What is measured decides: errors of a sample of rows,
// on the inputs of a calibration where there was one.

#ifndef VOLVELLE_CONVERTER_FORMS_H_
#define VOLVELLE_CONVERTER_FORMS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "converter/calibration.h"
#include "converter/convert.h"
#include "converter/recipe.h"
#include "converter/sources/tensor_source.h"
#include "converter/weights.h"
#include "platforms/error.h"
#include "platforms/thread_pool.h"

namespace volvelle {

// What is settled before a tensor is looked at closely.
struct Plan {
  file::TensorType type = file::TensorType::f32;
  bool kept = false;    // q4: on the grid of the source
  bool minima = false;  // which has them
};

// Whether a linear of the model, other than the head, multiplies by the tensor.
bool is_linear(const recipe::Tensor& tensor);

// Plans of the model's tensors, in its order. `calibration`: null where there is none. Fails when a
// pattern of `options.keep` fits no tensor, and when a mean of `options.bits` cannot be reached.
Result<std::vector<Plan>> make_plans(const recipe::Model& model, const ConvertOptions& options,
                                     const TensorSource& source, Calibration* calibration,
                                     const ThreadPool& threads);

// What the linear of tensor `index` reads, with moments unless its grid is kept; null where it is
// not wanted or not known. What `calibration` does not have it observes, and as many of the linears
// that follow as memory allows.
Result<const InputStatistics*> statistics_of(const recipe::Model& model, size_t index,
                                             const std::vector<Plan>& plans,
                                             Calibration* calibration,
                                             const ConvertOptions::Progress& progress);

// The form of tensor `index`. `statistics` are those of its linear, with moments unless the grid is
// kept; null: none are known.
Result<Storage> choose_form(const recipe::Model& model, size_t index, const Plan& plan,
                            const TensorSource& source, const InputStatistics* statistics,
                            const ThreadPool& threads);

// Columns whose inputs are best not rounded, ascending: those without which the steps of int8, over
// the rest of a row, become finest. Stops at `most`, or where a further one gains too little.
//
//   sample  [rows, columns], of inputs
std::vector<uint32_t> choose_side_columns(std::span<const float> sample, size_t columns,
                                          size_t most);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_FORMS_H_
