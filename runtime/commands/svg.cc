#include "runtime/commands/svg.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <format>

namespace volvelle {
namespace {

constexpr const char* kStyle =
    "<style>\n"
    "text{font-family:system-ui,sans-serif;font-size:13px;fill:#3d4450}\n"
    ".title{font-size:19px;font-weight:600}.subtitle,.tick,.label{fill:#69707d}\n"
    ".axis{stroke:#69707d}.grid{stroke:#8a93a3;stroke-opacity:.25}\n"
    ".mark{stroke:#8a93a3;stroke-dasharray:6 4}\n"
    "rect{shape-rendering:crispEdges}path{fill:none;stroke-width:2;stroke-linejoin:round}\n"
    "@media(prefers-color-scheme:dark){text{fill:#e4e7ec}.subtitle,.tick,.label{fill:#a7afbd}}\n"
    "</style>\n";

std::string anchor_name(TextAnchor anchor) {
  switch (anchor) {
    case TextAnchor::kStart:
      return "start";
    case TextAnchor::kMiddle:
      return "middle";
    case TextAnchor::kEnd:
      return "end";
  }
  return "";
}

}  // namespace

std::string xml_text(std::string_view text, size_t most) {
  std::string out;
  for (size_t count = 0; !text.empty(); ++count) {
    if (count == most) return out + "…";
    utf8proc_int32_t code = 0;
    const auto length = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                         static_cast<utf8proc_ssize_t>(text.size()), &code);
    const bool allowed =
        length > 0 && code >= 0x20 && code != 0x7f && code != 0xfffe && code != 0xffff;
    if (!allowed) {
      out += "\uFFFD";
    } else if (code == '&') {
      out += "&amp;";
    } else if (code == '<') {
      out += "&lt;";
    } else if (code == '>') {
      out += "&gt;";
    } else if (code == '"') {
      out += "&quot;";
    } else {
      out += text.substr(0, static_cast<size_t>(length));
    }
    text.remove_prefix(length > 0 ? static_cast<size_t>(length) : 1);
  }
  return out;
}

std::string scale_color(double share) {
  constexpr std::array<std::array<double, 3>, 3> kStops = {
      {{47, 111, 191}, {139, 116, 160}, {222, 121, 36}}};
  const double at = std::clamp(std::isfinite(share) ? share : 0.0, 0.0, 1.0) * 2;
  const size_t stop = at < 1 ? 0 : 1;
  const double mix = at - static_cast<double>(stop);
  std::array<int, 3> color;
  for (size_t i = 0; i < 3; ++i) {
    color[i] =
        static_cast<int>(std::lround(kStops[stop][i] * (1 - mix) + kStops[stop + 1][i] * mix));
  }
  return std::format("#{:02x}{:02x}{:02x}", color[0], color[1], color[2]);
}

Svg::Svg(double width, double height, std::string_view title)
    : body_(std::format("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
                        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:g} {:g}\" "
                        "width=\"{:g}\" height=\"{:g}\" role=\"img\">\n<title>{}</title>\n{}",
                        width, height, width, height, xml_text(title), kStyle)) {}

void Svg::line(Point from, Point to, std::string_view style) {
  body_ +=
      std::format("<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
                  style, from.x, from.y, to.x, to.y);
}

void Svg::polyline(std::span<const Point> points, std::string_view color, bool dashed) {
  if (points.size() < 2) return;
  body_ +=
      std::format("<path stroke=\"{}\"{} d=\"", color, dashed ? " stroke-dasharray=\"5 4\"" : "");
  char command = 'M';
  for (const Point& point : points) {
    body_ += std::format("{}{:.1f} {:.1f}", command, point.x, point.y);
    command = 'L';
  }
  body_ += "\"/>\n";
}

void Svg::rectangle(Point corner, double width, double height, std::string_view color) {
  body_ += std::format(
      "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\"/>\n",
      corner.x, corner.y, width, height, color);
}

void Svg::text(Point at, std::string_view text, std::string_view style, TextAnchor anchor,
               bool turned) {
  const std::string turn =
      turned ? std::format(" transform=\"rotate(-90 {:.1f} {:.1f})\"", at.x, at.y) : "";
  body_ +=
      std::format("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n",
                  style, at.x, at.y, anchor_name(anchor), turn, xml_text(text));
}

void Svg::colored_text(Point at, std::string_view text, std::string_view color) {
  body_ += std::format("<text x=\"{:.1f}\" y=\"{:.1f}\" style=\"fill:{}\">{}</text>\n", at.x, at.y,
                       color, xml_text(text));
}

std::string Svg::finish() && { return std::move(body_) + "</svg>\n"; }

}  // namespace volvelle
