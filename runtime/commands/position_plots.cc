#include "runtime/commands/position_plots.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <format>
#include <limits>
#include <numbers>

#include "platforms/output_file.h"
#include "runtime/commands/chart.h"
#include "runtime/commands/program.h"
#include "schema/volvelle_generated.h"

namespace volvelle {
namespace {

Series wavelengths(const std::string& name, std::span<const float> frequencies, double color,
                   bool dashed = false) {
  Series series{.name = name, .color = color, .dashed = dashed};
  for (size_t plane = 0; plane < frequencies.size(); ++plane) {
    series.x.push_back(static_cast<double>(plane));
    series.y.push_back(wavelength(frequencies[plane]));
  }
  return series;
}

// Up to `most` of `count` indices, evenly spread, the last among them.
std::vector<size_t> spread(size_t count, size_t most) {
  std::vector<size_t> indices;
  const size_t some = std::min(count, most);
  for (size_t i = 0; i < some; ++i) indices.push_back(some < 2 ? 0 : i * (count - 1) / (some - 1));
  return indices;
}

double product(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * b[i];
  return sum;
}

}  // namespace

double wavelength(double frequency) {
  if (frequency == 0) return std::numeric_limits<double>::infinity();
  return 2 * std::numbers::pi / frequency;
}

std::string plot_rotary(const std::string& title, std::span<const float> original,
                        std::span<const float> present, std::span<const float> beyond,
                        size_t trained_context, size_t context) {
  LineChart chart{.title = title,
                  .subtitle = "Rotary positions: how far each plane of a head takes to turn once",
                  .x = {.label = "plane", .whole = true},
                  .y = {.label = "wavelength, positions", .logarithmic = true}};
  const bool scaled = !std::ranges::equal(original, present);
  chart.series.push_back(wavelengths(scaled ? "present" : "as trained", present, 1));
  if (!beyond.empty()) chart.series.push_back(wavelengths("long sequences", beyond, 0.5));
  if (scaled) chart.series.push_back(wavelengths("original", original, 0, /*dashed=*/true));
  chart.marks.push_back({std::format("trained {}", format_count(trained_context)),
                         static_cast<double>(trained_context)});
  if (context != trained_context) {
    chart.marks.push_back(
        {std::format("context {}", format_count(context)), static_cast<double>(context)});
  }
  return draw(chart);
}

std::string plot_slopes(const std::string& title, std::span<const float> slopes, size_t distance) {
  LineChart chart{
      .title = title,
      .subtitle = "Linear biases (ALiBi): what is added to a key's logit, for each head",
      .x = {.label = "distance to the key, tokens", .whole = true},
      .y = {"bias"}};
  for (size_t head = 0; head < slopes.size(); ++head) {
    const double last = static_cast<double>(distance);
    chart.series.push_back(
        {.name = std::format("head {}", head),
         .x = {0, last},
         .y = {0, -double{slopes[head]} * last},
         .color = slopes.size() < 2
                      ? 0
                      : static_cast<double>(head) / static_cast<double>(slopes.size() - 1)});
  }
  return draw(chart);
}

std::string plot_row_norms(const std::string& title, size_t rows, size_t width,
                           const RowReader& read) {
  Series series{.name = "norm"};
  std::vector<float> row(width);
  for (const size_t position : spread(rows, 2048)) {
    read(position, row.data());
    series.x.push_back(static_cast<double>(position));
    series.y.push_back(std::sqrt(product(row, row)));
  }
  return draw(LineChart{.title = title,
                        .subtitle = "Learned positions: the length of each row of the table",
                        .x = {.label = "position", .whole = true},
                        .y = {"Euclidean norm"},
                        .series = {std::move(series)}});
}

std::string plot_row_likeness(const std::string& title, size_t rows, size_t width,
                              const RowReader& read) {
  constexpr size_t kDistances = 256, kPairs = 32;
  Series series{.name = "cosine"};
  std::vector<float> one(width), other(width);
  for (const size_t distance : spread(rows, kDistances)) {
    double sum = 0, pairs = 0;
    for (const size_t position : spread(rows - distance, kPairs)) {
      read(position, one.data());
      read(position + distance, other.data());
      const double norms = std::sqrt(product(one, one) * product(other, other));
      if (!(norms > 0)) continue;
      sum += product(one, other) / norms;
      ++pairs;
    }
    if (pairs == 0) continue;
    series.x.push_back(static_cast<double>(distance));
    series.y.push_back(sum / pairs);
  }
  return draw(LineChart{
      .title = title,
      .subtitle = "Learned positions: how alike rows of the table are, mean of up to 32 pairs",
      .x = {.label = "distance between two positions, tokens", .whole = true},
      .y = {"cosine similarity"},
      .series = {std::move(series)}});
}

std::string plot_biases(const std::string& title, std::span<const float> biases, size_t heads,
                        size_t distances, double first_distance) {
  return draw(HeatMap{.title = title,
                      .subtitle = "Relative biases: what is added to a key's logit, by distance",
                      .x_label = "distance to the key, tokens",
                      .y_label = "head",
                      .value_label = "bias",
                      .rows = heads,
                      .columns = distances,
                      .values = biases,
                      .first_column = first_distance,
                      .last_column = first_distance + static_cast<double>(distances)});
}

std::string plot_sinusoids(const std::string& title, std::span<const float> table, size_t positions,
                           size_t width) {
  return draw(HeatMap{.title = title,
                      .subtitle = "Sinusoidal positions: what is added to embeddings",
                      .x_label = "element of the embedding",
                      .y_label = "position",
                      .value_label = "value",
                      .rows = positions,
                      .columns = width,
                      .values = table,
                      .first_column = 0,
                      .last_column = static_cast<double>(width)});
}

Result<std::vector<Plot>> plot_positions(const Model& model, const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!std::filesystem::is_directory(folder, error)) {
    return fail("{}: cannot be made a folder; choose another for the plots", folder);
  }
  const Stack& stack = model.generates() ? model.decoder() : *model.encoder();
  const std::string title = model.name().empty() ? "Model" : model.name();
  std::vector<Plot> plots;
  const auto write = [&](size_t position, const char* scheme, const char* what,
                         const std::string& svg) -> Result<> {
    const std::string path =
        (std::filesystem::path(folder) / std::format("position-{}-{}.svg", position, scheme))
            .string();
    VOLVELLE_ASSIGN_OR_RETURN(OutputFile file, OutputFile::create(path, {.overwrite = true}));
    VOLVELLE_RETURN_IF_ERROR(file.append(std::as_bytes(std::span(svg))));
    plots.push_back({path, what});
    return file.commit();
  };
  for (size_t i = 0; i < model.positions().size(); ++i) {
    const auto& scheme = model.positions()[i].scheme;
    if (const auto* rotary = std::get_if<Rotary>(&scheme)) {
      std::span<const float> beyond;
      if (rotary->switch_length > 0) {
        beyond = {rotary->record->long_frequencies()->data(), rotary->dial.planes};
      }
      VOLVELLE_RETURN_IF_ERROR(
          write(i, "rotary", "the wavelength of each plane",
                plot_rotary(title, rotary->original_frequencies, rotary->frequencies, beyond,
                            stack.trained_context, stack.context)));
    } else if (const auto* slopes = std::get_if<Slopes>(&scheme)) {
      VOLVELLE_RETURN_IF_ERROR(write(i, "slopes", "the bias of each head by distance",
                                     plot_slopes(title, slopes->values, stack.trained_context)));
    } else if (const auto* bias = std::get_if<BucketedBias>(&scheme)) {
      VOLVELLE_RETURN_IF_ERROR(
          write(i, "buckets", "the bias of each head by distance",
                plot_biases(title, bias->biases, bias->table->columns, 2 * bias->reach + 1,
                            -static_cast<double>(bias->reach))));
    } else if (const auto* relative = std::get_if<ClippedRelative>(&scheme)) {
      for (const auto& [kind, table] :
           {std::pair{"keys", relative->key}, std::pair{"queries", relative->query},
            std::pair{"values", relative->value}}) {
        if (table == nullptr) continue;
        const RowReader read = [table](size_t row, float* values) {
          read_row(*table, row, values);
        };
        VOLVELLE_RETURN_IF_ERROR(write(i, kind, "the length of each distance's row",
                                       plot_row_norms(title, table->rows, table->columns, read)));
      }
    } else if (const auto* additive = std::get_if<AdditiveTable>(&scheme)) {
      const Tensor& table = *additive->table;
      const size_t rows = table.rows - additive->row_offset;
      const RowReader read = [&](size_t row, float* values) {
        read_row(table, row + additive->row_offset, values);
      };
      if (!additive->learned) {
        constexpr size_t kMostPositions = 256, kMostValues = 1 << 24;
        const size_t positions = std::min({rows, kMostPositions, kMostValues / table.columns});
        std::vector<float> values(positions * table.columns);
        for (size_t row = 0; row < positions; ++row) read(row, &values[row * table.columns]);
        VOLVELLE_RETURN_IF_ERROR(write(i, "sinusoids", "what is added to embeddings",
                                       plot_sinusoids(title, values, positions, table.columns)));
        continue;
      }
      VOLVELLE_RETURN_IF_ERROR(write(i, "norms", "the length of each learned row",
                                     plot_row_norms(title, rows, table.columns, read)));
      VOLVELLE_RETURN_IF_ERROR(write(i, "likeness", "how alike learned rows are by distance",
                                     plot_row_likeness(title, rows, table.columns, read)));
    }
  }
  return plots;
}

}  // namespace volvelle
