#include "runtime/packed_weights.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels/int4_product.h"
#include "kernels/int8_product.h"
#include "runtime/file_format.h"

namespace volvelle {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr uint8_t kQ4ZeroPoint = 8;  // code 8 means 0
constexpr size_t kAlignment = 64;    // what XNNPACK's kernels may load at once

// After every segment: kernels may read a little past their weights.
constexpr std::array<std::byte, XNN_EXTRA_BYTES> kSlack = {};

constexpr size_t align(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

struct Header {
  std::array<char, 8> magic = {'V', 'V', 'L', 'P', 'A', 'C', 'K', '\0'};
  uint32_t version = 1;
  uint32_t entries = 0;
  uint64_t table_offset = 0;
  uint64_t table_checksum = 0;  // XXH3-64, as all checksums here
  std::array<uint64_t, 4> reserved = {};
};
static_assert(sizeof(Header) == kAlignment);

// XNNPACK's name for a weight, and how it is quantised.
struct Source {
  TensorType type;
  size_t inputs, outputs;
  const void* codes;
  const void* scales;
  const float* bias;
};

xnn_status create_operator(const Source& s, xnn_weights_cache_t provider, xnn_operator_t* op) {
  switch (s.type) {
    case TensorType::kF32:
      return xnn_create_fully_connected_nc_f32(s.inputs, s.outputs, s.inputs, s.outputs,
                                               static_cast<const float*>(s.codes), s.bias,
                                               -kInfinity, kInfinity, /*flags=*/0,
                                               /*code_cache=*/nullptr, provider, op);
    case TensorType::kQ8:
      return xnn_create_fully_connected_nc_qd8_f32_qc8w(
          s.inputs, s.outputs, s.inputs, s.outputs, static_cast<const float*>(s.scales),
          static_cast<const int8_t*>(s.codes), s.bias, -kInfinity, kInfinity, /*flags=*/0,
          /*code_cache=*/nullptr, provider, op);
    case TensorType::kQ4:
      return xnn_create_fully_connected_nc_qd8_f32_qb4w(
          s.inputs, s.outputs, s.inputs, s.outputs, kQ4Block, kQ4ZeroPoint,
          static_cast<const uint16_t*>(s.scales), s.codes, s.bias, -kInfinity, kInfinity,
          /*flags=*/0, /*code_cache=*/nullptr, provider, op);
  }
  return xnn_status_invalid_parameter;
}

Result<void> initialize() {
  static const xnn_status status =
      xnn_initialize(nullptr);  // once for the process, by the first linear
  if (status == xnn_status_success) return {};
  return fail("XNNPACK cannot run here: {}", describe(status));
}

// Fills `to` with scales that are 1.
void fill_ones(TensorType type, size_t count, std::vector<float>& to) {
  const float one = type == TensorType::kQ4 ? std::bit_cast<float>(0x3f803f80) : 1.0f;  // two bf16
  to.resize(std::max(to.size(), count));
  std::ranges::fill(to, one);
}

size_t scale_count(TensorType type, size_t inputs, size_t outputs) {
  switch (type) {
    case TensorType::kF32:
      return 0;
    case TensorType::kQ8:
      return outputs;
    case TensorType::kQ4:
      return (outputs * (inputs / kQ4Block) + 1) / 2;
  }
  return 0;
}

// Of a weight that takes panels.
size_t panel_bytes_of(const Tensor& weight) {
  const size_t inputs = weight.padded_columns();
  return weight.type == TensorType::kQ8
             ? Int8Matrix{.inputs = inputs, .outputs = weight.rows}.bytes()
             : Int4Matrix{.inputs = inputs, .outputs = weight.rows}.bytes();
}

}  // namespace

// For XNNPACK, outputs are padded to whole tiles, of 16 at most; each has its bias, and int8 and
// int4 ones the sum of their codes, which the activations' zero point multiplies.
size_t packed_bytes_of(const Tensor& weight) {
  if (PackedWeights::takes_panels(weight)) return panel_bytes_of(weight);
  const size_t outputs = (weight.rows + 15) / 16 * 16, inputs = weight.padded_columns();
  switch (weight.type) {
    case TensorType::kF32:
      return outputs * (inputs + 1) * sizeof(float);
    case TensorType::kQ8:
      return outputs * ((inputs + 7) / 8 * 8 + 3 * sizeof(float));
    case TensorType::kQ4:
      return outputs * (inputs / 2 + weight.blocks() * sizeof(uint16_t) + 2 * sizeof(float));
  }
  return 0;
}

std::string_view describe(xnn_status status) {
  switch (status) {
    case xnn_status_success:
      return "no error";
    case xnn_status_uninitialized:
      return "it is not initialised";
    case xnn_status_invalid_parameter:
      return "it takes a scale or a size for invalid";
    case xnn_status_invalid_state:
      return "it is in the wrong state";
    case xnn_status_unsupported_parameter:
      return "it does not support these sizes";
    case xnn_status_unsupported_hardware:
      return "it does not support this processor";
    case xnn_status_out_of_memory:
      return "memory is short";
    default:
      return "it gives no reason";
  }
}

std::string packed_path(std::string_view model_path, std::string_view part) {
  constexpr std::string_view kExtension = ".vvl";
  if (model_path.ends_with(kExtension)) model_path.remove_suffix(kExtension.size());
  return std::format("{}{}{}.vvlpack", model_path, part.empty() ? "" : ".", part);
}

// A line of the file's table.
struct PackedWeights::Entry {
  uint64_t key = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t checksum = 0;
};

// Every change of place goes through a segment's number, so nothing ever moves for XNNPACK; and it
// counts as finished all the time.
PackedWeights::PackedWeights()
    : provider_{
          .context = this,
          .look_up =
              [](void* self, const xnn_weights_cache_look_up_key*) {
                return static_cast<PackedWeights*>(self)->look_up();
              },
          .reserve_space = [](void* self, size_t bytes) -> void* {
            return static_cast<PackedWeights*>(self)->reserve(bytes);
          },
          .look_up_or_insert =
              [](void* self, const xnn_weights_cache_look_up_key*, void* packed, size_t bytes) {
                return static_cast<PackedWeights*>(self)->insert(static_cast<std::byte*>(packed),
                                                                 bytes);
              },
          .is_finalized = [](void*) { return true; },
          .offset_to_addr = [](void* self, size_t number) -> void* {
            return const_cast<std::byte*>(static_cast<PackedWeights*>(self)->address(number));
          },
          .delete_cache = [](void*) { return xnn_status_success; },
      } {}
PackedWeights::~PackedWeights() = default;

const std::byte* PackedWeights::address(size_t number) const {
  const Segment& segment = segments_[number];
  return segment.memory != nullptr ? segment.memory : mapped_->bytes().data() + segment.offset;
}

bool PackedWeights::takes_panels(const Tensor& weight) {
  if (!int8_product_pays()) return false;
  return weight.type == TensorType::kQ4 ||
         (weight.type == TensorType::kQ8 && weight.columns % 4 == 0);
}

// Packs a matrix of known codes, of which only the shape matters to the size.
PackedWeights::Packing PackedWeights::measure(TensorType type, size_t inputs, size_t outputs) {
  const size_t codes = inputs * outputs;
  std::vector<float> weights(type == TensorType::kF32 ? codes : codes / sizeof(float) + 1);
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i] = static_cast<float>(static_cast<int>(i * 73 % 251) - 125);
  }
  fill_ones(type, scale_count(type, inputs, outputs), ones_);
  struct Memory {
    std::vector<std::byte> bytes;
    size_t used = 0;
  } memory;
  xnn_weights_cache_provider provider = provider_;
  provider.context = &memory;
  provider.look_up = [](void*, const xnn_weights_cache_look_up_key*) { return SIZE_MAX; };
  provider.reserve_space = [](void* context, size_t bytes) -> void* {
    auto& to = *static_cast<Memory*>(context);
    to.bytes.resize(bytes + kAlignment);
    to.used = bytes;
    const auto place = reinterpret_cast<uintptr_t>(to.bytes.data());
    return to.bytes.data() + (align(place) - place);
  };
  provider.look_up_or_insert = [](void* context, const xnn_weights_cache_look_up_key*, void* packed,
                                  size_t) {
    auto& to = *static_cast<Memory*>(context);
    std::memmove(to.bytes.data(), packed, to.used);
    return size_t{0};
  };
  provider.offset_to_addr = [](void* context, size_t) -> void* {
    return static_cast<Memory*>(context)->bytes.data();
  };
  const std::vector<float> bias(outputs, 0.5f);
  xnn_operator_t op = nullptr;
  if (create_operator({type, inputs, outputs, weights.data(), ones_.data(), bias.data()}, &provider,
                      &op) != xnn_status_success)
    return {};
  const XnnOperator deleted(op);
  return {memory.used, checksum(std::span(memory.bytes).first(memory.used))};
}

