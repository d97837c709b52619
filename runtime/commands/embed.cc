// volvelle embed

#include <map>
#include <optional>
#include <string>

#include "platforms/interrupt.h"
#include "runtime/commands/compute.h"
#include "runtime/commands/numpy.h"
#include "runtime/commands/runtime_commands.h"
#include "runtime/commands/sentences.h"

namespace volvelle {
namespace {

struct EmbedOptions {
  std::string model, output;
  SentenceOptions input;
  std::string pooling;  // "": as the model says
  std::optional<std::string> prompt;
  bool normalize = false;
  ComputeOptions compute;
};

struct Vectors {
  std::vector<std::vector<float>> rows;  // of each text: a vector, or one for each token
  size_t width = 0;
};

// The vectors of texts; of a text in parts, their mean by their tokens.
Result<Vectors> compute(const std::shared_ptr<const Model>& model, ThreadPool& pool,
                        const Task& task, const Sentences& sentences) {
  Task bare = task;
  bare.normalize = false;
  VOLVELLE_ASSIGN_OR_RETURN(
      const std::unique_ptr<Encoder> encoder,
      Encoder::open(model, pool, &bare, std::max(kEncoderChunk, sentences.longest())));
  Vectors vectors{std::vector<std::vector<float>>(sentences.texts.size()), encoder->width()};
  std::vector<double> weights(sentences.texts.size());
  Progress progress("embedding", sentences.all.size());
  VOLVELLE_RETURN_IF_ERROR(
      encoder->run(sentences.all, [&](size_t i, size_t, std::span<const float> values) -> Result<> {
        if (interrupted()) return fail("interrupted");
        const size_t text = sentences.text_of[i];
        std::vector<float>& row = vectors.rows[text];
        const auto weight = static_cast<double>(sentences.all[i].tokens.size());
        if (task.pooling == Pooling::kNone) {
          row.insert(row.end(), values.begin(), values.end());
        } else {
          row.resize(values.size());
          const double total = weights[text] += weight;
          for (size_t e = 0; e < values.size(); ++e) {
            row[e] = static_cast<float>(row[e] + (values[e] - row[e]) * weight / total);
          }
        }
        progress.update(i + 1);
        return {};
      }));
  for (std::vector<float>& row : vectors.rows) {
    if (!task.normalize) continue;
    for (size_t first = 0; first < row.size(); first += vectors.width) {
      to_unit_length(std::span(row).subspan(first, vectors.width));
    }
  }
  return vectors;
}

Result<> write_npy(const EmbedOptions& options, const Vectors& vectors) {
  size_t rows = 0;
  for (const std::vector<float>& row : vectors.rows) rows += row.size() / vectors.width;
  VOLVELLE_ASSIGN_OR_RETURN(
      NumpyOutput output,
      NumpyOutput::create(options.output, {options.model, options.input.lines}));
  VOLVELLE_RETURN_IF_ERROR(output.begin(rows, vectors.width));
  for (const std::vector<float>& row : vectors.rows) {
    VOLVELLE_RETURN_IF_ERROR(output.append(row));
  }
  return output.commit();
}

// In as few digits as give the same floats again; nlohmann::json knows doubles only.
std::string json_list(std::span<const float> row) {
  std::string list;
  for (const float value : row) list += std::format("{}{}", list.empty() ? "[" : ",", value);
  return list + "]";
}

void print_lines(const Vectors& vectors, bool pooled, const Sentences& sentences) {
  for (size_t text = 0; text < vectors.rows.size(); ++text) {
    std::string line = "{";
    if (!sentences.texts[text].empty()) {
      line += "\"text\":" + to_text(sentences.texts[text]) + ",";
    }
    const std::span<const float> row = vectors.rows[text];
    if (pooled) {
      line += "\"embedding\":" + json_list(row);
    } else {
      for (size_t first = 0; first < row.size(); first += vectors.width) {
        line += first == 0 ? "\"embeddings\":[" : ",";
        line += json_list(row.subspan(first, vectors.width));
      }
      line += "]";
    }
    print("{}}}\n", line);
  }
}

// What stands before every text: the prompt that was asked for, or else the model's usual one.
Result<std::string> prompt_of(const Task& task, const EmbedOptions& options) {
  if (!options.prompt.has_value()) {
    return task.default_prompt ? task.prompts[*task.default_prompt].second : "";
  }
  std::string names;
  for (const auto& [name, text] : task.prompts) {
    if (name == *options.prompt) return text;
    names += (names.empty() ? "" : ", ") + name;
  }
  if (options.prompt->empty()) return "";
  if (names.empty())
    return fail("{}: has no prompts, so none \"{}\"", options.model, *options.prompt);
  return fail("{}: has no prompt \"{}\"; its prompts are: {}", options.model, *options.prompt,
              names);
}

Result<> embed(const EmbedOptions& options) {
  VOLVELLE_ASSIGN_OR_RETURN(const std::shared_ptr<const Model> model,
                            open_encoder(options.model, options.compute));
  Task task = embedding_task(*model);
  static const std::map<std::string, Pooling> kPoolings = {{"none", Pooling::kNone},
                                                           {"mean", Pooling::kMean},
                                                           {"cls", Pooling::kFirst},
                                                           {"max", Pooling::kMax},
                                                           {"last", Pooling::kLast}};
  if (!options.pooling.empty()) {
    if (!task.further_poolings.empty() && !task.layers.empty()) {
      return fail("{}: its layers read {} poolings at once, and --pool would leave one",
                  options.model, 1 + task.further_poolings.size());
    }
    task.pooling = kPoolings.at(options.pooling);
    task.further_poolings.clear();
  }
  task.normalize |= options.normalize;
  if (options.prompt && !options.input.text && options.input.lines.empty()) {
    return fail("--prompt-name: a prompt stands before texts, not before --tokens");
  }
  VOLVELLE_ASSIGN_OR_RETURN(std::string prompt, prompt_of(task, options));
  VOLVELLE_ASSIGN_OR_RETURN(
      const Sentences sentences,
      read_sentences(*model, options.input, {task.max_tokens, std::move(prompt)}));
  VOLVELLE_ASSIGN_OR_RETURN(ThreadPool pool, make_pool(options.compute));
  VOLVELLE_ASSIGN_OR_RETURN(const Vectors vectors, compute(model, pool, task, sentences));
  if (!options.output.empty()) return write_npy(options, vectors);
  print_lines(vectors, task.pooling != Pooling::kNone, sentences);
  return {};
}

}  // namespace

void add_embed_command(Program& program) {
  const auto options = std::make_shared<EmbedOptions>();
  CLI::App& command = program.add_command(
      {"embed", "Makes vectors of texts",
       "Examples:\n"
       "  volvelle embed minilm.vvl -p \"A cat sat on the mat.\"\n"
       "  volvelle embed minilm.vvl --lines sentences.txt --normalize -o vectors.npy\n"
       "  volvelle embed minilm.vvl --tokens 101,7592,102 --pool none -o states.npy\n\n"
       "Prints a JSON object a line, or writes a NumPy file of float32 [texts, width]. Texts of "
       "any "
       "lengths go through\n"
       "together. A text that is split has the mean of its parts' vectors, each counting as its "
       "tokens do.\n"
       "With --pool none, the rows of all texts follow each other in the file; JSON lines keep "
       "them "
       "apart."},
      [options] { return embed(*options); });
  EmbedOptions& o = *options;
  add_model_option(command, o.model);
  add_sentence_options(command, o.input, /*many=*/true);
  command
      .add_option("--pool", o.pooling,
                  "Which vector a text has: none (one for each token), mean, cls, max or last "
                  "(default: as the model says)")
      ->check(CLI::IsMember({"none", "mean", "cls", "max", "last"}).description(""))
      ->type_name("HOW");
  command
      .add_option("--prompt-name", o.prompt,
                  "The model's prompt that stands before each text, by its name; \"\" is none "
                  "(default: as the model says)")
      ->type_name("NAME");
  command.add_flag("--normalize", o.normalize,
                   "Scale vectors to a length of 1, where the model does not do so itself");
  command
      .add_option("-o,--output", o.output,
                  "The .npy file to write instead of JSON lines; - is standard output")
      ->type_name("OUT.npy");
  add_thread_options(command, o.compute);
  add_packing_option(command, o.compute);
}

}  // namespace volvelle
