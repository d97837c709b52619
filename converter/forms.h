// In what form each tensor is written: four or eight bits, on the checkpoint's own grid or rotated,
// with which inputs beside the rounded ones. What is measured decides: the form's error on the
// inputs of a calibration, or, without one, the grid's.

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

// Of tensors for that use.
file::TensorType stored_type(recipe::Use use, WeightType weights);

// Whether a linear multiplies by the tensor.
bool is_multiplied(const recipe::Model& model, size_t index);

// Whether tensor `index` lies on a four-bit grid and is to stay on it.
Result<bool> keeps_grid(const recipe::Model& model, size_t index, const ConvertOptions& options,
                        const TensorSource& source);

// The form of tensor `index`. `statistics` are those of its linear, with moments unless the grid is
// kept; null: none are known.
Storage choose_form(const recipe::Model& model, size_t index, WeightType weights, bool kept,
                    const InputStatistics* statistics, const ThreadPool& threads);

// Columns whose inputs are best not rounded, ascending: those without which the steps of int8, over
// the rest of a row, become finest. Stops at `most`, or where a further one gains too little.
std::vector<uint32_t> choose_side_columns(std::span<const float> sample, size_t columns,
                                          size_t most);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_FORMS_H_