// Rows are packed in tiles of a power of two of them, at most 128.
PackedWeights::Packing PackedWeights::packing_of(TensorType type, size_t inputs, size_t outputs) {
  constexpr size_t kLargestTile = 128;
  const auto measured = [&](size_t rows) -> const Packing& {
    const auto [place, is_new] = packings_.try_emplace({type, inputs, rows});
    if (is_new) place->second = measure(type, inputs, rows);
    return place->second;
  };
  const Packing& some = measured(std::min(outputs, kLargestTile + 1));
  if (outputs <= kLargestTile) return {align(some.bytes), some.checksum};
  const Packing& whole = measured(kLargestTile);
  const size_t row = whole.bytes / kLargestTile;
  if (row == 0 || some.bytes <= whole.bytes) return {};
  const size_t tile = std::bit_floor((some.bytes - whole.bytes) / row);
  return {align((outputs + tile - 1) / tile * tile * row), some.checksum};
}

// The entry that the file should have, its place and checksum aside.
PackedWeights::Entry PackedWeights::expected(const Linear& linear) {
  const Tensor& weight = *linear.weight;
  const size_t inputs = weight.padded_columns();
  constexpr uint64_t kPanels = 1;  // to be changed with what pack_int8 or pack_int4 writes
  const Packing packing = takes_panels(weight) ? Packing{panel_bytes_of(weight), kPanels}
                                               : packing_of(weight.type, inputs, weight.rows);
  const uint64_t bias =
      linear.bias == nullptr ? 0 : checksum(std::as_bytes(std::span(linear.bias, weight.rows)));
  const std::array<uint64_t, 7> identity = {static_cast<uint64_t>(weight.type),
                                            inputs,
                                            weight.rows,
                                            weight.data.checksum,
                                            weight.scales.checksum,
                                            bias,
                                            packing.checksum};
  return {.key = checksum(std::as_bytes(std::span(identity))), .bytes = packing.bytes};
}

