#include "converter/extend.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <format>
#include <span>
#include <utility>

#include "converter/table.h"
#include "platforms/clock.h"
#include "platforms/interrupt.h"
#include "platforms/output_file.h"
#include "platforms/updated_file.h"
#include "runtime/file_format.h"
#include "runtime/finite.h"
#include "runtime/model.h"

namespace volvelle {
namespace {

// A file whose tables are one table, listed again and again, must not take all memory.
constexpr uint32_t kMaxWidth = 1 << 13;  // of a head, as the runtime has it
constexpr size_t kMaxSchemes = 1 << 12;
constexpr size_t kMaxDialBytes = 1 << 30;

RotaryScalingKind kind_of(file::RotaryScalingKind kind) {
  switch (kind) {
    case file::RotaryScalingKind::none:
      return RotaryScalingKind::kNone;
    case file::RotaryScalingKind::linear:
      return RotaryScalingKind::kLinear;
    case file::RotaryScalingKind::ntk:
      return RotaryScalingKind::kNtk;
    case file::RotaryScalingKind::dynamic_ntk:
      return RotaryScalingKind::kDynamicNtk;
    case file::RotaryScalingKind::yarn:
      return RotaryScalingKind::kYarn;
    case file::RotaryScalingKind::longrope:
      return RotaryScalingKind::kLongRope;
    case file::RotaryScalingKind::llama3:
      return RotaryScalingKind::kLlama3;
    case file::RotaryScalingKind::proportional:
      return RotaryScalingKind::kProportional;
  }
  return RotaryScalingKind::kNone;
}

// `planes` values; none where there are not as many.
std::vector<float> copy(const flatbuffers::Vector<float>* values, size_t planes) {
  if (values == nullptr || values->size() != planes) return {};
  return {values->begin(), values->end()};
}

RotaryScaling scaling_of(const file::RotaryScaling* stored, size_t planes) {
  if (stored == nullptr) return {};
  return {.kind = kind_of(stored->kind()),
          .factor = stored->factor(),
          .original_context = stored->original_context(),
          .low_frequency_factor = stored->low_frequency_factor(),
          .high_frequency_factor = stored->high_frequency_factor(),
          .beta_fast = stored->beta_fast(),
          .beta_slow = stored->beta_slow(),
          .truncate = stored->truncate(),
          .attention_factor = stored->attention_factor(),
          .mscale = stored->mscale(),
          .mscale_all_dim = stored->mscale_all_dim(),
          .short_factors = copy(stored->short_factors(), planes),
          .long_factors = copy(stored->long_factors(), planes),
          .turning_planes = stored->turning_planes()};
}

// The plan that a scheme was baked by.
Result<RotaryPlan> plan_of(const file::Rotary& stored, const std::string& where) {
  const auto usable = [](double base) { return base > 0 && base < 1e30; };
  const uint32_t width = stored.width();
  const bool moved = stored.own_scaling() != nullptr;
  if (width == 0 || width % 2 != 0 || width > kMaxWidth || !usable(stored.base()) ||
      (moved && !usable(stored.own_base())) || stored.pairing() > file::Pairing::MAX) {
    return fail("{}: width {}, base {} or pairing is out of range; convert the checkpoint again",
                where, width, stored.base());
  }
  RotaryPlan plan{
      .pairing = stored.pairing() == file::Pairing::half ? Pairing::kHalf : Pairing::kInterleaved,
      .width = width,
      .base = stored.base(),
      .scaling = scaling_of(stored.scaling(), width / 2),
      .frequencies = copy(stored.frequencies(), width / 2)};
  if (moved) {
    plan.origin = RotaryOrigin{stored.own_base(), scaling_of(stored.own_scaling(), width / 2),
                               copy(stored.own_frequencies(), width / 2)};
  }
  const auto incomplete = [](const RotaryScaling& scaling) {
    return scaling.kind == RotaryScalingKind::kLongRope &&
           (scaling.short_factors.empty() || scaling.long_factors.empty());
  };
  if (plan.frequencies.empty() || incomplete(plan.scaling) ||
      (moved && incomplete(plan.origin->scaling))) {
    return fail("{}: frequencies or factors are not one for each plane", where);
  }
  return plan;
}

// Why a model without rotary positions cannot be extended.
std::unexpected<Error> refuse_scheme(const file::Model& model, const std::string& path) {
  const file::Position* first = nullptr;
  if (model.positions() != nullptr && model.positions()->size() > 0) {
    first = model.positions()->Get(0);
  }
  switch (first == nullptr ? file::Scheme::NONE : first->scheme_type()) {
    case file::Scheme::NONE:
      return fail(
          "{}: has no position scheme, the mask alone tells order; there is nothing to scale",
          path);
    case file::Scheme::LinearBias:
      return fail("{}: its positions are linear biases (ALiBi), which have no limit and need none",
                  path);
    case file::Scheme::AdditiveTable: {
      const auto* table = first->scheme_as_AdditiveTable();
      if (table == nullptr || table->learned()) {
        return fail(
            "{}: its positions are rows of a table that was learned, which cannot be extended",
            path);
      }
      return fail(
          "{}: its positions are added to embeddings and not rotary; convert again with --context "
          "for a longer table",
          path);
    }
    case file::Scheme::ClippedRelative:
      return fail(
          "{}: its positions are rows of learned tables by distance (Shaw) and not rotary; there "
          "is "
          "no frequency to scale",
          path);
    default:
      return fail(
          "{}: its positions are biases by distance and not rotary; there is no frequency "
          "to scale",
          path);
  }
}

struct Scheme {
  size_t position = 0;
  const file::Rotary* stored = nullptr;
  RotaryPlan before, after;
  bool local = false;
};

// What the file's rotary schemes become.
Result<std::vector<Scheme>> plan_schemes(const file::Model& model, const ExtendOptions& options,
                                         ExtendReport& report) {
  const std::string& path = options.model;
  if (model.stacks()->size() != 1) {
    return fail("{}: it has {} stacks, and models of one are extended", path,
                model.stacks()->size());
  }
  const file::Stack& stack = *model.stacks()->Get(0);
  const auto* positions = model.positions();
  const size_t count = positions == nullptr ? 0 : positions->size();
  std::vector<bool> rotary(count);
  for (size_t i = 0; i < count; ++i) {
    rotary[i] = positions->Get(i)->scheme_as_Rotary() != nullptr;
  }
  if (std::ranges::find(rotary, true) == rotary.end()) return refuse_scheme(model, path);

  std::vector<LayerSight> layers;
  for (const file::Block* block : *stack.blocks()) {
    const int position = block->attention()->position();
    if (position >= static_cast<int64_t>(count)) {
      return fail("{}: a block names position {} of {}", path, position, count);
    }
    const uint64_t window = block->attention()->window();
    if (position >= 0) layers.push_back({position, window});
  }
  const std::vector<bool> local = local_schemes(rotary, layers);
  std::vector<Scheme> schemes;
  for (size_t i = 0; i < count; ++i) {
    if (!rotary[i]) continue;
    if (schemes.size() == kMaxSchemes) {
      return fail("{}: more than {} rotary schemes are not possible", path, kMaxSchemes);
    }
    Scheme scheme{
        .position = i, .stored = positions->Get(i)->scheme_as_Rotary(), .local = local[i]};
    VOLVELLE_ASSIGN_OR_RETURN(
        scheme.before, plan_of(*scheme.stored, std::format("{}: position {}, rotary", path, i)));
    scheme.after = scheme.local ? scheme.before
                                : rescale(scheme.before, options.scaling, stack.trained_context());
    if (scheme.local) report.notices.push_back(local_scheme_text(scheme.before));
    report.schemes.push_back({i, rotary_text(scheme.before), rotary_text(scheme.after)});
    schemes.push_back(std::move(scheme));
  }
  return schemes;
}

Result<uint64_t> choose_context(const file::Model& model, std::span<const Scheme> schemes,
                                const Extension& before, const ExtendOptions& options,
                                ExtendReport& report) {
  const file::Stack& stack = *model.stacks()->Get(0);
  const uint64_t former = stack.context(), trained = stack.trained_context();
  report.former_context = former;
  report.trained_context = trained;
  uint64_t reach = kMaxContext;
  for (const Scheme& scheme : schemes) {
    if (!scheme.local) reach = std::min(reach, scaled_context(scheme.after, trained));
  }
  // The checkpoint's own scaling is made for what was trained, however it counts.
  const bool original = options.scaling.original;
  if (original) reach = std::max(reach, trained);
  // Whoever has a context does not lose it; only the way back takes what was won on the way.
  const uint64_t own = original ? before.context : std::max({reach, former, trained});
  const uint64_t context = options.context.value_or(own);
  if (context == 0 || context > kMaxContext) {
    return fail("--context {}: must be from 1 to {}", context, kMaxContext);
  }
  for (const file::Position* position : *model.positions()) {
    const file::Scheme other = position->scheme_type();
    if (context > stack.context() &&
        (other == file::Scheme::AdditiveTable || other == file::Scheme::ClippedRelative)) {
      return fail("--context {}: {} has tables for {} positions beside its rotary ones, which stay",
                  context, options.model, stack.context());
    }
  }
  if (context > reach) {
    report.notices.push_back(beyond_scaling_text(context, reach, former));
  } else if (!options.context && !original && context != former) {
    report.notices.push_back(chosen_context_text(context, reach));
  }
  return context;
}

// Bytes that are to lie at `base` in a file, and the header that makes them count.
struct Appendix {
  uint64_t base = 0;
  std::vector<std::byte> bytes;
  HeaderSlot slot;

