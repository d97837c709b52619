// Linear layers on XNNPACK: float weights as they are; int8 and int4 weights with activations that
// are quantised per token (a scale and a zero point each) where they enter.

#ifndef VOLVELLE_RUNTIME_LINEAR_H_
#define VOLVELLE_RUNTIME_LINEAR_H_

#include <xnnpack.h>

#include <cstddef>
#include <memory>
#include <string>

#include "platforms/error.h"
#include "platforms/memory.h"
#include "platforms/thread_pool.h"
#include "runtime/model.h"
#include "runtime/packed_weights.h"

namespace volvelle {

// Where activations are quantised; one serves all linears of a session, which run one after the
// other.
class QuantizedInput {
 public:
  // Room for `rows` rows of up to `columns` elements.
  static Result<QuantizedInput> make(size_t rows, size_t columns);

  int8_t* codes() const { return codes_.as<int8_t>().data(); }
  xnn_quantization_params* params() const { return params_.as<xnn_quantization_params>().data(); }
  size_t bytes() const { return codes_.bytes().size() + params_.bytes().size(); }

 private:
  AlignedBuffer codes_, params_;
};

class LinearOperator {
 public:
  // Packs the weights, whose checksums are verified first, into `packed`, which must outlive the
  // operator; then lets their pages in the file go.
  static Result<LinearOperator> make(const Model& model, const Linear& linear,
                                     PackedWeights& packed);

  // y = weight * x + bias for each row.
  //
  //   x  [rows, inputs] contiguous
  //   y  [rows, outputs] contiguous
  //
  // `scratch` has room for `rows` rows of this linear's inputs. Fails only where XNNPACK does.
  Result<void> run(const float* x, size_t rows, float* y, const QuantizedInput& scratch,
                   const ThreadPool& pool);

 private:
  struct Delete {
    void operator()(xnn_operator_t op) const { xnn_delete_operator(op); }
  };
  using Operator = std::unique_ptr<xnn_operator, Delete>;

  Result<void> prepare(const float* x, size_t rows, float* y, const QuantizedInput& scratch,
                       const ThreadPool& pool);

  TensorType type_ = TensorType::kF32;
  size_t inputs_ = 0;         // of the weight
  size_t padded_inputs_ = 0;  // of the operator
  Operator quantize_;         // null for kF32
  Operator multiply_;
  // What the operators are set up for.
  size_t rows_ = 0;
  const float* x_ = nullptr;
  float* y_ = nullptr;
};

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_LINEAR_H_
