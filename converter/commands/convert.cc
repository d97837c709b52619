#include "converter/commands/convert.h"

#include <charconv>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "converter/calibration.h"
#include "converter/convert.h"
#include "runtime/commands/compute.h"
#include "runtime/commands/prediction.h"

namespace volvelle {
namespace {

struct Options {
  ConvertOptions convert;
  ComputeOptions compute;
  std::string calibrate;
  std::string report_text;  // a file
  bool report = false;
  bool json = false;
};

void print_text(const ConvertReport& report, const std::string& output) {
  print("{}: {}, {} layers of width {}, vocabulary {}, {} parameters\n", printable(report.name),
        report.family, report.layer_count, report.width, format_count(report.vocabulary),
        format_count(report.parameters));
  print("context       {} tokens, trained for {}\n", format_count(report.context),
        format_count(report.trained_context));
  for (const ConvertReport::Layers& layers : report.layers) {
    const std::string range = layers.first == layers.last
                                  ? std::format("layer {}", layers.first)
                                  : std::format("layers {}-{}", layers.first, layers.last);
    print("{:<14}{}; {}\n", range, layers.position, layers.mask);
  }
  if (report.head) {
    print("head          {}\n", report.tied ? "shared with the embedding" : "its own");
  }
  print("tokenizer     {}\n", report.tokenizer ? "yes" : "none");
  if (!report.licence.empty()) print("licence       {}\n", printable(report.licence));
  for (const ConvertReport::Part& part : report.parts) {
    const std::string tensors = part.tensors > 0 ? std::format("{:>6} tensors", part.tensors) : "";
    print("  {:<17} {:<16} {:>10}{}\n", part.name, part.type, format_bytes(part.bytes), tensors);
  }
  if (report.linear_bits > 0) print("  {:.2f} bits a weight of the linears\n", report.linear_bits);
  print("{}: {} in {:.2f} s\n", printable(output), format_bytes(report.file_bytes), report.seconds);
}

nlohmann::ordered_json to_json(const ConvertReport& report, const std::string& output) {
  nlohmann::ordered_json json = {
      {"output", output},
      {"name", report.name},
      {"origin", report.origin},
      {"family", report.family},
      {"licence", report.licence},
      {"width", report.width},
      {"vocabulary", report.vocabulary},
      {"layers", report.layer_count},
      {"parameters", report.parameters},
      {"context", report.context},
      {"trained_context", report.trained_context},
      {"tied", report.tied},
      {"tokenizer", report.tokenizer},
      {"positions", nlohmann::ordered_json::array()},
      {"parts", nlohmann::ordered_json::array()},
      {"file_bytes", report.file_bytes},
      {"seconds", report.seconds},
      {"notices", report.notices},
  };
  for (const ConvertReport::Layers& layers : report.layers) {
    json["positions"].push_back({{"first_layer", layers.first},
                                 {"last_layer", layers.last},
                                 {"scheme", layers.position},
                                 {"mask", layers.mask}});
  }
  for (const ConvertReport::Part& part : report.parts) {
    json["parts"].push_back({{"name", part.name}, {"type", part.type}, {"bytes", part.bytes}});
  }
  json["linear_bits"] = report.linear_bits;
  json["linears"] = nlohmann::ordered_json::array();
  for (const ConvertReport::Linear& linear : report.linears) {
    json["linears"].push_back({{"name", linear.name},
                               {"type", linear.type},
                               {"rotation", linear.rotation},
                               {"side_columns", linear.side_columns},
                               {"bits", linear.bits}});
  }
  return json;
}

const std::map<std::string, WeightType>& weight_types() {
  static const std::map<std::string, WeightType> types = {
      {"f32", WeightType::kF32}, {"q8", WeightType::kQ8}, {"q4", WeightType::kQ4}};
  return types;
}

// "f32", "q8", "q4" or "auto:BITS"; what is wrong, if anything is.
std::string read_weights(const std::string& text, ConvertOptions& options) {
  constexpr std::string_view kAuto = "auto:";
  if (const auto found = weight_types().find(text); found != weight_types().end()) {
    options.weights = found->second;
    return "";
  }
  double bits = 0;
  const char* const end = text.data() + text.size();
  if (!text.starts_with(kAuto) ||
      std::from_chars(text.data() + kAuto.size(), end, bits).ptr != end || !(bits >= 1) ||
      !(bits <= 32)) {
    return std::format("--weights {}: must be f32, q8, q4 or auto:BITS, with BITS from 1 to 32",
                       text);
  }
  options.weights = WeightType::kQ4;
  options.bits = bits;
  return "";
}

// "PATTERN=TYPE"; what is wrong, if anything is.
std::string read_keep(const std::string& text, ConvertOptions& options) {
  const size_t at = text.rfind('=');
  const auto type = weight_types().find(at == std::string::npos ? "" : text.substr(at + 1));
  if (at == 0 || type == weight_types().end()) {
    return std::format("--keep {}: must be PATTERN=TYPE, with TYPE f32, q8 or q4", text);
  }
  options.keep.emplace_back(text.substr(0, at), type->second);
  return "";
}

// What the weights' form costs, against the float model.
Result<void> report_cost(const Options& options, const std::string& text, ThreadPool& threads,
                         nlohmann::ordered_json& json) {
  const std::string name =
      options.report_text.empty() ? "the program's own text" : options.report_text;
  VOLVELLE_ASSIGN_OR_RETURN(const auto reference,
                            convert_and_map({.source = options.convert.source,
                                             .output = options.convert.output,
                                             .weights = WeightType::kF32,
                                             .context = options.convert.context,
                                             .scaling = options.convert.scaling,
                                             .ignored_keys = options.convert.ignored_keys},
                                            threads));
  VOLVELLE_ASSIGN_OR_RETURN(const auto model, Model::load(options.convert.output));
  if (!model->generates()) {
    VOLVELLE_ASSIGN_OR_RETURN(const VectorReport report,
                              compare_vectors(model, reference, text, threads));
    json = to_json(report);
    if (!options.json) print_vectors(report);
    return {};
  }
  // The program's own text is short.
  const size_t window = options.report_text.empty() ? 128 : 512;
  VOLVELLE_ASSIGN_OR_RETURN(const PredictionReport report,
                            predict({.model = model,
                                     .reference = reference,
                                     .text = text,
                                     .text_name = name,
                                     .if_short = "give a longer text",
                                     .lengths = {std::min(window, model->decoder().context)},
                                     .cache = CacheType::kF32,
                                     .linears = true},
                                    threads));
  json = to_json(report);
  if (!options.json) print_prediction(report, "the float model");
  return {};
}

Result<> run(Options& options) {
  for (const std::string& read : {options.calibrate, options.report_text}) {
    std::error_code unknown;
    if (std::filesystem::equivalent(read, options.convert.output, unknown)) {
      return fail("{}: is read, and so cannot be written; choose another name",
                  options.convert.output);
    }
  }
  std::string text(report_text());  // read before hours are spent
  if (!options.report_text.empty()) {
    VOLVELLE_ASSIGN_OR_RETURN(text, read_text(options.report_text));
    if (text.find_first_not_of(" \t\r\n") == std::string::npos) {
      return fail("{}: is empty; give a text to measure on", options.report_text);
    }
  }
  options.convert.will_read = options.report || !options.report_text.empty();
  if (options.calibrate.empty()) {
    options.convert.calibration = calibration_text();
  } else if (options.calibrate != "none") {
    VOLVELLE_ASSIGN_OR_RETURN(options.convert.calibration, read_text(options.calibrate));
    if (options.convert.calibration.empty()) {
      return fail("{}: is empty; give a text to calibrate on, or --calibrate none",
                  options.calibrate);
    }
  }
  VOLVELLE_ASSIGN_OR_RETURN(ThreadPool threads, make_pool(options.compute));
  Result<ConvertReport> report;
  {
    std::unique_ptr<Progress> bar;
    std::string shown;
    options.convert.progress = [&](std::string_view what, uint64_t done, uint64_t total) {
      if (!bar || what != shown) {
        shown = what;
        bar.reset();  // which takes its line away
        bar = std::make_unique<Progress>(shown, total);
      }
      bar->update(done);
    };
    report = convert(options.convert, threads);
  }
  VOLVELLE_RETURN_IF_ERROR(report);
  if (!options.convert.rounds_to_q4()) {
    if (!options.calibrate.empty()) report->notices.push_back("--calibrate serves q4 alone");
    if (!options.convert.keep_grid) report->notices.push_back("--no-keep-grid serves q4 alone");
  }
  for (const std::string& notice : report->notices) print_notice(notice);
  nlohmann::ordered_json json = to_json(*report, options.convert.output);
  if (!options.json) print_text(*report, options.convert.output);
  if (options.report || !options.report_text.empty()) {
    if (!options.json) print("\n");
    VOLVELLE_RETURN_IF_ERROR(report_cost(options, text, threads, json["cost"]));
  }
  if (options.json) print("{}\n", to_text(json, 2));
  return {};
}

}  // namespace

void add_convert_command(Program& program) {
  const auto options = std::make_shared<Options>();
  CLI::App& command = program.add_command(
      {.name = "convert",
       .summary = "Makes a model file of a checkpoint",
       .details = "Examples:\n"
                  "  volvelle convert SmolLM2-135M-Instruct.Q4_1.gguf -o smollm2.vvl\n"
                  "  volvelle convert Qwen3-0.6B/ -o qwen3.vvl --weights q8\n"
                  "  volvelle convert HuggingFaceTB/SmolLM2-135M -o smollm2.vvl --context 4096\n"
                  "\n"
                  "f32 keeps every weight exactly. q8 has 8 bits and a scale per output channel, "
                  "q4 has 4\n"
                  "bits and a scale per 32 weights; both keep the embedding, and with q4 a head of "
                  "its own,\n"
                  "in 8 bits. The file appears under its name only when it is whole. OWNER/NAME "
                  "is fetched with\n"
                  "the program hf (pipx install huggingface_hub)."},
      [options] { return run(*options); });
  command
      .add_option("SOURCE", options->convert.source,
                  "A Hugging Face folder, a .gguf file, or OWNER/NAME on the hub")
      ->required()
      ->type_name("");
  command.add_option("-o,--output", options->convert.output, "The .vvl file to write")
      ->required()
      ->type_name("M.vvl")
      ->check([](const std::string& path) {
        return path == "-" ? "a model cannot be written to standard output; name a file" : "";
      });
  const auto checked = [options](std::string (*read)(const std::string&, ConvertOptions&)) {
    return [options, read](const std::string& text) {
      if (const std::string wrong = read(text, options->convert); !wrong.empty()) {
        throw CLI::ValidationError(wrong);
      }
    };
  };
  command
      .add_option_function<std::string>(
          "--weights", checked(read_weights),
          "How weights are stored: f32, q8 or q4 (default q4), or auto:BITS, the best mix of q4 "
          "and q8 whose linears take so many bits a weight in the mean")
      ->type_name("TYPE");
  command
      .add_option_function<std::vector<std::string>>(
          "--keep",
          [read = checked(read_keep)](const std::vector<std::string>& all) {
            for (const std::string& one : all) read(one);
          },
          "Store linears otherwise whose names fit a pattern: '*.down.weight=q8' (may be repeated; "
          "the last that fits counts)")
      ->expected(1)
      ->type_name("PATTERN=TYPE")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command
      .add_option("--context", options->convert.context,
                  "Positions that the tables must reach (default: the model's own)")
      ->check(between(uint64_t{1}, kMaxContext))
      ->type_name("N");
  command
      .add_option_function<std::string>(
          "--rope-scaling",
          [options](const std::string& text) {
            Result<ScalingSpec> spec = parse_scaling_spec(text);
            if (!spec) throw CLI::ValidationError(spec.error().message);
            options->convert.scaling = *std::move(spec);
          },
          "Scale rotary positions otherwise than the checkpoint does: original, none, linear:F, "
          "ntk:F, dynamic:F, yarn:F[,original=N,beta_fast=R,beta_slow=R,"
          "attention_factor=A,mscale=M,mscale_all_dim=M,truncate=false], "
          "llama3:F[,low=R,high=R,original=N] or theta:BASE")
      ->type_name("SPEC");
  command
      .add_option("--ignore-key", options->convert.ignored_keys,
                  "Convert as if the checkpoint's settings had no such key (may be repeated)")
      ->expected(1)
      ->type_name("KEY")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command.add_flag_callback(
      "--no-tokenizer", [options] { options->convert.tokenizer = false; },
      "Leave the tokenizer out");
  const auto names_a_file = [](const std::string& path) {
    return path.empty() ? "names no file" : "";
  };
  command
      .add_option("--calibrate", options->calibrate,
                  "q4: a text of the kind that the model is for, which tells how weights are best "
                  "rounded, or none (default: a short English one of the program's own)")
      ->check(names_a_file)
      ->type_name("FILE|none");
  command.add_flag_callback(
      "--no-keep-grid", [options] { options->convert.keep_grid = false; },
      "Round weights anew that lie on a four-bit grid already");
  command.add_flag("--report", options->report,
                   "Measure what the weights' form costs against the float model, in all and of "
                   "each linear, on a short text that never calibrates");
  command.add_option("--report-text", options->report_text, "The same, on a text of your own")
      ->check(names_a_file)
      ->type_name("FILE");
  command.add_flag("--force", options->convert.force, "Replace the output if it exists");
  command.add_flag("--json", options->json, "Print the report as JSON");
  add_thread_options(command, options->compute);
}

}  // namespace volvelle