  uint64_t end() const { return base + bytes.size(); }
  void pad_to(uint64_t alignment) {
    bytes.resize(bytes.size() + (alignment - end() % alignment) % alignment);
  }
  uint64_t append(std::span<const std::byte> more) {  // where they lie
    const uint64_t offset = end();
    bytes.insert(bytes.end(), more.begin(), more.end());
    return offset;
  }
  file::Segment append_segment(std::span<const float> values) {
    if (values.empty()) return file::Segment(0, 0, 0);
    const auto segment = std::as_bytes(values);
    pad_to(segment.size() >= kLargeSegmentBytes ? kLargeSegmentAlignment : kSegmentAlignment);
    const uint64_t offset = append(segment);
    return file::Segment(offset, segment.size(), checksum(segment));
  }
};

// The file's table with other rotary schemes and another context, all else as it is: the new
// schemes follow the former bytes, and each position's reference to its scheme is turned to them.
class TablePatch {
 public:
  // `kept`: bytes of the former table that stay.
  TablePatch(std::span<const std::byte> table, size_t kept) : former_(table), kept_(kept) {
    const auto* const first = reinterpret_cast<const uint8_t*>(table.data());
    bytes_.assign(first, first + kept);
  }

  Result<void> set_context(const file::Stack& stack, uint64_t context) {
    VOLVELLE_ASSIGN_OR_RETURN(const size_t field, field_of(&stack, file::Stack::VT_CONTEXT));
    flatbuffers::WriteScalar(bytes_.data() + field, static_cast<uint32_t>(context));
    return {};
  }

