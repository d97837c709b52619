// volvelle bench

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <optional>

#include "platforms/clock.h"
#include "platforms/cpu.h"
#include "platforms/heat_monitor.h"
#include "platforms/interrupt.h"
#include "platforms/memory.h"
#include "runtime/commands/compute.h"
#include "runtime/commands/machine_limits.h"
#include "runtime/commands/parts.h"
#include "runtime/commands/runtime_commands.h"
#include "runtime/commands/sentences.h"

namespace volvelle {
namespace {

using nlohmann::ordered_json;

const std::vector<size_t> kDefaultBatches = {1};
constexpr size_t kDefaultLength = 128;

struct BenchOptions {
  std::string model;
  size_t prompt = 512;
  size_t new_tokens = 128;
  std::vector<size_t> depths = {0};
  std::vector<size_t> batches, lengths;  // of encoders; empty: the defaults
  std::vector<std::string> given;        // of those options that not every kind of model has
  size_t repeats = 5;
  bool json = false;
  bool sweep_threads = false, micro = false;
  size_t sustain = 0;  // seconds
  ComputeOptions compute;
};

constexpr std::string_view kPrefill = "prefill", kDecode = "decode", kEmbed = "embed",
                           kEncode = "encode";

struct Measure {
  std::string_view kind;
  size_t tokens;  // of an encoder: of each sentence
  size_t beside;  // tokens in the cache; of an encoder: sentences that go together;
                  // of a decoder behind an encoder: tokens of the source
  std::vector<double> per_s = {};  // tokens, or sentences; ascending once all are there
  double cost = 0;                 // of one: operations; bytes of decode
  double fraction_of_limit = 0;

  double median() const {
    const size_t n = per_s.size();
    return (per_s[(n - 1) / 2] + per_s[n / 2]) / 2;
  }
};

// Multiplications and additions: 2 per weight.
double operations_of(const Linear& linear) {
  return 2 * static_cast<double>(linear.outputs()) * static_cast<double>(linear.inputs());
}

// Those of one token in all linears of a stack but a head, which runs for the last token only.
double operations_per_token(const Stack& stack) {
  double operations = 0;
  visit_linears(stack, [&](const Linear& linear, double share) {
    operations += share * operations_of(linear);
  });
  return operations;
}

// Tokens that are no constant run, so that no row of a table stays in a cache by chance.
std::vector<int32_t> some_tokens(size_t count, size_t vocabulary) {
  std::vector<int32_t> tokens(count);
  uint64_t state = 1;
  for (int32_t& token : tokens) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    token = static_cast<int32_t>((state >> 33) % vocabulary);
  }
  return tokens;
}

struct Machine {
  std::string cpu;
  double read = 0;  // bytes/s
  double int8 = 0;  // operations/s
  Heat heat;
};

// Called when the model is ready to run.
using Ready = std::function<void()>;

Result<std::vector<Measure>> measure_decoder(const BenchOptions& options,
                                             const std::shared_ptr<const Model>& model,
                                             ThreadPool& pool, const Ready& ready) {
  const size_t deepest = *std::ranges::max_element(options.depths);
  SessionOptions session_options{.cache = options.compute.kv, .context = options.compute.context};
  const size_t needed = deepest + std::max(options.prompt, options.new_tokens);
  if (session_options.context == 0) session_options.context = std::max<size_t>(needed, 1);
  if (needed > session_options.context) {
    return fail("{} tokens at depth {} do not fit a --context of {}; make it at least {}",
                std::max(options.prompt, options.new_tokens), deepest, session_options.context,
                needed);
  }
  VOLVELLE_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                            Session::open(model, pool, session_options));
  ready();
  const std::vector<int32_t> tokens = some_tokens(needed, model->vocabulary());
  const std::span<const int32_t> all(tokens);
  std::vector<Measure> results;
  uint64_t work = 0;
  for (const size_t depth : options.depths)
    work += (options.repeats + 1) * (2 * depth + options.prompt + options.new_tokens);
  Progress progress("measuring", work);

