#include "runtime/commands/runtime_commands.h"

#include "runtime/model.h"

namespace volvelle {

void add_runtime_commands(Program& program) {
  program.add_tokenizer_source(
      "a .vvl file", [](const std::string& source) { return source.ends_with(".vvl"); },
      [](const std::string& source) -> Result<std::shared_ptr<const Tokenizer>> {
        VOLVELLE_ASSIGN_OR_RETURN(const std::shared_ptr<const Model> model, Model::load(source));
        if (model->tokenizer() == nullptr) {
          return fail("{}: the file has no tokenizer; convert again from a source that has one",
                      source);
        }
        return std::shared_ptr<const Tokenizer>(model, model->tokenizer());
      });
  add_run_command(program);
  add_translate_command(program);
  add_embed_command(program);
  add_fill_command(program);
  add_classify_command(program);
  add_logits_command(program);
  add_tokenize_command(program);
  add_detokenize_command(program);
  add_inspect_command(program);
  add_bench_command(program);
  add_perplexity_command(program);
  add_completion_command(program);
}

CLI::Option* add_text_option(CLI::App& command, std::optional<std::string>& text) {
  return command
      .add_option_function<std::string>(
          "-p,--prompt",
          [&text](const std::string& given) {
            if (given != "-") {
              text = given;
              return;
            }
            Result<std::string> read = read_text("-");
            if (!read.has_value())
              throw CLI::FileError(read.error().message, CLI::ExitCodes::FileError);
            text = *std::move(read);
          },
          "The text; - is standard input")
      ->type_name("TEXT");
}

CLI::Option* add_tokens_option(CLI::App& command, std::string& tokens) {
  return command
      .add_option("--tokens", tokens, "Token ids instead of text; @FILE reads them from a file")
      ->type_name("1,2,3|@FILE");
}

}  // namespace volvelle
