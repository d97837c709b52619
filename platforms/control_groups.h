// The control groups around this process: containers limit it through them. A limit on any group
// around ours binds too.

#ifndef VOLVELLE_PLATFORMS_CONTROL_GROUPS_H_
#define VOLVELLE_PLATFORMS_CONTROL_GROUPS_H_

#include <functional>
#include <string>
#include <string_view>

namespace volvelle {

// Calls visit(folder, second_version) for the folder of each group, from ours outwards, that limits
// what `controller` ("cpu", "memory") is for. Folders need not exist. `root`: see system_file.h.
void for_each_control_group(
    std::string_view controller, const std::string& root,
    const std::function<void(const std::string& folder, bool second_version)>& visit);

}  // namespace volvelle

#endif  // VOLVELLE_PLATFORMS_CONTROL_GROUPS_H_