  // Fills the cache up to `depth`.
  const auto fill = [&](size_t depth) -> Result<> {
    session->clear();
    for (size_t at = 0; at < depth; at += 512) {
      if (interrupted()) return fail("interrupted");
      VOLVELLE_RETURN_IF_ERROR(session->feed(all.subspan(at, std::min<size_t>(512, depth - at))));
    }
    progress.advance(depth);
    return {};
  };
  for (const size_t depth : options.depths) {
    Measure prefill{kPrefill, options.prompt, depth};
    Measure decode{kDecode, options.new_tokens, depth};
    double bytes = 0;
    for (size_t repeat = 0; repeat <= options.repeats;
         ++repeat) {  // the first warms up and is not counted
      if (options.prompt > 0) {
        VOLVELLE_RETURN_IF_ERROR(fill(depth));
        const double before = monotonic_seconds();
        VOLVELLE_RETURN_IF_ERROR(session->feed(all.subspan(depth, options.prompt)));
        const double seconds = monotonic_seconds() - before;
        if (repeat > 0) prefill.per_s.push_back(static_cast<double>(options.prompt) / seconds);
        progress.advance(options.prompt);
      }
      if (options.new_tokens > 0) {
        VOLVELLE_RETURN_IF_ERROR(fill(depth));
        bytes = 0;
        const double before = monotonic_seconds();
        for (size_t i = 0; i < options.new_tokens; ++i) {
          bytes += static_cast<double>(model->weight_bytes_per_token() +
                                       session->cache_bytes_per_token());
          VOLVELLE_RETURN_IF_ERROR(session->feed(all.subspan(depth + i, 1)));
        }
        const double seconds = monotonic_seconds() - before;
        if (repeat > 0) decode.per_s.push_back(static_cast<double>(options.new_tokens) / seconds);
        progress.advance(options.new_tokens);
      }
      if (interrupted()) return fail("interrupted");
    }
    if (options.prompt > 0) {
      std::ranges::sort(prefill.per_s);
      prefill.cost = operations_per_token(model->decoder());
      results.push_back(std::move(prefill));
    }
    if (options.new_tokens > 0) {
      std::ranges::sort(decode.per_s);
      decode.cost = bytes / static_cast<double>(options.new_tokens);
      results.push_back(std::move(decode));
    }
  }
  return results;
}

// What --length says of an encoder with `limit` positions, or the default.
Result<std::vector<size_t>> lengths_within(size_t limit, std::string_view text,
                                           const BenchOptions& options) {
  if (options.lengths.empty()) return std::vector{std::min(kDefaultLength, limit)};
  const size_t longest = std::ranges::max(options.lengths);
  if (longest <= limit) return options.lengths;
  return fail("{}: has {} positions, so that no {} has a --length of {}", options.model, limit,
              text, longest);
}

