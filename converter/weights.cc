#include "converter/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "converter/quantize/q4.h"
#include "converter/quantize/q8.h"
#include "converter/quantize/row_checks.h"
#include "kernels/hadamard.h"
#include "platforms/interrupt.h"

namespace volvelle {
namespace {

constexpr uint64_t kSliceElements = uint64_t{1} << 18;  // 1 MiB of floats
constexpr size_t kSlicesPerThread = 4;                  // between two writes

// Rows [first, first + rows) of a part.
struct Slice {
  const recipe::Part* part;
  uint64_t first;
  uint64_t rows;
};

// What becomes of a slice.
struct Baked {
  std::vector<std::byte> data;
  std::vector<std::byte> scales;
  std::vector<int8_t> minima;  // [rows, blocks]
  std::vector<float> minimum_scales;
  std::vector<int8_t> side;  // [rows, side columns]
  std::vector<float> side_scales;
  Result<void> status;
};

// Buffers that a thread keeps from slice to slice.
struct Scratch {
  std::vector<float> values;
  std::vector<float> reordered;
};

// Row 2i + b of each head becomes row b * head_rows / 2 + i.
void to_half_order(std::span<const float> values, uint64_t head_rows, uint64_t columns,
                   float* reordered) {
  const uint64_t rows = values.size() / columns;
  for (uint64_t row = 0; row < rows; ++row) {
    const uint64_t within = row % head_rows;
    const uint64_t target = row - within + (within % 2) * (head_rows / 2) + within / 2;
    std::copy_n(values.data() + row * columns, columns, reordered + target * columns);
  }
}

void reverse_rows(std::span<float> values, uint64_t columns) {
  const uint64_t rows = values.size() / columns;
  for (uint64_t row = 0; row < rows / 2; ++row) {
    std::swap_ranges(values.begin() + row * columns, values.begin() + (row + 1) * columns,
                     values.begin() + (rows - 1 - row) * columns);
  }
}

// Divides each row by its length; rows of zeros stay.
void to_unit_length(uint64_t columns, std::span<float> values) {
  for (size_t first = 0; first < values.size(); first += columns) {
    const std::span<float> row = values.subspan(first, columns);
    double squares = 0;
    for (const float value : row) squares += double{value} * value;
    if (squares == 0) continue;
    const double length = std::sqrt(squares);
    for (float& value : row) value = static_cast<float>(value / length);
  }
}

// Which row of its part, as the source has them, is row `row` of the slice.
uint64_t row_of(const Slice& slice, uint64_t row) {
  const recipe::Order& order = slice.part->row_order;
  return order == nullptr ? slice.first + row : (*order)[slice.first + row];
}

void reorder_columns(const recipe::Order& order, std::span<float> values, std::vector<float>& row) {
  if (order == nullptr) return;
  row.resize(order->size());
  for (size_t first = 0; first < values.size(); first += row.size()) {
    std::copy_n(values.begin() + static_cast<ptrdiff_t>(first), row.size(), row.begin());
    for (size_t i = 0; i < row.size(); ++i) values[first + i] = row[(*order)[i]];
  }
}

// All of a vector, whatever its shape in the source, and of it those elements that `slice` wants.
Result<void> read_vector(const TensorSource& source, const Slice& slice, Scratch& scratch) {
  const SourceTensor& tensor = *slice.part->source;
  std::vector<float>& all = scratch.reordered;
  all.resize(tensor.rows() * tensor.columns());
  VOLVELLE_RETURN_IF_ERROR(source.read(tensor, 0, tensor.rows(), all));
  const auto first = all.begin() + static_cast<ptrdiff_t>(slice.part->first_row);
  for (uint64_t row = 0; row < slice.rows; ++row) {
    scratch.values[row] = first[static_cast<ptrdiff_t>(row_of(slice, row))];
  }
  return {};
}

// Rows that may lie apart.
Result<void> read_rows(const TensorSource& source, const Slice& slice, uint64_t first,
                       uint64_t columns, Scratch& scratch) {
  const recipe::Part& part = *slice.part;
  if (part.row_order == nullptr) {
    return source.read(*part.source, part.first_row + first, slice.rows, scratch.values);
  }
  for (uint64_t row = 0; row < slice.rows; ++row) {
    const std::span values(scratch.values);
    VOLVELLE_RETURN_IF_ERROR(source.read(*part.source, part.first_row + row_of(slice, row), 1,
                                         values.subspan(row * columns, columns)));
  }
  return {};
}

// Columns of a source that is stored [columns, rows]: a band of its rows at a time.
Result<void> read_transposed(const TensorSource& source, const Slice& slice, uint64_t columns,
                             Scratch& scratch) {
  const SourceTensor& tensor = *slice.part->source;
  const uint64_t width = tensor.columns(), first = slice.part->first_row + slice.first;
  const uint64_t band = std::max<uint64_t>(1, kSliceElements / width);
  for (uint64_t column = 0; column < columns; column += band) {
    const uint64_t count = std::min(band, columns - column);
    scratch.reordered.resize(count * width);
    VOLVELLE_RETURN_IF_ERROR(source.read(tensor, column, count, scratch.reordered));
    for (uint64_t i = 0; i < count; ++i) {
      for (uint64_t row = 0; row < slice.rows; ++row) {
        scratch.values[row * columns + column + i] = scratch.reordered[i * width + first + row];
      }
    }
  }
  return {};
}

// `rows` rows of `columns` elements; of a vector, rows have one element.
Result<std::span<float>> read_slice(const TensorSource& source, const Slice& slice,
                                    uint64_t columns, bool vector, Scratch& scratch) {
  const recipe::Part& part = *slice.part;
  scratch.values.resize(slice.rows * columns);
  if (part.source == nullptr) {
    std::ranges::fill(scratch.values, 0.0f);
    return scratch.values;
  }
  const uint64_t first = part.reversed ? part.rows - slice.first - slice.rows : slice.first;
  VOLVELLE_RETURN_IF_ERROR(vector            ? read_vector(source, slice, scratch)
                           : part.transposed ? read_transposed(source, slice, columns, scratch)
                                             : read_rows(source, slice, first, columns, scratch));
  reorder_columns(part.column_order, scratch.values, scratch.reordered);
  if (part.reversed) reverse_rows(scratch.values, columns);
  if (part.plus != 0) {
    for (float& value : scratch.values) value += part.plus;
  }
  if (part.unit) to_unit_length(columns, scratch.values);
  if (part.head_rows == 0) return scratch.values;
  scratch.reordered.resize(scratch.values.size());
  to_half_order(scratch.values, slice.part->head_rows, columns, scratch.reordered.data());
  return scratch.reordered;
}

// Moves the side columns' weights from `values`, where zeros are left, to `baked`.
void take_side_columns(std::span<float> values, uint64_t rows, uint64_t columns,
                       std::span<const uint32_t> side_columns, Baked& baked) {
  const size_t count = side_columns.size();
  baked.side.resize(rows * count);
  baked.side_scales.resize(rows);
  for (uint64_t row = 0; row < rows; ++row) {
    float* const from = values.data() + row * columns;
    float largest = 0;
    for (const uint32_t column : side_columns) largest = std::max(largest, std::fabs(from[column]));
    const float scale = std::max(largest / 127, 0x1p-126f);
    baked.side_scales[row] = scale;
    for (size_t i = 0; i < count; ++i) {
      const float code = std::nearbyint(std::exchange(from[side_columns[i]], 0.0f) / scale);
      baked.side[row * count + i] = static_cast<int8_t>(std::clamp(code, -127.0f, 127.0f));
    }
  }
}

// Appends the rows in their stored form to empty `baked`; `values` are lost. Fails on what is not
// finite.
Result<void> bake(std::span<float> values, uint64_t first_row, uint64_t rows, uint64_t columns,
                  const Storage& storage, Baked& baked) {
  const file::TensorType type = storage.type;
  if (storage.rotation > 1 || !storage.side_columns.empty()) {
    VOLVELLE_RETURN_IF_ERROR(check_finite(values.data(), rows, columns, first_row));
    take_side_columns(values, rows, columns, storage.side_columns, baked);
    hadamard(storage.rotation, values.size(), values.data());
  }
  baked.data.resize(data_bytes(type, rows, columns));
  baked.scales.resize(scale_bytes(type, rows, columns));
  switch (type) {
    case file::TensorType::f32:
      std::memcpy(baked.data.data(), values.data(), values.size_bytes());
      return check_finite(values.data(), rows, columns, first_row);
    case file::TensorType::q8:
      return quantize_q8_rows(values.data(), rows, columns,
                              reinterpret_cast<int8_t*>(baked.data.data()),
                              reinterpret_cast<float*>(baked.scales.data()), first_row);
    case file::TensorType::q4:
      if (storage.minima) {
        baked.minima.resize(rows * q4_blocks(columns));
        baked.minimum_scales.resize(rows);
      }
      if (storage.compensation != nullptr) {
        const auto cost = quantize_q4_rows_compensated(
            values.data(), rows, columns, *storage.compensation,
            reinterpret_cast<uint8_t*>(baked.data.data()),
            reinterpret_cast<uint16_t*>(baked.scales.data()),
            storage.minima ? baked.minima.data() : nullptr, baked.minimum_scales.data(), first_row);
        return cost ? Result<void>() : std::unexpected(cost.error());
      }
      if (storage.minima) {
        return quantize_q4_rows_with_minima(
            values.data(), rows, columns, reinterpret_cast<uint8_t*>(baked.data.data()),
            reinterpret_cast<uint16_t*>(baked.scales.data()), baked.minima.data(),
            baked.minimum_scales.data(), first_row);
      }
      return quantize_q4_rows(values.data(), rows, columns,
                              reinterpret_cast<uint8_t*>(baked.data.data()),
                              reinterpret_cast<uint16_t*>(baked.scales.data()), first_row);
  }
  return {};
}

std::vector<Slice> cut(const recipe::Tensor& tensor, uint64_t columns) {
  std::vector<Slice> slices;
  for (const recipe::Part& part : tensor.parts) {
    uint64_t step = std::max<uint64_t>(1, kSliceElements / columns);
    if (part.head_rows != 0)
      step = std::max(part.head_rows, step / part.head_rows * part.head_rows);
    // A transposed source is read whole for each slice.
    if (tensor.use == recipe::Use::kVector || part.transposed) step = part.rows;
    for (uint64_t first = 0; first < part.rows; first += step) {
      slices.push_back({&part, first, std::min(step, part.rows - first)});
    }
  }
  return slices;
}

// A segment of [columns, rows] from values [rows, columns].
Result<file::Segment> write_turned(std::span<const int8_t> values, uint64_t columns,
                                   ModelWriter& writer) {
  const uint64_t rows = values.size() / columns;
  std::vector<int8_t> turned(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    turned[i % columns * rows + i / columns] = values[i];
  }
  return writer.write_segment(std::as_bytes(std::span(turned)));
}

Result<StoredTensor> write_computed(const recipe::Tensor& tensor, const TensorSource& source,
                                    const ThreadPool& threads, ModelWriter& writer,
                                    const std::function<void(uint64_t elements)>& progress) {
  VOLVELLE_ASSIGN_OR_RETURN(const std::vector<float> values, tensor.computation(source, threads));
  if (const auto finite = check_finite(values.data(), tensor.rows, tensor.columns, 0); !finite) {
    return fail("tensor {}: {}", tensor.name, finite.error().message);
  }
  StoredTensor stored;
  VOLVELLE_ASSIGN_OR_RETURN(stored.data, writer.write_segment(std::as_bytes(std::span(values))));
  VOLVELLE_ASSIGN_OR_RETURN(stored.scales, writer.write_segment({}));
  progress(values.size());
  return stored;
}

}  // namespace

uint64_t data_bytes(file::TensorType type, uint64_t rows, uint64_t columns) {
  switch (type) {
    case file::TensorType::f32:
      return rows * columns * sizeof(float);
    case file::TensorType::q8:
      return rows * columns;
    case file::TensorType::q4:
      return rows * q4_blocks(columns) * (kQ4Block / 2);
  }
  return 0;
}

uint64_t scale_bytes(file::TensorType type, uint64_t rows, uint64_t columns) {
  switch (type) {
    case file::TensorType::f32:
      return 0;
    case file::TensorType::q8:
      return rows * sizeof(float);
    case file::TensorType::q4:
      return rows * q4_blocks(columns) * sizeof(uint16_t);
  }
  return 0;
}

Result<std::vector<float>> sample_rows(const recipe::Tensor& tensor, const TensorSource& source,
                                       size_t elements) {
  constexpr size_t kPlaces = 8;
  std::vector<float> sample;
  if (tensor.computation) return sample;
  std::vector<Slice> slices = cut(tensor, tensor.columns);
  std::erase_if(slices, [](const Slice& slice) { return slice.part->source == nullptr; });
  Scratch scratch;
  for (size_t i = 0; i < kPlaces && !slices.empty(); ++i) {
    const Slice& slice = slices[i * slices.size() / kPlaces];
    VOLVELLE_ASSIGN_OR_RETURN(const std::span<const float> values,
                              read_slice(source, slice, tensor.columns, false, scratch));
    // Where slices are few, each place has rows of its own all the same.
    const size_t rows = std::min<size_t>(slice.rows, 1 + elements / kPlaces / tensor.columns);
    const size_t first = (slice.rows - rows) * i / kPlaces;
    const auto from = values.begin() + static_cast<ptrdiff_t>(first * tensor.columns);
    sample.insert(sample.end(), from, from + static_cast<ptrdiff_t>(rows * tensor.columns));
  }
  return sample;
}

Result<StoredTensor> write_tensor(const recipe::Tensor& tensor, const Storage& storage,
                                  const TensorSource& source, const ThreadPool& threads,
                                  ModelWriter& writer,
                                  const std::function<void(uint64_t elements)>& progress) {
  if (tensor.computation) return write_computed(tensor, source, threads, writer, progress);
  const file::TensorType type = storage.type;
  const bool vector = tensor.use == recipe::Use::kVector;
  const uint64_t columns = vector ? 1 : tensor.columns;
  const std::vector<Slice> slices = cut(tensor, columns);
  std::vector<Scratch> scratch(threads.threads());
  std::vector<Baked> batch(threads.threads() * kSlicesPerThread);
  std::vector<int8_t> minima, side;
  std::vector<float> minimum_scales, side_scales;
  std::vector<std::byte> scales;
  scales.reserve(scale_bytes(type, tensor.rows, tensor.columns));

  VOLVELLE_RETURN_IF_ERROR(writer.begin_segment(data_bytes(type, tensor.rows, tensor.columns)));
  for (size_t first = 0; first < slices.size(); first += batch.size()) {
    if (interrupted()) return fail("interrupted");
    const size_t count = std::min(batch.size(), slices.size() - first);
    threads.parallel_for(count, [&](size_t i, size_t thread) {
      const Slice& slice = slices[first + i];
      const Result<std::span<float>> values =
          read_slice(source, slice, columns, vector, scratch[thread]);
      batch[i].status = {};
      if (values) {
        batch[i].status = bake(*values, slice.first, slice.rows, columns, storage, batch[i]);
      } else {
        batch[i].status = std::unexpected(values.error());
      }
    });
    uint64_t elements = 0;
    for (size_t i = 0; i < count; ++i) {
      if (const Result<void>& status = batch[i].status; !status) {
        return fail("tensor {}: {}", slices[first + i].part->source->name, status.error().message);
      }
      VOLVELLE_RETURN_IF_ERROR(writer.append(batch[i].data));
      scales.insert(scales.end(), batch[i].scales.begin(), batch[i].scales.end());
      minima.insert(minima.end(), batch[i].minima.begin(), batch[i].minima.end());
      minimum_scales.insert(minimum_scales.end(), batch[i].minimum_scales.begin(),
                            batch[i].minimum_scales.end());
      side.insert(side.end(), batch[i].side.begin(), batch[i].side.end());
      side_scales.insert(side_scales.end(), batch[i].side_scales.begin(),
                         batch[i].side_scales.end());
      elements += slices[first + i].rows * columns;
    }
    progress(elements);
  }

  StoredTensor stored{.storage = storage};
  VOLVELLE_ASSIGN_OR_RETURN(stored.data, writer.end_segment());
  VOLVELLE_ASSIGN_OR_RETURN(stored.scales, writer.write_segment(scales));
  if (storage.minima) {
    VOLVELLE_ASSIGN_OR_RETURN(stored.minima, write_turned(minima, q4_blocks(columns), writer));
    VOLVELLE_ASSIGN_OR_RETURN(stored.minimum_scales,
                              writer.write_segment(std::as_bytes(std::span(minimum_scales))));
  }
  if (!storage.side_columns.empty()) {
    VOLVELLE_ASSIGN_OR_RETURN(stored.side, write_turned(side, storage.side_columns.size(), writer));
    VOLVELLE_ASSIGN_OR_RETURN(stored.side_scales,
                              writer.write_segment(std::as_bytes(std::span(side_scales))));
  }
  return stored;
}

}  // namespace volvelle
