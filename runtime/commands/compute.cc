#include "runtime/commands/compute.h"

#include <algorithm>
#include <map>

#include "platforms/cpu.h"
#include "platforms/interrupt.h"

namespace volvelle {

void add_thread_options(CLI::App& command, ComputeOptions& options) {
  command
      .add_option("-t,--threads", options.threads,
                  "Threads to compute on (default: the cores worth it)")
      ->check(between(size_t{1}, kMaxThreads))
      ->type_name("N");
  command
      .add_option_function<std::string>(
          "--cpus",
          [&options](const std::string& text) {
            Result<std::vector<int>> cpus = parse_cpu_list(text);
            if (!cpus.has_value()) throw CLI::ValidationError("--cpus", cpus.error().message);
            options.cpus = *std::move(cpus);
          },
          "Cores to keep the threads on, such as 0,2-5; one thread each unless --threads says "
          "otherwise")
      ->type_name("LIST");
}

void add_packing_option(CLI::App& command, ComputeOptions& options) {
  command
      .add_option_function<std::string>(
          "--pack",
          [&options](const std::string& place) {
            options.packed_in = place == "file" ? PackedIn::kFile : PackedIn::kMemory;
          },
          "Where the weights lie in the form that is computed with: in a file beside the model, "
          "which later starts read (M.vvlpack), or in memory, packed at every start (default file)")
      ->check(CLI::IsMember({"file", "memory"}).description(""))
      ->type_name("PLACE");
}

void add_compute_options(CLI::App& command, ComputeOptions& options) {
  add_thread_options(command, options);
  add_packing_option(command, options);
  const std::map<std::string, CacheType> kinds = {
      {"f32", CacheType::kF32}, {"f16", CacheType::kF16}, {"q8", CacheType::kQ8}};
  command
      .add_option_function<std::string>(
          "--kv", [&options, kinds](const std::string& kind) { options.kv = kinds.at(kind); },
          "Numbers of the cache: f32, f16 or q8 (default q8)")
      ->check(CLI::IsMember({"f32", "f16", "q8"}).description(""))
      ->type_name("TYPE");
  command
      .add_option("--context", options.context,
                  "Tokens that the cache can hold (default: what is needed)")
      ->check(between(size_t{1}, size_t{1} << 31))
      ->type_name("N");
}

void add_feeding_options(CLI::App& command, size_t& chunk, size_t& first_position) {
  command.add_option("--chunk", chunk, "Tokens that go through the model at a time (default 512)")
      ->check(between(size_t{1}, size_t{65536}))
      ->type_name("N");
  command.add_option("--first-position", first_position, "Position of the first token (default 0)")
      ->type_name("P");
}

void add_model_option(CLI::App& command, std::string& path) {
  command.add_option("model", path, "The model")->required()->type_name("M.vvl");
}

Result<std::shared_ptr<const Model>> open_model(const std::string& path,
                                                const ComputeOptions& options) {
  auto model = Model::load(path, options.packed_in);
  if (model && !(*model)->damage().empty()) {
    print_notice("{}: this is generation {} of the file; the newer one is damaged: {}", path,
                 (*model)->file_generation(), (*model)->damage());
  }
  return model;
}

Result<std::shared_ptr<const Model>> open_decoder(const std::string& path,
                                                  const ComputeOptions& options) {
  VOLVELLE_ASSIGN_OR_RETURN(std::shared_ptr<const Model> model, open_model(path, options));
  if (model->encoder() == nullptr) return model;
  if (model->generates()) {
    return fail("{}: is an encoder-decoder; `volvelle translate` runs it", path);
  }
  return fail("{}: is an encoder, which makes no text; `volvelle embed` makes vectors with it",
              path);
}

Result<ThreadPool> make_pool(const ComputeOptions& options) {
  size_t threads = options.threads;
  if (threads == 0 && options.cpus.empty()) {
    // Without efficient cores, on which one thread would keep the others waiting.
    const std::vector<int> usable = usable_cpus(), fast = fast_cpus(usable);
    threads = default_threads(usable);
    if (fast.size() < usable.size()) stay_among(fast);
  } else if (threads == 0) {
    threads = options.cpus.size();
  }
  const size_t cores = options.cpus.empty() ? usable_cpus().size() : options.cpus.size();
  if (threads > cores) {  // which would wait for each other at every step
    print_notice("{} threads are more than the {} core{} that may be used; {} {} taken", threads,
                 cores, cores == 1 ? "" : "s", cores, cores == 1 ? "is" : "are");
    threads = cores;
  }
  return ThreadPool::make(std::min(threads, kMaxThreads), options.cpus);
}

const char* name_of(CacheType type) {
  return type == CacheType::kF32 ? "f32" : type == CacheType::kF16 ? "f16" : "q8";
}

const char* name_of(TensorType type) {
  return type == TensorType::kF32 ? "f32" : type == TensorType::kQ8 ? "q8" : "q4";
}

Result<std::span<const float>> prefill(const Model& model, Session& session,
                                       std::span<const int32_t> tokens) {
  constexpr size_t kStep = 512;
  VOLVELLE_RETURN_IF_ERROR(model.check_tokens(model.decoder(), tokens));
  if (tokens.size() > session.context() - session.tokens())
    return session.feed(tokens);  // says what does not fit
  Progress progress("reading the prompt", tokens.size());
  for (size_t first = 0; first + kStep < tokens.size(); first += kStep) {
    VOLVELLE_RETURN_IF_ERROR(session.feed(tokens.subspan(first, kStep)));
    if (interrupted()) return fail("interrupted");
    progress.update(first + kStep);
  }
  const size_t rest = tokens.empty() ? 0 : (tokens.size() - 1) / kStep * kStep;
  return session.feed(tokens.subspan(rest));
}

}  // namespace volvelle
