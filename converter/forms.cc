#include "converter/forms.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>

#include "converter/quantize/q4.h"
#include "converter/quantize/q8.h"
#include "kernels/hadamard.h"

namespace volvelle {
namespace {

constexpr size_t kSampleElements = size_t{1} << 17;  // of weights

// A short text tells moments only roughly: with a part of their mean added, the measured divergence
// of SmolLM2 on other texts is least (0.120 with a hundredth, 0.109 with a tenth, 0.104 with
// three).
constexpr float kDamping = 0.3f;

// The linears after attention, whose inputs are means already, gain next to nothing by rotation.
bool after_attention(const recipe::Model& model, size_t index) {
  return std::ranges::any_of(model.blocks, [&](const recipe::Block& block) {
    return block.attention.output.weight == static_cast<int>(index);
  });
}

uint32_t rotation_of(uint64_t columns) {
  constexpr size_t kLeastBlock = 16, kMostBlock = 128;
  const size_t block = std::min(largest_hadamard_block(columns), kMostBlock);
  return block >= kLeastBlock ? static_cast<uint32_t>(block) : 0;
}

// Rows that are looked up need more than four bits, and so does a head of its own, whose errors go
// straight into the logits.
file::TensorType type_for(recipe::Use use, WeightType weights) {
  const bool exact = use == recipe::Use::kVector || use == recipe::Use::kTable;
  if (exact || weights == WeightType::kF32) return file::TensorType::f32;
  return use == recipe::Use::kLinear && weights == WeightType::kQ4 ? file::TensorType::q4
                                                                   : file::TensorType::q8;
}

file::TensorType type_of(WeightType weights) {
  return weights == WeightType::kF32  ? file::TensorType::f32
         : weights == WeightType::kQ8 ? file::TensorType::q8
                                      : file::TensorType::q4;
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

// Whether the rows lie on a grid of sixteen steps a block already, and whether it takes minima.
Result<void> find_grid(std::span<const float> rows, size_t columns, Plan& plan) {
  constexpr double kOnGrid =
      1e-4;                       // of the squares; rounding to four bits costs a hundred times it
  constexpr double kWorthIt = 8;  // times the squared error; a random block gains a fifth
  VOLVELLE_ASSIGN_OR_RETURN(const Q4Error error,
                            q4_error(rows.data(), rows.size() / columns, columns));
  double squares = 0;
  for (const float value : rows) squares += double{value} * value;
  const bool symmetric = squares > 0 && error.plain <= kOnGrid * squares;
  plan.minima = !symmetric && error.plain > kWorthIt * error.with_minima;
  plan.kept = symmetric || plan.minima;
  return {};
}

// Of a tensor that keeps its grid: each adds a byte to a row, all of them an eighth of a bit to a
// weight.
size_t most_side_columns(size_t columns) { return std::min(kMostSideColumns, columns / 64); }

double bits_of(const recipe::Tensor& tensor, const Plan& plan, bool side_columns) {
  const uint64_t rows = tensor.rows, columns = tensor.columns;
  double bytes = static_cast<double>(data_bytes(plan.type, rows, columns) +
                                     scale_bytes(plan.type, rows, columns));
  // As many side columns as there may be, a minimum a block, and their scales.
  if (plan.kept && side_columns)
    bytes += static_cast<double>(rows * (4 + most_side_columns(columns)));
  if (plan.minima) bytes += static_cast<double>(rows * (4 + q4_blocks(columns)));
  return 8 * bytes / static_cast<double>(rows * columns);
}

// Of a row of inputs in int8.
double squared_step(std::span<const float> x) {
  const auto [low, high] = std::ranges::minmax_element(x);
  return std::pow((std::max(*high, 0.0f) - std::min(*low, 0.0f)) / 255.0, 2);
}

// What is left of the rows after rounding them as planned, less the rows.
Result<std::vector<float>> rounding_of(std::span<const float> rows, size_t columns,
                                       const Plan& plan) {
  const size_t count = rows.size() / columns;
  std::vector<float> off(rows.size());
  if (plan.type == file::TensorType::q8) {
    std::vector<int8_t> codes(rows.size());
    std::vector<float> scales(count);
    VOLVELLE_RETURN_IF_ERROR(
        quantize_q8_rows(rows.data(), count, columns, codes.data(), scales.data()));
    dequantize_q8_rows(codes.data(), scales.data(), count, columns, off.data());
  } else if (!plan.kept) {
    std::vector<uint8_t> codes(count * q4_blocks(columns) * kQ4Block / 2);
    std::vector<uint16_t> scales(count * q4_blocks(columns));
    VOLVELLE_RETURN_IF_ERROR(
        quantize_q4_rows(rows.data(), count, columns, codes.data(), scales.data()));
    dequantize_q4_rows(codes.data(), scales.data(), count, columns, off.data());
  } else {
    return off;  // its grid's scales are rounded, by a thousandth part
  }
  for (size_t i = 0; i < off.size(); ++i) off[i] -= rows[i];
  return off;
}

// What a linear's outputs lose by rounding weights and inputs: the sum over sampled rows of weights
// of its mean square.
struct Candidate {
  Storage storage;
  double error = 0;
  double seen = 0;  // the same sum over sampled inputs, without what stands for others
};

// The sum of squares of all outputs of weights [rows, columns] on inputs [inputs, columns].
double squared_outputs(std::span<const float> inputs, std::span<const float> weights,
                       size_t columns) {
  double sum = 0;
  for (size_t x = 0; x < inputs.size(); x += columns) {
    for (size_t w = 0; w < weights.size(); w += columns) {
      float output = 0;
      for (size_t i = 0; i < columns; ++i) output += inputs[x + i] * weights[w + i];
      sum += double{output} * output;
    }
  }
  return sum;
}

Result<Candidate> try_form(Storage storage, std::vector<float> rows,
                           const InputStatistics& statistics, const ThreadPool& threads) {
  const size_t columns = statistics.columns, block = std::max<size_t>(storage.rotation, 1);
  std::vector<float> moments = statistics.moments, inputs = statistics.sample;
  for (const uint32_t column : storage.side_columns) {
    for (size_t i = 0; i < rows.size(); i += columns) rows[i + column] = 0;
    for (size_t i = 0; i < inputs.size(); i += columns) inputs[i + column] = 0;
    for (size_t i = 0; i < columns; ++i) {
      moments[i * columns + column] = moments[column * columns + i] = 0;
    }
  }
  hadamard(block, rows.size(), rows.data());
  hadamard(block, inputs.size(), inputs.data());
  if (block > 1) rotate_moments(storage.rotation, columns, threads, moments);
  const auto compensation =
      std::make_shared<Compensation>(compensate(std::move(moments), columns, kDamping, threads));
  const size_t count = rows.size() / columns;
  std::vector<uint8_t> codes(count * q4_blocks(columns) * kQ4Block / 2);
  std::vector<uint16_t> scales(count * q4_blocks(columns));
  VOLVELLE_ASSIGN_OR_RETURN(const double cost, quantize_q4_rows_compensated(
                                                   rows.data(), count, columns, *compensation,
                                                   codes.data(), scales.data(), nullptr, nullptr));
  double steps = 0, squares = 0;  // of inputs' steps, and of weights
  for (size_t x = 0; x < inputs.size(); x += columns) {
    steps += squared_step(std::span(inputs).subspan(x, columns));
  }
  for (const float weight : rows) squares += double{weight} * weight;
  std::vector<float> off(rows.size());
  dequantize_q4_rows(codes.data(), scales.data(), count, columns, off.data());
  for (size_t i = 0; i < off.size(); ++i) off[i] -= rows[i];
  storage.compensation = compensation;
  const double of_inputs = steps / 12 * squares;
  return Candidate{std::move(storage),
                   cost / static_cast<double>(statistics.rows) +
                       of_inputs / static_cast<double>(statistics.sampled()),
                   squared_outputs(inputs, off, columns) + of_inputs};
}

// The squares of what rounding of weights and inputs changes in outputs, by the outputs' own.
Result<double> relative_error(std::vector<float> rows, size_t columns, const Plan& plan,
                              const InputStatistics* statistics, const ThreadPool& threads) {
  const size_t block = plan.kept ? 1 : std::max<size_t>(rotation_of(columns), 1);
  if (statistics == nullptr) {
    // Inputs that are not known are taken for ones of a normal distribution where they are rotated,
    // and for as much worse where they are not as SmolLM2's are in the mean.
    constexpr double kRotated = 6e-5, kAsTheyAre = 5e-4;
    hadamard(block, rows.size(), rows.data());
    VOLVELLE_ASSIGN_OR_RETURN(const std::vector<float> off, rounding_of(rows, columns, plan));
    double error = 0, size = 0;
    for (size_t i = 0; i < off.size(); ++i) {
      error += double{off[i]} * off[i], size += double{rows[i]} * rows[i];
    }
    return size > 0 ? error / size + (block > 1 ? kRotated : kAsTheyAre) : 0;
  }
  std::vector<float> inputs = statistics->sample;
  const double size = squared_outputs(inputs, rows, columns);
  if (size == 0) return 0;
  if (plan.type == file::TensorType::q4 && !plan.kept) {
    const Storage rotated{.type = plan.type, .rotation = rotation_of(columns)};
    VOLVELLE_ASSIGN_OR_RETURN(const Candidate candidate,
                              try_form(rotated, std::move(rows), *statistics, threads));
    return candidate.seen / size;
  }
  if (plan.kept) {
    for (const uint32_t column : choose_side_columns(inputs, columns, most_side_columns(columns))) {
      for (size_t i = column; i < rows.size(); i += columns) rows[i] = 0;
      for (size_t i = column; i < inputs.size(); i += columns) inputs[i] = 0;
    }
  }
  hadamard(block, inputs.size(), inputs.data());
  hadamard(block, rows.size(), rows.data());
  VOLVELLE_ASSIGN_OR_RETURN(const std::vector<float> off, rounding_of(rows, columns, plan));
  double steps = 0, squares = 0;
  for (size_t x = 0; x < inputs.size(); x += columns) {
    steps += squared_step(std::span(inputs).subspan(x, columns));
  }
  for (const float weight : rows) squares += double{weight} * weight;
  return (squared_outputs(inputs, off, columns) + steps / 12 * squares) / size;
}

// Gives tensors more than four bits, first where that takes away most error for its bits, as far as
// a mean of `bits` lets: their own grid where they lie on one, or eight bits.
Result<void> mix(const recipe::Model& model, const ConvertOptions& options,
                 const TensorSource& source, Calibration* calibration,
                 const std::vector<bool>& settled, const ThreadPool& threads,
                 std::vector<Plan>& plans) {
  struct Choice {
    Plan plan;
    double bits = 0;  // of the whole tensor
    double error = 0;
  };
  struct Ladder {
    size_t index;
    std::vector<Choice> choices;  // by bits
    size_t at = 0;
  };
  std::vector<Plan> rounded = plans;
  for (size_t i = 0; i < plans.size(); ++i) {
    if (is_linear(model.tensors[i]) && !settled[i]) rounded[i] = {.type = file::TensorType::q4};
  }
  std::vector<Ladder> ladders;
  double used = 0, weights = 0;
  for (size_t i = 0; i < plans.size(); ++i) {
    const recipe::Tensor& tensor = model.tensors[i];
    if (!is_linear(tensor)) continue;
    const double count = static_cast<double>(tensor.rows) * static_cast<double>(tensor.columns);
    weights += count;
    if (settled[i]) {
      used += count * bits_of(tensor, plans[i], calibration != nullptr);
      continue;
    }
    Ladder ladder{i, {{{.type = file::TensorType::q4}}}};
    if (plans[i].kept) ladder.choices.push_back({plans[i]});
    ladder.choices.push_back({{.type = file::TensorType::q8}});
    VOLVELLE_ASSIGN_OR_RETURN(const std::vector<float> rows,
                              sample_rows(tensor, source, kSampleElements / 4));
    VOLVELLE_ASSIGN_OR_RETURN(const InputStatistics* const statistics,
                              statistics_of(model, i, rounded, calibration, options.progress));
    for (Choice& choice : ladder.choices) {
      choice.bits = count * bits_of(tensor, choice.plan, calibration != nullptr);
      VOLVELLE_ASSIGN_OR_RETURN(
          choice.error, relative_error(rows, tensor.columns, choice.plan, statistics, threads));
    }
    used += ladder.choices[0].bits;
    ladders.push_back(std::move(ladder));
  }
  const double wanted = *options.bits * weights;
  if (used > wanted) {
    return fail("--weights auto:{}: {} come to {:.2f} bits a weight; ask for as many",
                *options.bits,
                options.keep.empty() ? "four bits and their scales"
                                     : "what --keep asks for, and four bits of all others,",
                used / weights);
  }
  while (true) {
    Ladder* best = nullptr;
    size_t to = 0;
    double most = 0;  // of error, for a bit
    for (Ladder& ladder : ladders) {
      const Choice& now = ladder.choices[ladder.at];
      for (size_t i = ladder.at + 1; i < ladder.choices.size(); ++i) {
        const Choice& next = ladder.choices[i];
        const double gain = (now.error - next.error) / (next.bits - now.bits);
        if (gain <= most || used + next.bits - now.bits > wanted) continue;
        best = &ladder, to = i, most = gain;
      }
    }
    if (best == nullptr) break;
    used += best->choices[to].bits - best->choices[best->at].bits;
    best->at = to;
  }
  for (const Ladder& ladder : ladders) plans[ladder.index] = ladder.choices[ladder.at].plan;
  return {};
}

}  // namespace

bool is_linear(const recipe::Tensor& tensor) { return tensor.use == recipe::Use::kLinear; }

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

Result<std::vector<Plan>> make_plans(const recipe::Model& model, const ConvertOptions& options,
                                     const TensorSource& source, Calibration* calibration,
                                     const ThreadPool& threads) {
  std::vector<Plan> plans;
  for (const recipe::Tensor& tensor : model.tensors) {
    plans.push_back({type_for(tensor.use, options.weights)});
  }
  std::vector<bool> settled(plans.size());
  for (const auto& [pattern, weights] : options.keep) {
    bool fits = false;
    std::string example;
    for (size_t i = 0; i < plans.size(); ++i) {
      const recipe::Tensor& tensor = model.tensors[i];
      if (!is_linear(tensor) && tensor.use != recipe::Use::kHead) continue;
      example = tensor.name;
      if (fnmatch(pattern.c_str(), tensor.name.c_str(), 0) != 0) continue;
      plans[i].type = type_of(weights);
      fits = settled[i] = true;
    }
    if (!fits) {
      return fail("--keep {}: fits no linear; the last one's name is {}", pattern, example);
    }
  }
  for (size_t i = 0; i < plans.size(); ++i) {
    if (plans[i].type != file::TensorType::q4 || !options.keep_grid) continue;
    VOLVELLE_ASSIGN_OR_RETURN(const std::vector<float> rows,
                              sample_rows(model.tensors[i], source, kSampleElements));
    VOLVELLE_RETURN_IF_ERROR(find_grid(rows, model.tensors[i].columns, plans[i]));
  }
  if (options.bits) {
    VOLVELLE_RETURN_IF_ERROR(mix(model, options, source, calibration, settled, threads, plans));
  }
  return plans;
}

Result<const InputStatistics*> statistics_of(const recipe::Model& model, size_t index,
                                             const std::vector<Plan>& plans,
                                             Calibration* calibration,
                                             const ConvertOptions::Progress& progress) {
  constexpr uint64_t kMostBytes = uint64_t{1} << 30;
  const auto wanted = [&](size_t i) {
    return is_linear(model.tensors[i]) && plans[i].type == file::TensorType::q4;
  };
  if (calibration == nullptr || !wanted(index)) return nullptr;
  const std::string& name = model.tensors[index].name;
  if (calibration->has(name, !plans[index].kept)) return calibration->find(name);
  std::vector<Calibration::Wanted> linears;
  uint64_t bytes = 0;
  for (size_t i = index; i < model.tensors.size(); ++i) {
    if (!wanted(i)) continue;
    if (!plans[i].kept) bytes += Calibration::bytes(model.tensors[i].columns);
    if (bytes > kMostBytes && !linears.empty()) break;
    linears.push_back({model.tensors[i].name, !plans[i].kept});
  }
  VOLVELLE_RETURN_IF_ERROR(calibration->observe(linears, progress));
  return calibration->find(name);
}

// Weights on a four-bit grid keep it. Others are rotated, so that they lose less and their
// activations much less, unless that is measured to be no gain.
Result<Storage> choose_form(const recipe::Model& model, size_t index, const Plan& plan,
                            const TensorSource& source, const InputStatistics* statistics,
                            const ThreadPool& threads) {
  const recipe::Tensor& tensor = model.tensors[index];
  const size_t columns = tensor.columns;
  Storage storage{.type = plan.type, .minima = plan.minima};
  const bool multiplied = is_linear(tensor) || tensor.use == recipe::Use::kHead ||
                          model.head.weight == static_cast<int>(index);
  // Rows that are only looked up are not worth the transform.
  if (storage.type == file::TensorType::f32 || !multiplied) return storage;
  if (plan.kept) {
    if (statistics != nullptr) {
      storage.side_columns =
          choose_side_columns(statistics->sample, columns, most_side_columns(columns));
    }
    return storage;
  }
  Storage rotated = storage;
  rotated.rotation = rotation_of(columns);
  if (storage.type != file::TensorType::q4 || statistics == nullptr) {
    return after_attention(model, index) ? storage : rotated;
  }
  // A side column is a byte more for each row: here they may add a twentieth of a bit.
  storage.side_columns = choose_side_columns(statistics->sample, columns, columns / 160);
  VOLVELLE_ASSIGN_OR_RETURN(const std::vector<float> rows,
                            sample_rows(tensor, source, kSampleElements / 4));
  VOLVELLE_ASSIGN_OR_RETURN(Candidate best, try_form(storage, rows, *statistics, threads));
  if (rotated.rotation > 1) {
    VOLVELLE_ASSIGN_OR_RETURN(Candidate other, try_form(rotated, rows, *statistics, threads));
    // Side columns take bytes: they are to be worth them.
    constexpr double kWorthIt = 1.25;
    if (other.error <= kWorthIt * best.error) best = std::move(other);
  }
  return std::move(best.storage);
}

}  // namespace volvelle
