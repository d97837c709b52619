// Pictures of what tells a model the order of its tokens, for `volvelle inspect --plot`. Each is
// the text of an SVG file, drawn from plain arrays; `title` is the model's name.

#ifndef VOLVELLE_RUNTIME_COMMANDS_POSITION_PLOTS_H_
#define VOLVELLE_RUNTIME_COMMANDS_POSITION_PLOTS_H_

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "platforms/error.h"
#include "runtime/model.h"

namespace volvelle {

// 2 pi / frequency: positions to a full turn; infinite for a plane that stands still.
double wavelength(double frequency);

// Wavelength by plane. `beyond`: of sequences past a switch; empty: there is none.
std::string plot_rotary(const std::string& title, std::span<const float> original,
                        std::span<const float> present, std::span<const float> beyond,
                        size_t trained_context, size_t context);

// -slope * distance for each head, up to `distance`.
std::string plot_slopes(const std::string& title, std::span<const float> slopes, size_t distance);

// Length of each row of a table that is added to embeddings, and how alike rows are by their
// distance. `read` gives row `row` of the `rows` as `width` floats.
using RowReader = std::function<void(size_t row, float* values)>;
std::string plot_row_norms(const std::string& title, size_t rows, size_t width,
                           const RowReader& read);
std::string plot_row_likeness(const std::string& title, size_t rows, size_t width,
                              const RowReader& read);

// Bias by head and distance: [heads, distances], of which the first is `first_distance`.
std::string plot_biases(const std::string& title, std::span<const float> biases, size_t heads,
                        size_t distances, double first_distance);

// A computed table: [positions, width].
std::string plot_sinusoids(const std::string& title, std::span<const float> table, size_t positions,
                           size_t width);

struct Plot {
  std::string path;
  std::string what;  // "the wavelength of each plane"
};

// Draws each of the model's positions into `folder`, which is made if it is missing.
Result<std::vector<Plot>> plot_positions(const Model& model, const std::string& folder);

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_COMMANDS_POSITION_PLOTS_H_
