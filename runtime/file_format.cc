#include "runtime/file_format.h"

#include <algorithm>
#include <cstring>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace volvelle {

uint64_t checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

uint64_t header_checksum(const HeaderSlot& slot) {
  return XXH3_64bits(&slot, offsetof(HeaderSlot, checksum));
}

namespace {

// The slot's table, whose structure is sound; what is amiss otherwise.
Result<const file::Model*> read_table(std::span<const std::byte> file, const HeaderSlot& slot) {
  if (slot.file_bytes > file.size()) {
    return fail("header: the file should have {} bytes but has {}; it was cut short, copy it again",
                slot.file_bytes, file.size());
  }
  if (slot.table_bytes > kMaxTableBytes || slot.table_bytes > file.size() ||
      slot.table_offset > file.size() - slot.table_bytes ||
      slot.table_offset % kSegmentAlignment != 0) {
    return fail("header: the table lies outside the file");
  }
  const auto table = file.subspan(slot.table_offset, slot.table_bytes);
  if (checksum(table) != slot.table_checksum) {
    return fail("table: its checksum does not hold; copy or convert the file again");
  }
  const auto* data = reinterpret_cast<const uint8_t*>(table.data());
  flatbuffers::Verifier verifier(data, table.size(), /*max_depth=*/16, /*max_tables=*/1 << 20);
  // The identifier is read at a fixed offset, so the length is checked before it.
  if (table.size() < 16 || !file::VerifyModelBuffer(verifier)) {
    return fail("table: its structure is damaged; convert the checkpoint again");
  }
  return file::GetModel(data);
}

}  // namespace

Result<FileTable> open_table(std::span<const std::byte> file, const std::string& name) {
  std::vector<FileTable> valid;  // newest first
  bool model = false;
  std::string damage;
  for (size_t i = 0; i < kSlotOffsets.size(); ++i) {
    HeaderSlot slot;
    std::array<char, sizeof slot.magic> magic = {};
    if (file.size() >= kSlotOffsets[i] + magic.size()) {
      std::memcpy(&magic, file.data() + kSlotOffsets[i], magic.size());
    }
    if (magic != kFileMagic) continue;
    model = true;
    if (file.size() >= kSlotOffsets[i] + sizeof slot) {
      std::memcpy(&slot, file.data() + kSlotOffsets[i], sizeof slot);
    }
    if (slot.checksum == header_checksum(slot)) {
      valid.push_back({.slot = slot, .slot_index = i});
    } else {
      damage = "header: its checksum does not hold; copy or convert the file again";
    }
  }
  if (!model) {
    return fail("{}: this is not a Volvelle model; make one with `volvelle convert`", name);
  }
  std::ranges::stable_sort(valid, std::ranges::greater{},
                           [](const FileTable& table) { return table.slot.generation; });
  for (FileTable& table : valid) {
    if (table.slot.version != kFileVersion) {
      return fail(
          "{}: header: file version {} is not the version {} that this program reads; convert "
          "again",
          name, table.slot.version, kFileVersion);
    }
    const Result<const file::Model*> read = read_table(file, table.slot);
    if (read) {
      table.model = *read;
      table.damage = std::move(damage);
      return table;
    }
    if (damage.empty()) damage = read.error().message;
  }
  return fail("{}: {}", name, damage);
}

}  // namespace volvelle
