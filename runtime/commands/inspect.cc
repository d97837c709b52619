// volvelle inspect

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "platforms/interrupt.h"
#include "platforms/memory.h"
#include "runtime/commands/compute.h"
#include "runtime/commands/position_plots.h"
#include "runtime/commands/runtime_commands.h"
#include "runtime/sinusoids.h"
#include "schema/volvelle_generated.h"

namespace volvelle {
namespace {

using nlohmann::ordered_json;

struct InspectOptions {
  std::string model, plot;
  bool json = false, verify = false, memory = false;
  ComputeOptions compute;
};

// The largest difference between what a dial gives in float and amplitude * (cos, sin)(position *
// frequency) in long double, over the first and last positions and both sides of the seams between
// coarse rows.
double dial_error(const Dial& dial, const float* frequencies, float amplitude) {
  constexpr size_t kMostSeams = 256;
  std::vector<uint32_t> positions = {0};
  const auto add = [&](size_t position) {
    if (position < dial.positions()) positions.push_back(static_cast<uint32_t>(position));
  };
  add(1);
  add(dial.positions() / 2);
  add(dial.positions() - 1);
  const size_t step = std::max<size_t>(1, dial.coarse_rows / kMostSeams);
  for (size_t row = 1; row < dial.coarse_rows; row += step) {
    for (size_t i = 0; i < 3; ++i) add(row * dial.fine_rows + i - 1);
  }
  std::vector<float> rows(positions.size() * dial.width());
  read_dial(dial, positions, rows.data());
  long double worst = 0;
  for (size_t i = 0; i < positions.size(); ++i) {
    const float* row = &rows[i * dial.width()];
    for (size_t plane = 0; plane < dial.planes; ++plane) {
      const long double angle = static_cast<long double>(positions[i]) * frequencies[plane];
      const long double scale = amplitude;
      worst = std::max({worst, std::abs(row[plane] - scale * std::cos(angle)),
                        std::abs(row[dial.planes + plane] - scale * std::sin(angle))});
    }
  }
  return static_cast<double>(worst);
}

// The kind and every field that it reads.
ordered_json describe_scaling(const file::RotaryScaling* scaling) {
  constexpr size_t kMostPlanes = 4096;  // of a head that loads; a file may say anything here
  using Kind = file::RotaryScalingKind;
  if (scaling == nullptr) return {{"kind", "none"}, {"factor", 1.0}};
  const Kind kind = scaling->kind();
  ordered_json json = {{"kind", file::EnumNameRotaryScalingKind(kind)},
                       {"factor", scaling->factor()}};
  if (scaling->original_context() > 0) json["original_context"] = scaling->original_context();
  if (kind == Kind::llama3) {
    json["low_frequency_factor"] = scaling->low_frequency_factor();
    json["high_frequency_factor"] = scaling->high_frequency_factor();
  }
  if (kind == Kind::yarn || kind == Kind::longrope) {
    json["attention_factor"] = scaling->attention_factor();
  }
  if (kind == Kind::yarn) {
    json["beta_fast"] = scaling->beta_fast();
    json["beta_slow"] = scaling->beta_slow();
    json["truncate"] = scaling->truncate();
    json["mscale"] = scaling->mscale();
    json["mscale_all_dim"] = scaling->mscale_all_dim();
  }
  if (kind == Kind::proportional) json["turning_planes"] = scaling->turning_planes();
  for (const auto& [name, factors] : {std::pair{"short_factors", scaling->short_factors()},
                                      std::pair{"long_factors", scaling->long_factors()}}) {
    if (factors != nullptr && factors->size() <= kMostPlanes)
      json[name] = std::vector<float>(factors->begin(), factors->end());
  }
  return json;
}

// The wavelength of each plane in positions, null for one that stands still, and how many planes
// turn fully within the trained context.
ordered_json describe_planes(std::span<const float> frequencies, size_t trained_context) {
  std::vector<double> lengths;
  for (const float frequency : frequencies) lengths.push_back(wavelength(frequency));
  const auto turning = std::ranges::count_if(
      lengths, [&](double length) { return length <= static_cast<double>(trained_context); });
  return {{"turn_within_trained_context", turning}, {"wavelengths", lengths}};
}

ordered_json describe_rotary(const Rotary& rotary, size_t trained_context) {
  const Dial& dial = rotary.dial;
  const file::Rotary& record = *rotary.record;
  const bool moved = record.own_scaling() != nullptr;
  ordered_json json = {
      {"scheme", "rotary"},
      {"pairing", rotary.pairing == Pairing::kHalf ? "half" : "interleaved"},
      {"width", dial.width()},
      {"base", rotary.base},
      {"scaling", describe_scaling(record.scaling())},
      {"original",
       {{"base", moved ? record.own_base() : rotary.base},
        {"scaling", describe_scaling(moved ? record.own_scaling() : record.scaling())},
        {"planes", describe_planes(rotary.original_frequencies, trained_context)}}},
      {"planes", describe_planes(rotary.frequencies, trained_context)},
      {"amplitude", rotary.amplitude},
      {"positions", dial.positions()},
      {"coarse_rows", dial.coarse_rows},
      {"fine_rows", dial.fine_rows},
      {"bytes", (dial.coarse_rows + dial.fine_rows) * dial.width() * sizeof(float)},
      {"max_error", dial_error(dial, rotary.frequencies.data(), rotary.amplitude)}};
  if (rotary.switch_length > 0) {
    const std::span beyond(record.long_frequencies()->data(), dial.planes);
    json["bytes"] = 2 * json["bytes"].get<uint64_t>();
    json["long"] = {{"beyond", rotary.switch_length},
                    {"planes", describe_planes(beyond, trained_context)},
                    {"max_error", dial_error(rotary.long_dial, beyond.data(), rotary.amplitude)}};
  }
  return json;
}

// A file does not say how its sinusoids are laid out: they are what they come closest to.
void describe_sinusoids(const Tensor& table, ordered_json& json) {
  if (table.type != TensorType::kF32 || table.columns < 4) return;
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [name, layout] : {std::pair{"interleaved", SinusoidLayout::kInterleaved},
                                     std::pair{"halves", SinusoidLayout::kHalves},
                                     std::pair{"spread", SinusoidLayout::kSpread}}) {
    const double error = sinusoid_error(layout, table.f32(), table.rows, table.columns);
    if (error >= least) continue;
    least = error;
    json["layout"] = name;
    json["max_error"] = error;
  }
}

ordered_json describe_position(const Position& position, size_t trained_context) {
  if (const auto* slopes = std::get_if<Slopes>(&position.scheme)) {
    return {
        {"scheme", "linear_bias"}, {"symmetric", slopes->symmetric}, {"slopes", slopes->values}};
  }
  if (const auto* bias = std::get_if<BucketedBias>(&position.scheme)) {
    return {{"scheme", "bucketed_bias"},
            {"buckets", bias->table->rows},
            {"max_distance", bias->max_distance},
            {"bidirectional", bias->bidirectional},
            {"reach", bias->reach},
            {"heads", bias->table->columns},
            {"bytes", bias->table->bytes()}};
  }
  if (const auto* relative = std::get_if<ClippedRelative>(&position.scheme)) {
    ordered_json tables = ordered_json::array();
    size_t bytes = 0;
    for (const auto& [kind, table] :
         {std::pair{"key", relative->key}, std::pair{"query", relative->query},
          std::pair{"value", relative->value}}) {
      if (table == nullptr) continue;
      tables.push_back(kind);
      bytes += table->bytes();
    }
    return {{"scheme", "clipped_relative"},
            {"tables", std::move(tables)},
            {"clip_distance", relative->clip_distance},
            {"unclipped", relative->unclipped},
            {"heads", relative->heads},
            {"bytes", bytes}};
  }
  if (const auto* additive = std::get_if<AdditiveTable>(&position.scheme)) {
    ordered_json json = {{"scheme", "additive_table"},
                         {"learned", additive->learned},
                         {"rows", additive->table->rows},
                         {"row_offset", additive->row_offset},
                         {"bytes", additive->table->bytes()}};
    if (!additive->learned) describe_sinusoids(*additive->table, json);
    return json;
  }
  const auto* rotary = std::get_if<Rotary>(&position.scheme);
  if (rotary == nullptr) return {{"scheme", "none"}};
  return describe_rotary(*rotary, trained_context);
}

const char* name_of(Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return "silu";
    case Activation::kGeluErf:
      return "gelu_erf";
    case Activation::kGeluTanh:
      return "gelu_tanh";
    case Activation::kGeluSigmoid:
      return "gelu_sigmoid";
    case Activation::kRelu:
      return "relu";
    case Activation::kReluSquared:
      return "relu_squared";
    case Activation::kTanh:
      return "tanh";
  }
  return "";
}

