// Two kinds of charts, drawn from plain numbers: lines over an axis, and a map of values by row and
// column. Numbers that are none, or not above zero on a logarithmic axis, are left out.

#ifndef VOLVELLE_RUNTIME_COMMANDS_CHART_H_
#define VOLVELLE_RUNTIME_COMMANDS_CHART_H_

#include <span>
#include <string>
#include <vector>

namespace volvelle {

struct Axis {
  std::string label;
  bool logarithmic = false;
  bool whole = false;  // counts something: no ticks between
};

struct Series {
  std::string name;  // stands at the line's end
  std::vector<double> x, y;
  double color = 0;  // on the scale from 0 to 1
  bool dashed = false;
};

// A value of y that matters: "trained context 2,048".
struct Mark {
  std::string name;
  double y = 0;
};

struct LineChart {
  std::string title, subtitle;
  Axis x, y;
  std::vector<Series> series;
  std::vector<Mark> marks;
};

struct HeatMap {
  std::string title, subtitle;
  std::string x_label, y_label, value_label;
  size_t rows = 0, columns = 0;
  std::span<const float> values;  // [rows, columns]
  double first_column = 0;        // what the first column stands for, and the last
  double last_column = 0;
};

// Files in SVG.
std::string draw(const LineChart& chart);
std::string draw(const HeatMap& map);  // large maps are sampled

// Where ticks stand between two ends: multiples of 1, 2 or 5 times a power of ten, or powers of
// ten; between about four and eight.
std::vector<double> ticks(double least, double most, bool logarithmic);

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_COMMANDS_CHART_H_
