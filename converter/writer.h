// Writes the container of a model file front to back: segments as they come, each aligned and
// checksummed, then the table that names them, and last the header that makes it a model. The file
// appears under its name only when all of that has been written.

#ifndef VOLVELLE_CONVERTER_WRITER_H_
#define VOLVELLE_CONVERTER_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "platforms/error.h"
#include "platforms/output_file.h"
#include "schema/volvelle_generated.h"

namespace volvelle {

class ModelWriter {
 public:
  static Result<ModelWriter> create(const std::string& path, bool overwrite);

  ModelWriter(ModelWriter&&) noexcept;
  ModelWriter& operator=(ModelWriter&&) noexcept;
  ~ModelWriter();

  // A segment in pieces: `bytes` is what the pieces will come to.
  Result<void> begin_segment(uint64_t bytes);
  Result<void> append(std::span<const std::byte> bytes);
  Result<file::Segment> end_segment();

  // A segment at once; without bytes, one that lies nowhere.
  Result<file::Segment> write_segment(std::span<const std::byte> bytes);

  // Writes the table and the header and gives the file its name, unless `check` refuses the whole
  // file's bytes. Nothing may follow.
  using Check = std::function<Result<void>(std::span<const std::byte> file)>;
  Result<void> finish(std::span<const std::byte> table, const Check& check = nullptr);

  // Fails now if there is no room for `bytes` more.
  Result<void> expect(uint64_t bytes) const { return file_.expect(bytes); }

  uint64_t position() const { return file_.position(); }

 private:
  struct Checksum;

  explicit ModelWriter(OutputFile file);

  OutputFile file_;
  std::unique_ptr<Checksum> checksum_;  // of the segment in progress
  uint64_t segment_offset_ = 0;
};

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_WRITER_H_