// Batches go through as `volvelle embed` lets them through.
Result<std::vector<Measure>> measure_encoder(const BenchOptions& options,
                                             const std::shared_ptr<const Model>& model,
                                             ThreadPool& pool, const Ready& ready) {
  // Of one batch, so that a short one is no shorter than what clocks and schedulers disturb.
  constexpr double kLeastSeconds = 0.2;
  const std::vector<size_t> batches = options.batches.empty() ? kDefaultBatches : options.batches;
  const size_t limit = encoder_limit(*model);
  VOLVELLE_ASSIGN_OR_RETURN(const std::vector<size_t> lengths,
                            lengths_within(limit, "sentence", options));
  const size_t longest = std::ranges::max(lengths);
  const Task task = embedding_task(*model);
  VOLVELLE_ASSIGN_OR_RETURN(const std::unique_ptr<Encoder> encoder,
                            Encoder::open(model, pool, &task, std::max(kEncoderChunk, longest)));
  ready();

  std::vector<Measure> results;
  Progress progress("measuring", batches.size() * lengths.size() * (options.repeats + 1));
  const auto stop = [](size_t, size_t, std::span<const float>) -> Result<> {
    if (interrupted()) return fail("interrupted");
    return {};
  };
  for (const size_t batch : batches) {
    for (const size_t length : lengths) {
      std::vector<Sentence> sentences(batch);
      const size_t vocabulary = model->encoder()->embedding->rows;
      const std::vector<int32_t> tokens = some_tokens(batch * length, vocabulary);
      for (size_t i = 0; i < batch; ++i) {
        sentences[i].tokens.assign(tokens.begin() + i * length, tokens.begin() + (i + 1) * length);
      }
      Measure measure{kEmbed, length, batch};
      // The first warms up and is not counted.
      for (size_t repeat = 0; repeat <= options.repeats; ++repeat) {
        const double before = monotonic_seconds();
        double seconds = 0, done = 0;
        while (seconds < kLeastSeconds) {
          VOLVELLE_RETURN_IF_ERROR(encoder->run(sentences, stop));
          seconds = monotonic_seconds() - before;
          done += static_cast<double>(batch);
        }
        if (repeat > 0) measure.per_s.push_back(done / seconds);
        progress.advance(1);
      }
      std::ranges::sort(measure.per_s);
      measure.cost = static_cast<double>(length) * operations_per_token(*model->encoder());
      results.push_back(std::move(measure));
    }
  }
  return results;
}

// Reading a source, keys and values for the decoder included, and decoding behind it.
Result<std::vector<Measure>> measure_pair(const BenchOptions& options,
                                          const std::shared_ptr<const Model>& model,
                                          ThreadPool& pool, const Ready& ready) {
  const size_t limit = encoder_limit(*model), most = model->decoder().position_limit;
  VOLVELLE_ASSIGN_OR_RETURN(const std::vector<size_t> lengths,
                            lengths_within(limit, "source", options));
  const size_t longest = std::ranges::max(lengths);
  const bool asked = std::ranges::contains(options.given, "-n");
  if (asked && options.new_tokens > most) {
    return fail("{}: its decoder has {} positions, fewer than {} new tokens", options.model, most,
                options.new_tokens);
  }
  const size_t new_tokens = std::min(options.new_tokens, most);
  VOLVELLE_ASSIGN_OR_RETURN(const std::unique_ptr<Encoder> encoder,
                            Encoder::open(model, pool, nullptr, longest));
  VOLVELLE_ASSIGN_OR_RETURN(
      const std::unique_ptr<Session> session,
      Session::open(model, pool,
                    {.cache = CacheType::kF32, .context = std::max<size_t>(new_tokens, 1)}));
  ready();

  double encoding = operations_per_token(*model->encoder());
  for (const Block& block : model->decoder().blocks) {
    if (block.cross) encoding += operations_of(block.cross->key_value);
  }
  std::vector<Measure> results;
  Progress progress("measuring", lengths.size() * (options.repeats + 1));
  for (const size_t length : lengths) {
    const Sentence source{some_tokens(length, model->encoder()->embedding->rows), {}};
    const std::vector<int32_t> targets = some_tokens(new_tokens, model->vocabulary());
    size_t source_bytes = 0;  // of keys and values
    for (const Block& block : model->decoder().blocks) {
      if (block.cross) source_bytes += 2 * length * block.cross->width() * sizeof(float);
    }
    Measure encode{kEncode, length, length, {}, encoding}, decode{kDecode, new_tokens, length};
    for (size_t repeat = 0; repeat <= options.repeats; ++repeat) {  // the first warms up
      double before = monotonic_seconds();
      VOLVELLE_RETURN_IF_ERROR(encoder->run(
          {&source, 1}, [&](size_t, size_t rows, std::span<const float> hidden) -> Result<> {
            return session->read_source(hidden, rows);
          }));
      const double encoded = monotonic_seconds();
      double bytes = 0;
      for (const int32_t& token : targets) {
        if (interrupted()) return fail("interrupted");
        bytes += static_cast<double>(model->weight_bytes_per_token() +
                                     session->cache_bytes_per_token() + source_bytes);
        VOLVELLE_RETURN_IF_ERROR(session->feed({&token, 1}));
      }
      const double decoded = monotonic_seconds();
      progress.advance(1);
      if (repeat == 0) continue;
      encode.per_s.push_back(static_cast<double>(length) / (encoded - before));
      decode.per_s.push_back(static_cast<double>(new_tokens) / (decoded - encoded));
      decode.cost = bytes / static_cast<double>(new_tokens);
    }
    for (Measure* measure : {&encode, &decode}) {
      if (measure->tokens == 0) continue;
      std::ranges::sort(measure->per_s);
      results.push_back(std::move(*measure));
    }
  }
  return results;
}

