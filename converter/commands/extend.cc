#include "converter/commands/extend.h"

#include <memory>
#include <string>

#include "converter/extend.h"

namespace volvelle {
namespace {

struct Options {
  ExtendOptions extend;
  bool in_place = false;
  bool json = false;
};

void print_text(const ExtendReport& report) {
  print("{}: positions baked anew\n", printable(report.name));
  print("context     {} tokens, {} before, trained for {}\n", format_count(report.context),
        format_count(report.former_context), format_count(report.trained_context));
  for (const ExtendReport::Scheme& scheme : report.schemes) {
    print("{:<12}{}\n", std::format("position {}", scheme.position), scheme.after);
    if (scheme.after != scheme.before) print("{:<12}before: {}\n", "", scheme.before);
  }
  print("{}: {} baked, {} in all, generation {}, {:.1f} ms\n", printable(report.file),
        format_bytes(report.baked_bytes), format_bytes(report.file_bytes), report.generation,
        report.seconds * 1000);
}

void print_json(const ExtendReport& report) {
  nlohmann::ordered_json json = {{"file", report.file},
                                 {"name", report.name},
                                 {"context", report.context},
                                 {"former_context", report.former_context},
                                 {"trained_context", report.trained_context},
                                 {"positions", nlohmann::ordered_json::array()},
                                 {"baked_bytes", report.baked_bytes},
                                 {"file_bytes", report.file_bytes},
                                 {"generation", report.generation},
                                 {"seconds", report.seconds},
                                 {"notices", report.notices}};
  for (const ExtendReport::Scheme& scheme : report.schemes) {
    json["positions"].push_back(
        {{"position", scheme.position}, {"before", scheme.before}, {"after", scheme.after}});
  }
  print("{}\n", to_text(json, 2));
}

Result<> run(Options& options) {
  Result<ExtendReport> report;
  {
    std::unique_ptr<Progress> bar;
    options.extend.progress = [&](uint64_t done, uint64_t total) {
      if (!bar) bar = std::make_unique<Progress>("copying", total);
      bar->update(done);
    };
    report = extend(options.extend);
  }
  VOLVELLE_RETURN_IF_ERROR(report);
  for (const std::string& notice : report->notices) print_notice(notice);
  options.json ? print_json(*report) : print_text(*report);
  return {};
}

}  // namespace

void add_extend_command(Program& program) {
  const auto options = std::make_shared<Options>();
  CLI::App& command = program.add_command(
      {.name = "extend",
       .summary = "Bakes the positions of a model file anew, for another context",
       .details =
           "Examples:\n"
           "  volvelle extend model.vvl --rope-scaling yarn:4 --in-place\n"
           "  volvelle extend model.vvl --rope-scaling linear:2 --context 8192 -o long.vvl\n"
           "  volvelle extend model.vvl --rope-scaling original --in-place\n"
           "\n"
           "Only rotary positions can be extended. Weights stay as they are, and every scaling "
           "starts from\n"
           "what the checkpoint says, so extending twice is extending once; original puts that "
           "back, and none\n"
           "scales nothing, whatever the checkpoint says. --in-place takes milliseconds, does not "
           "disturb\n"
           "programs that run the model, and leaves the former model or the new one whenever it is "
           "stopped.\n"
           "Each time adds to the file what it bakes; -o writes a copy without what former times "
           "added.\n"
           "Without --context, dials reach the factor times the context before any scaling, and "
           "no less than\n"
           "they did; for original, what they reached before the first time."},
      [options] { return run(*options); });
  command.add_option("MODEL", options->extend.model, "The .vvl file")
      ->required()
      ->type_name("M.vvl");
  command
      .add_option_function<std::string>(
          "--rope-scaling",
          [options](const std::string& text) {
            Result<ScalingSpec> spec = parse_scaling_spec(text);
            if (!spec) throw CLI::ValidationError(spec.error().message);
            options->extend.scaling = *std::move(spec);
          },
          "original, none, linear:F, ntk:F, dynamic:F, yarn:F[,original=N,beta_fast=R,beta_slow=R,"
          "attention_factor=A,mscale=M,mscale_all_dim=M,truncate=false], "
          "llama3:F[,low=R,high=R,original=N] or theta:BASE")
      ->required()
      ->type_name("SPEC");
  command.add_option("--context", options->extend.context, "Positions that the dials must reach")
      ->check(between(uint64_t{1}, kMaxContext))
      ->type_name("N");
  CLI::Option* output =
      command.add_option("-o,--output", options->extend.output, "Write a copy")
          ->type_name("N.vvl")
          ->check([](const std::string& path) {
            return path.empty() || path == "-" ? "a model needs a file's name" : "";
          });
  CLI::Option* in_place =
      command.add_flag("--in-place", options->in_place, "Change the file itself");
  require_one_of(command, {output, in_place});
  command.add_flag("--force", options->extend.force, "Replace the output if it exists");
  command.add_flag("--json", options->json, "Print the report as JSON");
}

}  // namespace volvelle
