#include "converter/writer.h"

#include <array>

#include "platforms/mapped_file.h"
#include "runtime/file_format.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace volvelle {

struct ModelWriter::Checksum {
  XXH3_state_t state;
};

ModelWriter::ModelWriter(OutputFile file)
    : file_(std::move(file)), checksum_(std::make_unique<Checksum>()) {}
ModelWriter::ModelWriter(ModelWriter&&) noexcept = default;
ModelWriter& ModelWriter::operator=(ModelWriter&&) noexcept = default;
ModelWriter::~ModelWriter() = default;

Result<ModelWriter> ModelWriter::create(const std::string& path, bool overwrite) {
  VOLVELLE_ASSIGN_OR_RETURN(OutputFile file, OutputFile::create(path, {.overwrite = overwrite}));
  ModelWriter writer(std::move(file));
  const std::array<std::byte, 1> first = {};
  VOLVELLE_RETURN_IF_ERROR(
      writer.file_.append(first));  // both header slots stay empty until the end
  VOLVELLE_RETURN_IF_ERROR(writer.file_.pad_to(kFirstSegmentOffset));
  return writer;
}

Result<void> ModelWriter::begin_segment(uint64_t bytes) {
  VOLVELLE_RETURN_IF_ERROR(
      file_.pad_to(bytes >= kLargeSegmentBytes ? kLargeSegmentAlignment : kSegmentAlignment));
  segment_offset_ = file_.position();
  XXH3_64bits_reset(&checksum_->state);
  return {};
}

Result<void> ModelWriter::append(std::span<const std::byte> bytes) {
  XXH3_64bits_update(&checksum_->state, bytes.data(), bytes.size());
  return file_.append(bytes);
}

Result<file::Segment> ModelWriter::end_segment() {
  return file::Segment(segment_offset_, file_.position() - segment_offset_,
                       XXH3_64bits_digest(&checksum_->state));
}

Result<file::Segment> ModelWriter::write_segment(std::span<const std::byte> bytes) {
  if (bytes.empty()) return file::Segment(0, 0, 0);
  VOLVELLE_RETURN_IF_ERROR(begin_segment(bytes.size()));
  VOLVELLE_RETURN_IF_ERROR(append(bytes));
  return end_segment();
}

Result<void> ModelWriter::finish(std::span<const std::byte> table, const Check& check) {
  if (table.size() > kMaxTableBytes) {
    return fail("{}: the model's table takes {} bytes; {} are the limit", file_.path(),
                table.size(), kMaxTableBytes);
  }
  VOLVELLE_RETURN_IF_ERROR(file_.pad_to(kSegmentAlignment));
  HeaderSlot slot;
  slot.generation = 1;
  slot.table_offset = file_.position();
  slot.table_bytes = table.size();
  slot.table_checksum = checksum(table);
  VOLVELLE_RETURN_IF_ERROR(file_.append(table));
  VOLVELLE_RETURN_IF_ERROR(file_.pad_to(kSegmentAlignment));
  slot.file_bytes = file_.position();
  slot.checksum = header_checksum(slot);
  VOLVELLE_RETURN_IF_ERROR(file_.write_at(kSlotOffsets[0], std::as_bytes(std::span(&slot, 1))));
  if (check) {
    VOLVELLE_ASSIGN_OR_RETURN(const MappedFile written, file_.map());
    VOLVELLE_RETURN_IF_ERROR(check(written.bytes()));
  }
  return file_.commit();
}

}  // namespace volvelle
