// A picture in SVG: lines, rectangles and text in a few named styles that read well on light and
// dark ground. The text is whatever a file says; what XML cannot hold becomes a replacement
// character. No scripts, nothing fetched.

#ifndef VOLVELLE_RUNTIME_COMMANDS_SVG_H_
#define VOLVELLE_RUNTIME_COMMANDS_SVG_H_

#include <span>
#include <string>
#include <string_view>

namespace volvelle {

struct Point {
  double x = 0, y = 0;
};

enum class TextAnchor { kStart, kMiddle, kEnd };

// A colour of a scale: 0 to 1 is blue to orange by way of grey-violet, of a lightness that shows on
// both grounds.
std::string scale_color(double share);

class Svg {
 public:
  // `title` is for whoever cannot see the picture.
  Svg(double width, double height, std::string_view title);

  // `style` names a class of the style sheet: "axis", "grid", "mark"; or is empty, with `color`.
  void line(Point from, Point to, std::string_view style);
  void polyline(std::span<const Point> points, std::string_view color, bool dashed = false);
  void rectangle(Point corner, double width, double height, std::string_view color);

  // `style`: "title", "subtitle", "tick", "label". `turned`: reads upwards.
  void text(Point at, std::string_view text, std::string_view style,
            TextAnchor anchor = TextAnchor::kStart, bool turned = false);
  void colored_text(Point at, std::string_view text, std::string_view color);

  std::string finish() &&;

 private:
  std::string body_;
};

// `text` for XML, at most `most` characters of it.
std::string xml_text(std::string_view text, size_t most = 120);

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_COMMANDS_SVG_H_
