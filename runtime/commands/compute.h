// What commands that run a model share: the options of computing, and opening a model with them.

#ifndef VOLVELLE_RUNTIME_COMMANDS_COMPUTE_H_
#define VOLVELLE_RUNTIME_COMMANDS_COMPUTE_H_

#include <memory>
#include <string>
#include <vector>

#include "platforms/thread_pool.h"
#include "runtime/commands/program.h"
#include "runtime/model.h"
#include "runtime/session.h"

namespace volvelle {

struct ComputeOptions {
  CacheType kv = CacheType::kQ8;
  size_t threads = 0;     // 0: one for each core worth computing on
  std::vector<int> cpus;  // empty: wherever the system puts the threads
  size_t context = 0;     // 0: what the command needs
  PackedIn packed_in = PackedIn::kFile;
};

// -t/--threads and --cpus.
void add_thread_options(CLI::App& command, ComputeOptions& options);

// --pack.
void add_packing_option(CLI::App& command, ComputeOptions& options);

// All those, --kv and --context.
void add_compute_options(CLI::App& command, ComputeOptions& options);

// --chunk and --first-position of commands that feed a prompt.
void add_feeding_options(CLI::App& command, size_t& chunk, size_t& first_position);

// The positional M.vvl that every such command begins with.
void add_model_option(CLI::App& command, std::string& path);

// Loads a model; a notice tells of a newer generation of the file that is damaged.
Result<std::shared_ptr<const Model>> open_model(const std::string& path,
                                                const ComputeOptions& options);

// The same for commands that continue a text: a decoder alone.
Result<std::shared_ptr<const Model>> open_decoder(const std::string& path,
                                                  const ComputeOptions& options);

Result<ThreadPool> make_pool(const ComputeOptions& options);

const char* name_of(CacheType type);   // "f32", "f16", "q8"
const char* name_of(TensorType type);  // "f32", "q8", "q4"

// Feeds `tokens`, a few hundred at a time so that Ctrl-C is heard and progress is shown, and
// returns the logits that follow the last. Whether all of them fit is checked first.
Result<std::span<const float>> prefill(const Model& model, Session& session,
                                       std::span<const int32_t> tokens);

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_COMMANDS_COMPUTE_H_
