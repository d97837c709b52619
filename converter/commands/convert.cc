#include "converter/commands/convert.h"

#include <map>
#include <memory>
#include <string>

#include "converter/calibration.h"
#include "converter/convert.h"
#include "runtime/commands/compute.h"

namespace volvelle {
namespace {

struct Options {
  ConvertOptions convert;
  ComputeOptions compute;
  std::string weights = "q4";
  std::string calibrate;
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
    print("  {:<17} {:<4} {:>10}\n", part.name, part.type, format_bytes(part.bytes));
  }
  print("{}: {} in {:.2f} s\n", printable(output), format_bytes(report.file_bytes), report.seconds);
}

void print_json(const ConvertReport& report, const std::string& output) {
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
  print("{}\n", to_text(json, 2));
}

Result<> run(Options& options) {
  const std::map<std::string, WeightType> types = {
      {"f32", WeightType::kF32}, {"q8", WeightType::kQ8}, {"q4", WeightType::kQ4}};
  options.convert.weights = types.at(options.weights);
  if (options.calibrate.empty()) {
    options.convert.calibration = calibration_text();
  } else if (options.calibrate != "none") {
    VOLVELLE_ASSIGN_OR_RETURN(options.convert.calibration, read_text(options.calibrate));
  }
  VOLVELLE_ASSIGN_OR_RETURN(ThreadPool threads, make_pool(options.compute));
  Result<ConvertReport> report;
  {
    std::unique_ptr<Progress> bar;
    options.convert.progress = [&](uint64_t done, uint64_t total) {
      if (!bar) bar = std::make_unique<Progress>("converting", total);
      bar->update(done);
    };
    report = convert(options.convert, threads);
  }
  VOLVELLE_RETURN_IF_ERROR(report);
  for (const std::string& notice : report->notices) print_notice(notice);
  options.json ? print_json(*report, options.convert.output)
               : print_text(*report, options.convert.output);
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
                  "the program hf (pip install huggingface_hub)."},
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
  command
      .add_option("--weights", options->weights,
                  "How weights are stored: f32, q8 or q4 (default q4)")
      ->check(CLI::IsMember({"f32", "q8", "q4"}).description(""))
      ->type_name("TYPE");
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
  command
      .add_option("--calibrate", options->calibrate,
                  "q4: a text of the kind that the model is for, which tells how weights are best "
                  "rounded, or none (default: a short English one of the program's own)")
      ->type_name("FILE|none");
  command.add_flag_callback(
      "--no-keep-grid", [options] { options->convert.keep_grid = false; },
      "Round weights anew that lie on a four-bit grid already");
  command.add_flag("--force", options->convert.force, "Replace the output if it exists");
  command.add_flag("--json", options->json, "Print the report as JSON");
  add_thread_options(command, options->compute);
}

}  // namespace volvelle