ordered_json to_json(const Measure& result, bool pair = false) {
  const ordered_json speed = {
      {"median", result.median()}, {"min", result.per_s.front()}, {"max", result.per_s.back()}};
  ordered_json json = {{"kind", result.kind}};
  if (result.kind == kEmbed) {
    json["batch"] = result.beside;
    json["length"] = result.tokens;
    json["sentences_per_s"] = speed;
  } else {
    json["tokens"] = result.tokens;
    if (result.kind != kEncode) json[pair ? "source" : "depth"] = result.beside;
    json["tokens_per_s"] = speed;
  }
  json["fraction_of_limit"] = result.fraction_of_limit;
  return json;
}

// What `heat` tells, by name; null: nothing.
ordered_json to_json(const Heat& heat) {
  ordered_json json;
  const auto told = [&](const char* name, const std::optional<double>& value, double unit) {
    if (value.has_value()) json[name] = *value / unit;
  };
  told("temperature_start_c", heat.temperature_start, 1);
  told("temperature_end_c", heat.temperature_end, 1);
  told("temperature_most_c", heat.temperature_most, 1);
  told("clock_start_ghz", heat.clock_start, 1e9);
  told("clock_end_ghz", heat.clock_end, 1e9);
  told("clock_least_ghz", heat.clock_least, 1e9);
  json["throttled"] = heat.throttled.has_value() ? ordered_json(*heat.throttled) : nullptr;
  return json;
}

// Speeds with 1, 2, … threads, on fast cores while they last, and which number is the best.
Result<> sweep_threads(const BenchOptions& options, const std::shared_ptr<const Model>& model) {
  const std::vector<int> cores =
      options.compute.cpus.empty() ? usable_cpus() : options.compute.cpus;
  const std::vector<int> fast = fast_cpus(cores);
  const auto measure = model->encoder() != nullptr ? measure_encoder : measure_decoder;
  ordered_json sweep = ordered_json::array();
  std::map<std::string, std::pair<double, size_t>> best;  // of each kind: speed, threads
  if (!options.json)
    print("{:<8} {:>8}   {:>9} {:>9}   per second\n", "", "threads", "median", "least");
  for (size_t threads = 1; threads <= cores.size(); ++threads) {
    stay_among(threads <= fast.size() ? fast : cores);
    VOLVELLE_ASSIGN_OR_RETURN(ThreadPool pool, ThreadPool::make(threads));
    VOLVELLE_ASSIGN_OR_RETURN(const std::vector<Measure> results,
                              measure(options, model, pool, [] {}));
    for (const Measure& result : results) {
      const std::string kind(result.kind);
      if (result.median() > best[kind].first) best[kind] = {result.median(), threads};
      ordered_json json = to_json(result);
      json["threads"] = threads;
      json.erase("fraction_of_limit");
      sweep.push_back(std::move(json));
      if (!options.json) {
        print("{:<8} {:>8}   {:>9.1f} {:>9.1f}\n", kind, threads, result.median(),
              result.per_s.front());
      }
    }
  }
  if (options.json) {
    ordered_json json = {{"model", options.model}, {"sweep", std::move(sweep)}};
    for (const auto& [kind, speed] : best) json["best"][kind] = speed.second;
    print("{}\n", to_text(json));
    return {};
  }
  for (const auto& [kind, speed] : best)
    print("{} is fastest with --threads {}\n", kind, speed.second);
  return {};
}

