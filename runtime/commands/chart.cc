#include "runtime/commands/chart.h"

#include <algorithm>
#include <cmath>
#include <format>
#include <limits>

#include "runtime/commands/svg.h"

namespace volvelle {
namespace {

constexpr double kWidth = 880, kHeight = 500;
constexpr double kLeft = 92, kRight = kWidth - 150, kTop = 84, kBottom = kHeight - 62;
constexpr double kLabelSpace = 15;

// Numbers that an axis can show, and where.
class Scale {
 public:
  Scale(const Axis& axis, double from, double to)
      : logarithmic_(axis.logarithmic), whole_(axis.whole), from_(from), to_(to) {}

  bool shows(double value) const {
    return std::isfinite(value) && (!logarithmic_ || value > 0) && std::abs(value) < 1e300;
  }
  void include(double value) {
    if (!shows(value)) return;
    least_ = std::min(least_, value);
    most_ = std::max(most_, value);
  }
  // Nothing, or a single value, gets some room around it.
  void settle() {
    if (least_ > most_) least_ = logarithmic_ ? 1 : 0, most_ = logarithmic_ ? 10 : 1;
    if (logarithmic_) {
      least_ = std::pow(10, std::floor(std::log10(least_) + 1e-9));
      most_ = std::pow(10, std::ceil(std::log10(most_) - 1e-9));
      if (least_ == most_) most_ *= 10;
    } else if (!(most_ - least_ > 1e-9 * std::max(std::abs(most_), std::abs(least_)))) {
      const double room = std::max(std::abs(most_) / 10, 1e-6);
      least_ -= room;
      most_ += room;
    }
  }
  double at(double value) const {
    const double share = logarithmic_ ? std::log(value / least_) / std::log(most_ / least_)
                                      : (value - least_) / (most_ - least_);
    return from_ + share * (to_ - from_);
  }
  std::vector<double> tick_values() const {
    std::vector<double> values = ticks(least_, most_, logarithmic_);
    if (whole_) std::erase_if(values, [](double value) { return value != std::round(value); });
    return values;
  }

