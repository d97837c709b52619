// Where a token's time goes: each part of a decoder timed alone, on the shapes of a model and on
// one thread, beside what the machine could do at most.

#ifndef VOLVELLE_RUNTIME_COMMANDS_PARTS_H_
#define VOLVELLE_RUNTIME_COMMANDS_PARTS_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "platforms/error.h"
#include "runtime/model.h"

namespace volvelle {

// Of one part in all layers together.
struct PartTime {
  std::string name;
  // Seconds a token takes when it is decoded alone, and as one of a chunk.
  double decode = 0, prefill = 0;
  double bytes = 0;       // of weights or cache that decoding a token reads; 0: next to none
  double operations = 0;  // int8 multiplications and additions for a token of a chunk; 0: none
};

// The parts of a decoder's token after `depth` others, and as one of a chunk of `chunk`. What
// rotates and quantises a linear's inputs counts with the linear. Fails where the model is no plain
// decoder or memory is short.
Result<std::vector<PartTime>> time_parts(const Model& model, CacheType cache, size_t depth,
                                         size_t chunk);

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_COMMANDS_PARTS_H_