// Decodes for so many seconds, and tells what each tenth of a minute gave.
Result<> sustain(const BenchOptions& options, const std::shared_ptr<const Model>& model,
                 ThreadPool& pool) {
  constexpr double kPeriod = 6;
  constexpr size_t kContext = 1024;  // then the cache is forgotten
  const size_t context = std::min(kContext, model->decoder().context);
  VOLVELLE_ASSIGN_OR_RETURN(
      const std::unique_ptr<Session> session,
      Session::open(model, pool, {.cache = options.compute.kv, .context = context}));
  const std::vector<int32_t> tokens = some_tokens(context, model->vocabulary());
  ordered_json periods = ordered_json::array();
  std::vector<double> speeds;
  const std::vector<int> cpus = usable_cpus();
  HeatMonitor monitor(cpus);
  if (!options.json) print("{:>8} {:>9} {:>8} {:>8}\n", "seconds", "tokens/s", "°C", "GHz");
  const double start = monotonic_seconds();
  double begun = start, now = start;
  size_t decoded = 0;
  while (now - start < static_cast<double>(options.sustain)) {
    if (session->tokens() == context) session->clear();
    VOLVELLE_RETURN_IF_ERROR(session->feed(std::span(tokens).subspan(session->tokens(), 1)));
    ++decoded;
    if (interrupted()) return fail("interrupted");
    now = monotonic_seconds();
    const bool last = now - start >= static_cast<double>(options.sustain);
    if (now - begun < kPeriod && !last) continue;
    const Heat heat = monitor.heat();
    speeds.push_back(static_cast<double>(decoded) / (now - begun));
    periods.push_back({{"seconds", now - start}, {"tokens_per_s", speeds.back()}});
    if (heat.temperature_end) periods.back()["temperature_c"] = *heat.temperature_end;
    if (heat.clock_end) periods.back()["clock_ghz"] = *heat.clock_end / 1e9;
    if (!options.json) {
      const auto number = [](const std::optional<double>& value, double unit) {
        return value ? std::format("{:.1f}", *value / unit) : std::string("-");
      };
      print("{:>8.0f} {:>9.1f} {:>8} {:>8}\n", now - start, speeds.back(),
            number(heat.temperature_end, 1), number(heat.clock_end, 1e9));
      std::fflush(stdout);
    }
    begun = now;
    decoded = 0;
  }
  const Heat heat = monitor.heat();
  if (options.json) {
    print("{}\n", to_text({{"model", options.model},
                           {"threads", pool.threads()},
                           {"kv", name_of(options.compute.kv)},
                           {"sustained", std::move(periods)},
                           {"heat", to_json(heat)}}));
    return {};
  }
  print("from {:.1f} to {:.1f} tokens/s, {:.0f} % kept{}\n", speeds.front(), speeds.back(),
        100 * speeds.back() / speeds.front(),
        heat.throttled ? "; the processor was held back: " + *heat.throttled : "");
  return {};
}

// Options that would say nothing about this kind of model are refused rather than passed over.
Result<> check_options(const BenchOptions& options, bool encodes, bool pair) {
  const auto refuse = [&](const char* kind, const char* apply,
                          std::initializer_list<const char*> others) -> Result<> {
    for (const char* option : others) {
      if (!std::ranges::contains(options.given, option)) continue;
      return fail("{}: is {}, to which {} does not apply; {}", options.model, kind, option, apply);
    }
    return {};
  };
  if (pair) {
    return refuse("an encoder-decoder", "it takes --length, of its source, and -n",
                  {"-p", "-d", "--kv", "--context", "--batch"});
  }
  if (encodes) {
    return refuse("an encoder", "it takes --batch and --length",
                  {"-p", "-n", "-d", "--kv", "--context"});
  }
  return refuse("a decoder", "--batch and --length are for encoders", {"--batch", "--length"});
}

