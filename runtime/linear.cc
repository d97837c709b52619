#include "runtime/linear.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "kernels/dot_product.h"
#include "kernels/int4_product.h"
#include "kernels/int8_product.h"
#include "kernels/quantize.h"
#include "kernels/thin_product.h"

namespace volvelle {
Result<LinearScratch> LinearScratch::make(size_t rows, size_t columns, size_t threads) {
  LinearScratch scratch;
  rows = std::max<size_t>(rows, 2);  // see run_pair
  scratch.floats_of_thread_ = std::max(columns, kFloatsAtHand);
  // XNNPACK may read a little past the rows it is given.
  const size_t floats = std::max(rows * columns, threads * scratch.floats_of_thread_) +
                        XNN_EXTRA_BYTES / sizeof(float);
  VOLVELLE_ASSIGN_OR_RETURN(scratch.rows_, AlignedBuffer::make(floats * sizeof(float)));
  const size_t blocks = (columns + kQ4Block - 1) / kQ4Block;
  VOLVELLE_ASSIGN_OR_RETURN(scratch.sums_, AlignedBuffer::make(rows * blocks * sizeof(float)));
  VOLVELLE_ASSIGN_OR_RETURN(scratch.starts_, AlignedBuffer::make(rows * blocks * sizeof(int32_t)));
  VOLVELLE_ASSIGN_OR_RETURN(scratch.side_,
                            AlignedBuffer::make(rows * kMostSideColumns * sizeof(float)));
  VOLVELLE_ASSIGN_OR_RETURN(scratch.codes_, AlignedBuffer::make(rows * columns + XNN_EXTRA_BYTES));
  VOLVELLE_ASSIGN_OR_RETURN(
      scratch.params_,
      AlignedBuffer::make((rows + XNN_EXTRA_QUANTIZATION_PARAMS) * sizeof(RowCode)));
  return scratch;
}

Result<LinearOperator> LinearOperator::make(const Model& model, const Linear& linear,
                                            PackedWeights& packed) {
  const Tensor& weight = *linear.weight;
  LinearOperator result;
  result.weight_ = &weight;
  result.type_ = weight.type;
  result.inputs_ = weight.columns;
  result.padded_inputs_ = weight.padded_columns();
  result.rotation_ = weight.rotation;
  result.minima_ = weight.block_minima();
  result.side_ = weight.side_weights();
  result.side_columns_ = weight.side_columns;
  if (PackedWeights::takes_panels(weight)) {
    if (weight.type == TensorType::kQ8) {
      result.int8_ = {.inputs = result.padded_inputs_, .outputs = weight.rows};
    } else {
      result.int4_ = {.inputs = result.padded_inputs_, .outputs = weight.rows};
    }
  }
  VOLVELLE_ASSIGN_OR_RETURN(PackedLinear made, packed.create(model, linear));
  result.operator_ = std::move(made.xnn);
  result.packed_ = &packed;
  result.panels_ = made.panels;
  // Now, since nothing is allocated while a session decodes.
  if (weight.type != TensorType::kF32 && takes_dot_product()) result.both_.resize(2 * weight.rows);
  return result;
}

Result<void> LinearOperator::prepare(const float* x, size_t rows, float* y,
                                     const LinearScratch& scratch, const ThreadPool& pool) {
  rows_ = 0;  // until all of it has worked
  xnn_operator_t multiply = operator_.get();
  xnn_status status = xnn_status_success;
  static_assert(sizeof(RowCode) == sizeof(xnn_quantization_params));
  const auto* params = reinterpret_cast<const xnn_quantization_params*>(scratch.params());
  const auto step = [&status](auto function, auto... arguments) {
    if (status == xnn_status_success) status = function(arguments...);
  };
  switch (type_) {
    case TensorType::kF32:
      step(xnn_reshape_fully_connected_nc_f32, multiply, rows, pool.native());
      step(xnn_setup_fully_connected_nc_f32, multiply, x, y);
      break;
    case TensorType::kQ8:
      step(xnn_reshape_fully_connected_nc_qd8_f32_qc8w, multiply, rows, pool.native());
      step(xnn_setup_fully_connected_nc_qd8_f32_qc8w, multiply, scratch.codes(), y, params);
      break;
    case TensorType::kQ4:
      step(xnn_reshape_fully_connected_nc_qd8_f32_qb4w, multiply, rows, pool.native());
      step(xnn_setup_fully_connected_nc_qd8_f32_qb4w, multiply, scratch.codes(), y, params);
      break;
  }
  if (status != xnn_status_success)
    return fail("XNNPACK cannot multiply {} rows: {}", rows, describe(status));
  rows_ = rows, x_ = x, y_ = y;
  return {};
}

void LinearOperator::encode(const float* x, float* at_hand, size_t first, size_t rows,
                            const LinearScratch& scratch) const {
  if (!side_columns_.empty()) {
    if (x != at_hand) std::copy_n(x, rows * inputs_, at_hand);
    x = at_hand;
    float* side = scratch.side() + first * side_.inputs;
    for (size_t r = 0; r < rows; ++r) {
      for (const uint32_t column : side_columns_) {
        *side++ = std::exchange(at_hand[r * inputs_ + column], 0.0f);
      }
    }
  }
  for (size_t r = 0; r < rows && minima_.codes != nullptr; ++r) {
    sum_blocks(x + r * inputs_, inputs_, scratch.sums() + (first + r) * minima_.inputs);
  }
  const FloatRows from{x, rows, inputs_};
  int8_t* const codes = scratch.codes() + first * padded_inputs_;
  RowCode* const means = scratch.params() + first;
  if (int8_.outputs > 0) {
    auto* const unsigned_codes = reinterpret_cast<uint8_t*>(codes);
    quantize_rows(rotation_, from, at_hand, unsigned_codes, padded_inputs_, means);
    return;
  }
  quantize_rows(rotation_, from, at_hand, codes, padded_inputs_, means);
  for (size_t r = 0; r < rows; ++r) {
    int8_t* const row = codes + r * padded_inputs_;
    std::fill(row + inputs_, row + padded_inputs_, int8_t{0});
    if (int4_.outputs > 0) {
      start_blocks(row, int4_.blocks(), scratch.starts() + (first + r) * int4_.blocks());
    }
  }
}

void LinearOperator::add_thin_products(size_t rows, float* y, const LinearScratch& scratch,
                                       const ThreadPool& pool) const {
  const size_t outputs = std::max(minima_.outputs, side_.outputs);
  constexpr size_t kOutputsPerTask = 512;
  const size_t parts = (outputs + kOutputsPerTask - 1) / kOutputsPerTask;
  const size_t groups = (rows + kRowsPerTask - 1) / kRowsPerTask;
  pool.parallel_for(parts * groups, [&](size_t task, size_t) {
    const size_t row = task / parts * kRowsPerTask, first = task % parts * kOutputsPerTask;
    const size_t own = std::min(kRowsPerTask, rows - row);
    const size_t count = std::min(kOutputsPerTask, outputs - first);
    const auto add = [&](const ThinWeights& weights, const float* x) {
      if (weights.codes == nullptr) return;
      add_thin_product(weights, x + row * weights.inputs, own, first, count, y + row * outputs);
    };
    add(minima_, scratch.sums());
    add(side_, scratch.side());
  });
}

Result<void> LinearOperator::run_operator(const float* x, size_t rows, float* y,
                                          const LinearScratch& scratch, const ThreadPool& pool) {
  // Its kernels for a single row may round otherwise than those for several: floats' on Cortex-A72
  // for example, and those with the dot product, where two rows read the weights as fast.
  const bool alike = type_ == TensorType::kF32 ? scratch.makes_rows_alike() : takes_dot_product();
  if (rows == 1 && alike) return run_pair(x, y, scratch, pool);
  if (rows != rows_ || x != x_ || y != y_)
    VOLVELLE_RETURN_IF_ERROR(prepare(x, rows, y, scratch, pool));
  if (type_ != TensorType::kF32) {
    // Its kernels take several rows at once; past the last, the same again.
    const auto params = scratch.params();
    std::fill_n(params + rows, XNN_EXTRA_QUANTIZATION_PARAMS, params[rows - 1]);
  }
  const xnn_status status = xnn_run_operator(operator_.get(), pool.native());
  if (status == xnn_status_success) return {};
  return fail("XNNPACK cannot multiply {} rows: {}", rows, describe(status));
}

Result<void> LinearOperator::run_pair(const float* x, float* y, const LinearScratch& scratch,
                                      const ThreadPool& pool) {
  const size_t outputs = weight_->rows;
  both_.resize(2 * outputs);
  if (type_ == TensorType::kF32) {
    twice_.resize(2 * inputs_ + XNN_EXTRA_BYTES / sizeof(float));
    std::copy_n(x, inputs_, twice_.data());
    std::copy_n(x, inputs_, twice_.data() + inputs_);
    x = twice_.data();
  } else {
    std::copy_n(scratch.codes(), padded_inputs_, scratch.codes() + padded_inputs_);
    scratch.params()[1] = scratch.params()[0];
  }
  VOLVELLE_RETURN_IF_ERROR(run_operator(x, 2, both_.data(), scratch, pool));
  std::copy_n(both_.data(), outputs, y);
  return {};
}

Result<void> LinearOperator::multiply(const float* x, size_t rows, float* y,
                                      const LinearScratch& scratch, const ThreadPool& pool) {
  if (operator_ == nullptr) {
    multiply_panels(rows, y, scratch, pool);
  } else {
    VOLVELLE_RETURN_IF_ERROR(run_operator(x, rows, y, scratch, pool));
  }
  if (minima_.codes != nullptr || side_.codes != nullptr) {
    add_thin_products(rows, y, scratch, pool);
  }
  return {};
}

// A panel meets all rows, of which the cache holds the codes, before the next.
void LinearOperator::multiply_panels(size_t rows, float* y, const LinearScratch& scratch,
                                     const ThreadPool& pool) const {
  constexpr size_t kRowsAtOnce = 256;
  const size_t groups = (rows + kRowsAtOnce - 1) / kRowsAtOnce;
  const auto in_panels = [&](auto matrix, const auto& multiply) {
    matrix.panels = packed_->address(panels_);
    pool.parallel_for(groups * matrix.panel_count(), [&](size_t task, size_t) {
      const size_t first = task / matrix.panel_count() * kRowsAtOnce;
      multiply(matrix, task % matrix.panel_count(), first, std::min(kRowsAtOnce, rows - first),
               y + first * matrix.outputs);
    });
  };
  if (int8_.outputs > 0) {
    const auto* const codes = reinterpret_cast<const uint8_t*>(scratch.codes());
    in_panels(int8_,
              [&](const Int8Matrix& matrix, size_t panel, size_t first, size_t count, float* to) {
                multiply_int8(matrix, panel, codes + first * matrix.inputs,
                              scratch.params() + first, count, to);
              });
  } else {
    in_panels(int4_,
              [&](const Int4Matrix& matrix, size_t panel, size_t first, size_t count, float* to) {
                multiply_int4(matrix, panel, scratch.codes() + first * matrix.inputs,
                              scratch.starts() + first * matrix.blocks(), scratch.params() + first,
                              count, to);
              });
  }
}

Result<void> LinearOperator::run(const float* x, size_t rows, float* y,
                                 const LinearScratch& scratch, const ThreadPool& pool) {
  if (type_ == TensorType::kF32 && scratch.observer() == nullptr) {
    return multiply(x, rows, y, scratch, pool);
  }
  return run_made(
      rows, [&](size_t first, size_t, float*) { return x + first * inputs_; }, y, scratch, pool);
}

}  // namespace volvelle