 private:
  bool logarithmic_, whole_;
  double from_, to_;
  double least_ = std::numeric_limits<double>::infinity(), most_ = -least_;
};

std::string tick_text(double value) {
  if (value == 0) return "0";
  const double magnitude = std::abs(value);
  if (magnitude >= 1e6 || magnitude < 1e-3) return std::format("{:.3g}", value);
  std::string text = std::format("{:.10g}", value);
  if (text.contains('.') || magnitude < 1000) return text;
  for (size_t end = text.size(); end > 3 + (value < 0); end -= 3) text.insert(end - 3, ",");
  if (text.starts_with("-,")) text.erase(1, 1);
  return text;
}

Svg frame(const std::string& title, const std::string& subtitle, const std::string& x_label,
          const std::string& y_label) {
  Svg svg(kWidth, kHeight, title);
  svg.text({kLeft, 34}, title, "title");
  svg.text({kLeft, 56}, subtitle, "subtitle");
  svg.text({(kLeft + kRight) / 2, kHeight - 16}, x_label, "label", TextAnchor::kMiddle);
  svg.text({24, (kTop + kBottom) / 2}, y_label, "label", TextAnchor::kMiddle, /*turned=*/true);
  return svg;
}

void draw_x_tick(Svg& svg, double x, double value) {
  svg.line({x, kBottom}, {x, kBottom + 5}, "axis");
  svg.text({x, kBottom + 21}, tick_text(value), "tick", TextAnchor::kMiddle);
}

}  // namespace

std::vector<double> ticks(double least, double most, bool logarithmic) {
  std::vector<double> values;
  if (logarithmic) {
    const int first = static_cast<int>(std::ceil(std::log10(least) - 1e-9));
    const int last = static_cast<int>(std::floor(std::log10(most) + 1e-9));
    const int step = std::max(1, (last - first + 7) / 8);
    for (int power = first; power <= last; power += step) values.push_back(std::pow(10, power));
    return values;
  }
  const double rough = (most - least) / 6;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  const double part = rough / power;
  const double step = power * (part < 1.5 ? 1 : part < 3.5 ? 2 : part < 7.5 ? 5 : 10);
  for (double count = std::ceil(least / step - 1e-9); count * step <= most + step * 1e-9; ++count) {
    values.push_back(count == 0 ? 0 : count * step);
    if (values.size() > 20) break;
  }
  return values;
}

std::string draw(const LineChart& chart) {
  Scale x(chart.x, kLeft, kRight), y(chart.y, kBottom, kTop);
  for (const Series& series : chart.series) {
    for (size_t i = 0; i < series.x.size(); ++i) {
      if (!x.shows(series.x[i]) || !y.shows(series.y[i])) continue;
      x.include(series.x[i]);
      y.include(series.y[i]);
    }
  }
  for (const Mark& mark : chart.marks) y.include(mark.y);
  x.settle();
  y.settle();

  Svg svg = frame(chart.title, chart.subtitle, chart.x.label, chart.y.label);
  for (const double value : y.tick_values()) {
    svg.line({kLeft, y.at(value)}, {kRight, y.at(value)}, "grid");
    svg.text({kLeft - 9, y.at(value) + 4.5}, tick_text(value), "tick", TextAnchor::kEnd);
  }
  for (const double value : x.tick_values()) draw_x_tick(svg, x.at(value), value);
  svg.line({kLeft, kBottom}, {kRight, kBottom}, "axis");
  svg.line({kLeft, kTop}, {kLeft, kBottom}, "axis");

  std::vector<double> labels;  // heights that are taken
  const auto is_free = [&](double height) {
    const bool taken = std::ranges::any_of(
        labels, [&](double other) { return std::abs(other - height) < kLabelSpace; });
    if (!taken) labels.push_back(height);
    return !taken;
  };
  for (const Mark& mark : chart.marks) {
    if (!y.shows(mark.y)) continue;
    const double height = y.at(mark.y);
    svg.line({kLeft, height}, {kRight, height}, "mark");
    if (is_free(height)) svg.text({kRight + 8, height + 4.5}, mark.name, "label");
  }
  for (const Series& series : chart.series) {
    std::vector<Point> points;
    for (size_t i = 0; i < series.x.size(); ++i) {
      if (x.shows(series.x[i]) && y.shows(series.y[i])) {
        points.push_back({x.at(series.x[i]), y.at(series.y[i])});
      }
    }
    if (points.empty()) continue;
    const std::string color = scale_color(series.color);
    svg.polyline(points, color, series.dashed);
    if (is_free(points.back().y)) {
      svg.colored_text({kRight + 8, points.back().y + 4.5}, series.name, color);
    }
  }
  return std::move(svg).finish();
}

std::string draw(const HeatMap& map) {
  constexpr size_t kMostRows = 96, kMostColumns = 160;
  const size_t rows = std::min(map.rows, kMostRows), columns = std::min(map.columns, kMostColumns);
  const auto value = [&](size_t row, size_t column) -> double {
    const size_t i = row * map.rows / rows * map.columns + column * map.columns / columns;
    return i < map.values.size() ? map.values[i] : std::nan("");
  };
  Scale colors({}, 0, 1), x({.whole = true}, kLeft, kRight), y({.whole = true}, kTop, kBottom);
  for (size_t row = 0; row < rows; ++row) {
    for (size_t column = 0; column < columns; ++column) colors.include(value(row, column));
  }
  x.include(map.first_column);
  x.include(map.last_column);
  y.include(0);
  y.include(static_cast<double>(map.rows));
  for (Scale* scale : {&colors, &x, &y}) scale->settle();

  Svg svg = frame(map.title, map.subtitle, map.x_label, map.y_label);
  const double width = (kRight - kLeft) / static_cast<double>(std::max<size_t>(columns, 1));
  const double height = (kBottom - kTop) / static_cast<double>(std::max<size_t>(rows, 1));
  for (size_t row = 0; row < rows; ++row) {
    for (size_t column = 0; column < columns; ++column) {
      if (!colors.shows(value(row, column))) continue;
      // A hair wider than a cell, so that no ground shines through between two.
      svg.rectangle(
          {kLeft + static_cast<double>(column) * width, kTop + static_cast<double>(row) * height},
          width + 0.3, height + 0.3, scale_color(colors.at(value(row, column))));
    }
  }
  // Ticks stand at the middle of a column or row.
  for (const double tick : x.tick_values()) {
    if (tick < map.last_column) draw_x_tick(svg, x.at(tick + 0.5), tick);
  }
  for (const double tick : y.tick_values()) {
    if (tick >= static_cast<double>(map.rows)) continue;
    const double middle = y.at(tick + 0.5);
    svg.line({kLeft - 5, middle}, {kLeft, middle}, "axis");
    svg.text({kLeft - 9, middle + 4.5}, tick_text(tick), "tick", TextAnchor::kEnd);
  }
  // The key: a bar of all colours with the values that they stand for.
  constexpr double kKey = kRight + 28, kKeyWidth = 16, kKeySteps = 48;
  const double step = (kBottom - kTop) / kKeySteps;
  for (double i = 0; i < kKeySteps; ++i) {
    svg.rectangle({kKey, kBottom - (i + 1) * step}, kKeyWidth, step + 0.3,
                  scale_color(i / (kKeySteps - 1)));
  }
  for (const double tick : colors.tick_values()) {
    svg.text({kKey + kKeyWidth + 7, kBottom - colors.at(tick) * (kBottom - kTop) + 4.5},
             tick_text(tick), "tick");
  }
  svg.text({kKey, kTop - 12}, map.value_label, "label");
  return std::move(svg).finish();
}

}  // namespace volvelle
