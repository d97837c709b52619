#include "runtime/file_format.h"

#include <algorithm>
#include <cstring>
#include <format>
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

bool lies_in(const HeaderSlot& slot, std::span<const std::byte> file) {
  return slot.table_bytes <= kMaxTableBytes && slot.table_bytes <= file.size() &&
         slot.table_offset <= file.size() - slot.table_bytes &&
         slot.table_offset % kSegmentAlignment == 0;
}

std::span<const std::byte> table_of(const HeaderSlot& slot, std::span<const std::byte> file) {
  return file.subspan(slot.table_offset, slot.table_bytes);
}

// What a copy that ended early or a failing disk did to a generation; empty: nothing.
std::string damage_of(const HeaderSlot& slot, std::span<const std::byte> file) {
  if (slot.file_bytes > file.size()) {
    return std::format(
        "header: the file should have {} bytes but has {}; it was cut short, copy it again",
        slot.file_bytes, file.size());
  }
  if (lies_in(slot, file) && checksum(table_of(slot, file)) != slot.table_checksum) {
    return "table: its checksum does not hold; copy or convert the file again";
  }
  return "";
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
    if (table.slot.version == 0 || table.slot.version > kFileVersion) {
      return fail(
          "{}: header: file version {} is none of the versions 1 to {} that this program reads; "
          "use a newer program, or convert again",
          name, table.slot.version, kFileVersion);
    }
    if (const std::string found = damage_of(table.slot, file); !found.empty()) {
      if (damage.empty()) damage = found;
      continue;
    }
    // Whoever wrote this meant it: no older generation stands in for it.
    if (!lies_in(table.slot, file))
      return fail("{}: header: the table lies outside the file", name);
    const auto bytes = table_of(table.slot, file);
    const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
    flatbuffers::Verifier verifier(data, bytes.size(), /*max_depth=*/16, /*max_tables=*/1 << 20);
    // The identifier is read at a fixed offset, so the length is checked before it.
    if (bytes.size() < 16 || !file::VerifyModelBuffer(verifier)) {
      return fail("{}: table: its structure is damaged; convert the checkpoint again", name);
    }
    table.model = file::GetModel(data);
    table.damage = std::move(damage);
    return table;
  }
  return fail("{}: {}", name, damage);
}

}  // namespace volvelle
