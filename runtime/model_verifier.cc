#include "runtime/model_verifier.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#include "kernels/attention.h"
#include "runtime/distance_buckets.h"
#include "runtime/file_format.h"
#include "runtime/finite.h"
#include "runtime/rotary_tables.h"
#include "runtime/tokenizer/stored.h"
#include "runtime/tokenizer/utf8.h"

namespace volvelle {
namespace {

// Bounds that no real model comes near; with them, every product below fits in 64 bits.
constexpr uint64_t kMaxDimension = 1ull << 31;
constexpr uint64_t kMaxWidth = 1 << 20;
constexpr uint64_t kMaxHeads = 1 << 14;
constexpr uint64_t kMaxKernel = 63;
constexpr size_t kMaxBlocks = 1 << 12;
constexpr size_t kMaxBeams = 64;
constexpr uint64_t kMaxBiasFloats = 1 << 24;  // of all biases that buckets are expanded to
constexpr size_t kMaxTensors = 1 << 16;
constexpr size_t kMaxTasks = 16;
constexpr size_t kMaxTaskLayers = 16;
constexpr size_t kMaxPoolings = 16;
constexpr size_t kMaxPrompts = 1 << 8;
constexpr size_t kMaxPromptBytes = 1 << 18;  // of all prompts of a task
constexpr size_t kMaxBadWords = 1 << 12;
constexpr size_t kMaxTextBytes = 1 << 10;

bool is_finite_positive(float x) { return std::isfinite(x) && x > 0; }

// Text of the file that messages will show: cut, for tables may share one long text, and with '?'
// for control characters, which could steer a terminal.
std::string text(const flatbuffers::String* string) {
  std::string text(string ? string->string_view().substr(0, kMaxTextBytes) : std::string_view());
  std::ranges::replace_if(text, [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return text;
}

}  // namespace

Result<void> ModelVerifier::verify(Model& model) {
  ModelVerifier verifier(model);
  VOLVELLE_ASSIGN_OR_RETURN(const FileTable opened, open_table(model.bytes_, model.path_));
  const file::Model* table = opened.model;
  model.table_bytes_ = opened.slot.table_bytes;
  model.file_generation_ = opened.slot.generation;
  model.damage_ = opened.damage;
  model.name_ = text(table->name());
  model.origin_ = text(table->origin());
  model.family_ = text(table->family());
  model.licence_ = text(table->licence());
  model.vocabulary_ = table->vocabulary();

  if (table->tensors()->size() > kMaxTensors) {
    return verifier.refuse("tensors: {} are more than the {} possible", table->tensors()->size(),
                           kMaxTensors);
  }
  model.tensors_.reserve(table->tensors()->size());
  for (size_t i = 0; i < table->tensors()->size(); ++i) {
    VOLVELLE_RETURN_IF_ERROR(verifier.add_tensor(table->tensors()->Get(i), i));
  }
  if (table->positions() != nullptr) {
    model.positions_.reserve(table->positions()->size());
    for (size_t i = 0; i < table->positions()->size(); ++i) {
      VOLVELLE_RETURN_IF_ERROR(verifier.add_position(table->positions()->Get(i), i));
    }
  }
  VOLVELLE_RETURN_IF_ERROR(verifier.add_stacks(*table->stacks()));
  VOLVELLE_RETURN_IF_ERROR(verifier.add_generation(table->generation()));
  if (table->tokenizer() != nullptr) return verifier.add_tokenizer(*table->tokenizer());
  return {};
}

Result<SegmentView> ModelVerifier::locate(const file::Segment* segment,
                                          const std::string& where) const {
  if (segment == nullptr) return refuse("{}: the segment is missing", where);
  const uint64_t size = model_.bytes_.size(), bytes = segment->bytes();
  if (segment->offset() % kSegmentAlignment != 0) {
    return refuse("{}: the segment's offset {} is not a multiple of {}", where, segment->offset(),
                  kSegmentAlignment);
  }
  if (size < kSegmentTail || bytes > size - kSegmentTail ||
      segment->offset() > size - kSegmentTail - bytes) {
    return refuse("{}: the segment [{}, +{}) lies outside the file's {} bytes", where,
                  segment->offset(), bytes, size);
  }
  return SegmentView{model_.bytes_.subspan(segment->offset(), bytes), segment->checksum(),
                     segment->offset()};
}

// Segments that many tables share would be read or packed once for each: a small file could take
// hours and all memory.
Result<void> ModelVerifier::spend(uint64_t bytes, const std::string& where) {
  if (bytes > unspent_bytes_) {
    return refuse("{}: the model's parts together use more bytes than the file has", where);
  }
  unspent_bytes_ -= bytes;
  return {};
}

Result<SegmentView> ModelVerifier::locate_checked(const file::Segment* segment,
                                                  const std::string& where) {
  VOLVELLE_ASSIGN_OR_RETURN(SegmentView view, locate(segment, where));
  VOLVELLE_RETURN_IF_ERROR(spend(view.bytes.size(), where));
  if (view.bytes.empty()) return view;
  model_.read_ahead(view);
  if (checksum(view.bytes) != view.checksum) {
    return refuse("{}: the segment's checksum does not hold; copy or convert the file again",
                  where);
  }
  return view;
}

Result<void> ModelVerifier::expect_bytes(const SegmentView& view, uint64_t bytes,
                                         const std::string& where) const {
  if (view.bytes.size() == bytes) return {};
  return refuse("{}: the segment has {} bytes and needs {}", where, view.bytes.size(), bytes);
}

Result<void> ModelVerifier::add_tensor(const file::Tensor* stored, size_t index) {
  Tensor tensor;
  tensor.name = text(stored->name());
  tensor.rows = stored->rows();
  tensor.columns = stored->columns();
  const std::string where = std::format("tensor {} ({})", index, tensor.name);
  if (tensor.rows == 0 || tensor.columns == 0 || stored->rows() > kMaxDimension ||
      stored->columns() > kMaxDimension) {
    return refuse("{}: its shape {} x {} is out of range", where, stored->rows(),
                  stored->columns());
  }
  uint64_t data_bytes = 0, scale_bytes = 0;
  switch (stored->type()) {
    case file::TensorType::f32:
      tensor.type = TensorType::kF32;
      if (tensor.columns > UINT64_MAX / 4 / tensor.rows)
        return refuse("{}: it is too large", where);
      data_bytes = uint64_t{tensor.rows} * tensor.columns * sizeof(float);
      break;
    case file::TensorType::q8:
      tensor.type = TensorType::kQ8;
      data_bytes = uint64_t{tensor.rows} * tensor.columns;
      scale_bytes = tensor.rows * sizeof(float);
      break;
    case file::TensorType::q4:
      tensor.type = TensorType::kQ4;
      data_bytes = uint64_t{tensor.rows} * tensor.padded_columns() / 2;
      scale_bytes = uint64_t{tensor.rows} * (tensor.padded_columns() / kQ4Block) * sizeof(uint16_t);
      break;
    default:
      return refuse("{}: type {} is unknown to this version", where,
                    static_cast<int>(stored->type()));
  }
  if (const uint32_t rotation = stored->rotation(); rotation != 0) {
    if (tensor.type == TensorType::kF32 || !std::has_single_bit(rotation) ||
        tensor.columns % rotation != 0) {
      return refuse("{}: it cannot be rotated in blocks of {} of its {} columns", where, rotation,
                    tensor.columns);
    }
    tensor.rotation = rotation;
  }
  VOLVELLE_ASSIGN_OR_RETURN(tensor.data, locate(stored->data(), where + ", data"));
  VOLVELLE_RETURN_IF_ERROR(expect_bytes(tensor.data, data_bytes, where + ", data"));
  if (scale_bytes > 0) {
    VOLVELLE_ASSIGN_OR_RETURN(tensor.scales, locate(stored->scales(), where + ", scales"));
    VOLVELLE_RETURN_IF_ERROR(expect_bytes(tensor.scales, scale_bytes, where + ", scales"));
  }
  if (stored->minima() != nullptr && stored->minima()->bytes() > 0) {
    if (tensor.type != TensorType::kQ4) return refuse("{}: only q4 has minima", where);
    if (tensor.rotation > 1) return refuse("{}: what is rotated has no minima", where);
    VOLVELLE_ASSIGN_OR_RETURN(tensor.minima, locate(stored->minima(), where + ", minima"));
    VOLVELLE_RETURN_IF_ERROR(
        expect_bytes(tensor.minima, uint64_t{tensor.rows} * tensor.blocks(), where + ", minima"));
    VOLVELLE_ASSIGN_OR_RETURN(tensor.minimum_scales,
                              locate(stored->minimum_scales(), where + ", minimum scales"));
    VOLVELLE_RETURN_IF_ERROR(expect_bytes(tensor.minimum_scales, tensor.rows * sizeof(float),
                                          where + ", minimum scales"));
  }
  if (stored->side_columns() != nullptr && stored->side_columns()->size() > 0) {
    const std::span<const uint32_t> columns(stored->side_columns()->data(),
                                            stored->side_columns()->size());
    if (tensor.type == TensorType::kF32) return refuse("{}: f32 has no side columns", where);
    if (columns.size() > kMostSideColumns || columns.back() >= tensor.columns ||
        std::ranges::adjacent_find(columns, std::greater_equal()) != columns.end()) {
      return refuse("{}: its side columns must be at most {}, ascending and below {}", where,
                    kMostSideColumns, tensor.columns);
    }
    tensor.side_columns = columns;
    VOLVELLE_ASSIGN_OR_RETURN(tensor.side, locate(stored->side(), where + ", side"));
    VOLVELLE_RETURN_IF_ERROR(
        expect_bytes(tensor.side, uint64_t{tensor.rows} * columns.size(), where + ", side"));
    VOLVELLE_ASSIGN_OR_RETURN(tensor.side_scales,
                              locate(stored->side_scales(), where + ", side scales"));
    VOLVELLE_RETURN_IF_ERROR(
        expect_bytes(tensor.side_scales, tensor.rows * sizeof(float), where + ", side scales"));
  }
  model_.tensors_.push_back(std::move(tensor));
  return {};
}

Result<void> ModelVerifier::add_position(const file::Position* stored, size_t index) {
  const std::string where = std::format("position {}", index);
  Position position;
  switch (stored->scheme_type()) {
    case file::Scheme::NONE:
      break;
    case file::Scheme::AdditiveTable: {
      const file::AdditiveTable* scheme = stored->scheme_as_AdditiveTable();
      if (scheme == nullptr) return refuse("{}, additive table: the scheme is missing", where);
      VOLVELLE_ASSIGN_OR_RETURN(position.scheme,
                                additive_table(*scheme, where + ", additive table"));
      break;
    }
    case file::Scheme::Rotary: {
      const file::Rotary* scheme = stored->scheme_as_Rotary();
      if (scheme == nullptr) return refuse("{}, rotary: the scheme is missing", where);
      VOLVELLE_ASSIGN_OR_RETURN(position.scheme, rotary(*scheme, where + ", rotary"));
      break;
    }
    case file::Scheme::LinearBias: {
      const file::LinearBias* scheme = stored->scheme_as_LinearBias();
      if (scheme == nullptr) return refuse("{}, linear bias: the scheme is missing", where);
      VOLVELLE_ASSIGN_OR_RETURN(position.scheme, slopes(*scheme, where + ", linear bias"));
      break;
    }
    case file::Scheme::BucketedBias: {
      const file::BucketedBias* scheme = stored->scheme_as_BucketedBias();
      if (scheme == nullptr) return refuse("{}, bucketed bias: the scheme is missing", where);
      VOLVELLE_ASSIGN_OR_RETURN(position.scheme, bucketed_bias(*scheme, where + ", bucketed bias"));
      break;
    }
    case file::Scheme::ClippedRelative: {
      const file::ClippedRelative* scheme = stored->scheme_as_ClippedRelative();
      if (scheme == nullptr) return refuse("{}, clipped relative: the scheme is missing", where);
      VOLVELLE_ASSIGN_OR_RETURN(position.scheme,
                                clipped_relative(*scheme, where + ", clipped relative"));
      break;
    }
    default:
      return refuse("{}: scheme {} is unknown to this version", where,
                    static_cast<int>(stored->scheme_type()));
  }
  model_.positions_.push_back(std::move(position));
  return {};
}

Result<AdditiveTable> ModelVerifier::additive_table(const file::AdditiveTable& stored,
                                                    const std::string& where) {
  VOLVELLE_ASSIGN_OR_RETURN(const Tensor* table, tensor(stored.table(), where));
  if (table->type == TensorType::kQ4 || table->rows <= stored.row_offset()) {
    return refuse("{}: tensor {} cannot hold rows from {} on", where, table->name,
                  stored.row_offset());
  }
  VOLVELLE_RETURN_IF_ERROR(spend(table->bytes(), where));
  VOLVELLE_RETURN_IF_ERROR(model_.verify_contents(*table));
  if (stored.padding() >= 0 && stored.row_offset() == 0) {
    return refuse("{}: there is no row for padding before position 0's", where);
  }
  return AdditiveTable{table, stored.row_offset(), stored.learned(), stored.padding()};
}

Result<Slopes> ModelVerifier::slopes(const file::LinearBias& stored, const std::string& where) {
  if (stored.slopes() == nullptr) return refuse("{}: it has no slopes", where);
  const Slopes slopes{{stored.slopes()->data(), stored.slopes()->size()}, stored.symmetric()};
  if (!std::ranges::all_of(slopes.values, [](float slope) { return std::isfinite(slope); })) {
    return refuse("{}: a slope is not finite", where);
  }
  return slopes;
}

// A tensor of floats that attention reads as it is.
Result<const Tensor*> ModelVerifier::position_table(int index, const std::string& where) {
  VOLVELLE_ASSIGN_OR_RETURN(const Tensor* table, tensor(index, where));
  if (table->type != TensorType::kF32) {
    return refuse("{}: tensor {} must be f32", where, table->name);
  }
  VOLVELLE_RETURN_IF_ERROR(spend(table->bytes(), where));
  VOLVELLE_RETURN_IF_ERROR(model_.verify_contents(*table));
  return table;
}

Result<BucketedBias> ModelVerifier::bucketed_bias(const file::BucketedBias& stored,
                                                  const std::string& where) {
  BucketedBias bias{.max_distance = stored.max_distance(), .bidirectional = stored.bidirectional()};
  VOLVELLE_ASSIGN_OR_RETURN(bias.table, position_table(stored.table(), where));
  const size_t buckets = bias.table->rows, heads = bias.table->columns;
  if (heads > kMaxHeads) return refuse("{}: {} heads are out of range", where, heads);
  const BucketPlan plan{static_cast<uint32_t>(std::min<size_t>(buckets, kMaxBuckets + 1)),
                        stored.max_distance(), stored.bidirectional()};
  const uint32_t sides = plan.bidirectional ? 2 : 1;
  if (buckets > kMaxBuckets || buckets < 2 * sides || buckets % sides != 0 ||
      plan.max_distance <= buckets / sides / 2 || plan.max_distance > kMaxBucketDistance) {
    return refuse("{}: {} buckets for distances up to {} are out of range", where, buckets,
                  plan.max_distance);
  }
  bias.reach = bucket_reach(plan);
  const uint64_t floats = heads * (2 * uint64_t{bias.reach} + 1);
  if (floats > kMaxBiasFloats - bias_floats_) {
    return refuse("{}: {} heads with distances up to {} are out of range", where, heads,
                  bias.reach);
  }
  bias_floats_ += floats;
  bias.biases =
      expand_buckets(plan, {bias.table->f32(), buckets * heads}, static_cast<uint32_t>(heads));
  return bias;
}

Result<ClippedRelative> ModelVerifier::clipped_relative(const file::ClippedRelative& stored,
                                                        const std::string& where) {
  ClippedRelative relative{.clip_distance = stored.clip_distance(),
                           .unclipped = stored.unclipped(),
                           .heads = stored.heads()};
  if (relative.heads == 0 || relative.heads > kMaxHeads) {
    return refuse("{}: {} heads are out of range", where, relative.heads);
  }
  const uint64_t distances = 2 * uint64_t{stored.clip_distance()} + 1;
  relative.rows = distances;
  if (const auto* row_of = stored.row_of()) {
    if (row_of->size() != distances) {
      return refuse("{}: it has {} rows of distances and needs {}", where, row_of->size(),
                    distances);
    }
    relative.row_of = {row_of->data(), row_of->size()};
    relative.rows = size_t{std::ranges::max(relative.row_of)} + 1;
  }
  const uint64_t rows = relative.heads * relative.rows;
  for (const auto& [name, index, table] :
       {std::tuple{"key_table", stored.key_table(), &relative.key},
        std::tuple{"query_table", stored.query_table(), &relative.query},
        std::tuple{"value_table", stored.value_table(), &relative.value}}) {
    if (index < 0) continue;
    VOLVELLE_ASSIGN_OR_RETURN(*table, position_table(index, std::format("{}, {}", where, name)));
    if ((*table)->rows != rows) {
      return refuse("{}, {}: tensor {} has {} rows and needs {} for distances up to {}", where,
                    name, (*table)->name, (*table)->rows, rows, stored.clip_distance());
    }
  }
  return relative;
}

// The dial of two segments, of the rows and the width that `stored` says, which are within bounds.
Result<Dial> ModelVerifier::dial(const file::Segment* coarse, const file::Segment* fine,
                                 const file::Rotary& stored, const std::string& where) {
  const uint64_t row_bytes = uint64_t{stored.width()} * sizeof(float);
  VOLVELLE_ASSIGN_OR_RETURN(const SegmentView outer,
                            locate_checked(coarse, where + ", coarse dial"));
  VOLVELLE_ASSIGN_OR_RETURN(const SegmentView inner, locate_checked(fine, where + ", fine dial"));
  VOLVELLE_RETURN_IF_ERROR(
      expect_bytes(outer, stored.coarse_rows() * row_bytes, where + ", coarse dial"));
  VOLVELLE_RETURN_IF_ERROR(
      expect_bytes(inner, stored.fine_rows() * row_bytes, where + ", fine dial"));
  const Dial dial{reinterpret_cast<const float*>(outer.bytes.data()),
                  reinterpret_cast<const float*>(inner.bytes.data()), stored.coarse_rows(),
                  stored.fine_rows(), stored.width() / 2};
  if (!all_finite({dial.coarse, dial.coarse_rows * dial.width()}) ||
      !all_finite({dial.fine, dial.fine_rows * dial.width()})) {
    return refuse("{}: a dial holds what is no number", where);
  }
  return dial;
}

Result<Rotary> ModelVerifier::rotary(const file::Rotary& stored, const std::string& where) {
  Rotary rotary;
  switch (stored.pairing()) {
    case file::Pairing::half:
      rotary.pairing = Pairing::kHalf;
      break;
    case file::Pairing::interleaved:
      rotary.pairing = Pairing::kInterleaved;
      break;
    default:
      return refuse("{}: pairing {} is unknown", where, static_cast<int>(stored.pairing()));
  }
  const uint64_t width = stored.width(), coarse_rows = stored.coarse_rows(),
                 fine_rows = stored.fine_rows();
  if (width == 0 || width % 2 != 0 || width > kMaxHeadDim) {
    return refuse("{}: width {} is not an even number up to {}", where, width, kMaxHeadDim);
  }
  if (coarse_rows == 0 || fine_rows == 0 || coarse_rows * fine_rows > kMaxContext) {
    return refuse("{}: dials of {} by {} rows are out of range", where, coarse_rows, fine_rows);
  }
  VOLVELLE_ASSIGN_OR_RETURN(rotary.dial, dial(stored.coarse(), stored.fine(), stored, where));
  for (const auto& [name, values, view] :
       {std::tuple{"frequencies", stored.frequencies(), &rotary.frequencies},
        std::tuple{"original_frequencies", stored.original_frequencies(),
                   &rotary.original_frequencies}}) {
    if (values == nullptr || values->size() != width / 2) {
      return refuse("{}: {} must hold {} values", where, name, width / 2);
    }
    *view = {values->data(), values->size()};
  }
  if (stored.switch_length() > 0) {
    rotary.switch_length = stored.switch_length();
    VOLVELLE_ASSIGN_OR_RETURN(rotary.long_dial,
                              dial(stored.long_coarse(), stored.long_fine(), stored, where));
    if (stored.long_frequencies() == nullptr || stored.long_frequencies()->size() != width / 2) {
      return refuse("{}: long_frequencies must hold {} values", where, width / 2);
    }
  }
  rotary.record = &stored;
  rotary.base = stored.base();
  rotary.amplitude = stored.amplitude();
  if (const file::RotaryScaling* scaling = stored.scaling()) {
    if (scaling->kind() > file::RotaryScalingKind::MAX) {
      return refuse("{}: scaling {} is unknown", where, static_cast<int>(scaling->kind()));
    }
    if (scaling->kind() == file::RotaryScalingKind::dynamic_ntk) {
      rotary.dynamic_context = scaling->original_context();
      if (rotary.dynamic_context == 0 || !(scaling->factor() > 0 && scaling->factor() < 1e6) ||
          !(rotary.base > 0 && rotary.base < 1e30)) {
        return refuse("{}: dynamic NTK from {} positions by {} of base {} is out of range", where,
                      rotary.dynamic_context, scaling->factor(), rotary.base);
      }
    }
    rotary.scaling = {file::EnumNameRotaryScalingKind(scaling->kind()), scaling->factor(),
                      scaling->original_context(), scaling->low_frequency_factor(),
                      scaling->high_frequency_factor()};
  } else {
    rotary.scaling.kind = file::EnumNameRotaryScalingKind(file::RotaryScalingKind::none);
  }
  return rotary;
}

Result<const Tensor*> ModelVerifier::tensor(int index, const std::string& where) const {
  if (index < 0 || static_cast<size_t>(index) >= model_.tensors_.size()) {
    return refuse("{}: there is no tensor {}", where, index);
  }
  return &model_.tensors_[index];
}

Result<const float*> ModelVerifier::vector(int index, size_t width, const std::string& where) {
  VOLVELLE_ASSIGN_OR_RETURN(const Tensor* values, tensor(index, where));
  if (values->type != TensorType::kF32 || values->rows != 1 || values->columns != width) {
    return refuse("{}: tensor {} must be f32 of 1 x {}", where, values->name, width);
  }
  VOLVELLE_RETURN_IF_ERROR(spend(values->bytes(), where));
  VOLVELLE_RETURN_IF_ERROR(model_.verify_contents(*values));
  return values->f32();
}

Result<std::optional<Norm>> ModelVerifier::norm(const file::Norm* stored, size_t width,
                                                const std::string& where) {
  if (stored == nullptr) return std::optional<Norm>();
  Norm norm;
  switch (stored->kind()) {
    case file::NormKind::rms:
      norm.kind = NormKind::kRms;
      break;
    case file::NormKind::layer:
      norm.kind = NormKind::kLayer;
      break;
    default:
      return refuse("{}: norm {} is unknown to this version", where,
                    static_cast<int>(stored->kind()));
  }
  norm.epsilon = stored->epsilon();
  if (!is_finite_positive(norm.epsilon)) {
    return refuse("{}: epsilon {} is out of range", where, norm.epsilon);
  }
  if (stored->weight() >= 0) {
    VOLVELLE_ASSIGN_OR_RETURN(norm.weight, vector(stored->weight(), width, where + ", weight"));
  }
  if (stored->bias() >= 0) {
    if (norm.kind == NormKind::kRms) return refuse("{}: an RMS norm has no bias", where);
    VOLVELLE_ASSIGN_OR_RETURN(norm.bias, vector(stored->bias(), width, where + ", bias"));
  }
  return norm;
}

Result<Linear> ModelVerifier::linear(const file::Linear* stored, size_t outputs, size_t inputs,
                                     const std::string& where) {
  if (stored == nullptr) return refuse("{}: the linear is missing", where);
  VOLVELLE_ASSIGN_OR_RETURN(const Tensor* weight, tensor(stored->weight(), where + ", weight"));
  if (weight->rows != outputs || weight->columns != inputs) {
    return refuse("{}: tensor {} is {} x {} and must be {} x {}", where, weight->name, weight->rows,
                  weight->columns, outputs, inputs);
  }
  VOLVELLE_RETURN_IF_ERROR(spend(weight->bytes(), where));
  Linear linear{weight, nullptr};
  if (stored->bias() >= 0) {
    VOLVELLE_ASSIGN_OR_RETURN(linear.bias, vector(stored->bias(), outputs, where + ", bias"));
  }
  return linear;
}

// Queries' or keys' norm over `heads` heads.
Result<std::optional<Norm>> ModelVerifier::head_norm(const file::Norm* stored,
                                                     const Attention& attention, size_t heads,
                                                     const std::string& where) {
  const bool shared = attention.norm_scope == HeadNormScope::kHead;
  return norm(stored, (shared ? 1 : heads) * attention.head_dim, where);
}

// Joins the scheme that `stored` names to `attention`, and its reach to the stack's.
Result<void> ModelVerifier::join_position(const file::Attention& stored, Stack& stack,
                                          Attention& attention, const std::string& where) {
  if (stored.position() < 0) return {};
  if (static_cast<size_t>(stored.position()) >= model_.positions_.size()) {
    return refuse("{}: there is no position {}", where, stored.position());
  }
  const Position& position = model_.positions_[stored.position()];
  if (const auto* rotary = std::get_if<Rotary>(&position.scheme)) {
    if (rotary->dial.width() > attention.head_dim) {
      return refuse("{}.rotary: its width {} exceeds head_dim {}", where, rotary->dial.width(),
                    attention.head_dim);
    }
    if (rotary->dial.positions() < stack.context) {
      return refuse(
          "{}.rotary: its dials reach {} positions but the model advertises {}; convert again "
          "with --context {}",
          where, rotary->dial.positions(), stack.context, stack.context);
    }
    stack.position_limit = std::min(stack.position_limit, rotary->dial.positions());
    attention.rotary = rotary;
  } else if (const auto* slopes = std::get_if<Slopes>(&position.scheme)) {
    if (slopes->values.size() != attention.query_heads) {
      return refuse("{}.linear_bias: it has {} slopes for {} query heads", where,
                    slopes->values.size(), attention.query_heads);
    }
    attention.slopes = slopes;
  } else if (const auto* bias = std::get_if<BucketedBias>(&position.scheme)) {
    if (bias->table->columns != attention.query_heads) {
      return refuse("{}.bucketed_bias: tensor {} has biases of {} heads for {} query heads", where,
                    bias->table->name, bias->table->columns, attention.query_heads);
    }
    attention.buckets = bias;
  } else if (const auto* relative = std::get_if<ClippedRelative>(&position.scheme)) {
    for (const Tensor* table : {relative->key, relative->query, relative->value}) {
      if (table == nullptr || table->columns == attention.head_dim) continue;
      return refuse("{}.clipped_relative: tensor {} has rows of {} for a head_dim of {}", where,
                    table->name, table->columns, attention.head_dim);
    }
    if (relative->heads != 1 && relative->heads != attention.query_heads) {
      return refuse("{}.clipped_relative: it has rows of {} heads for {} query heads", where,
                    relative->heads, attention.query_heads);
    }
    const size_t reach = relative->clip_distance + 1;
    if (relative->unclipped && reach < stack.context) {
      return refuse(
          "{}.clipped_relative: its tables reach {} positions but the model advertises {}", where,
          reach, stack.context);
    }
    if (relative->unclipped) stack.position_limit = std::min(stack.position_limit, reach);
    attention.relative = relative;
  } else if (std::holds_alternative<AdditiveTable>(position.scheme)) {
    return refuse("{}: position {} is added to embeddings and cannot act in attention", where,
                  stored.position());
  }
  return {};
}

Result<Attention> ModelVerifier::attention(const file::Attention& stored, Stack& stack,
                                           const std::string& where) {
  Attention attention;
  attention.query_heads = stored.query_heads();
  attention.kv_heads = stored.kv_heads();
  attention.head_dim = stored.head_dim();
  attention.scale = stored.scale();
  attention.soft_cap = stored.soft_cap();
  attention.qkv_limit = stored.qkv_limit();
  attention.bidirectional = stored.mask() == file::Mask::full;
  attention.norm_after_rotation = stored.norm_after_rotation();
  if (attention.query_heads == 0 || attention.query_heads > kMaxHeads || attention.kv_heads == 0 ||
      attention.query_heads % attention.kv_heads != 0) {
    return refuse("{}: {} query heads cannot share {} key/value heads", where,
                  attention.query_heads, attention.kv_heads);
  }
  if (attention.head_dim == 0 || attention.head_dim > kMaxHeadDim) {
    return refuse("{}: head_dim {} is out of range", where, attention.head_dim);
  }
  if (!is_finite_positive(attention.scale)) {
    return refuse("{}: scale {} is out of range", where, attention.scale);
  }
  for (const auto& [name, bound] :
       {std::pair{"soft_cap", attention.soft_cap}, std::pair{"qkv_limit", attention.qkv_limit}}) {
    if (bound != 0 && !is_finite_positive(bound)) {
      return refuse("{}: {} {} is out of range", where, name, bound);
    }
  }
  switch (stored.mask()) {
    case file::Mask::causal:
    case file::Mask::full:
      attention.window = stored.window();
      break;
    case file::Mask::chunked:
      attention.stretch = stored.window();
      if (attention.stretch == 0) return refuse("{}: a chunked mask needs a window", where);
      break;
    default:
      return refuse("{}: mask {} is unknown to this version", where,
                    static_cast<int>(stored.mask()));
  }
  const size_t fused = attention.query_width() + 2 * attention.kv_width();
  VOLVELLE_ASSIGN_OR_RETURN(attention.qkv,
                            linear(stored.qkv(), fused, stack.width, where + ".qkv"));
  VOLVELLE_ASSIGN_OR_RETURN(attention.output, linear(stored.output(), stack.width,
                                                     attention.query_width(), where + ".output"));
  switch (stored.norm_scope()) {
    case file::HeadNormScope::head:
      attention.norm_scope = HeadNormScope::kHead;
      break;
    case file::HeadNormScope::each_head:
      attention.norm_scope = HeadNormScope::kEachHead;
      break;
    case file::HeadNormScope::all_heads:
      attention.norm_scope = HeadNormScope::kAllHeads;
      break;
    default:
      return refuse("{}: norm_scope {} is unknown to this version", where,
                    static_cast<int>(stored.norm_scope()));
  }
  VOLVELLE_ASSIGN_OR_RETURN(
      attention.query_norm,
      head_norm(stored.query_norm(), attention, attention.query_heads, where + ".query_norm"));
  VOLVELLE_ASSIGN_OR_RETURN(attention.key_norm, head_norm(stored.key_norm(), attention,
                                                          attention.kv_heads, where + ".key_norm"));
  if (const file::QueryTemperature* temperature = stored.temperature()) {
    if (!std::isfinite(temperature->strength()) || temperature->period() == 0) {
      return refuse("{}.temperature: strength {} and period {} are out of range", where,
                    temperature->strength(), temperature->period());
    }
    attention.temperature = {temperature->strength(), temperature->period(), temperature->offset()};
  }
  VOLVELLE_RETURN_IF_ERROR(join_position(stored, stack, attention, where));
  return attention;
}

Result<Convolution> ModelVerifier::convolution(const file::Convolution& stored, size_t width,
                                               const std::string& where) {
  Convolution convolution{.kernel = stored.kernel()};
  if (convolution.kernel % 2 == 0 || convolution.kernel > kMaxKernel) {
    return refuse("{}: its kernel {} is even or out of range", where, convolution.kernel);
  }
  VOLVELLE_ASSIGN_OR_RETURN(convolution.linear,
                            linear(stored.linear(), width, convolution.kernel * width, where));
  if (stored.activation()) {
    VOLVELLE_ASSIGN_OR_RETURN(convolution.activation, activation(*stored.activation(), where));
  }
  VOLVELLE_ASSIGN_OR_RETURN(convolution.norm, norm(stored.norm(), width, where + ", norm"));
  return convolution;
}

Result<CrossAttention> ModelVerifier::cross_attention(const file::CrossAttention& stored,
                                                      size_t width, const std::string& where) {
  CrossAttention cross{
      .heads = stored.heads(), .head_dim = stored.head_dim(), .scale = stored.scale()};
  if (cross.heads == 0 || cross.heads > kMaxHeads || cross.head_dim == 0 ||
      cross.head_dim > kMaxHeadDim || !is_finite_positive(cross.scale)) {
    return refuse("{}: {} heads of {} elements with scale {} are out of range", where, cross.heads,
                  cross.head_dim, cross.scale);
  }
  if (!model_.encoder_) return refuse("{}: there is no encoder to attend to", where);
  VOLVELLE_ASSIGN_OR_RETURN(cross.query,
                            linear(stored.query(), cross.width(), width, where + ".query"));
  VOLVELLE_ASSIGN_OR_RETURN(cross.key_value, linear(stored.key_value(), 2 * cross.width(),
                                                    model_.encoder_->width, where + ".key_value"));
  VOLVELLE_ASSIGN_OR_RETURN(cross.output,
                            linear(stored.output(), width, cross.width(), where + ".output"));
  return cross;
}

Result<Expert> ModelVerifier::expert(const file::Linear* gate_up, const file::Linear* down,
                                     bool gated, size_t width, const std::string& where) {
  if (down == nullptr) return refuse("{}.down: the linear is missing", where);
  VOLVELLE_ASSIGN_OR_RETURN(const Tensor* weight, tensor(down->weight(), where + ".down, weight"));
  const size_t inner = weight->columns;
  if (inner > kMaxWidth) return refuse("{}: its width {} is out of range", where, inner);
  Expert expert;
  VOLVELLE_ASSIGN_OR_RETURN(expert.down, linear(down, width, inner, where + ".down"));
  VOLVELLE_ASSIGN_OR_RETURN(expert.gate_up,
                            linear(gate_up, (gated ? 2 : 1) * inner, width, where + ".gate_up"));
  return expert;
}

Result<Activation> ModelVerifier::activation(file::Activation activation,
                                             const std::string& where) const {
  switch (activation) {
    case file::Activation::silu:
      return Activation::kSilu;
    case file::Activation::gelu_erf:
      return Activation::kGeluErf;
    case file::Activation::gelu_tanh:
      return Activation::kGeluTanh;
    case file::Activation::gelu_sigmoid:
      return Activation::kGeluSigmoid;
    case file::Activation::relu:
      return Activation::kRelu;
    case file::Activation::relu_squared:
      return Activation::kReluSquared;
    case file::Activation::tanh:
      return Activation::kTanh;
  }
  return refuse("{}: activation {} is unknown to this version", where,
                static_cast<int>(activation));
}

Result<FeedForward> ModelVerifier::feed_forward(const file::FeedForward& stored, size_t width,
                                                const std::string& where) {
  FeedForward feed_forward;
  feed_forward.gated = !stored.plain();
  VOLVELLE_ASSIGN_OR_RETURN(feed_forward.activation, activation(stored.activation(), where));
  const file::Experts* experts = stored.experts();
  if (experts == nullptr) {
    VOLVELLE_ASSIGN_OR_RETURN(
        Expert only, expert(stored.gate_up(), stored.down(), feed_forward.gated, width, where));
    feed_forward.experts.push_back(only);
    return feed_forward;
  }
  const size_t count = experts->gate_up()->size();
  feed_forward.used = experts->used();
  feed_forward.normalize = experts->normalize();
  if (count == 0 || experts->down()->size() != count || feed_forward.used == 0 ||
      feed_forward.used > count) {
    return refuse("{}.experts: {} of {} experts with {} down projections are out of range", where,
                  feed_forward.used, count, experts->down()->size());
  }
  VOLVELLE_ASSIGN_OR_RETURN(feed_forward.router,
                            linear(experts->router(), count, width, where + ".router"));
  for (size_t i = 0; i < count; ++i) {
    const std::string which = std::format("{}.experts[{}]", where, i);
    VOLVELLE_ASSIGN_OR_RETURN(Expert verified,
                              expert(experts->gate_up()->Get(i), experts->down()->Get(i),
                                     feed_forward.gated, width, which));
    if (i > 0 && verified.down.inputs() != feed_forward.inner()) {
      return refuse("{}: its width {} is not the first expert's {}", which, verified.down.inputs(),
                    feed_forward.inner());
    }
    feed_forward.experts.push_back(verified);
  }
  return feed_forward;
}

Result<Block> ModelVerifier::block(const file::Block* stored, Stack& stack,
                                   const std::string& where) {
  Block block;
  switch (stored->residual()) {
    case file::Residual::sequential:
      block.residual = Residual::kSequential;
      break;
    case file::Residual::parallel:
      block.residual = Residual::kParallel;
      break;
    case file::Residual::post_norm:
      block.residual = Residual::kPostNorm;
      break;
    case file::Residual::twice_normed:
      block.residual = Residual::kTwiceNormed;
      break;
    case file::Residual::normed:
      block.residual = Residual::kNormed;
      break;
    default:
      return refuse("{}: residual layout {} is unknown to this version", where,
                    static_cast<int>(stored->residual()));
  }
  block.branch_scale = stored->branch_scale();
  if (!std::isfinite(block.branch_scale)) {
    return refuse("{}: branch_scale {} is out of range", where, block.branch_scale);
  }
  for (const auto& [name, norm_stored, norm_verified] :
       {std::tuple{"attention_norm", stored->attention_norm(), &block.attention_norm},
        std::tuple{"attention_output_norm", stored->attention_output_norm(),
                   &block.attention_output_norm},
        std::tuple{"cross_norm", stored->cross_norm(), &block.cross_norm},
        std::tuple{"feed_forward_norm", stored->feed_forward_norm(), &block.feed_forward_norm},
        std::tuple{"feed_forward_output_norm", stored->feed_forward_output_norm(),
                   &block.feed_forward_output_norm}}) {
    VOLVELLE_ASSIGN_OR_RETURN(*norm_verified,
                              norm(norm_stored, stack.width, std::format("{}, {}", where, name)));
  }
  const bool on_stream = block.residual == Residual::kPostNorm ||
                         block.residual == Residual::kNormed ||
                         block.residual == Residual::kTwiceNormed;
  if (on_stream && !(block.attention_norm && block.feed_forward_norm)) {
    return refuse("{}: its residual layout needs both norms", where);
  }
  VOLVELLE_ASSIGN_OR_RETURN(block.attention,
                            attention(*stored->attention(), stack, where + ", attention"));
  if (stored->cross_attention() != nullptr) {
    if (block.residual != Residual::kSequential && !(on_stream && block.cross_norm)) {
      return refuse("{}: its residual layout has no place for cross-attention", where);
    }
    VOLVELLE_ASSIGN_OR_RETURN(block.cross, cross_attention(*stored->cross_attention(), stack.width,
                                                           where + ", cross_attention"));
  }
  if (stored->convolution() != nullptr) {
    if (!block.attention.bidirectional) return refuse("{}: it has a convolution", where);
    VOLVELLE_ASSIGN_OR_RETURN(block.convolution, convolution(*stored->convolution(), stack.width,
                                                             where + ", convolution"));
  }
  VOLVELLE_ASSIGN_OR_RETURN(block.feed_forward, feed_forward(*stored->feed_forward(), stack.width,
                                                             where + ", feed_forward"));
  return block;
}

Result<void> ModelVerifier::add_embedding(const file::Stack& stored, Stack& stack) {
  VOLVELLE_ASSIGN_OR_RETURN(stack.embedding, tensor(stored.embedding(), "stack, embedding"));
  // What an encoder reads may be another vocabulary than what its decoder writes.
  const bool rows_known = stored.kind() == file::StackKind::decoder;
  if ((rows_known && stack.embedding->rows != model_.vocabulary_) ||
      stack.embedding->columns > kMaxWidth) {
    return refuse("stack, embedding: tensor {} is {} x {} and must have {} rows",
                  stack.embedding->name, stack.embedding->rows, stack.embedding->columns,
                  model_.vocabulary_);
  }
  if (stack.embedding->type == TensorType::kQ4) {
    return refuse("stack, embedding: rows of 4 bits are not read by this version");
  }
  if (stored.embedding_projection() != nullptr) {
    VOLVELLE_ASSIGN_OR_RETURN(stack.embedding_projection,
                              linear(stored.embedding_projection(), stack.width,
                                     stack.embedding->columns, "stack, embedding_projection"));
  } else if (stack.embedding->columns != stack.width) {
    return refuse("stack, embedding: tensor {} is {} x {} and must have {} columns",
                  stack.embedding->name, stack.embedding->rows, stack.embedding->columns,
                  stack.width);
  }
  stack.projects_last = stored.projects_last() && stack.embedding_projection;
  const size_t placed = stack.projects_last ? stack.embedding->columns : stack.width;
  if (stored.token_types() >= 0) {
    VOLVELLE_ASSIGN_OR_RETURN(stack.token_types,
                              position_table(stored.token_types(), "stack, token_types"));
    if (stack.token_types->columns != stack.embedding->columns) {
      return refuse("stack, token_types: tensor {} has rows of {}, and those of the embedding {}",
                    stack.token_types->name, stack.token_types->columns, stack.embedding->columns);
    }
  }
  VOLVELLE_ASSIGN_OR_RETURN(stack.embedding_norm,
                            norm(stored.embedding_norm(), placed, "stack, embedding_norm"));
  if (stored.position() < 0) return {};
  if (static_cast<size_t>(stored.position()) >= model_.positions_.size()) {
    return refuse("stack, position: there is no position {}", stored.position());
  }
  stack.additive = std::get_if<AdditiveTable>(&model_.positions_[stored.position()].scheme);
  if (stack.additive == nullptr) {
    return refuse("stack, position: position {} is not an additive table", stored.position());
  }
  const size_t reach = stack.additive->table->rows - stack.additive->row_offset;
  if (stack.additive->table->columns != placed || reach < stack.context) {
    return refuse(
        "stack, position: tensor {} is {} x {} and must have {} columns and rows for {} positions",
        stack.additive->table->name, stack.additive->table->rows, stack.additive->table->columns,
        placed, stack.context);
  }
  stack.position_limit = std::min(stack.position_limit, reach);
  return {};
}

Result<void> ModelVerifier::add_prompts(const file::Task& stored, Task& task,
                                        const std::string& where) {
  task.max_tokens = stored.max_tokens();
  const size_t prompts = stored.prompts() != nullptr ? stored.prompts()->size() : 0;
  if (prompts > kMaxPrompts) {
    return refuse("{}: {} prompts are more than the {} possible", where, prompts, kMaxPrompts);
  }
  size_t bytes = 0;
  for (size_t i = 0; i < prompts; ++i) {
    const file::Prompt& prompt = *stored.prompts()->Get(static_cast<uint32_t>(i));
    bytes += size_t{prompt.name()->size()} + prompt.text()->size();
    if (bytes > kMaxPromptBytes) return refuse("{}, prompt {}: it is too long", where, i);
    task.prompts.emplace_back(prompt.name()->string_view(), prompt.text()->string_view());
    if (!is_utf8(task.prompts.back().first) || !is_utf8(task.prompts.back().second)) {
      return refuse("{}, prompt {}: is not UTF-8", where, i);
    }
  }
  if (stored.default_prompt() < 0) return {};
  task.default_prompt = static_cast<size_t>(stored.default_prompt());
  if (*task.default_prompt < prompts) return {};
  return refuse("{}: default_prompt {} is not below {}", where, *task.default_prompt, prompts);
}

Result<Task> ModelVerifier::task(const file::Task& stored, size_t width, const std::string& where) {
  Task task{.normalize = stored.normalize(),
            .multi_label = stored.multi_label(),
            .regression = stored.regression()};
  if (stored.kind() > file::TaskKind::MAX || stored.pooling() > file::Pooling::MAX) {
    return refuse("{}: kind {} or pooling {} is unknown to this version", where,
                  static_cast<int>(stored.kind()), static_cast<int>(stored.pooling()));
  }
  task.kind = static_cast<TaskKind>(stored.kind());
  task.pooling = static_cast<Pooling>(stored.pooling());
  // Gaps and tags are of tokens, and a class is of a text.
  const bool of_tokens = task.kind == TaskKind::kFill || task.kind == TaskKind::kTag;
  if (task.kind != TaskKind::kEmbed && of_tokens != (task.pooling == Pooling::kNone)) {
    return refuse("{}: kind {} does not go with pooling {}", where, static_cast<int>(stored.kind()),
                  static_cast<int>(stored.pooling()));
  }
  const auto* further = stored.further_poolings();
  const size_t more = further != nullptr ? further->size() : 0;
  if (more > kMaxPoolings || (more > 0 && task.pooling == Pooling::kNone)) {
    return refuse("{}, further_poolings: there are {} after pooling {}", where, more,
                  static_cast<int>(stored.pooling()));
  }
  for (size_t i = 0; i < more; ++i) {
    const auto pooling = static_cast<file::Pooling>(further->Get(static_cast<uint32_t>(i)));
    if (pooling > file::Pooling::MAX || pooling == file::Pooling::none) {
      return refuse("{}, further_poolings: {} is unknown to this version", where,
                    static_cast<int>(pooling));
    }
    task.further_poolings.push_back(static_cast<Pooling>(pooling));
  }
  width = task.pooled(width);
  VOLVELLE_RETURN_IF_ERROR(add_prompts(stored, task, where));
  if (stored.layers() != nullptr) {
    if (stored.layers()->size() > kMaxTaskLayers) {
      return refuse("{}: {} layers are more than the {} possible", where, stored.layers()->size(),
                    kMaxTaskLayers);
    }
    for (const file::Layer* layer : *stored.layers()) {
      Layer verified;
      VOLVELLE_ASSIGN_OR_RETURN(const Tensor* weight,
                                tensor(layer->linear()->weight(), where + ", weight"));
      if (weight->rows > kMaxDimension || weight->columns != width) {
        return refuse("{}: tensor {} is {} x {} and must have {} columns", where, weight->name,
                      weight->rows, weight->columns, width);
      }
      width = weight->rows;
      VOLVELLE_ASSIGN_OR_RETURN(verified.linear,
                                linear(layer->linear(), width, weight->columns, where));
      if (layer->activation()) {
        VOLVELLE_ASSIGN_OR_RETURN(verified.activation, activation(*layer->activation(), where));
      }
      VOLVELLE_ASSIGN_OR_RETURN(verified.norm, norm(layer->norm(), width, where + ", norm"));
      task.layers.push_back(verified);
    }
  }
  const bool labelled = task.kind == TaskKind::kClassify || task.kind == TaskKind::kTag;
  const size_t labels = stored.labels() != nullptr ? stored.labels()->size() : 0;
  if (labelled && labels != width) {
    return refuse("{}: it has {} labels for {} outputs", where, labels, width);
  }
  for (size_t i = 0; labelled && i < labels; ++i) {
    task.labels.push_back(text(stored.labels()->Get(i)));
  }
  if (task.kind == TaskKind::kFill && width != model_.vocabulary_) {
    return refuse("{}: it has {} outputs for a vocabulary of {}", where, width, model_.vocabulary_);
  }
  return task;
}

Result<void> ModelVerifier::add_head(const file::Stack& stored, Stack& stack) {
  VOLVELLE_ASSIGN_OR_RETURN(stack.final_norm,
                            norm(stored.final_norm(), stack.width, "stack, final_norm"));
  if (stored.kind() == file::StackKind::encoder) {
    const auto* tasks = stored.tasks();
    if (tasks != nullptr && tasks->size() > kMaxTasks) {
      return refuse("stack: {} tasks are more than the {} possible", tasks->size(), kMaxTasks);
    }
    for (size_t i = 0; tasks != nullptr && i < tasks->size(); ++i) {
      VOLVELLE_ASSIGN_OR_RETURN(
          Task verified, task(*tasks->Get(i), stack.width, std::format("stack, task {}", i)));
      stack.tasks.push_back(std::move(verified));
    }
    return {};
  }
  size_t width = stack.width;
  if (stored.head_projection() != nullptr) {
    VOLVELLE_ASSIGN_OR_RETURN(const Tensor* weight, tensor(stored.head_projection()->weight(),
                                                           "stack, head_projection, weight"));
    width = weight->rows;
    if (width > kMaxWidth) return refuse("stack, head_projection: it is too wide");
    VOLVELLE_ASSIGN_OR_RETURN(stack.head_projection, linear(stored.head_projection(), width,
                                                            stack.width, "stack, head_projection"));
  }
  if (stored.head_activation() && stack.head_projection) {
    VOLVELLE_ASSIGN_OR_RETURN(stack.head_activation,
                              activation(*stored.head_activation(), "stack, head_activation"));
  }
  VOLVELLE_ASSIGN_OR_RETURN(stack.head_norm, norm(stored.head_norm(), width, "stack, head_norm"));
  if ((stored.head_activation() || stack.head_norm) && !stack.head_projection) {
    return refuse("stack: head_activation and head_norm need a head_projection");
  }
  VOLVELLE_ASSIGN_OR_RETURN(stack.head,
                            linear(stored.head(), model_.vocabulary_, width, "stack, head"));
  return {};
}

// One of either kind, or an encoder and then its decoder.
Result<void> ModelVerifier::add_stacks(
    const flatbuffers::Vector<flatbuffers::Offset<file::Stack>>& stored) {
  for (size_t i = 0; i < stored.size(); ++i) {
    const file::StackKind kind = stored.Get(i)->kind();
    if (kind > file::StackKind::MAX) {
      return refuse("stack: kind {} is unknown to this version", static_cast<int>(kind));
    }
    const bool encoder = kind == file::StackKind::encoder;
    if (i > 1 || (encoder && i > 0) || (!encoder && model_.generates_)) {
      return refuse("stacks: {} of them in this order are more than an encoder and its decoder",
                    stored.size());
    }
    if (encoder) {
      Stack stack;
      VOLVELLE_RETURN_IF_ERROR(add_stack(stored.Get(i), stack));
      model_.encoder_ = std::move(stack);
    } else {
      VOLVELLE_RETURN_IF_ERROR(add_stack(stored.Get(i), model_.decoder_));
      model_.generates_ = true;
    }
  }
  if (stored.size() == 0) return refuse("stacks: it has none");
  return {};
}

Result<void> ModelVerifier::add_stack(const file::Stack* stored, Stack& stack) {
  stack.width = stored->width();
  stack.context = stored->context();
  stack.trained_context = stored->trained_context();
  stack.position_limit = kMaxContext;
  stack.embedding_scale = stored->embedding_scale();
  stack.logit_scale = stored->logit_scale();
  stack.logit_soft_cap = stored->logit_soft_cap();
  if (stack.width == 0 || stack.width > kMaxWidth) {
    return refuse("stack: width {} is out of range", stack.width);
  }
  if (stack.context == 0 || stack.context > kMaxContext) {
    return refuse("stack: context {} is out of range", stack.context);
  }
  for (const auto& [name, scale] : {std::pair{"embedding_scale", stack.embedding_scale},
                                    std::pair{"logit_scale", stack.logit_scale}}) {
    if (!is_finite_positive(scale)) return refuse("stack: {} {} is out of range", name, scale);
  }
  if (stack.logit_soft_cap != 0 && !is_finite_positive(stack.logit_soft_cap)) {
    return refuse("stack: logit_soft_cap {} is out of range", stack.logit_soft_cap);
  }
  if (stored->blocks()->size() > kMaxBlocks) {
    return refuse("stack: {} blocks are more than the {} possible", stored->blocks()->size(),
                  kMaxBlocks);
  }
  VOLVELLE_RETURN_IF_ERROR(add_embedding(*stored, stack));
  stack.blocks.reserve(stored->blocks()->size());
  for (size_t i = 0; i < stored->blocks()->size(); ++i) {
    const std::string where = std::format("block {}", i);
    VOLVELLE_ASSIGN_OR_RETURN(Block verified, block(stored->blocks()->Get(i), stack, where));
    const Attention& attention = verified.attention;
    const bool encodes = stored->kind() == file::StackKind::encoder;
    if (attention.bidirectional != encodes || (verified.cross && encodes)) {
      return refuse("{}: its mask is not that of its stack", where);
    }
    if (stack.additive && attention.has_position() && !stored->mixes_positions()) {
      return refuse(
          "{}: its positions would act twice, at the embedding and in attention, and the file does "
          "not say that this is meant; convert the checkpoint again",
          where);
    }
    stack.blocks.push_back(std::move(verified));
  }
  return add_head(*stored, stack);
}

Result<void> ModelVerifier::add_generation(const file::Generation* stored) {
  if (stored == nullptr) return {};
  Generation& generation = model_.generation_;
  if (stored->eos() != nullptr) {
    for (uint32_t id : *stored->eos()) {
      if (id >= model_.vocabulary_) {
        return refuse("generation: end token {} is not in the vocabulary of {}", id,
                      model_.vocabulary_);
      }
      generation.eos.push_back(static_cast<int32_t>(id));
    }
  }
  generation.sample = stored->sample();
  generation.temperature = stored->temperature();
  generation.top_k = stored->top_k();
  generation.top_p = stored->top_p();
  generation.min_p = stored->min_p();
  generation.repetition_penalty = stored->repetition_penalty();
  for (const auto& [name, id, token] :
       {std::tuple{"decoder_start", stored->decoder_start(), &generation.decoder_start},
        std::tuple{"forced_bos", stored->forced_bos(), &generation.forced_bos},
        std::tuple{"forced_eos", stored->forced_eos(), &generation.forced_eos}}) {
    if (id >= 0 && static_cast<size_t>(id) >= model_.vocabulary_) {
      return refuse("generation, {}: token {} is not in the vocabulary of {}", name, id,
                    model_.vocabulary_);
    }
    *token = std::max(id, -1);
  }
  if (stored->early_stopping() > file::EarlyStopping::MAX || stored->beams() == 0 ||
      stored->beams() > kMaxBeams || !std::isfinite(stored->length_penalty())) {
    return refuse("generation: {} beams, length_penalty {} or early_stopping {} is out of range",
                  stored->beams(), stored->length_penalty(),
                  static_cast<int>(stored->early_stopping()));
  }
  generation.beams = stored->beams();
  generation.length_penalty = stored->length_penalty();
  generation.early_stopping = static_cast<EarlyStopping>(stored->early_stopping());
  generation.no_repeat_ngram = stored->no_repeat_ngram();
  generation.min_length = stored->min_length();
  generation.max_length = stored->max_length();
  if (const auto* words = stored->bad_words()) {
    if (words->size() > kMaxBadWords) {
      return refuse("generation: {} bad_words are more than the {} possible", words->size(),
                    kMaxBadWords);
    }
    for (const file::BadWord* word : *words) {
      std::vector<int32_t> tokens;
      for (size_t i = 0; word->tokens() != nullptr && i < word->tokens()->size(); ++i) {
        const uint32_t id = word->tokens()->Get(i);
        if (id >= model_.vocabulary_ || tokens.size() == kMaxTaskLayers) {
          return refuse("generation: a bad word is too long, or its token {} not in the vocabulary",
                        id);
        }
        tokens.push_back(static_cast<int32_t>(id));
      }
      if (!tokens.empty()) generation.bad_words.push_back(std::move(tokens));
    }
  }
  for (const auto& [name, value] :
       {std::pair{"temperature", generation.temperature}, std::pair{"top_p", generation.top_p},
        std::pair{"min_p", generation.min_p},
        std::pair{"repetition_penalty", generation.repetition_penalty}}) {
    if (!std::isfinite(value) || value < 0)
      return refuse("generation: {} {} is out of range", name, value);
  }
  return {};
}

Result<void> ModelVerifier::add_tokenizer(const file::Tokenizer& stored) {
  const auto read = [this](const file::Segment& segment) -> Result<std::span<const std::byte>> {
    VOLVELLE_ASSIGN_OR_RETURN(const SegmentView view, locate_checked(&segment, "tokenizer"));
    return view.bytes;
  };
  auto tokenizer = view_tokenizer(stored, read).and_then(Tokenizer::make);
  if (!tokenizer) {
    const std::string& message = tokenizer.error().message;
    if (message.starts_with(model_.path_)) return std::unexpected(std::move(tokenizer).error());
    return refuse("{}", message);
  }
  model_.tokenizer_.emplace(*std::move(tokenizer));
  return {};
}

}  // namespace volvelle