// The entries of `file` for those `wanted`; null where one is missing or damaged.
std::optional<std::vector<PackedWeights::Entry>> PackedWeights::read(
    const MappedFile& file, std::span<const Entry> wanted) {
  const std::span<const std::byte> bytes = file.bytes();
  Header header;
  if (bytes.size() < sizeof(Header)) return std::nullopt;
  std::memcpy(&header, bytes.data(), sizeof(Header));
  if (header.magic != Header().magic || header.version != Header().version ||
      header.table_offset % kAlignment != 0 || header.table_offset > bytes.size() ||
      header.entries > (bytes.size() - header.table_offset) / sizeof(Entry)) {
    return std::nullopt;
  }
  const auto table = bytes.subspan(header.table_offset, header.entries * sizeof(Entry));
  if (checksum(table) != header.table_checksum) return std::nullopt;
  const std::span<const Entry> entries(reinterpret_cast<const Entry*>(table.data()),
                                       header.entries);
  std::vector<Entry> found;
  for (const Entry& entry : wanted) {
    const auto at = std::ranges::find(entries, entry.key, &Entry::key);
    if (at == entries.end() || at->bytes != entry.bytes || at->offset < sizeof(Header) ||
        at->offset % kAlignment != 0 || at->offset > bytes.size() ||
        at->bytes + XNN_EXTRA_BYTES > bytes.size() - at->offset ||
        checksum(bytes.subspan(at->offset, at->bytes)) != at->checksum) {
      return std::nullopt;
    }
    found.push_back(*at);
  }
  return found;
}

void PackedWeights::use_file(const std::string& path, std::span<const Linear* const> linears) {
  if (!initialize()) return;
  uint64_t bytes = 0;
  for (const Linear* linear : linears) {
    if (linear->weight->type == TensorType::kF32) continue;
    const Entry entry = expected(*linear);
    if (entry.bytes == 0) return;
    if (std::ranges::contains(entries_, entry.key, &Entry::key)) continue;
    entries_.push_back(entry);
    bytes += align(entry.bytes + XNN_EXTRA_BYTES);
  }
  if (entries_.empty()) return;
  if (auto file = MappedFile::open(path)) {
    file->prefer_large_pages();
    if (auto entries = read(*file, entries_)) {
      entries_ = *std::move(entries);
      mapped_ = *std::move(file);
      found_ = true;
      return;
    }
  }
  auto output = OutputFile::create(path, {.overwrite = true});
  if (!output || !output->expect(bytes)) return;
  const Header nothing;
  writable_ = output->append(std::as_bytes(std::span(&nothing, 1))).has_value();
  output_ = *std::move(output);
}

