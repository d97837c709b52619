#include "converter/forms.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <utility>

#include "kernels/hadamard.h"

namespace volvelle {
namespace {

// The linears after attention, whose inputs are means already, gain next to nothing by rotation.
bool after_attention(const recipe::Model& model, size_t index) {
  return std::ranges::any_of(model.blocks, [&](const recipe::Block& block) {
    return block.attention.output.weight == static_cast<int>(index);
  });
}

const float kDamping = getenv("DAMP") ? atof(getenv("DAMP")) : 0.01f;

uint32_t rotation_of(uint64_t columns) {
  constexpr size_t kLeastBlock = 16, kMostBlock = 4096;
  const size_t block = std::min(largest_hadamard_block(columns), kMostBlock);
  return block >= kLeastBlock ? static_cast<uint32_t>(block) : 0;
}

// H M H for the symmetric M [n, n], whose lower triangle is known.
void rotate_moments(uint32_t rotation, size_t n, const ThreadPool& threads,
                    std::vector<float>& moments) {
  const auto rotate_rows = [&] {
    threads.parallel_for(
        n, [&](size_t row, size_t) { hadamard(rotation, n, moments.data() + row * n); });
  };
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < i; ++j) moments[j * n + i] = moments[i * n + j];
  }
  rotate_rows();
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < i; ++j) std::swap(moments[j * n + i], moments[i * n + j]);
  }
  rotate_rows();
}

}  // namespace

// Rows that are looked up need more than four bits, and so does a head of its own, whose errors go
// straight into the logits.
file::TensorType stored_type(recipe::Use use, WeightType weights) {
  const bool exact = use == recipe::Use::kVector || use == recipe::Use::kTable;
  if (exact || weights == WeightType::kF32) return file::TensorType::f32;
  return use == recipe::Use::kLinear && weights == WeightType::kQ4 ? file::TensorType::q4
                                                                   : file::TensorType::q8;
}

bool is_multiplied(const recipe::Model& model, size_t index) {
  const recipe::Use use = model.tensors[index].use;
  return use == recipe::Use::kLinear || use == recipe::Use::kHead ||
         model.head.weight == static_cast<int>(index);
}

std::vector<uint32_t> choose_side_columns(std::span<const float> sample, size_t columns,
                                          size_t most) {
  constexpr double kWorthIt = 0.01;  // of the squared ranges, for a column
  const size_t rows = sample.size() / columns, depth = std::min(columns, most + 2);
  // The columns of each row's greatest values, and of its least: [rows, 2, depth].
  std::vector<uint32_t> extremes(rows * 2 * depth);
  std::vector<uint32_t> order(columns);
  std::iota(order.begin(), order.end(), 0);
  for (size_t row = 0; row < rows; ++row) {
    const float* const x = sample.data() + row * columns;
    const auto rank = [&](auto before, size_t end) {
      std::ranges::partial_sort(order, order.begin() + depth, before,
                                [x](uint32_t column) { return std::pair(x[column], column); });
      std::copy_n(order.begin(), depth, extremes.begin() + (2 * row + end) * depth);
    };
    rank(std::ranges::greater(), 0);
    rank(std::ranges::less(), 1);
  }
  std::vector<bool> taken(columns);
  std::vector<uint32_t> chosen;
  while (chosen.size() < most) {
    // Each row's range is what its two extremes make it: either is worth what the range would lose.
    std::vector<double> worth(columns);
    double squares = 0;
    for (size_t row = 0; row < rows; ++row) {
      const float* const x = sample.data() + row * columns;
      uint32_t first[2] = {};
      double value[2][2] = {};  // of the greatest that are left and the least: best and second
      for (size_t end = 0; end < 2; ++end) {
        size_t found = 0;
        for (size_t i = 0; i < depth && found < 2; ++i) {
          const uint32_t column = extremes[(2 * row + end) * depth + i];
          if (taken[column]) continue;
          if (found == 0) first[end] = column;
          const double at = x[column];
          value[end][found++] = end == 0 ? std::max(at, 0.0) : std::min(at, 0.0);
        }
      }
      const auto square = [](double range) { return range * range; };
      const double now = square(value[0][0] - value[1][0]);
      worth[first[0]] += now - square(value[0][1] - value[1][0]);
      worth[first[1]] += now - square(value[0][0] - value[1][1]);
      squares += now;
    }
    const auto best = std::ranges::max_element(worth);
    if (squares == 0 || *best < kWorthIt * squares) break;
    const auto column = static_cast<uint32_t>(best - worth.begin());
    chosen.push_back(column);
    taken[column] = true;
  }
  std::ranges::sort(chosen);
  return chosen;
}

Result<bool> keeps_grid(const recipe::Model& model, size_t index, const ConvertOptions& options,
                        const TensorSource& source) {
  const recipe::Tensor& tensor = model.tensors[index];
  if (!options.keep_grid || stored_type(tensor.use, options.weights) != file::TensorType::q4) {
    return false;
  }
  return wants_minima(tensor, source);
}

// Weights on a four-bit grid keep it. Others are rotated: so they lose less, and their activations
// much less.
Storage choose_form(const recipe::Model& model, size_t index, WeightType weights, bool kept,
                    const InputStatistics* statistics, const ThreadPool& threads) {
  const recipe::Tensor& tensor = model.tensors[index];
  Storage storage{.type = stored_type(tensor.use, weights), .minima = kept};
  // Rows that are only looked up are not worth the transform.
  if (storage.type == file::TensorType::f32 || !is_multiplied(model, index)) return storage;
  if (kept) {
    // So many add a byte each to a column's weights: about 0.3 bits a weight.
    const size_t most = std::min<size_t>(kMostSideColumns, tensor.columns / 27);
    if (statistics != nullptr) {
      storage.side_columns = choose_side_columns(statistics->sample, tensor.columns, most);
    }
    return storage;
  }
  if (!after_attention(model, index)) storage.rotation = rotation_of(tensor.columns);
  if (storage.type != file::TensorType::q4 || statistics == nullptr) return storage;
  std::vector<float> moments = statistics->moments;
  if (storage.rotation > 1) rotate_moments(storage.rotation, tensor.columns, threads, moments);
  storage.compensation = std::make_shared<Compensation>(
      compensate(std::move(moments), tensor.columns, kDamping, threads));
  return storage;
}

}  // namespace volvelle