// Where the time goes, part by part, on one thread.
Result<> time_all_parts(const BenchOptions& options, const Model& model) {
  const size_t depth = *std::ranges::max_element(options.depths);
  const size_t chunk = std::max<size_t>(options.prompt, 1);
  VOLVELLE_ASSIGN_OR_RETURN(const std::vector<PartTime> parts,
                            time_parts(model, options.compute.kv, depth, chunk));
  VOLVELLE_ASSIGN_OR_RETURN(const ThreadPool pool, ThreadPool::make(1));
  const double read = measure_read_bandwidth(pool), peak = measure_int8_peak(pool);
  double decode = 0, prefill = 0;
  for (const PartTime& part : parts) decode += part.decode, prefill += part.prefill;
  ordered_json json = {{"model", options.model},
                       {"kv", name_of(options.compute.kv)},
                       {"depth", depth},
                       {"chunk", chunk},
                       {"machine", {{"read_gb_per_s", read / 1e9}, {"int8_gops", peak / 1e9}}},
                       {"parts", ordered_json::array()}};
  if (!options.json) {
    print("one thread, cache {}, {} tokens in it; microseconds a token, of all layers\n\n",
          name_of(options.compute.kv), depth);
    print("{:<24} {:>9} {:>7} {:>9}   {:>9} {:>7} {:>9}\n", "", "decode", "share", "of limit",
          "prefill", "share", "of limit");
  }
  for (const PartTime& part : parts) {
    const auto of_limit = [](double work, double seconds, double limit) -> std::optional<double> {
      if (work == 0 || seconds == 0 || limit == 0) return std::nullopt;
      return work / seconds / limit;
    };
    const auto reading = of_limit(part.bytes, part.decode, read);
    const auto summing = of_limit(part.operations, part.prefill, peak);
    json["parts"].push_back({{"name", part.name},
                             {"decode_us", part.decode * 1e6},
                             {"decode_share", part.decode / decode},
                             {"decode_fraction_of_limit", nullptr},
                             {"prefill_us", part.prefill * 1e6},
                             {"prefill_share", part.prefill / prefill},
                             {"prefill_fraction_of_limit", nullptr}});
    if (reading) json["parts"].back()["decode_fraction_of_limit"] = *reading;
    if (summing) json["parts"].back()["prefill_fraction_of_limit"] = *summing;
    if (options.json) continue;
    const auto percent = [](const std::optional<double>& part) {
      return part ? std::format("{:.0f} %", 100 * *part) : std::string("-");
    };
    print("{:<24} {:>9.1f} {:>5.1f} % {:>9}   {:>9.2f} {:>5.1f} % {:>9}\n", part.name,
          part.decode * 1e6, 100 * part.decode / decode, percent(reading), part.prefill * 1e6,
          100 * part.prefill / prefill, percent(summing));
  }
  if (options.json) {
    print("{}\n", to_text(json));
    return {};
  }
  print("{:<24} {:>9.1f} {:>17}   {:>9.2f}\n\n", "together", decode * 1e6, "", prefill * 1e6);
  print("limits: {:.1f} GB/s of reading weights and cache, {:.0f} int8 GOPS\n", read / 1e9,
        peak / 1e9);
  return {};
}

