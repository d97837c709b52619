// Bakes the positions of a finished model file anew, for another scaling or another context. No
// weight is touched: dials and a table that names them go to the end of the file, and the header
// slot that was not in use becomes the newer one. Every scaling starts from what the checkpoint
// says, which stays in the file, so that extending twice is extending once.

#ifndef VOLVELLE_CONVERTER_EXTEND_H_
#define VOLVELLE_CONVERTER_EXTEND_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "converter/positions/scaling_spec.h"
#include "platforms/error.h"

namespace volvelle {

struct ExtendOptions {
  std::string model;
  std::string output;  // a copy; empty: the file itself is changed
  ScalingSpec scaling;
  std::optional<uint64_t>
      context;  // positions that the dials must reach; default: scaled_context(), but no fewer than
                // before; to the checkpoint's own scaling: as before the first extension
  bool force = false;  // replace the output

  // Told of bytes copied so far and in all, now and then.
  std::function<void(uint64_t done, uint64_t total)> progress = [](uint64_t, uint64_t) {};
};

struct ExtendReport {
  struct Scheme {
    uint64_t position = 0;  // index in the file
    std::string before;     // "rotary, base 10000, width 64, half pairs"
    std::string after;      // the same where the scheme stays as it is
  };

  std::string name;
  std::string file;  // what was written
  std::vector<Scheme> schemes;
  uint64_t former_context = 0;
  uint64_t context = 0;
  uint64_t trained_context = 0;
  uint64_t baked_bytes = 0;  // dials and table
  uint64_t file_bytes = 0;
  uint64_t generation = 0;  // of the file
  double seconds = 0;
  std::vector<std::string> notices;  // sentences for the user
};

// In place: whatever moment the process or the machine stops at, the file is the former model or
// the new one, and whoever has it mapped is not disturbed. To a copy: it appears only when whole,
// without what former extensions left.
Result<ExtendReport> extend(const ExtendOptions& options);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_EXTEND_H_
