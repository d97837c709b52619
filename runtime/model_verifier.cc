#include "runtime/model_verifier.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "runtime/file_format.h"
#include "runtime/finite.h"
#include "runtime/tokenizer/stored.h"

namespace volvelle {
namespace {

// Bounds that no real model comes near; with them, every product below fits in 64 bits.
constexpr uint64_t kMaxDimension = 1ull << 31;
constexpr uint64_t kMaxWidth = 1 << 20;
constexpr uint64_t kMaxHeads = 1 << 14;
constexpr uint64_t kMaxHeadDim = 1 << 13;
constexpr uint64_t kMaxContext = 1ull << 31;
constexpr size_t kMaxBlocks = 1 << 12;
constexpr size_t kMaxTensors = 1 << 16;
constexpr size_t kMaxTextBytes = 1 << 10;

bool is_finite_positive(float x) { return std::isfinite(x) && x > 0; }

// Text of the file that messages will show: cut, for tables may share one long text, and with '?'
// for control characters, which could steer a terminal.
std::string text(const flatbuffers::String* string) {
  std::string text(string ? string->string_view().substr(0, kMaxTextBytes) : std::string_view());
  std::ranges::replace_if(text, [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return text;
}

const HeaderSlot* newest_slot(std::span<const std::byte> bytes, std::array<HeaderSlot, 2>& slots) {
  const HeaderSlot* newest = nullptr;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (bytes.size() < kSlotOffsets[i] + sizeof(HeaderSlot)) continue;
    std::memcpy(&slots[i], bytes.data() + kSlotOffsets[i], sizeof(HeaderSlot));
    if (slots[i].magic != kFileMagic || slots[i].checksum != header_checksum(slots[i])) continue;
    if (newest == nullptr || slots[i].generation > newest->generation) newest = &slots[i];
  }
  return newest;
}

}  // namespace

Result<void> ModelVerifier::verify(Model& model) {
  ModelVerifier verifier(model);
  VOLVELLE_ASSIGN_OR_RETURN(const file::Model* table, verifier.open_table());

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
  if (table->stacks()->size() != 1) {
    return verifier.refuse("stacks: it has {}, and this version runs models of one",
                           table->stacks()->size());
  }
  VOLVELLE_RETURN_IF_ERROR(verifier.add_stack(table->stacks()->Get(0)));
  VOLVELLE_RETURN_IF_ERROR(verifier.add_generation(table->generation()));
  if (table->tokenizer() != nullptr) return verifier.add_tokenizer(*table->tokenizer());
  return {};
}

Result<const file::Model*> ModelVerifier::open_table() {
  const std::span<const std::byte> bytes = model_.bytes_;
  if (bytes.size() < kFileMagic.size() ||
      std::memcmp(bytes.data(), kFileMagic.data(), kFileMagic.size()) != 0) {
    return refuse("this is not a Volvelle model; make one with `volvelle convert`");
  }
  std::array<HeaderSlot, 2> slots;
  const HeaderSlot* slot = newest_slot(bytes, slots);
  if (slot == nullptr)
    return refuse("header: its checksum does not hold; copy or convert the file again");
  if (slot->version != kFileVersion) {
    return refuse(
        "header: file version {} is not the version {} that this program reads; convert again",
        slot->version, kFileVersion);
  }
  if (slot->file_bytes > bytes.size()) {
    return refuse(
        "header: the file should have {} bytes but has {}; it was cut short, copy it again",
        slot->file_bytes, bytes.size());
  }
  if (slot->table_bytes > kMaxTableBytes || slot->table_bytes > bytes.size() ||
      slot->table_offset > bytes.size() - slot->table_bytes ||
      slot->table_offset % kSegmentAlignment != 0) {
    return refuse("header: the table lies outside the file");
  }
  const auto table = bytes.subspan(slot->table_offset, slot->table_bytes);
  if (checksum(table) != slot->table_checksum) {
    return refuse("table: its checksum does not hold; copy or convert the file again");
  }
  model_.table_bytes_ = table.size();
  const auto* data = reinterpret_cast<const uint8_t*>(table.data());
  flatbuffers::Verifier verifier(data, table.size(), /*max_depth=*/16, /*max_tables=*/1 << 20);
  // The identifier is read at a fixed offset, so the length is checked before it.
  if (table.size() < 16 || !file::VerifyModelBuffer(verifier)) {
    return refuse("table: its structure is damaged; convert the checkpoint again");
  }
  return file::GetModel(data);
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
  if (!view.bytes.empty() && checksum(view.bytes) != view.checksum) {
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
  VOLVELLE_ASSIGN_OR_RETURN(tensor.data, locate(stored->data(), where + ", data"));
  VOLVELLE_RETURN_IF_ERROR(expect_bytes(tensor.data, data_bytes, where + ", data"));
  if (scale_bytes > 0) {
    VOLVELLE_ASSIGN_OR_RETURN(tensor.scales, locate(stored->scales(), where + ", scales"));
    VOLVELLE_RETURN_IF_ERROR(expect_bytes(tensor.scales, scale_bytes, where + ", scales"));
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
    case file::Scheme::Rotary: {
      const file::Rotary* stored_rotary = stored->scheme_as_Rotary();
      if (stored_rotary == nullptr) return refuse("{}, rotary: the scheme is missing", where);
      VOLVELLE_ASSIGN_OR_RETURN(position.scheme, rotary(*stored_rotary, where + ", rotary"));
      break;
    }
    default:
      return refuse("{}: this version does not run the scheme {}", where,
                    static_cast<int>(stored->scheme_type()) <= static_cast<int>(file::Scheme::MAX)
                        ? file::EnumNameScheme(stored->scheme_type())
                        : "of an unknown number");
  }
  model_.positions_.push_back(std::move(position));
  return {};
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
  const uint64_t row_bytes = width * sizeof(float);
  VOLVELLE_ASSIGN_OR_RETURN(const SegmentView coarse,
                            locate_checked(stored.coarse(), where + ", coarse dial"));
  VOLVELLE_ASSIGN_OR_RETURN(const SegmentView fine,
                            locate_checked(stored.fine(), where + ", fine dial"));
  VOLVELLE_RETURN_IF_ERROR(expect_bytes(coarse, coarse_rows * row_bytes, where + ", coarse dial"));
  VOLVELLE_RETURN_IF_ERROR(expect_bytes(fine, fine_rows * row_bytes, where + ", fine dial"));
  rotary.dial = {reinterpret_cast<const float*>(coarse.bytes.data()),
                 reinterpret_cast<const float*>(fine.bytes.data()), coarse_rows, fine_rows,
                 width / 2};
  if (!all_finite({rotary.dial.coarse, coarse_rows * width}) ||
      !all_finite({rotary.dial.fine, fine_rows * width})) {
    return refuse("{}: a dial holds what is no number", where);
  }
  for (const auto& [name, values, view] :
       {std::tuple{"frequencies", stored.frequencies(), &rotary.frequencies},
        std::tuple{"original_frequencies", stored.original_frequencies(),
                   &rotary.original_frequencies}}) {
    if (values == nullptr || values->size() != width / 2) {
      return refuse("{}: {} must hold {} values", where, name, width / 2);
    }
    *view = {values->data(), values->size()};
  }
  rotary.base = stored.base();
  rotary.amplitude = stored.amplitude();
  if (const file::RotaryScaling* scaling = stored.scaling()) {
    if (scaling->kind() > file::RotaryScalingKind::MAX) {
      return refuse("{}: scaling {} is unknown", where, static_cast<int>(scaling->kind()));
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

Result<Norm> ModelVerifier::norm(const file::Norm* stored, size_t width, const std::string& where) {
  if (stored == nullptr) return refuse("{}: the norm is missing", where);
  if (stored->kind() != file::NormKind::rms) {
    return refuse("{}: norm {} is unknown to this version", where,
                  static_cast<int>(stored->kind()));
  }
  if (!is_finite_positive(stored->epsilon())) {
    return refuse("{}: epsilon {} is out of range", where, stored->epsilon());
  }
  VOLVELLE_ASSIGN_OR_RETURN(const float* weight,
                            vector(stored->weight(), width, where + ", weight"));
  return Norm{stored->epsilon(), weight};
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

Result<Attention> ModelVerifier::attention(const file::Attention& stored, const Stack& stack,
                                           const std::string& where) {
  Attention attention;
  attention.query_heads = stored.query_heads();
  attention.kv_heads = stored.kv_heads();
  attention.head_dim = stored.head_dim();
  attention.scale = stored.scale();
  attention.soft_cap = stored.soft_cap();
  attention.window = stored.window();
  if (attention.query_heads == 0 || attention.query_heads > kMaxHeads || attention.kv_heads == 0 ||
      attention.query_heads % attention.kv_heads != 0) {
    return refuse("{}: {} query heads cannot share {} key/value heads", where,
                  attention.query_heads, attention.kv_heads);
  }
  if (attention.head_dim == 0 || attention.head_dim > kMaxHeadDim) {
    return refuse("{}: head_dim {} is out of range", where, attention.head_dim);
  }
  if (!is_finite_positive(attention.scale))
    return refuse("{}: scale {} is out of range", where, attention.scale);
  if (attention.soft_cap != 0 && !is_finite_positive(attention.soft_cap)) {
    return refuse("{}: soft_cap {} is out of range", where, attention.soft_cap);
  }
  if (stored.mask() != file::Mask::causal) {
    return refuse("{}: mask {} is unknown to this version", where, static_cast<int>(stored.mask()));
  }
  const size_t fused = attention.query_width() + 2 * attention.kv_width();
  VOLVELLE_ASSIGN_OR_RETURN(attention.qkv,
                            linear(stored.qkv(), fused, stack.width, where + ".qkv"));
  VOLVELLE_ASSIGN_OR_RETURN(attention.output, linear(stored.output(), stack.width,
                                                     attention.query_width(), where + ".output"));
  if (stored.query_norm() != nullptr) {
    VOLVELLE_ASSIGN_OR_RETURN(attention.query_norm,
                              norm(stored.query_norm(), attention.head_dim, where + ".query_norm"));
  }
  if (stored.key_norm() != nullptr) {
    VOLVELLE_ASSIGN_OR_RETURN(attention.key_norm,
                              norm(stored.key_norm(), attention.head_dim, where + ".key_norm"));
  }
  if (stored.position() >= 0) {
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
      attention.rotary = rotary;
    }
  }
  return attention;
}

Result<FeedForward> ModelVerifier::feed_forward(const file::FeedForward& stored, size_t width,
                                                const std::string& where) {
  FeedForward feed_forward;
  switch (stored.activation()) {
    case file::Activation::silu:
      feed_forward.activation = Activation::kSilu;
      break;
    case file::Activation::gelu_erf:
      feed_forward.activation = Activation::kGeluErf;
      break;
    case file::Activation::gelu_tanh:
      feed_forward.activation = Activation::kGeluTanh;
      break;
    default:
      return refuse("{}: activation {} is unknown to this version", where,
                    static_cast<int>(stored.activation()));
  }
  VOLVELLE_ASSIGN_OR_RETURN(const Tensor* down,
                            tensor(stored.down()->weight(), where + ".down, weight"));
  if (down->columns > kMaxWidth)
    return refuse("{}: its width {} is out of range", where, down->columns);
  VOLVELLE_ASSIGN_OR_RETURN(feed_forward.down,
                            linear(stored.down(), width, down->columns, where + ".down"));
  VOLVELLE_ASSIGN_OR_RETURN(feed_forward.gate_up,
                            linear(stored.gate_up(), 2 * down->columns, width, where + ".gate_up"));
  return feed_forward;
}

Result<Block> ModelVerifier::block(const file::Block* stored, const Stack& stack,
                                   const std::string& where) {
  if (stored->residual() != file::Residual::pre_norm) {
    return refuse("{}: residual layout {} is unknown to this version", where,
                  static_cast<int>(stored->residual()));
  }
  Block block;
  VOLVELLE_ASSIGN_OR_RETURN(block.attention_norm, norm(stored->attention_norm(), stack.width,
                                                       where + ", attention_norm"));
  VOLVELLE_ASSIGN_OR_RETURN(block.attention,
                            attention(*stored->attention(), stack, where + ", attention"));
  VOLVELLE_ASSIGN_OR_RETURN(block.feed_forward_norm, norm(stored->feed_forward_norm(), stack.width,
                                                          where + ", feed_forward_norm"));
  VOLVELLE_ASSIGN_OR_RETURN(block.feed_forward, feed_forward(*stored->feed_forward(), stack.width,
                                                             where + ", feed_forward"));
  return block;
}

Result<void> ModelVerifier::add_stack(const file::Stack* stored) {
  Stack& stack = model_.decoder_;
  if (stored->kind() != file::StackKind::decoder) {
    return refuse("stack: kind {} is unknown to this version", static_cast<int>(stored->kind()));
  }
  stack.width = stored->width();
  stack.context = stored->context();
  stack.trained_context = stored->trained_context();
  stack.embedding_scale = stored->embedding_scale();
  stack.logit_soft_cap = stored->logit_soft_cap();
  if (stack.width == 0 || stack.width > kMaxWidth)
    return refuse("stack: width {} is out of range", stack.width);
  if (stack.context == 0 || stack.context > kMaxContext) {
    return refuse("stack: context {} is out of range", stack.context);
  }
  if (!is_finite_positive(stack.embedding_scale)) {
    return refuse("stack: embedding_scale {} is out of range", stack.embedding_scale);
  }
  if (stack.logit_soft_cap != 0 && !is_finite_positive(stack.logit_soft_cap)) {
    return refuse("stack: logit_soft_cap {} is out of range", stack.logit_soft_cap);
  }
  if (stored->position() >= 0) {
    return refuse("stack, position: this version adds no position table to the embedding");
  }
  VOLVELLE_ASSIGN_OR_RETURN(stack.embedding, tensor(stored->embedding(), "stack, embedding"));
  if (stack.embedding->columns != stack.width || stack.embedding->rows != model_.vocabulary_) {
    return refuse("stack, embedding: tensor {} is {} x {} and must be {} x {}",
                  stack.embedding->name, stack.embedding->rows, stack.embedding->columns,
                  model_.vocabulary_, stack.width);
  }
  if (stack.embedding->type == TensorType::kQ4) {
    return refuse("stack, embedding: rows of 4 bits are not read by this version");
  }
  if (stored->blocks()->size() > kMaxBlocks) {
    return refuse("stack: {} blocks are more than the {} possible", stored->blocks()->size(),
                  kMaxBlocks);
  }
  stack.blocks.reserve(stored->blocks()->size());
  for (size_t i = 0; i < stored->blocks()->size(); ++i) {
    VOLVELLE_ASSIGN_OR_RETURN(Block verified,
                              block(stored->blocks()->Get(i), stack, std::format("block {}", i)));
    stack.blocks.push_back(std::move(verified));
  }
  VOLVELLE_ASSIGN_OR_RETURN(stack.final_norm,
                            norm(stored->final_norm(), stack.width, "stack, final_norm"));
  VOLVELLE_ASSIGN_OR_RETURN(stack.head,
                            linear(stored->head(), model_.vocabulary_, stack.width, "stack, head"));
  return {};
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