// Which of the model's positions a block turns by; -1: none.
int position_of(const Model& model, const Block& block) {
  const auto& positions = model.positions();
  for (size_t i = 0; i < positions.size(); ++i) {
    const auto* rotary = std::get_if<Rotary>(&positions[i].scheme);
    const auto* slopes = std::get_if<Slopes>(&positions[i].scheme);
    const auto* buckets = std::get_if<BucketedBias>(&positions[i].scheme);
    const auto* relative = std::get_if<ClippedRelative>(&positions[i].scheme);
    if ((rotary != nullptr && rotary == block.attention.rotary) ||
        (slopes != nullptr && slopes == block.attention.slopes) ||
        (buckets != nullptr && buckets == block.attention.buckets) ||
        (relative != nullptr && relative == block.attention.relative)) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

std::vector<const Tensor*> linears_of(const Block& block) {
  std::vector<const Tensor*> linears = {block.attention.qkv.weight, block.attention.output.weight};
  if (block.cross) {
    for (const Linear& linear : {block.cross->query, block.cross->key_value, block.cross->output}) {
      linears.push_back(linear.weight);
    }
  }
  for (const Expert& expert : block.feed_forward.experts) {
    linears.push_back(expert.gate_up.weight);
    linears.push_back(expert.down.weight);
  }
  return linears;
}

// "q4 and q8"
std::string types_of(const Block& block) {
  std::set<std::string> types;
  for (const Tensor* linear : linears_of(block)) types.insert(volvelle::name_of(linear->type));
  std::string text;
  for (const std::string& type : types) text += (text.empty() ? "" : " and ") + type;
  return text;
}

ordered_json describe_block(const Model& model, const Block& block) {
  const Attention& attention = block.attention;
  const FeedForward& feed_forward = block.feed_forward;
  const int position = position_of(model, block);
  return {{"position", position < 0 ? ordered_json(nullptr) : ordered_json(position)},
          {"query_heads", attention.query_heads},
          {"kv_heads", attention.kv_heads},
          {"head_dim", attention.head_dim},
          {"scale", attention.scale},
          {"window", attention.window},
          {"soft_cap", attention.soft_cap},
          {"attention_bias", attention.qkv.bias != nullptr},
          {"query_key_norms", attention.query_norm.has_value()},
          {"feed_forward_width", feed_forward.inner()},
          {"activation", name_of(feed_forward.activation)},
          {"weights", types_of(block)}};
}

ordered_json describe_task(const Task& task, const Stack& stack) {
  const char* const kinds[] = {"embed", "fill", "classify", "tag"};
  const char* const poolings[] = {"none", "cls",           "mean",     "max",
                                  "last", "weighted_mean", "root_mean"};
  std::string pooling = poolings[static_cast<size_t>(task.pooling)];
  for (const Pooling further : task.further_poolings) {
    pooling += std::format(" + {}", poolings[static_cast<size_t>(further)]);
  }
  ordered_json prompts = ordered_json::object();
  for (const auto& [name, text] : task.prompts) prompts[name] = text;
  const auto& usual = task.default_prompt;
  return {{"kind", kinds[static_cast<size_t>(task.kind)]},
          {"pooling", pooling},
          {"outputs", task.outputs(stack.width)},
          {"normalize", task.normalize},
          {"max_tokens", task.max_tokens},
          {"prompts", prompts},
          {"default_prompt", usual ? ordered_json(task.prompts[*usual].first) : nullptr},
          {"multi_label", task.multi_label},
          {"regression", task.regression},
          {"labels", task.labels}};
}

struct Sizes {
  ordered_json by_part, by_type;
};

// The forms that the blocks' linears have, and what they take.
ordered_json describe_linears(const Model& model) {
  struct Form {
    size_t linears = 0, least_side = SIZE_MAX, most_side = 0;
    double bits = 0, weights = 0;
  };
  std::map<std::string, Form> forms;
  Form all;
  std::set<const Tensor*> counted;
  const auto count = [&](const Stack& stack) {
    for (const Block& block : stack.blocks) {
      for (const Tensor* linear : linears_of(block)) {
        if (!counted.insert(linear).second) continue;
        const size_t side = linear->side_columns.size();
        std::string name = volvelle::name_of(linear->type);
        if (!linear->minima.bytes.empty()) name += " with minima";
        if (linear->rotation > 1) name += ", rotated";
        for (Form* form : {&forms[name], &all}) {
          ++form->linears;
          form->least_side = std::min(form->least_side, side);
          form->most_side = std::max(form->most_side, side);
          form->bits += 8 * static_cast<double>(linear->bytes());
          form->weights += static_cast<double>(linear->rows) * static_cast<double>(linear->columns);
        }
      }
    }
  };
  if (model.encoder() != nullptr) count(*model.encoder());
  if (model.generates()) count(model.decoder());
  const auto describe = [](const Form& form) -> ordered_json {
    return {{"linears", form.linears},
            {"bits", form.weights > 0 ? form.bits / form.weights : 0},
            {"least_side_columns", form.linears > 0 ? form.least_side : 0},
            {"most_side_columns", form.most_side}};
  };
  ordered_json json = describe(all);
  json["forms"] = ordered_json::object();
  for (const auto& [name, form] : forms) json["forms"][name] = describe(form);
  return json;
}

// The decoder, or the encoder of a model that is nothing else.
const Stack& main_stack(const Model& model) {
  return model.generates() ? model.decoder() : *model.encoder();
}

Sizes sizes_of(const Model& model) {
  std::set<const Tensor*> counted;
  const auto bytes = [&](const Tensor* tensor) -> uint64_t {
    return tensor != nullptr && counted.insert(tensor).second ? tensor->bytes() : 0;
  };
  uint64_t embedding = bytes(main_stack(model).embedding);
  if (model.encoder() != nullptr) embedding += bytes(model.encoder()->embedding);
  const uint64_t head = bytes(main_stack(model).head.weight);
  uint64_t attention = 0, feed_forward = 0, rest = 0, positions = 0;
  const auto count = [&](const Stack& stack) {
    for (const Block& block : stack.blocks) {
      attention += bytes(block.attention.qkv.weight) + bytes(block.attention.output.weight);
      if (block.cross) {
        attention += bytes(block.cross->query.weight) + bytes(block.cross->key_value.weight) +
                     bytes(block.cross->output.weight);
      }
      for (const Expert& expert : block.feed_forward.experts) {
        feed_forward += bytes(expert.gate_up.weight) + bytes(expert.down.weight);
      }
    }
  };
  if (model.encoder() != nullptr) count(*model.encoder());
  if (model.generates()) count(model.decoder());
  for (const Position& position : model.positions()) {
    if (const auto* rotary = std::get_if<Rotary>(&position.scheme)) {
      positions += (rotary->dial.coarse_rows + rotary->dial.fine_rows) * rotary->dial.width() *
                   sizeof(float) * (rotary->switch_length > 0 ? 2 : 1);
    } else if (const auto* additive = std::get_if<AdditiveTable>(&position.scheme)) {
      positions += bytes(additive->table);
    } else if (const auto* bias = std::get_if<BucketedBias>(&position.scheme)) {
      positions += bytes(bias->table);
    } else if (const auto* relative = std::get_if<ClippedRelative>(&position.scheme)) {
      positions += bytes(relative->key) + bytes(relative->query) + bytes(relative->value);
    }
  }
  std::map<std::string, uint64_t> types;
  for (const Tensor& tensor : model.tensors()) {
    rest += bytes(&tensor);
    types[volvelle::name_of(tensor.type)] += tensor.bytes();
  }
  uint64_t tokenizer = 0;
  if (model.tokenizer() != nullptr) {
    const TokenizerSpec& source = model.tokenizer()->spec();
    for (const TokenizerSpec* spec : {&source, source.target.get()}) {
      if (spec == nullptr) continue;
      tokenizer += spec->piece_ends.size_bytes() + spec->piece_bytes.size() +
                   spec->merges.size_bytes() + spec->trie.size_bytes() + spec->scores.size_bytes() +
                   spec->entry_ids.size_bytes() + spec->character_map.size();
      for (const ChatTemplate& chat : spec->chat_templates) tokenizer += chat.text.size();
    }
  }
  Sizes sizes;
  sizes.by_part = {{"embedding", embedding},       {"attention", attention},
                   {"feed_forward", feed_forward}, {"head", head},
                   {"norms_and_biases", rest},     {"positions", positions},
                   {"tokenizer", tokenizer},       {"table", model.table_bytes()}};
  sizes.by_type = ordered_json::object();
  for (const auto& [type, sum] : types) sizes.by_type[type] = sum;
  return sizes;
}

ordered_json describe_tokenizer(const Model& model) {
  if (model.tokenizer() == nullptr) return nullptr;
  const Tokenizer& tokenizer = *model.tokenizer();
  const TokenizerSpec& spec = tokenizer.spec();
  ordered_json templates = ordered_json::array();
  for (const ChatTemplate& chat : spec.chat_templates) templates.push_back(chat.name);
  return {{"model", file::EnumNameTokenizerModel(spec.model)},
          {"vocabulary", spec.vocabulary()},
          {"merges", spec.merges.size()},
          {"added", spec.added.size()},
          {"byte_fallback", spec.byte_fallback},
          {"prefix", spec.prefix},
          {"suffix", spec.suffix},
          {"languages", spec.languages.size()},
          {"target", spec.target != nullptr},
          {"bos", spec.bos < 0 ? ordered_json(nullptr) : ordered_json(spec.bos)},
          {"eos", spec.eos},
          {"chat_templates", std::move(templates)}};
}

ordered_json describe(const Model& model, bool verified) {
  const Stack& stack = main_stack(model);
  const Generation& generation = model.generation();
  Sizes sizes = sizes_of(model);
  ordered_json json = {{"file", model.path()},
                       {"name", model.name()},
                       {"family", model.family()},
                       {"origin", model.origin()},
                       {"generation_of_file", model.file_generation()},
                       {"licence", model.licence()},
                       {"context", stack.context},
                       {"trained_context", stack.trained_context},
                       {"vocabulary", model.vocabulary()},
                       {"width", stack.width},
                       {"tied_head", stack.embedding == stack.head.weight},
                       {"positions", ordered_json::array()},
                       {"blocks", ordered_json::array()},
                       {"linears", describe_linears(model)},
                       {"tokenizer", describe_tokenizer(model)},
                       {"generation",
                        {{"eos", generation.eos},
                         {"sample", generation.sample},
                         {"temperature", generation.temperature},
                         {"top_k", generation.top_k},
                         {"top_p", generation.top_p},
                         {"min_p", generation.min_p},
                         {"repetition_penalty", generation.repetition_penalty}}},
                       {"sizes",
                        {{"file", model.file_bytes()},
                         {"by_part", std::move(sizes.by_part)},
                         {"by_type", std::move(sizes.by_type)},
                         {"weights_per_token", model.weight_bytes_per_token()}}},
                       {"weights_verified", verified}};
  for (const Position& position : model.positions())
    json["positions"].push_back(describe_position(position, stack.trained_context));
  for (const Block& block : stack.blocks) json["blocks"].push_back(describe_block(model, block));
  if (const Stack* encoder = model.encoder()) {
    json["tasks"] = ordered_json::array();
    for (const Task& task : encoder->tasks) json["tasks"].push_back(describe_task(task, *encoder));
    for (const Block& block : encoder->blocks) {
      if (model.generates()) json["encoder_blocks"].push_back(describe_block(model, block));
    }
  }
  return json;
}

// What a session would hold, and what the machine has left.
Result<ordered_json> describe_memory(const Model& model, const ComputeOptions& compute) {
  if (!model.generates()) {
    return fail("{}: is an encoder; --memory plans sessions, of models that make text",
                model.path());
  }
  VOLVELLE_ASSIGN_OR_RETURN(ThreadPool pool, make_pool(compute));
  VOLVELLE_ASSIGN_OR_RETURN(
      const MemoryPlan plan,
      Session::plan(model, pool, {.cache = compute.kv, .context = compute.context}));
  ordered_json json = {{"context", compute.context > 0 ? compute.context : model.decoder().context},
                       {"kv", volvelle::name_of(compute.kv)},
                       {"mapped_file", model.file_bytes()},
                       {"packed_weights", plan.packed},
                       {"cache", plan.cache},
                       {"scratch", plan.scratch},
                       {"total", plan.total()}};
  if (const auto left = memory_left()) {
    json["left"] = left->bytes;
    json["limit"] = left->limit;
  }
  return json;
}

void print_memory(const ordered_json& memory) {
  const auto bytes = [&](const char* name) { return format_bytes(memory[name].get<uint64_t>()); };
  print("memory of {} tokens, cache {}\n", format_count(memory["context"].get<uint64_t>()),
        memory["kv"].get<std::string>());
  print("  {:<18} {:>9}\n  {:<18} {:>9}\n  {:<18} {:>9}\n  {:<18} {:>9}\n", "packed weights",
        bytes("packed_weights"), "cache", bytes("cache"), "scratch", bytes("scratch"), "together",
        bytes("total"));
  if (memory.contains("left")) {
    print("  {:<18} {:>9}   ({})\n", "left", bytes("left"), memory["limit"].get<std::string>());
  }
}

std::string position_line(const ordered_json& position) {
  if (position["scheme"] == "none") return "none: order is known from the mask alone";
  if (position["scheme"] == "linear_bias") {
    const auto slopes = position["slopes"].get<std::vector<float>>();
    return std::format("linear bias (ALiBi), slopes {:.6g} to {:.6g} for {} heads, no limit",
                       std::ranges::max(slopes), std::ranges::min(slopes), slopes.size());
  }
  if (position["scheme"] == "additive_table") {
    std::string text = std::format("table added to embeddings, {}, {} rows, position 0 is row {}",
                                   position["learned"].get<bool>() ? "learned" : "sinusoids",
                                   format_count(position["rows"].get<uint64_t>()),
                                   position["row_offset"].get<size_t>());
    if (position.contains("layout")) {
      text +=
          std::format(", layout {}, error at most {:.2g}", position["layout"].get<std::string>(),
                      position["max_error"].get<double>());
    }
    return text;
  }
  if (position["scheme"] == "bucketed_bias") {
    return std::format("bias by distance (T5), {} buckets for {} heads{}, alike from {} on",
                       position["buckets"].get<size_t>(), position["heads"].get<size_t>(),
                       position["bidirectional"].get<bool>() ? ", of either side" : "",
                       position["reach"].get<size_t>());
  }
  if (position["scheme"] == "clipped_relative") {
    std::string tables;
    for (const ordered_json& kind : position["tables"]) {
      tables += (tables.empty() ? "" : ", ") + kind.get<std::string>();
    }
    return std::format("rows by distance ({}) for {}; {} {}",
                       position["heads"].get<size_t>() > 1 ? "disentangled" : "Shaw", tables,
                       position["unclipped"].get<bool>() ? "positions end at" : "clipped at",
                       position["clip_distance"].get<size_t>());
  }
  const auto scheme = [](const ordered_json& stated) {
    const ordered_json& scaling = stated["scaling"];
    std::string text = std::format("base {:.10g}, scaling {}", stated["base"].get<double>(),
                                   scaling["kind"].get<std::string>());
    if (scaling["kind"] == "none") return text;
    text += std::format(" by {:.10g}", scaling["factor"].get<double>());
    for (const auto& [name, value] : scaling.items()) {
      if (name == "kind" || name == "factor" || value == 0 || value == true || value.is_array()) {
        continue;
      }
      text += std::format(
          ", {} {}", name,
          value.is_number() ? std::format("{:.6g}", value.get<double>()) : to_text(value));
    }
    return text;
  };
  const auto planes = [](const ordered_json& stated) {
    const ordered_json& lengths = stated["wavelengths"];
    const auto one = [](const ordered_json& length) {
      return length.is_number() && std::isfinite(length.get<double>())
                 ? std::format("{:.4g}", length.get<double>())
                 : std::string("none (it stands still)");
    };
    return std::format("wavelengths {} to {}, {} of {} planes turn fully in the trained context",
                       one(lengths.front()), one(lengths.back()),
                       stated["turn_within_trained_context"].get<size_t>(), lengths.size());
  };
  constexpr const char* kIndent = "\n              ";
  const ordered_json& original = position["original"];
  std::string text = std::format(
      "rotary, {} pairing, width {}, {}{}{}", position["pairing"].get<std::string>(),
      position["width"].get<size_t>(), scheme(position), kIndent, planes(position["planes"]));
  if (scheme(original) != scheme(position)) {
    text += std::format("{}the checkpoint's own: {}", kIndent, scheme(original));
  }
  if (original["planes"] != position["planes"]) {
    text += std::format("{}unscaled: {}", kIndent, planes(original["planes"]));
  }
  text += std::format("{}dials {} + {} rows for {} positions, {}, error at most {:.2g}", kIndent,
                      position["coarse_rows"].get<size_t>(), position["fine_rows"].get<size_t>(),
                      format_count(position["positions"].get<uint64_t>()),
                      format_bytes(position["bytes"].get<uint64_t>()),
                      position["max_error"].get<double>());
  if (position.contains("long")) {
    const ordered_json& beyond = position["long"];
    text += std::format("{}sequences over {}: {}, error at most {:.2g}", kIndent,
                        format_count(beyond["beyond"].get<uint64_t>()), planes(beyond["planes"]),
                        beyond["max_error"].get<double>());
  }
  return text;
}

std::string block_line(const ordered_json& block) {
  std::string line =
      std::format("{} query heads, {} key/value heads of {}", block["query_heads"].get<size_t>(),
                  block["kv_heads"].get<size_t>(), block["head_dim"].get<size_t>());
  if (block["attention_bias"].get<bool>()) line += ", biases";
  if (block["query_key_norms"].get<bool>()) line += ", query and key norms";
  if (const auto window = block["window"].get<size_t>(); window > 0)
    line += std::format(", window {}", window);
  line += std::format(", feed-forward {} {}", block["feed_forward_width"].get<size_t>(),
                      block["activation"].get<std::string>());
  line +=
      block["position"].is_null() ? "" : std::format(", position {}", block["position"].get<int>());
  return line + ", weights " + block["weights"].get<std::string>();
}

void line(const char* what, const std::string& text) { print("{:<12}  {}\n", what, text); }

void print_linears(const ordered_json& linears) {
  const auto text = [](const ordered_json& form) {
    const auto least = form["least_side_columns"].get<size_t>(),
               most = form["most_side_columns"].get<size_t>();
    std::string line = std::format("{}, {:.2f} bits a weight", form["linears"].get<size_t>(),
                                   form["bits"].get<double>());
    if (most > 0) {
      line += least == most ? std::format(", {} side columns", most)
                            : std::format(", {} to {} side columns", least, most);
    }
    return line;
  };
  line("linears", text(linears));
  if (linears["forms"].size() == 1 && linears["forms"].begin().key().size() == 2) return;
  for (const auto& [name, form] : linears["forms"].items()) {
    print("  {:<26} {}\n", name, text(form));
  }
}

// A task, and what a text for it may be and comes to.
void print_task(const ordered_json& task) {
  constexpr size_t kMostLabels = 20;
  std::string text = std::format("{}, pooling {}, {} outputs", task["kind"].get<std::string>(),
                                 task["pooling"].get<std::string>(), task["outputs"].get<size_t>());
  if (task["normalize"].get<bool>()) text += ", scaled to length 1";
  if (const auto most = task["max_tokens"].get<uint64_t>(); most > 0) {
    text += std::format(", texts of at most {} tokens", format_count(most));
  }
  if (task["multi_label"].get<bool>()) text += ", labels that do not exclude each other";
  if (task["regression"].get<bool>()) text += ", values as they are";
  line("task", text);
  for (const auto& [name, prompt] : task["prompts"].items()) {
    line("  prompt",
         std::format("{}{}: {}", printable(name),
                     task["default_prompt"] == name ? " (the default)" : "", to_text(prompt)));
  }
  std::string labels;
  for (size_t i = 0; i < std::min(task["labels"].size(), kMostLabels); ++i) {
    labels += (i == 0 ? "" : ", ") + printable(task["labels"][i].get<std::string>());
  }
  if (labels.empty()) return;
  if (task["labels"].size() > kMostLabels) {
    labels += std::format(" and {} more", task["labels"].size() - kMostLabels);
  }
  line("  labels", labels);
}

void print_table(const ordered_json& json) {
  const auto said = [](const ordered_json& text) {
    const auto value = text.get<std::string>();
    return value.empty() ? std::string("-") : printable(value);
  };
  line("name", said(json["name"]));
  line("family", said(json["family"]));
  line("origin", said(json["origin"]));
  line("licence", said(json["licence"]));
  line("context",
       std::format("{} tokens, trained for {}", format_count(json["context"].get<uint64_t>()),
                   format_count(json["trained_context"].get<uint64_t>())));
  line("vocabulary",
       std::format("{}, width {}{}", format_count(json["vocabulary"].get<uint64_t>()),
                   json["width"].get<size_t>(),
                   json["tied_head"].get<bool>() ? ", head shared with the embedding" : ""));
  for (size_t i = 0; i < json["positions"].size(); ++i) {
    line(std::format("position {}", i).c_str(), position_line(json["positions"][i]));
  }
  const auto print_blocks = [&](const char* what, const ordered_json& blocks) {
    for (size_t first = 0; first < blocks.size();) {  // equal neighbours on one line
      size_t last = first;
      while (last + 1 < blocks.size() && blocks[last + 1] == blocks[first]) ++last;
      line((first == last ? std::format("{} {}", what, first)
                          : std::format("{}s {}-{}", what, first, last))
               .c_str(),
           block_line(blocks[first]));
      first = last + 1;
    }
  };
  if (json.contains("encoder_blocks")) print_blocks("encoder", json["encoder_blocks"]);
  print_blocks("block", json["blocks"]);
  print_linears(json["linears"]);
  for (const ordered_json& task : json.value("tasks", ordered_json::array())) {
    print_task(task);
  }
  if (const ordered_json& tokenizer = json["tokenizer"]; tokenizer.is_null()) {
    line("tokenizer", "none");
  } else {
    line("tokenizer",
         std::format("{}, {} pieces, {} merges, {} added, {} chat templates",
                     tokenizer["model"].get<std::string>(),
                     format_count(tokenizer["vocabulary"].get<uint64_t>()),
                     format_count(tokenizer["merges"].get<uint64_t>()),
                     tokenizer["added"].get<size_t>(), tokenizer["chat_templates"].size()));
  }
  line("file", format_bytes(json["sizes"]["file"].get<uint64_t>()));
  for (const auto& [part, bytes] : json["sizes"]["by_part"].items()) {
    print("  {:<18} {:>9}\n", part, format_bytes(bytes.get<uint64_t>()));
  }
  for (const auto& [type, bytes] : json["sizes"]["by_type"].items()) {
    print("  {:<18} {:>9}\n", "weights in " + type, format_bytes(bytes.get<uint64_t>()));
  }
  if (json["weights_verified"].get<bool>()) print("every checksum is right\n");
}

Result<> inspect(const InspectOptions& options) {
  VOLVELLE_ASSIGN_OR_RETURN(const std::shared_ptr<const Model> model,
                            open_model(options.model, {}));
  if (options.verify) {
    Progress progress("verifying", model->file_bytes());
    for (const Tensor& tensor : model->tensors()) {
      if (interrupted()) return fail("interrupted");
      VOLVELLE_RETURN_IF_ERROR(model->verify_contents(tensor));
      progress.advance(tensor.bytes());
    }
  }
  ordered_json json = describe(*model, options.verify);
  std::vector<Plot> plots;
  if (!options.plot.empty()) {
    VOLVELLE_ASSIGN_OR_RETURN(plots, plot_positions(*model, options.plot));
    json["plots"] = ordered_json::array();
    for (const Plot& plot : plots) json["plots"].push_back(plot.path);
  }
  if (options.memory) {
    VOLVELLE_ASSIGN_OR_RETURN(json["memory"], describe_memory(*model, options.compute));
  }
  if (options.json) {
    print("{}\n", to_text(json, 2));
  } else {
    print_table(json);
    if (options.memory) print_memory(json["memory"]);
    for (const Plot& plot : plots) print("{}: shows {}\n", printable(plot.path), plot.what);
    if (!options.plot.empty() && plots.empty()) {
      print("no position of this model can be drawn\n");
    }
  }
  return {};
}

}  // namespace

void add_inspect_command(Program& program) {
  const auto options = std::make_shared<InspectOptions>();
  CLI::App& command = program.add_command(
      {"inspect", "Says what is in a file",
       "Examples:\n"
       "  volvelle inspect model.vvl\n"
       "  volvelle inspect model.vvl --verify\n"
       "  volvelle inspect model.vvl --memory --context 4096\n"
       "  volvelle inspect model.vvl --json\n"
       "  volvelle inspect model.vvl --plot pictures\n\n"
       "The error of a rotary position is the largest difference between what its dials give and "
       "cosines and sines in\n"
       "long double, at both sides of the seams between coarse rows and at the ends."},
      [options] { return inspect(*options); });
  add_model_option(command, options->model);
  command.add_flag("--json", options->json, "Write one JSON object");
  command.add_option("--plot", options->plot, "Draw the positions into this folder, as SVG")
      ->check([](const std::string& folder) {
        return folder.empty() || folder == "-" ? "plots need a folder's name" : "";
      })
      ->type_name("DIR");
  command.add_flag("--verify", options->verify, "Read all weights and check their checksums");
  command.add_flag("--memory", options->memory,
                   "Say what a session of --context tokens will hold, without loading it");
  add_compute_options(command, options->compute);
}

}  // namespace volvelle
