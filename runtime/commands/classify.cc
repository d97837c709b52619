// volvelle fill, volvelle classify

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/commands/compute.h"
#include "runtime/commands/runtime_commands.h"
#include "runtime/commands/sentences.h"

namespace volvelle {
namespace {

struct Options {
  std::string model;
  SentenceOptions input;
  size_t count = 5;
  bool json = false;
  ComputeOptions compute;
};

struct Choice {
  size_t id;
  double probability;
};

// The `count` likeliest by softmax.
std::vector<Choice> likeliest(std::span<const float> logits, size_t count) {
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  count = std::min(count, order.size());
  std::ranges::partial_sort(order, order.begin() + static_cast<ptrdiff_t>(count),
                            [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - logits[order[0]]);
  std::vector<Choice> choices;
  for (size_t i = 0; i < count; ++i) {
    choices.push_back({order[i], std::exp(double{logits[order[i]]} - logits[order[0]]) / sum});
  }
  return choices;
}

// The task's outputs for the only sentence.
Result<std::vector<float>> compute(const std::shared_ptr<const Model>& model, const Task& task,
                                   const Sentences& sentences, const ComputeOptions& options) {
  VOLVELLE_ASSIGN_OR_RETURN(ThreadPool pool, make_pool(options));
  VOLVELLE_ASSIGN_OR_RETURN(const std::unique_ptr<Encoder> encoder,
                            Encoder::open(model, pool, &task, sentences.longest()));
  std::vector<float> outputs;
  VOLVELLE_RETURN_IF_ERROR(
      encoder->run(sentences.all, [&](size_t, size_t, std::span<const float> values) -> Result<> {
        outputs.assign(values.begin(), values.end());
        return {};
      }));
  return outputs;
}

Result<> fill(const Options& options) {
  VOLVELLE_ASSIGN_OR_RETURN(const std::shared_ptr<const Model> model,
                            open_encoder(options.model, options.compute));
  const Task* task = model->encoder()->task(TaskKind::kFill);
  if (task == nullptr) {
    return fail("{}: has no head that fills gaps; convert a checkpoint for masked language models",
                options.model);
  }
  const Tokenizer* tokenizer = model->tokenizer();
  if (tokenizer == nullptr) {
    return fail(
        "{}: the file has no tokenizer, which knows the token of gaps and what words mean; convert "
        "again from a source that has one",
        options.model);
  }
  std::optional<int32_t> mask;
  for (const char* name : {"[MASK]", "<mask>"}) {
    if (!mask) mask = tokenizer->find(name);
  }
  if (!mask) return fail("{}: its tokenizer has neither [MASK] nor <mask>", options.model);
  VOLVELLE_ASSIGN_OR_RETURN(const Sentences sentences, read_sentences(*model, options.input));
  const std::vector<int32_t>& tokens = sentences.all[0].tokens;
  if (!std::ranges::contains(tokens, *mask)) {
    return fail("the text has no gap among its {} tokens; write {} where a word is missing",
                tokens.size(), tokenizer->piece(*mask));
  }
  VOLVELLE_ASSIGN_OR_RETURN(const std::vector<float> logits,
                            compute(model, *task, sentences, options.compute));
  const size_t vocabulary = model->vocabulary();
  nlohmann::ordered_json gaps = nlohmann::ordered_json::array();
  for (size_t t = 0; t < tokens.size(); ++t) {
    if (tokens[t] != *mask) continue;
    nlohmann::ordered_json gap = nlohmann::ordered_json::array();
    for (const Choice& choice :
         likeliest(std::span(logits).subspan(t * vocabulary, vocabulary), options.count)) {
      const auto id = static_cast<int32_t>(choice.id);
      std::string word = tokenizer->decode({&id, 1});
      if (word.starts_with(' ')) word.erase(0, 1);
      gap.push_back({{"word", word}, {"id", id}, {"probability", choice.probability}});
    }
    gaps.push_back(std::move(gap));
  }
  if (options.json) {
    print("{}\n", to_text(gaps));
    return {};
  }
  for (size_t i = 0; i < gaps.size(); ++i) {
    if (gaps.size() > 1) print("gap {}\n", i + 1);
    for (const auto& choice : gaps[i]) {
      print("{:7.4f}  {}\n", choice["probability"].get<double>(),
            printable(choice["word"].get<std::string>()));
    }
  }
  return {};
}

void print_choices(const nlohmann::ordered_json& choices, const char* number) {
  for (const auto& choice : choices) {
    print("{:7.4f}  {}\n", choice[number].get<double>(),
          printable(choice["label"].get<std::string>()));
  }
}

Result<> classify(const Options& options) {
  VOLVELLE_ASSIGN_OR_RETURN(const std::shared_ptr<const Model> model,
                            open_encoder(options.model, options.compute));
  const Task* task = model->encoder()->task(TaskKind::kClassify);
  const bool tags = task == nullptr;
  if (tags) task = model->encoder()->task(TaskKind::kTag);
  if (task == nullptr) {
    return fail("{}: has no labels; convert a checkpoint that classifies texts or tokens",
                options.model);
  }
  VOLVELLE_ASSIGN_OR_RETURN(const Sentences sentences, read_sentences(*model, options.input));
  VOLVELLE_ASSIGN_OR_RETURN(const std::vector<float> logits,
                            compute(model, *task, sentences, options.compute));
  const size_t labels = task->labels.size();
  if (tags) {
    const std::vector<int32_t>& tokens = sentences.all[0].tokens;
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (size_t t = 0; t < tokens.size(); ++t) {
      const Choice best = likeliest(std::span(logits).subspan(t * labels, labels), 1).front();
      std::string piece;
      if (model->tokenizer() != nullptr) piece = model->tokenizer()->piece(tokens[t]);
      all.push_back({{"id", tokens[t]},
                     {"token", piece},
                     {"label", task->labels[best.id]},
                     {"probability", best.probability}});
    }
    if (options.json) {
      print("{}\n", to_text(all));
      return {};
    }
    for (const auto& one : all) {
      print("{:7.4f}  {:<12}  {}\n", one["probability"].get<double>(),
            printable(one["label"].get<std::string>()), printable(one["token"].get<std::string>()));
    }
    return {};
  }
  // One label that excludes no other is a score.
  if (task->regression || (labels == 1 && !task->multi_label)) {
    nlohmann::ordered_json values = nlohmann::ordered_json::array();
    for (size_t i = 0; i < labels; ++i) {
      values.push_back({{"label", task->labels[i]}, {"value", logits[i]}});
    }
    options.json ? print("{}\n", to_text(values)) : print_choices(values, "value");
    return {};
  }
  std::vector<Choice> choices = likeliest(logits, labels);
  if (task->multi_label) {  // labels do not exclude each other
    for (Choice& choice : choices) {
      choice.probability = 1 / (1 + std::exp(-double{logits[choice.id]}));
    }
  }
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const Choice& choice : choices) {
    all.push_back({{"label", task->labels[choice.id]},
                   {"probability", choice.probability},
                   {"logit", logits[choice.id]}});
  }
  options.json ? print("{}\n", to_text(all)) : print_choices(all, "probability");
  return {};
}

}  // namespace

void add_fill_command(Program& program) {
  const auto options = std::make_shared<Options>();
  CLI::App& command = program.add_command(
      {"fill", "Fills gaps in a text",
       "Examples:\n"
       "  volvelle fill bert.vvl -p \"Paris is the [MASK] of France.\"\n"
       "  volvelle fill roberta.vvl -p \"Paris is the <mask> of France.\" -n 10 --json\n\n"
       "Prints the likeliest words for each gap with their probabilities."},
      [options] { return fill(*options); });
  add_model_option(command, options->model);
  add_sentence_options(command, options->input, /*many=*/false);
  command.add_option("-n", options->count, "Words for each gap (default 5)")
      ->check(between(size_t{1}, size_t{1} << 20))
      ->type_name("N");
  command.add_flag("--json", options->json, "Print JSON: a list for each gap");
  add_thread_options(command, options->compute);
  add_packing_option(command, options->compute);
}

void add_classify_command(Program& program) {
  const auto options = std::make_shared<Options>();
  CLI::App& command = program.add_command(
      {"classify", "Gives a text, or each of its tokens, a label",
       "Examples:\n"
       "  volvelle classify sentiment.vvl -p \"What a lovely day.\"\n"
       "  volvelle classify nli.vvl -p \"A man sleeps.\" --pair \"A man is awake.\" --json\n"
       "  volvelle classify ner.vvl -p \"Ada Lovelace lived in London.\"\n\n"
       "Prints labels with their probabilities, the likeliest first; of models that label tokens, "
       "the likeliest of each.\n"
       "Labels that do not exclude each other have a probability each. Of a regression, and where "
       "there is one label alone,\n"
       "what the model gives is printed as it is."},
      [options] { return classify(*options); });
  add_model_option(command, options->model);
  add_sentence_options(command, options->input, /*many=*/false);
  command.add_flag("--json", options->json, "Print JSON");
  add_thread_options(command, options->compute);
  add_packing_option(command, options->compute);
}

}  // namespace volvelle
