// What makes one vector of an encoder's outputs in a folder of sentence-transformers: modules.json
// names pooling, dense layers and normalisation, and files beside it the length at which texts are
// cut and prompts. They become the recipe's embed task.

#ifndef VOLVELLE_CONVERTER_SENTENCE_MODULES_H_
#define VOLVELLE_CONVERTER_SENTENCE_MODULES_H_

#include <string>

#include "converter/recipe.h"
#include "platforms/error.h"

namespace volvelle {

// Puts the modules of `folder`/modules.json in place of the pooling that the family has chosen.
// Changes nothing where there is no such file, or no encoder. Fails on modules that are not
// understood, which would give other vectors.
Result<void> read_sentence_modules(const std::string& folder, recipe::Model& model);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_SENTENCE_MODULES_H_
