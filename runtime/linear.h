// Linear layers on XNNPACK, and where they are faster on kernels of ours: float weights as they
// are; int8 and int4 weights with activations that are rotated, where the weights are, and
// quantised per token (a scale and a zero point each) in the pass that makes them.

#ifndef VOLVELLE_RUNTIME_LINEAR_H_
#define VOLVELLE_RUNTIME_LINEAR_H_

#include <xnnpack.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/int4_product.h"
#include "kernels/int8_product.h"
#include "platforms/error.h"
#include "platforms/memory.h"
#include "platforms/thread_pool.h"
#include "runtime/model.h"
#include "runtime/packed_weights.h"

namespace volvelle {

// Rows that one thread takes at a time.
inline constexpr size_t kRowsPerTask = 16;

// Floats that a thread has at hand, in its nearest cache, while they go from one pass to the next:
// a few short rows, or a long one.
inline constexpr size_t kFloatsAtHand = 2048;
constexpr size_t rows_at_hand(size_t width) {
  return std::clamp<size_t>(kFloatsAtHand / width, 1, 4);
}

// Calls function(first, count, thread) for consecutive rows until all `rows` are done, on the
// threads of `pool`.
template <typename Function>
void for_rows(const ThreadPool& pool, size_t rows, const Function& function) {
  pool.parallel_for((rows + kRowsPerTask - 1) / kRowsPerTask, [&](size_t task, size_t thread) {
    const size_t first = task * kRowsPerTask;
    function(first, rows - first < kRowsPerTask ? rows - first : kRowsPerTask, thread);
  });
}

// Sees what linears read.
class LinearObserver {
 public:
  virtual ~LinearObserver() = default;

  // Row `r`, x [columns], of the inputs of `weight`'s linear. Called once for each row, on several
  // threads.
  virtual void see(const Tensor& weight, size_t r, const float* x) = 0;
  // Those were all of its `rows` rows.
  virtual void saw(const Tensor& weight, size_t rows) = 0;
};

// Where linears keep their inputs; one serves all linears of a session, which run one after the
// other.
class LinearScratch {
 public:
  // Room for `rows` rows of up to `columns` elements, and a few rows of its own for each thread.
  static Result<LinearScratch> make(size_t rows, size_t columns, size_t threads);

  // Null: none. Outlives the scratch.
  void observe(LinearObserver* observer) { observer_ = observer; }
  LinearObserver* observer() const { return observer_; }
  // With them, a row's float outputs are the same to the bit alone and among others. XNNPACK has
  // kernels for a single row that sum in another order, on Cortex-A72 for example.
  void make_rows_alike() { alike_ = true; }
  bool makes_rows_alike() const { return alike_; }

  float* rows() const { return rows_.as<float>().data(); }
  float* rows_of(size_t thread) const { return rows() + thread * floats_of_thread_; }
  float* sums() const { return sums_.as<float>().data(); }
  float* side() const { return side_.as<float>().data(); }
  int8_t* codes() const { return codes_.as<int8_t>().data(); }
  int32_t* starts() const { return starts_.as<int32_t>().data(); }
  RowCode* params() const { return params_.as<RowCode>().data(); }
  size_t bytes() const {
    return rows_.bytes().size() + sums_.bytes().size() + side_.bytes().size() +
           codes_.bytes().size() + starts_.bytes().size() + params_.bytes().size();
  }

 private:
  size_t floats_of_thread_ = 0;
  AlignedBuffer rows_;  // those past the threads' are touched by float linears only
  AlignedBuffer sums_;  // [rows, blocks], where weights have minima
  AlignedBuffer side_;  // [rows, side columns], where they have those
  AlignedBuffer codes_, params_;
  AlignedBuffer starts_;  // [rows, blocks], of four-bit products of our own
  LinearObserver* observer_ = nullptr;
  bool alike_ = false;
};

class LinearOperator {
 public:
  // Of weights in `packed`, which must outlive the operator.
  static Result<LinearOperator> make(const Model& model, const Linear& linear,
                                     PackedWeights& packed);

