#include "runtime/linear.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "kernels/hadamard.h"
#include "kernels/quantize.h"
#include "kernels/thin_product.h"

namespace volvelle {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr uint8_t kQ4ZeroPoint = 8;  // code 8 means 0

std::string_view describe(xnn_status status) {
  switch (status) {
    case xnn_status_success:
      return "no error";
    case xnn_status_uninitialized:
      return "it is not initialised";
    case xnn_status_invalid_parameter:
      return "it takes a scale or a size for invalid";
    case xnn_status_invalid_state:
      return "it is in the wrong state";
    case xnn_status_unsupported_parameter:
      return "it does not support these sizes";
    case xnn_status_unsupported_hardware:
      return "it does not support this processor";
    case xnn_status_out_of_memory:
      return "memory is short";
    default:
      return "it gives no reason";
  }
}

Result<void> initialize() {
  static const xnn_status status =
      xnn_initialize(nullptr);  // once for the process, by the first linear
  if (status == xnn_status_success) return {};
  return fail("XNNPACK cannot run here: {}", describe(status));
}

}  // namespace

Result<LinearScratch> LinearScratch::make(size_t rows, size_t columns, size_t threads) {
  // XNNPACK may read a little past the rows it is given.
  const size_t floats = std::max(rows, threads) * columns + XNN_EXTRA_BYTES / sizeof(float);
  LinearScratch scratch;
  scratch.columns_ = columns;
  VOLVELLE_ASSIGN_OR_RETURN(scratch.rows_, AlignedBuffer::make(floats * sizeof(float)));
  const size_t blocks = (columns + kQ4Block - 1) / kQ4Block;
  VOLVELLE_ASSIGN_OR_RETURN(scratch.sums_, AlignedBuffer::make(rows * blocks * sizeof(float)));
  VOLVELLE_ASSIGN_OR_RETURN(scratch.side_,
                            AlignedBuffer::make(rows * kMostSideColumns * sizeof(float)));
  VOLVELLE_ASSIGN_OR_RETURN(scratch.codes_, AlignedBuffer::make(rows * columns + XNN_EXTRA_BYTES));
  VOLVELLE_ASSIGN_OR_RETURN(scratch.params_,
                            AlignedBuffer::make((rows + XNN_EXTRA_QUANTIZATION_PARAMS) *
                                                sizeof(xnn_quantization_params)));
  return scratch;
}

Result<LinearOperator> LinearOperator::make(const Model& model, const Linear& linear,
                                            PackedWeights& packed) {
  VOLVELLE_RETURN_IF_ERROR(initialize());
  const Tensor& weight = *linear.weight;
  VOLVELLE_RETURN_IF_ERROR(model.verify_contents(weight));

  LinearOperator result;
  result.weight_ = &weight;
  result.type_ = weight.type;
  result.inputs_ = weight.columns;
  result.padded_inputs_ = weight.padded_columns();
  result.rotation_ = weight.rotation;
  result.minima_ = weight.block_minima();
  result.side_ = weight.side_weights();
  result.side_columns_ = weight.side_columns;
  const size_t inputs = result.padded_inputs_, outputs = weight.rows;
  xnn_operator_t multiply = nullptr;
  xnn_status status = xnn_status_invalid_parameter;
  switch (weight.type) {
    case TensorType::kF32:
      status = xnn_create_fully_connected_nc_f32(inputs, outputs, inputs, outputs, weight.f32(),
                                                 linear.bias, -kInfinity, kInfinity, /*flags=*/0,
                                                 nullptr, packed.provider(), &multiply);
      break;
    case TensorType::kQ8:
      status = xnn_create_fully_connected_nc_qd8_f32_qc8w(
          inputs, outputs, inputs, outputs, weight.row_scales(), weight.q8(), linear.bias,
          -kInfinity, kInfinity,
          /*flags=*/0, nullptr, packed.provider(), &multiply);
      break;
    case TensorType::kQ4:
      status = xnn_create_fully_connected_nc_qd8_f32_qb4w(
          inputs, outputs, inputs, outputs, kQ4Block, kQ4ZeroPoint, weight.block_scales(),
          weight.q4(), linear.bias, -kInfinity, kInfinity, /*flags=*/0, nullptr, packed.provider(),
          &multiply);
      break;
  }
  if (status != xnn_status_success) {
    return fail("{}: tensor {}: XNNPACK cannot pack it: {}", model.path(), weight.name,
                describe(status));
  }
  result.operator_.reset(multiply);
  model.drop_pages(weight);
  return result;
}

Result<void> LinearOperator::prepare(const float* x, size_t rows, float* y,
                                     const LinearScratch& scratch, const ThreadPool& pool) {
  rows_ = 0;  // until all of it has worked
  xnn_operator_t multiply = operator_.get();
  xnn_status status = xnn_status_success;
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
      step(xnn_setup_fully_connected_nc_qd8_f32_qc8w, multiply, scratch.codes(), y,
           scratch.params());
      break;
    case TensorType::kQ4:
      step(xnn_reshape_fully_connected_nc_qd8_f32_qb4w, multiply, rows, pool.native());
      step(xnn_setup_fully_connected_nc_qd8_f32_qb4w, multiply, scratch.codes(), y,
           scratch.params());
      break;
  }
  if (status != xnn_status_success)
    return fail("XNNPACK cannot multiply {} rows: {}", rows, describe(status));
  rows_ = rows, x_ = x, y_ = y;
  return {};
}

void LinearOperator::encode(float* row, size_t r, const LinearScratch& scratch) const {
  float* side = scratch.side() + r * side_.inputs;
  for (const uint32_t column : side_columns_) *side++ = std::exchange(row[column], 0.0f);
  hadamard(rotation_, inputs_, row);
  if (minima_.codes != nullptr) sum_blocks(row, inputs_, scratch.sums() + r * minima_.inputs);
  int8_t* const codes = scratch.codes() + r * padded_inputs_;
  const RowCode code = quantize_activations(row, inputs_, codes);
  std::fill(codes + inputs_, codes + padded_inputs_, int8_t{0});
  scratch.params()[r] = {code.zero_point, code.scale};
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

Result<void> LinearOperator::multiply(const float* x, size_t rows, float* y,
                                      const LinearScratch& scratch, const ThreadPool& pool) {
  if (rows != rows_ || x != x_ || y != y_)
    VOLVELLE_RETURN_IF_ERROR(prepare(x, rows, y, scratch, pool));
  if (type_ != TensorType::kF32) {
    // Its kernels take several rows at once; past the last, the same again.
    const auto params = scratch.params();
    std::fill_n(params + rows, XNN_EXTRA_QUANTIZATION_PARAMS, params[rows - 1]);
  }
  const xnn_status status = xnn_run_operator(operator_.get(), pool.native());
  if (status != xnn_status_success)
    return fail("XNNPACK cannot multiply {} rows: {}", rows, describe(status));
  if (minima_.codes != nullptr || side_.codes != nullptr) {
    add_thin_products(rows, y, scratch, pool);
  }
  return {};
}

Result<void> LinearOperator::run(const float* x, size_t rows, float* y,
                                 const LinearScratch& scratch, const ThreadPool& pool) {
  if (type_ == TensorType::kF32 && scratch.observer() == nullptr) {
    return multiply(x, rows, y, scratch, pool);
  }
  return run_made(
      rows,
      [&](size_t first, size_t count, float* to) {
        std::copy_n(x + first * inputs_, count * inputs_, to);
      },
      y, scratch, pool);
}

}  // namespace volvelle