Result<> bench(const BenchOptions& options) {
  const double start = monotonic_seconds();
  VOLVELLE_ASSIGN_OR_RETURN(const std::shared_ptr<const Model> model,
                            open_model(options.model, options.compute));
  const bool encodes = model->encoder() != nullptr;
  const bool pair = encodes && model->generates();
  VOLVELLE_RETURN_IF_ERROR(check_options(options, encodes, pair));
  if (options.micro) return time_all_parts(options, *model);
  if (options.sweep_threads) return sweep_threads(options, model);
  VOLVELLE_ASSIGN_OR_RETURN(ThreadPool pool, make_pool(options.compute));
  if (options.sustain > 0) {
    if (encodes) return fail("{}: is an encoder; --sustain is for decoders", options.model);
    return sustain(options, model, pool);
  }
  Machine machine{.cpu = describe_cpu().model};
  double load_seconds = 0;
  const auto measure = pair ? measure_pair : encodes ? measure_encoder : measure_decoder;
  std::optional<HeatMonitor> monitor;
  VOLVELLE_ASSIGN_OR_RETURN(std::vector<Measure> results, measure(options, model, pool, [&] {
                              load_seconds = monotonic_seconds() - start;
                              monitor.emplace(usable_cpus());
                            }));
  machine.heat = monitor->heat();
  monitor.reset();
  const auto memory = memory_use();
  const uint64_t peak = memory.has_value() ? memory->peak : 0;

  // Only now: the buffer that is read would count as the model's memory.
  machine.read = measure_read_bandwidth(pool);
  machine.int8 = measure_int8_peak(pool);
  for (Measure& result : results) {
    const double limit = result.kind == kDecode ? machine.read : machine.int8;
    if (limit > 0) result.fraction_of_limit = result.median() * result.cost / limit;
  }

  if (options.json) {
    ordered_json json = {{"model", options.model}, {"threads", pool.threads()}};
    if (!encodes) json["kv"] = name_of(options.compute.kv);
    json["machine"] = {{"cpu", machine.cpu},
                       {"read_gb_per_s", machine.read / 1e9},
                       {"int8_gops", machine.int8 / 1e9}};
    json["peak_rss_bytes"] = peak;
    json["load_seconds"] = load_seconds;
    json["results"] = ordered_json::array();
    json["machine"].update(to_json(machine.heat));
    for (const Measure& result : results) json["results"].push_back(to_json(result, pair));
    print("{}\n", to_text(json));
    return {};
  }
  print("{}, {} {}", printable(model->name()), pool.threads(),
        pool.threads() == 1 ? "thread" : "threads");
  if (!encodes) print(", cache {}", name_of(options.compute.kv));
  print("\n");
  print("{}: reads {:.1f} GB/s, {:.0f} int8 GOPS\n", printable(machine.cpu), machine.read / 1e9,
        machine.int8 / 1e9);
  const auto change = [](const char* what, const std::optional<double>& from,
                         const std::optional<double>& to, double unit, const char* name) {
    if (from.has_value() && to.has_value())
      print("{} {:.1f} to {:.1f} {}\n", what, *from / unit, *to / unit, name);
  };
  change("temperature", machine.heat.temperature_start, machine.heat.temperature_end, 1, "°C");
  change("clock", machine.heat.clock_start, machine.heat.clock_end, 1e9, "GHz");
  if (machine.heat.throttled) {
    print("the processor was held back: {}; these are not its full speeds\n",
          *machine.heat.throttled);
  }
  print("loaded in {:.2f} s, peak memory {}\n\n", load_seconds, format_bytes(peak));
  print("{:<8} {:>7} {:>7}   {:>9} {:>9} {:>9}   {}   ({} per second)\n", "",
        encodes && !pair ? "length" : "tokens",
        pair      ? "source"
        : encodes ? "batch"
                  : "depth",
        "median", "min", "max", "of limit", encodes && !pair ? "sentences" : "tokens");
  for (const Measure& result : results) {
    print("{:<8} {:>7} {:>7}   {:>9.1f} {:>9.1f} {:>9.1f}   {:>5.0f} %\n", result.kind,
          result.tokens, result.beside, result.median(), result.per_s.front(), result.per_s.back(),
          100 * result.fraction_of_limit);
  }
  return {};
}

}  // namespace