  Result<void> set_rotary(const file::Position& position, const RotaryPlan& plan,
                          const StoredDials& dials, const Extension& extension) {
    flatbuffers::FlatBufferBuilder builder;
    builder.Finish(add_rotary(builder, plan, dials, extension));
    const std::span scheme(builder.GetBufferPointer(), builder.GetSize());
    VOLVELLE_ASSIGN_OR_RETURN(const size_t field, field_of(&position, file::Position::VT_SCHEME));
    bytes_.resize((bytes_.size() + 15) / 16 * 16);
    const size_t target =
        bytes_.size() + flatbuffers::ReadScalar<flatbuffers::uoffset_t>(scheme.data());
    bytes_.insert(bytes_.end(), scheme.begin(), scheme.end());
    flatbuffers::WriteScalar(bytes_.data() + field,
                             static_cast<flatbuffers::uoffset_t>(target - field));
    return {};
  }

  // The finished table, if its structure is sound.
  Result<std::span<const std::byte>> finish() const {
    if (bytes_.size() > kMaxTableBytes) {
      return fail("the model's table takes {} bytes; {} are the limit", bytes_.size(),
                  kMaxTableBytes);
    }
    flatbuffers::Verifier verifier(bytes_.data(), bytes_.size(), 16, 1 << 20);
    if (!file::VerifyModelBuffer(verifier)) return fail("the table's structure is damaged");
    return std::as_bytes(std::span(bytes_));
  }

 private:
  // Where a field of four bytes lies. Asked of the former table, whose structure is verified.
  Result<size_t> field_of(const void* table, flatbuffers::voffset_t field) const {
    const uint8_t* address = static_cast<const flatbuffers::Table*>(table)->GetAddressOf(field);
    const size_t offset = address == nullptr
                              ? SIZE_MAX
                              : reinterpret_cast<const std::byte*>(address) - former_.data();
    if (offset >= kept_ || kept_ - offset < sizeof(uint32_t)) {
      return fail("the table lacks what extending changes; convert the checkpoint again");
    }
    return offset;
  }