Result<PackedLinear> PackedWeights::create(const Model& model, const Linear& linear) {
  VOLVELLE_RETURN_IF_ERROR(initialize());
  const Tensor& weight = *linear.weight;
  Source source{weight.type,
                weight.padded_columns(),
                weight.rows,
                weight.data.bytes.data(),
                weight.scales.bytes.data(),
                linear.bias};
  present_ = nullptr;
  if (mapped_ || writable_) {
    const auto at = std::ranges::find(entries_, expected(linear).key, &Entry::key);
    if (at != entries_.end()) present_ = &*at;
  }
  const bool packs = present_ == nullptr || present_->offset == 0;
  if (packs) {
    VOLVELLE_RETURN_IF_ERROR(model.verify_contents(weight));
  } else {
    VOLVELLE_RETURN_IF_ERROR(model.verify_unpacked(weight));
    // XNNPACK looks at scales that it does not pack.
    fill_ones(source.type, scale_count(source.type, source.inputs, source.outputs), ones_);
    source.scales = ones_.data();
  }
  PackedLinear result;
  if (takes_panels(weight)) {
    result.panels = look_up();
    if (result.panels == SIZE_MAX) {
      const size_t bytes = panel_bytes_of(weight);
      std::byte* const place = reserve(bytes);
      if (place == nullptr) {
        return fail("{}: tensor {}: memory is too short to pack it", model.path(), weight.name);
      }
      if (weight.type == TensorType::kQ8) {
        pack_int8({.inputs = source.inputs, .outputs = source.outputs}, weight.q8(),
                  weight.row_scales(), linear.bias, place);
      } else {
        pack_int4({.inputs = source.inputs, .outputs = source.outputs}, weight.q4(),
                  weight.block_scales(), linear.bias, place);
      }
      result.panels = insert(place, bytes);
    }
  } else {
    xnn_operator_t op = nullptr;
    const xnn_status status = create_operator(source, &provider_, &op);
    if (status != xnn_status_success) {
      return fail("{}: tensor {}: XNNPACK cannot pack it: {}", model.path(), weight.name,
                  describe(status));
    }
    result.xnn.reset(op);
  }
  if (packs) model.drop_pages(weight);
  return result;
}

// The number of the segment that is in the file already.
size_t PackedWeights::look_up() {
  if (present_ == nullptr || present_->offset == 0) return SIZE_MAX;
  segments_.push_back({.offset = present_->offset});
  if (found_) bytes_ += present_->bytes;
  return segments_.size() - 1;
}

// Zeroed and aligned; null when memory is short, which XNNPACK reports. Its own unit of memory
// differs between processors.
std::byte* PackedWeights::reserve(size_t bytes) {
  bytes = align(bytes);
  bytes_ += bytes;
  if (present_ == nullptr) return reserve_memory(bytes);
  if (bytes != present_->bytes) writable_ = false;  // then no key is to be trusted
  if (packing_.bytes().size() < bytes + XNN_EXTRA_BYTES) {
    auto buffer = AlignedBuffer::make(bytes + XNN_EXTRA_BYTES);
    if (!buffer) return nullptr;
    packing_ = *std::move(buffer);
  } else {
    std::ranges::fill(packing_.bytes().first(bytes), std::byte{0});
  }
  return packing_.bytes().data();
}

std::byte* PackedWeights::reserve_memory(size_t bytes) {
  const size_t taken = align(bytes + XNN_EXTRA_BYTES);
  if (taken < bytes) return nullptr;
  if (parts_.empty() || taken > parts_.back().bytes().size() - used_) {
    auto part = AlignedBuffer::make(std::max(kPartBytes, taken), AlignedBuffer::Pages::kHuge);
    if (!part) return nullptr;
    parts_.push_back(*std::move(part));
    used_ = 0;
  }
  std::byte* const place = parts_.back().bytes().data() + used_;
  used_ += taken;
  return place;
}

// The number of the segment that `packed`, which `reserve` gave, becomes.
size_t PackedWeights::insert(std::byte* packed, size_t bytes) {
  bytes = align(bytes);
  Segment segment{.memory = packed};
  if (present_ != nullptr && packed == packing_.bytes().data()) {
    const std::span<const std::byte> all(packed, bytes);
    const uint64_t offset = output_->position();
    writable_ =
        writable_ && output_->append(all) && output_->append(kSlack) && output_->pad_to(kAlignment);
    if (writable_) {
      present_->offset = offset;
      present_->checksum = checksum(all);
      segment = {.offset = offset};
    } else {
      parts_.push_back(std::move(packing_));
      used_ = parts_.back().bytes().size();
    }
  }
  segments_.push_back(segment);
  return segments_.size() - 1;
}

Result<void> PackedWeights::finish() {
  ones_ = {};
  packing_ = {};
  if (!output_) return {};
  OutputFile output = *std::exchange(output_, std::nullopt);
  const auto entries = std::as_bytes(std::span(entries_));
  Header header{.entries = static_cast<uint32_t>(entries_.size()),
                .table_offset = output.position(),
                .table_checksum = checksum(entries)};
  const bool whole = std::exchange(writable_, false) &&
                     !std::ranges::contains(entries_, uint64_t{0}, &Entry::offset) &&
                     output.append(entries) &&
                     output.write_at(0, std::as_bytes(std::span(&header, 1)));
  if (!std::ranges::contains(segments_, nullptr, &Segment::memory)) return {};
  // Over small pages decoding takes up to twice as long.
  VOLVELLE_ASSIGN_OR_RETURN(mapped_, output.map_large());
  if (whole) (void)output.commit();  // the mapping holds what it holds, named or not
  return {};
}

}  // namespace volvelle
