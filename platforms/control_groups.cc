#include "platforms/control_groups.h"

#include <format>

#include "platforms/system_file.h"

namespace volvelle {

void for_each_control_group(
    std::string_view controller, const std::string& root,
    const std::function<void(const std::string& folder, bool second_version)>& visit) {
  const auto groups = read_system_text(root + "/proc/self/cgroup");
  if (!groups) return;
  // Each line is "NUMBER:CONTROLLERS:PATH"; version 2 has number 0 and no controllers. Inside a
  // container PATH may be the host's; then only the top exists, as "".
  for_each_piece(*groups, '\n', [&](std::string_view line) {
    const size_t first = line.find(':');
    const size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) return;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    bool holds = controllers.empty();
    for_each_piece(controllers, ',', [&](std::string_view name) { holds |= name == controller; });
    if (!holds) return;
    std::string path(line.substr(second + 1));
    while (true) {
      if (path == "/") path.clear();
      visit(controllers.empty() ? root + "/sys/fs/cgroup" + path
                                : std::format("{}/sys/fs/cgroup/{}{}", root, controller, path),
            controllers.empty());
      const size_t slash = path.rfind('/');
      if (slash == std::string::npos) break;
      path.resize(slash);
    }
  });
}

}  // namespace volvelle