  std::span<const std::byte> former_;
  size_t kept_;
  std::vector<uint8_t> bytes_;
};

// What the file was before it was first extended.
Result<Extension> before_extension(const FileTable& opened, std::span<const Scheme> schemes,
                                   const std::string& path) {
  const HeaderSlot& slot = opened.slot;
  const file::Extension* stored = schemes.front().stored->extension();
  const uint32_t context = opened.model->stacks()->Get(0)->context();
  Extension before{slot.file_bytes, static_cast<uint32_t>(slot.table_bytes), context};
  if (stored != nullptr) {
    before = {stored->file_bytes(), stored->table_bytes(), stored->context()};
    if (before.context == 0) before.context = context;  // not noted by an older program
  }
  if (before.file_bytes < kFirstSegmentOffset || before.file_bytes > slot.file_bytes ||
      before.file_bytes % kSegmentAlignment != 0 || before.table_bytes > slot.table_bytes) {
    return fail("{}: {} bytes with a table of {} before extension are out of range; convert again",
                path, before.file_bytes, before.table_bytes);
  }
  return before;
}

Result<Appendix> bake_appendix(std::span<const std::byte> file, const FileTable& opened,
                               std::span<const Scheme> schemes, const Extension& before,
                               uint64_t base, const ExtendOptions& options, ExtendReport& report) {
  const std::string& path = options.model;
  const file::Model& model = *opened.model;
  VOLVELLE_ASSIGN_OR_RETURN(report.context,
                            choose_context(model, schemes, before, options, report));
  Appendix appendix{.base = base};
  TablePatch patch(file.subspan(opened.slot.table_offset, opened.slot.table_bytes),
                   before.table_bytes);
  const auto named = [&](auto result) {
    return std::move(result).transform_error(
        [&](const Error& error) { return Error{std::format("{}: {}", path, error.message)}; });
  };
  VOLVELLE_RETURN_IF_ERROR(named(patch.set_context(*model.stacks()->Get(0), report.context)));
  for (const Scheme& scheme : schemes) {
    const std::string where = std::format("{}: position {}, rotary", path, scheme.position);
    if (appendix.bytes.size() > kMaxDialBytes) {
      return fail("{}: dials for {} positions take over {} bytes; choose a smaller --context",
                  where, report.context, kMaxDialBytes);
    }
    StoredDials dials{.tables = bake(scheme.after, report.context)};
    const RotaryTables& tables = dials.tables;
    for (const std::vector<float>* dial :
         {&tables.coarse, &tables.fine, &tables.long_coarse, &tables.long_fine}) {
      if (!all_finite(*dial)) return fail("{}: its dials hold what is no number", where);
    }
    dials.coarse = appendix.append_segment(tables.coarse);
    dials.fine = appendix.append_segment(tables.fine);
    dials.long_coarse = appendix.append_segment(tables.long_coarse);
    dials.long_fine = appendix.append_segment(tables.long_fine);
    VOLVELLE_RETURN_IF_ERROR(named(
        patch.set_rotary(*model.positions()->Get(scheme.position), scheme.after, dials, before)));
  }
  VOLVELLE_ASSIGN_OR_RETURN(const std::span<const std::byte> table, named(patch.finish()));
  appendix.pad_to(kSegmentAlignment);
  appendix.slot.table_offset = appendix.append(table);
  appendix.slot.table_bytes = table.size();
  appendix.slot.table_checksum = checksum(table);
  appendix.bytes.resize(appendix.bytes.size() + kSegmentTail);
  appendix.pad_to(kSegmentAlignment);
  appendix.slot.file_bytes = appendix.end();
  report.name = model.name() == nullptr ? "" : model.name()->str().substr(0, 1024);
  report.baked_bytes = appendix.bytes.size();
  report.file_bytes = appendix.end();
  return appendix;
}

// Where bytes may be appended without touching what any generation of the file uses.
uint64_t end_of_generations(std::span<const std::byte> file) {
  uint64_t end = kFirstSegmentOffset;
  for (const uint64_t offset : kSlotOffsets) {
    HeaderSlot slot;
    std::memcpy(&slot, file.data() + offset, sizeof slot);
    if (slot.magic == kFileMagic && slot.checksum == header_checksum(slot)) {
      end = std::max(end, std::min<uint64_t>(slot.file_bytes, file.size()));
    }
  }
  return (end + kSegmentAlignment - 1) / kSegmentAlignment * kSegmentAlignment;
}

Result<> extend_in_place(const ExtendOptions& options, ExtendReport& report) {
  VOLVELLE_ASSIGN_OR_RETURN(UpdatedFile updated, UpdatedFile::open(options.model));
  VOLVELLE_ASSIGN_OR_RETURN(const MappedFile mapped, updated.map());
  const std::span<const std::byte> file = mapped.bytes();
  VOLVELLE_ASSIGN_OR_RETURN(const FileTable opened, open_table(file, options.model));
  if (!opened.damage.empty()) {
    report.notices.push_back(std::format("a newer generation was passed over: {}", opened.damage));
  }
  // What does not load is not made longer.
  VOLVELLE_RETURN_IF_ERROR(Model::from_bytes(file, options.model));
  VOLVELLE_ASSIGN_OR_RETURN(const std::vector<Scheme> schemes,
                            plan_schemes(*opened.model, options, report));
  VOLVELLE_ASSIGN_OR_RETURN(const Extension before,
                            before_extension(opened, schemes, options.model));
  VOLVELLE_ASSIGN_OR_RETURN(
      Appendix appendix,
      bake_appendix(file, opened, schemes, before, end_of_generations(file), options, report));
  const size_t other = 1 - opened.slot_index;
  HeaderSlot& slot = appendix.slot;
  HeaderSlot former;
  std::memcpy(&former, file.data() + kSlotOffsets[other], sizeof former);
  const bool passed_over = former.checksum == header_checksum(former);
  slot.generation = std::max(opened.slot.generation, passed_over ? former.generation : 0) + 1;
  slot.checksum = header_checksum(slot);
  report.generation = slot.generation;

  // Everything that the slot names is on the disk before the slot is.
  Result<> appended = updated.write(appendix.base, appendix.bytes);
  if (appended) appended = updated.resize(appendix.end());
  if (appended) appended = updated.sync();
  if (!appended) {
    (void)updated.resize(std::min<uint64_t>(appendix.base, file.size()));
    return appended;
  }
  VOLVELLE_RETURN_IF_ERROR(updated.write(kSlotOffsets[other], std::as_bytes(std::span(&slot, 1))));
  return updated.sync();
}

Result<> extend_copy(const ExtendOptions& options, ExtendReport& report) {
  std::error_code unknown;
  if (!options.force && std::filesystem::exists(options.output, unknown)) {
    return fail("{}: exists already; choose another name, or replace it with --force",
                options.output);
  }
  VOLVELLE_ASSIGN_OR_RETURN(const MappedFile mapped, MappedFile::open(options.model));
  const std::span<const std::byte> file = mapped.bytes();
  VOLVELLE_ASSIGN_OR_RETURN(const FileTable opened, open_table(file, options.model));
  VOLVELLE_ASSIGN_OR_RETURN(const std::vector<Scheme> schemes,
                            plan_schemes(*opened.model, options, report));
  VOLVELLE_ASSIGN_OR_RETURN(const Extension before,
                            before_extension(opened, schemes, options.model));
  VOLVELLE_ASSIGN_OR_RETURN(Appendix appendix, bake_appendix(file, opened, schemes, before,
                                                             before.file_bytes, options, report));
  HeaderSlot& slot = appendix.slot;
  slot.generation = report.generation = 1;
  slot.checksum = header_checksum(slot);

  VOLVELLE_ASSIGN_OR_RETURN(OutputFile copy,
                            OutputFile::create(options.output, {.overwrite = options.force}));
  VOLVELLE_RETURN_IF_ERROR(copy.expect(appendix.end()));
  constexpr uint64_t kStep = 16 << 20;
  for (uint64_t done = 0; done < before.file_bytes; done += kStep) {
    if (interrupted()) return fail("interrupted");
    options.progress(done, appendix.end());
    VOLVELLE_RETURN_IF_ERROR(
        copy.append(file.subspan(done, std::min(kStep, before.file_bytes - done))));
  }
  VOLVELLE_RETURN_IF_ERROR(copy.append(appendix.bytes));
  constexpr std::array<std::byte, sizeof(HeaderSlot)> kNoSlot = {};
  VOLVELLE_RETURN_IF_ERROR(copy.write_at(kSlotOffsets[0], std::as_bytes(std::span(&slot, 1))));
  VOLVELLE_RETURN_IF_ERROR(copy.write_at(kSlotOffsets[1], kNoSlot));
  VOLVELLE_ASSIGN_OR_RETURN(const MappedFile written, copy.map());
  if (const auto model = Model::from_bytes(written.bytes(), options.output); !model) {
    return fail("{}; so the finished copy was discarded", model.error().message);
  }
  return copy.commit();
}

}  // namespace

Result<ExtendReport> extend(const ExtendOptions& options) {
  const double start = monotonic_seconds();
  ExtendReport report;
  const bool in_place = options.output.empty();
  report.file = in_place ? options.model : options.output;
  VOLVELLE_RETURN_IF_ERROR(in_place ? extend_in_place(options, report)
                                    : extend_copy(options, report));
  report.seconds = monotonic_seconds() - start;
  return report;
}

}  // namespace volvelle