  // y = weight * x + bias for each row. make(first, count, to) returns where `count` rows [inputs]
  // lie, which may be `to` if it writes them there; it is called for a few rows at a time and on
  // several threads.
  //
  //   y  [rows, outputs] contiguous
  //
  // `scratch` has room for `rows` rows of this linear's inputs. Fails only where XNNPACK does.
  template <typename Make>
  Result<void> run_made(size_t rows, const Make& make, float* y, const LinearScratch& scratch,
                        const ThreadPool& pool) {
    LinearObserver* const observer = scratch.observer();
    for_rows(pool, rows, [&](size_t first, size_t count, size_t thread) {
      if (type_ == TensorType::kF32) {
        float* const to = scratch.rows() + first * inputs_;
        const float* const made = make(first, count, to);
        if (made != to) std::copy_n(made, count * inputs_, to);
        return;
      }
      const size_t together = rows_at_hand(inputs_);
      float* const at_hand = scratch.rows_of(thread);
      for (const size_t end = first + count; first < end; first += together) {
        const size_t some = std::min(together, end - first);
        const float* const made = make(first, some, at_hand);
        for (size_t r = 0; observer != nullptr && r < some; ++r) {
          observer->see(*weight_, first + r, made + r * inputs_);
        }
        encode(made, at_hand, first, some, scratch);
      }
    });
    if (observer != nullptr) {
      for (size_t r = 0; type_ == TensorType::kF32 && r < rows; ++r) {
        observer->see(*weight_, r, scratch.rows() + r * inputs_);
      }
      observer->saw(*weight_, rows);
    }
    return multiply(scratch.rows(), rows, y, scratch, pool);
  }

  bool quantises() const { return type_ != TensorType::kF32; }  // its inputs

  // The same for x [rows, inputs], contiguous.
  Result<void> run(const float* x, size_t rows, float* y, const LinearScratch& scratch,
                   const ThreadPool& pool);

 private:
  // Takes the side columns out of x [rows, inputs], rotates it and stores it as rows `first` and
  // after of the operator's inputs. `at_hand` has room for as much, or is x.
  void encode(const float* x, float* at_hand, size_t first, size_t rows,
              const LinearScratch& scratch) const;
  // Of float rows x, or of those that are encoded.
  Result<void> multiply(const float* x, size_t rows, float* y, const LinearScratch& scratch,
                        const ThreadPool& pool);
  void multiply_panels(size_t rows, float* y, const LinearScratch& scratch,
                       const ThreadPool& pool) const;
  // Adds to y what minima and side columns contribute.
  void add_thin_products(size_t rows, float* y, const LinearScratch& scratch,
                         const ThreadPool& pool) const;
  Result<void> run_operator(const float* x, size_t rows, float* y, const LinearScratch& scratch,
                            const ThreadPool& pool);
  // Of one row, twice.
  Result<void> run_pair(const float* x, float* y, const LinearScratch& scratch,
                        const ThreadPool& pool);
  Result<void> prepare(const float* x, size_t rows, float* y, const LinearScratch& scratch,
                       const ThreadPool& pool);

  const Tensor* weight_ = nullptr;
  TensorType type_ = TensorType::kF32;
  size_t inputs_ = 0;         // of the weight
  size_t padded_inputs_ = 0;  // of the operator
  size_t rotation_ = 1;
  ThinWeights minima_, side_;
  std::span<const uint32_t> side_columns_;
  XnnOperator operator_;             // null: products of our own
  Int8Matrix int8_;                  // what they multiply by, the panels aside, or
  Int4Matrix int4_;                  // this
  std::vector<float> twice_, both_;  // one row's inputs and outputs, twice
  const PackedWeights* packed_ = nullptr;
  size_t panels_ = 0;
  // What the operator is set up for.
  size_t rows_ = 0;
  const float* x_ = nullptr;
  float* y_ = nullptr;
};

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_LINEAR_H_