void add_bench_command(Program& program) {
  const auto options = std::make_shared<BenchOptions>();
  CLI::App& command = program.add_command(
      {"bench", "Measures speed, and compares it with what the machine can do",
       "Examples:\n"
       "  volvelle bench model.vvl\n"
       "  volvelle bench model.vvl -t 1 -p 0 -n 64 -d 0,1024,4096\n"
       "  volvelle bench model.vvl -r 9 --json > bench.json\n"
       "  volvelle bench model.vvl --sweep-threads -p 128 -n 32 -r 3\n"
       "  volvelle bench model.vvl --sustain 300\n"
       "  volvelle bench model.vvl --micro -d 1024\n"
       "  volvelle bench encoder.vvl --batch 1,32 --length 32,128\n"
       "  volvelle bench translator.vvl --length 64 -n 64\n\n"
       "Tokens a second, or sentences of an encoder: the median, least and most of the "
       "repeats. The limit of decoding is\n"
       "memory: bytes of packed weights and cache that a token reads, against "
       "the read bandwidth measured with the\n"
       "same threads. The limit of prefill and of encoders is arithmetic: "
       "operations of the linears in blocks, against\n"
       "the int8 peak measured with the same threads. An encoder-decoder reads sources of --length "
       "tokens and then decodes\n"
       "one sequence of -n."},
      [options] { return bench(*options); });
  BenchOptions& o = *options;
  constexpr size_t kMost = size_t{1} << 31;
  add_model_option(command, o.model);
  command
      .add_option("-p,--prompt", o.prompt,
                  "Tokens to prefill (default 512); 0: do not measure that")
      ->check(between(size_t{0}, kMost))
      ->type_name("N");
  command
      .add_option("-n,--new-tokens", o.new_tokens,
                  "Tokens to decode (default 128); 0: do not measure that")
      ->check(between(size_t{0}, kMost))
      ->type_name("N");
  command.add_option("-d,--depths", o.depths, "Tokens in the cache before measuring (default 0)")
      ->delimiter(',')
      ->check(between(size_t{0}, kMost))
      ->type_name("DEPTH,…");
  command
      .add_option("--batch", o.batches, "Sentences that go through an encoder together (default 1)")
      ->delimiter(',')
      ->check(between(size_t{1}, size_t{1} << 16))
      ->type_name("B,…");
  command
      .add_option("--length", o.lengths,
                  "Tokens of each of them, or of an encoder-decoder's source (default 128)")
      ->delimiter(',')
      ->check(between(size_t{1}, size_t{1} << 20))
      ->type_name("L,…");
  command.add_option("-r,--repeats", o.repeats, "Times to measure (default 5)")
      ->check(between(size_t{1}, size_t{1000}))
      ->type_name("N");
  command.add_flag("--json", o.json, "Write one JSON object");
  auto* const micro = command.add_flag(
      "--micro", o.micro, "Time each part of a decoder alone, beside the machine's limits");
  auto* const sweep = command
                          .add_flag("--sweep-threads", o.sweep_threads,
                                    "Measure with 1, 2, … threads, and say which number is fastest")
                          ->excludes(micro);
  command
      .add_option("--sustain", o.sustain,
                  "Decode for so long, and tell the speed over time: boards slow down as they heat")
      ->check(between(size_t{1}, size_t{86400}))
      ->excludes(sweep)
      ->excludes(micro)
      ->type_name("SECONDS");
  add_compute_options(command, o.compute);
  command.parse_complete_callback([options, &command] {
    for (const char* name : {"-p", "-n", "-d", "--kv", "--context", "--batch", "--length"}) {
      if (command.count(name) > 0) options->given.push_back(name);
    }
    if (options->prompt == 0 && options->new_tokens == 0)
      throw CLI::ValidationError("-p 0 and -n 0 leave nothing to measure");
  });
}

}  // namespace volvelle
