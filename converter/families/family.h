// A model family: how one kind of checkpoint maps onto the blocks of the file. The only place in
// the project where families have names; each lies in one file beside this one and stands in the
// list of family.cc.

#ifndef VOLVELLE_CONVERTER_FAMILIES_FAMILY_H_
#define VOLVELLE_CONVERTER_FAMILIES_FAMILY_H_

#include <span>
#include <string>
#include <string_view>

#include "converter/families/checkpoint.h"
#include "converter/recipe.h"

namespace volvelle {

struct Family {
  std::string_view name;
  std::string_view model_type;         // in config.json; empty: none
  std::string_view gguf_architecture;  // in GGUF's general.architecture; empty: none

  // Reads the settings and finds the tensors. Faults in the settings may be left to the
  // checkpoint's Config.
  Result<recipe::Model> (*describe)(Checkpoint& checkpoint);
};

std::span<const Family> families();

// The family that a checkpoint says it is of; otherwise a sentence that lists what is known.
//
//   declared  config.json's model_type, or GGUF's general.architecture
Result<const Family*> find_family(const std::string& path, Naming naming,
                                  std::string_view declared);

// Runs the family, then sees to it that no setting and no tensor is left over.
Result<recipe::Model> describe(const Family& family, Checkpoint& checkpoint);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_FAMILIES_FAMILY_H_
