#include "converter/convert.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <format>
#include <fstream>
#include <span>
#include <type_traits>
#include <utility>

#include "converter/forms.h"
#include "converter/group_order.h"
#include "converter/positions/rotary.h"
#include "converter/positions/scaling_spec.h"
#include "converter/recipe.h"
#include "converter/sentence_modules.h"
#include "converter/source.h"
#include "converter/table.h"
#include "converter/weights.h"
#include "converter/writer.h"
#include "kernels/hadamard.h"
#include "platforms/clock.h"
#include "platforms/interrupt.h"
#include "platforms/thread_pool.h"
#include "runtime/distance_buckets.h"
#include "runtime/file_format.h"
#include "runtime/model.h"
#include "runtime/sinusoids.h"
#include "runtime/tokenizer/stored.h"

namespace volvelle {
namespace {

const char* part_of(const recipe::Tensor& tensor) {
  switch (tensor.use) {
    case recipe::Use::kVector:
      return "norms and biases";
    case recipe::Use::kTable:
      return "positions";
    case recipe::Use::kLinear:
      return "linears";
    case recipe::Use::kEmbedding:
      return "embedding";
    case recipe::Use::kHead:
      return "head";
  }
  return "";
}

std::string position_text(const RotaryPlan& plan) { return rotary_text(plan); }

std::string position_text(const recipe::SlopesPlan& plan) {
  return std::format("linear bias (ALiBi) of {} heads{}", plan.slopes.size(),
                     plan.symmetric ? ", to both sides" : "");
}

std::string position_text(const recipe::AdditiveTable&) { return "learned table at the embedding"; }

std::string position_text(const SinusoidPlan&) { return "sinusoids at the embedding"; }

std::string position_text(const recipe::BucketedBias& plan, uint64_t rows) {
  const auto buckets = static_cast<uint32_t>(rows);
  const uint32_t reach = bucket_reach({buckets, plan.max_distance, plan.bidirectional});
  return std::format("bias by distance (T5), alike from {} on", reach);
}

std::string position_text(const recipe::ClippedRelative& plan) {
  if (plan.heads > 1) {
    return std::format("relative rows of each head (disentangled), alike from {} on",
                       plan.clip_distance);
  }
  return plan.unclipped
             ? std::format("relative rows (Shaw) of distances up to {}", plan.clip_distance)
             : std::format("relative rows (Shaw), clipped at {}", plan.clip_distance);
}

std::string position_text(const recipe::Model& model, int position) {
  const auto text = [&]<typename Plan>(const Plan& plan) {
    if constexpr (std::is_same_v<Plan, recipe::BucketedBias>) {
      return position_text(plan, model.tensors[plan.table].rows);
    } else {
      return position_text(plan);
    }
  };
  return std::visit(text, model.positions[position]);
}

std::vector<ConvertReport::Layers> describe_layers(const recipe::Model& model) {
  std::vector<ConvertReport::Layers> groups;
  for (uint64_t layer = 0; layer < model.blocks.size(); ++layer) {
    const recipe::Attention& attention = model.blocks[layer].attention;
    ConvertReport::Layers one{layer, layer, "none",
                              attention.bidirectional ? "both sides" : "causal"};
    if (attention.position >= 0) {
      one.position = position_text(model, attention.position);
    } else if (model.position >= 0) {
      one.position = position_text(model, model.position);
    }
    if (attention.window != 0) {
      one.mask +=
          std::format(", {} {}", attention.chunked ? "stretches of" : "window", attention.window);
    }
    if (!groups.empty() && groups.back().position == one.position &&
        groups.back().mask == one.mask) {
      groups.back().last = layer;
    } else {
      groups.push_back(std::move(one));
    }
  }
  return groups;
}

void add_part(ConvertReport& report, const std::string& name, const std::string& type,
              uint64_t bytes, uint64_t tensors = 0) {
  for (ConvertReport::Part& part : report.parts) {
    if (part.name == name && part.type == type) {
      part.bytes += bytes;
      part.tensors += tensors;
      return;
    }
  }
  report.parts.push_back({name, type, bytes, tensors});
}

Result<std::vector<StoredDials>> write_dials(const recipe::Model& model, uint64_t context,
                                             ModelWriter& writer, ConvertReport& report) {
  std::vector<StoredDials> dials;
  for (const recipe::PositionPlan& position : model.positions) {
    const auto* plan = std::get_if<RotaryPlan>(&position);
    if (plan == nullptr) continue;
    StoredDials stored{.tables = bake(*plan, context)};
    VOLVELLE_ASSIGN_OR_RETURN(stored.coarse,
                              writer.write_segment(std::as_bytes(std::span(stored.tables.coarse))));
    VOLVELLE_ASSIGN_OR_RETURN(stored.fine,
                              writer.write_segment(std::as_bytes(std::span(stored.tables.fine))));
    uint64_t bytes = stored.coarse.bytes() + stored.fine.bytes();
    if (stored.tables.switch_length != 0) {
      VOLVELLE_ASSIGN_OR_RETURN(
          stored.long_coarse,
          writer.write_segment(std::as_bytes(std::span(stored.tables.long_coarse))));
      VOLVELLE_ASSIGN_OR_RETURN(
          stored.long_fine,
          writer.write_segment(std::as_bytes(std::span(stored.tables.long_fine))));
      bytes += stored.long_coarse.bytes() + stored.long_fine.bytes();
    }
    add_part(report, "positions", "f32", bytes);
    dials.push_back(std::move(stored));
  }
  return dials;
}

// Bakes sinusoids in slices and puts the table among the model's tensors.
Result<void> write_sinusoids(uint64_t context, recipe::Model& model,
                             std::vector<StoredTensor>& tensors, ModelWriter& writer,
                             ConvertReport& report) {
  constexpr uint64_t kSliceRows = 1024;
  for (recipe::PositionPlan& position : model.positions) {
    const auto* plan = std::get_if<SinusoidPlan>(&position);
    if (plan == nullptr) continue;
    const uint64_t rows = plan->row_offset + context;
    const uint64_t bytes = rows * plan->width * sizeof(float);
    VOLVELLE_RETURN_IF_ERROR(writer.expect(bytes));
    VOLVELLE_RETURN_IF_ERROR(writer.begin_segment(bytes));
    for (uint64_t first = 0; first < rows; first += kSliceRows) {
      if (interrupted()) return fail("interrupted");
      const std::vector<float> slice =
          bake_sinusoids(*plan, first, std::min(kSliceRows, rows - first));
      VOLVELLE_RETURN_IF_ERROR(writer.append(std::as_bytes(std::span(slice))));
    }
    StoredTensor stored;
    VOLVELLE_ASSIGN_OR_RETURN(stored.data, writer.end_segment());
    add_part(report, "positions", "f32", bytes);
    const recipe::AdditiveTable table{static_cast<int>(model.tensors.size()), plan->row_offset,
                                      /*learned=*/false, plan->padding};
    model.tensors.push_back({"sinusoids", recipe::Use::kTable, rows, plan->width, {}});
    tensors.push_back(stored);
    position = table;
  }
  return {};
}

// What became of a tensor, for people.
std::string form_text(const Storage& storage, bool kept) {
  std::string text = file::EnumNameTensorType(storage.type);
  if (kept) text += ", grid kept";
  if (storage.compensation != nullptr) text += ", compensated";
  return text;
}

void add_linear(const recipe::Tensor& tensor, const StoredTensor& stored, const std::string& form,
                ConvertReport& report) {
  const double count = static_cast<double>(tensor.rows) * static_cast<double>(tensor.columns);
  const Storage& storage = stored.storage;
  report.linears.push_back({tensor.name, form, storage.rotation, storage.side_columns.size(),
                            8 * static_cast<double>(stored.bytes()) / count});
}

Result<std::vector<StoredTensor>> write_weights(const recipe::Model& model,
                                                const TensorSource& source,
                                                const ConvertOptions& options,
                                                Calibration* calibration, const ThreadPool& threads,
                                                ModelWriter& writer, ConvertReport& report) {
  VOLVELLE_ASSIGN_OR_RETURN(const std::vector<Plan> plans,
                            make_plans(model, options, source, calibration, threads));
  uint64_t total = 0, done = 0, bytes = 0;
  for (size_t i = 0; i < model.tensors.size(); ++i) {
    const recipe::Tensor& tensor = model.tensors[i];
    total += tensor.rows * tensor.columns;
    bytes += data_bytes(plans[i].type, tensor.rows, tensor.columns) +
             scale_bytes(plans[i].type, tensor.rows, tensor.columns);
  }
  report.parameters = total;
  VOLVELLE_RETURN_IF_ERROR(writer.expect(bytes));

  std::vector<StoredTensor> stored;
  double linear_bits = 0, linear_weights = 0;
  for (size_t i = 0; i < model.tensors.size(); ++i) {
    const recipe::Tensor& tensor = model.tensors[i];
    VOLVELLE_ASSIGN_OR_RETURN(const InputStatistics* const statistics,
                              statistics_of(model, i, plans, calibration, options.progress));
    VOLVELLE_ASSIGN_OR_RETURN(const Storage storage,
                              choose_form(model, i, plans[i], source, statistics, threads));
    const auto progress = [&](uint64_t elements) {
      options.progress("converting", done += elements, total);
    };
    VOLVELLE_ASSIGN_OR_RETURN(StoredTensor one,
                              write_tensor(tensor, storage, source, threads, writer, progress));
    const std::string form = form_text(storage, plans[i].kept);
    add_part(report, part_of(tensor), form, one.bytes(), 1);
    if (is_linear(tensor)) {
      add_linear(tensor, one, form, report);
      linear_bits += 8 * static_cast<double>(one.bytes());
      linear_weights += static_cast<double>(tensor.rows) * static_cast<double>(tensor.columns);
    }
    one.storage.compensation = nullptr;  // which is large
    stored.push_back(std::move(one));
  }
  if (linear_weights > 0) report.linear_bits = linear_bits / linear_weights;
  if (options.bits && report.linear_bits < 0.95 * *options.bits) {
    report.notices.push_back(
        std::format("--weights auto:{}: beyond {:.2f} bits a weight none is gained", *options.bits,
                    report.linear_bits));
  }
  return stored;
}

Result<flatbuffers::Offset<file::Tokenizer>> write_tokenizer(
    const std::optional<TokenizerSpec>& tokenizer, flatbuffers::FlatBufferBuilder& builder,
    ModelWriter& writer, ConvertReport& report) {
  if (!tokenizer) {
    report.notices.push_back("the model file has no tokenizer; give it token ids (--tokens)");
    return flatbuffers::Offset<file::Tokenizer>();
  }
  report.tokenizer = true;
  return store_tokenizer(*tokenizer, builder,
                         [&](std::span<const std::byte> bytes) -> Result<file::Segment> {
                           add_part(report, "tokenizer", "", bytes.size());
                           return writer.write_segment(bytes);
                         });
}

// The model in eight bits, which reads the text that calibrates; null, with a notice, where it
// cannot.
Result<std::unique_ptr<Calibration>> calibrate(const ConvertOptions& options, bool tokenizer,
                                               ThreadPool& threads, ConvertReport& report) {
  const auto refuse = [&](const std::string& reason) {
    report.notices.push_back("rounded without a text to calibrate on: " + reason);
    return nullptr;
  };
  if (!tokenizer) return refuse("there is no tokenizer to read one with");
  ConvertOptions plain = options;
  plain.weights = WeightType::kQ8;
  plain.calibration = "";
  plain.bits = {};
  plain.keep = {};
  plain.progress = [&](std::string_view, uint64_t done, uint64_t total) {
    options.progress("preparing to calibrate", done, total);
  };
  VOLVELLE_ASSIGN_OR_RETURN(std::shared_ptr<const Model> model,
                            convert_and_map(std::move(plain), threads));
  auto calibration = Calibration::open(std::move(model), threads, options.calibration);
  if (!calibration) return refuse(calibration.error().message);
  if ((*calibration)->cut()) {
    report.notices.push_back(
        std::format("of the text to calibrate on, {} tokens are read", (*calibration)->tokens()));
  }
  return calibration;
}

// How far the scaling reaches; nothing where there is none to apply.
Result<std::optional<uint64_t>> apply_scaling(const std::optional<ScalingSpec>& spec,
                                              recipe::Model& model, ConvertReport& report) {
  std::optional<uint64_t> reach;
  if (!spec || spec->original) return reach;
  std::vector<bool> rotary;
  std::vector<LayerSight> layers;
  for (const recipe::PositionPlan& position : model.positions) {
    rotary.push_back(std::holds_alternative<RotaryPlan>(position));
  }
  for (const recipe::Block& block : model.blocks) {
    layers.push_back({block.attention.position, block.attention.window});
  }
  const std::vector<bool> local = local_schemes(rotary, layers);
  for (size_t i = 0; i < model.positions.size(); ++i) {
    auto* const plan = std::get_if<RotaryPlan>(&model.positions[i]);
    if (plan == nullptr) continue;
    if (local[i]) {
      report.notices.push_back(local_scheme_text(*plan));
      continue;
    }
    if (plan->scaling.kind != RotaryScalingKind::kNone) {
      report.notices.push_back(std::format("the checkpoint's own {} of positions is left out",
                                           scaling_text(plan->scaling)));
    }
    *plan = rescale(*plan, *spec, model.trained_context);
    const uint64_t scaled = scaled_context(*plan, model.trained_context);
    reach = std::min(reach.value_or(scaled), scaled);
  }
  if (!reach) {
    return fail("--rope-scaling: the model has no rotary positions, which are all that it scales");
  }
  return reach;
}

Result<uint64_t> choose_context(const ConvertOptions& options, const recipe::Model& model,
                                const std::optional<uint64_t>& reach, ConvertReport& report) {
  const uint64_t trained = model.trained_context;
  const uint64_t context = options.context.value_or(std::max(reach.value_or(trained), trained));
  if (context == 0 || context > kMaxContext) {
    return fail("--context {}: must be from 1 to {}", context, kMaxContext);
  }
  const auto reaches_on = [](const recipe::PositionPlan& position) {
    const auto* rotary = std::get_if<RotaryPlan>(&position);
    return rotary == nullptr || rotary->scaling.kind != RotaryScalingKind::kNone;
  };
  const auto learned = [](const recipe::PositionPlan& position) {
    const auto* relative = std::get_if<recipe::ClippedRelative>(&position);
    return std::holds_alternative<recipe::AdditiveTable>(position) ||
           (relative != nullptr && relative->unclipped);
  };
  if (context > trained && std::ranges::any_of(model.positions, learned)) {
    return fail(
        "--context {}: the model's {} positions are rows of a table that was learned, which cannot "
        "be extended",
        context, trained);
  }
  if (reach && context > *reach) {
    report.notices.push_back(beyond_scaling_text(context, *reach, trained));
  } else if (reach && !options.context && context != trained) {
    report.notices.push_back(chosen_context_text(context, *reach));
  } else if (!reach && context > trained && !std::ranges::all_of(model.positions, reaches_on)) {
    report.notices.push_back(
        std::format("the model was trained for {} positions; the tables reach {}, beyond which "
                    "nothing scales them",
                    trained, context));
  }
  return context;
}

// A source may ask for what the runtime refuses: a regular expression that does not compile, an end
// token outside the vocabulary. Better to hear of it now than on the device.
Result<void> try_loading(std::span<const std::byte> file, const std::string& path) {
  if (const auto model = Model::from_bytes(file, path); !model) {
    return fail("{}; so the finished model was discarded", model.error().message);
  }
  return {};
}

bool is_model_file(const std::string& path) {
  std::array<char, kFileMagic.size()> start = {};
  std::ifstream file(path, std::ios::binary);
  return file.read(start.data(), start.size()) && start == kFileMagic;
}

// Not even --force replaces what is read: the source, or a file of its folder that is no model
// file of an earlier conversion.
Result<void> spare_source(const std::string& output, const std::string& source) {
  namespace fs = std::filesystem;
  std::error_code unknown;
  if (!fs::exists(output, unknown) || is_model_file(output)) return {};
  const fs::path path(source);
  const bool folder = fs::is_directory(path, unknown);
  bool own = !folder && fs::equivalent(output, path, unknown);
  if (folder || path.extension() == ".safetensors") {
    const fs::path root = fs::weakly_canonical(folder ? path : path.parent_path(), unknown);
    const fs::path inside = fs::weakly_canonical(output, unknown).lexically_relative(root);
    own |= !inside.empty() && *inside.begin() != "..";
  }
  if (!own) return {};
  return fail(
      "{}: is a file of the source {}, which a conversion does not replace; choose another "
      "name",
      output, source);
}

}  // namespace

Result<ConvertReport> convert(const ConvertOptions& options, ThreadPool& threads) {
  const double start = monotonic_seconds();
  ConvertReport report;
  std::error_code unknown;
  if (!options.force && std::filesystem::exists(options.output, unknown)) {
    return fail("{}: exists already; choose another name, or replace it with --force",
                options.output);
  }
  VOLVELLE_ASSIGN_OR_RETURN(OpenedSource opened,
                            open_source(options.source, options.ignored_keys, options.tokenizer));
  VOLVELLE_RETURN_IF_ERROR(spare_source(options.output, opened.path));
  VOLVELLE_ASSIGN_OR_RETURN(recipe::Model model, describe(*opened.family, opened.checkpoint));
  VOLVELLE_RETURN_IF_ERROR(read_sentence_modules(opened.path, model));
  if (options.will_read && !opened.tokenizer) {
    return fail("{}: there is no tokenizer to read the text of --report with; leave --report out",
                options.source);
  }
  if (options.will_read && model.encoder) {
    return fail("{}: --report knows no decoders behind an encoder; leave it out", options.source);
  }
  gather_groups(opened.checkpoint.source(), model);
  VOLVELLE_ASSIGN_OR_RETURN(const std::optional<uint64_t> reach,
                            apply_scaling(options.scaling, model, report));
  VOLVELLE_ASSIGN_OR_RETURN(const uint64_t context, choose_context(options, model, reach, report));

  report.name = opened.name;
  report.origin = opened.origin;
  report.family = opened.family->name;
  report.licence = opened.licence;
  report.width = model.width;
  report.vocabulary = model.vocabulary;
  report.layer_count = model.blocks.size();
  report.context = context;
  report.trained_context = model.trained_context;
  report.head = !model.encodes;
  report.tied = model.head.weight == model.embedding;
  report.layers = describe_layers(model);

  std::unique_ptr<Calibration> calibration;
  if (options.rounds_to_q4() && !options.calibration.empty()) {
    VOLVELLE_ASSIGN_OR_RETURN(calibration,
                              calibrate(options, opened.tokenizer.has_value(), threads, report));
  }
  VOLVELLE_ASSIGN_OR_RETURN(ModelWriter writer, ModelWriter::create(options.output, options.force));
  VOLVELLE_ASSIGN_OR_RETURN(std::vector<StoredTensor> tensors,
                            write_weights(model, opened.checkpoint.source(), options,
                                          calibration.get(), threads, writer, report));
  if (!report.tied && report.head && options.weights == WeightType::kQ4 &&
      tensors[static_cast<size_t>(model.head.weight)].storage.type == file::TensorType::q8) {
    report.notices.push_back("the head is no copy of the embedding; it is stored as q8");
  }
  VOLVELLE_RETURN_IF_ERROR(write_sinusoids(context, model, tensors, writer, report));
  VOLVELLE_ASSIGN_OR_RETURN(const std::vector<StoredDials> dials,
                            write_dials(model, context, writer, report));

  flatbuffers::FlatBufferBuilder builder;
  VOLVELLE_ASSIGN_OR_RETURN(const flatbuffers::Offset<file::Tokenizer> tokenizer,
                            write_tokenizer(opened.tokenizer, builder, writer, report));
  const About about{report.name, report.origin, report.family, report.licence};
  build_table(about, model, tensors, dials, context, opened.generation, tokenizer, builder);
  const std::span<const std::byte> table =
      std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize()));
  add_part(report, "table", "", table.size());
  VOLVELLE_RETURN_IF_ERROR(writer.finish(
      table, [&](std::span<const std::byte> file) { return try_loading(file, options.output); }));
  report.file_bytes = writer.position();
  report.seconds = monotonic_seconds() - start;
  return report;
}

bool ConvertOptions::rounds_to_q4() const {
  return weights == WeightType::kQ4 ||
         std::ranges::contains(keep, WeightType::kQ4, [](const auto& kept) { return kept.second; });
}

Result<std::shared_ptr<const Model>> convert_and_map(ConvertOptions options, ThreadPool& threads) {
  options.output = std::format("{}.partial-model-{}", options.output, getpid());
  VOLVELLE_RETURN_IF_ERROR(convert(options, threads));
  auto model = Model::load(options.output);
  std::error_code ignored;
  std::filesystem::remove(options.output, ignored);
  return model;
}

}  // namespace volvelle
