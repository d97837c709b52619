// Machines to read as if they were this one, described in machines/NAME.txt.

#ifndef VOLVELLE_TESTS_PLATFORMS_MACHINES_H_
#define VOLVELLE_TESTS_PLATFORMS_MACHINES_H_

#include <string_view>

#include "tests/scratch_folder.h"

namespace volvelle {

// Writes the files of the machine below `root`: lines "PATH = TEXT", in which \n and \t stand for
// themselves.
void lay_out_machine(const ScratchFolder& root, std::string_view name);

}  // namespace volvelle

#endif  // VOLVELLE_TESTS_PLATFORMS_MACHINES_H_
