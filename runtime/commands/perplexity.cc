// volvelle eval perplexity

#include <memory>

#include "runtime/commands/compute.h"
#include "runtime/commands/prediction.h"
#include "runtime/commands/runtime_commands.h"

namespace volvelle {
namespace {

struct PerplexityOptions {
  std::string model, text, against;
  std::vector<size_t> lengths;
  bool linears = false;
  bool json = false;
  ComputeOptions compute;
};

Result<> measure(const PerplexityOptions& options) {
  PredictionOptions prediction{.text_name = options.text == "-" ? "standard input" : options.text,
                               .lengths = options.lengths,
                               .cache = options.compute.kv,
                               .context = options.compute.context,
                               .linears = options.linears};
  VOLVELLE_ASSIGN_OR_RETURN(prediction.model, open_decoder(options.model, options.compute));
  if (!options.against.empty()) {
    VOLVELLE_ASSIGN_OR_RETURN(prediction.reference, open_decoder(options.against, options.compute));
  }
  VOLVELLE_ASSIGN_OR_RETURN(prediction.text, read_text(options.text));
  VOLVELLE_ASSIGN_OR_RETURN(ThreadPool pool, make_pool(options.compute));
  VOLVELLE_ASSIGN_OR_RETURN(const PredictionReport report, predict(prediction, pool));
  if (options.json) {
    print("{}\n", to_text(to_json(report)));
  } else {
    print_prediction(report, options.against);
  }
  return {};
}

}  // namespace

void add_perplexity_command(Program& program) {
  const auto options = std::make_shared<PerplexityOptions>();
  CLI::App& command = program.add_command(
      {"eval perplexity", "Measures how well a model predicts a text",
       "Examples:\n"
       "  volvelle eval perplexity model.vvl --text book.txt\n"
       "  volvelle eval perplexity model.vvl --text book.txt --lengths 512,1024,2048 --json\n"
       "  volvelle eval perplexity q4.vvl --text book.txt --against f32.vvl\n\n"
       "The text is cut into consecutive windows of each length (a last, shorter part is left "
       "out), without a beginning\n"
       "token; each window starts from an empty cache and every prediction in it counts. The "
       "interval is a bootstrap\n"
       "over windows. --against adds the divergence KL(OTHER || M) of every prediction, over the "
       "longest windows and with\n"
       "a float cache for OTHER, and --linears how far the outputs of each linear are from "
       "OTHER's on the same inputs."},
      [options] { return measure(*options); });
  PerplexityOptions& o = *options;
  add_model_option(command, o.model);
  command.add_option("--text", o.text, "The text; - is standard input")->required()->type_name("F");
  command
      .add_option("--lengths", o.lengths,
                  "Tokens of a window (default 512, or the model's context where that is less)")
      ->delimiter(',')
      ->check(between(size_t{2}, size_t{1} << 31))
      ->type_name("N,…");
  CLI::Option* const against =
      command.add_option("--against", o.against, "A file of the same checkpoint to compare with")
          ->type_name("OTHER.vvl");
  command.add_flag("--linears", o.linears, "With --against: the error of each linear")
      ->needs(against);
  command.add_flag("--json", o.json, "Write one JSON object");
  add_compute_options(command, o.compute);
}

}  // namespace volvelle
