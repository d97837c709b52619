// Weights in the form that XNNPACK multiplies by, and the operators over them. They live in memory,
// one after the other in large pages, or in a file beside the model that is written once, mapped
// read-only by every later start and shared between processes: then no byte of the model's own
// copy is touched, and a start packs nothing.
//
// The file (a 64-byte header, segments aligned to 64 bytes, a table of entries) is a cache and
// trusted as little as a model: an entry counts only where its key, its size and its checksum are
// those expected, and no content of a packed weight can cause more than wrong numbers. The key is a
// checksum of the shape, the type, the checksums of the weight, its scales and its bias, and of
// what XNNPACK makes, here and now, of a known matrix of the same columns: another version or
// another processor that packs differently has another key.

#ifndef VOLVELLE_RUNTIME_PACKED_WEIGHTS_H_
#define VOLVELLE_RUNTIME_PACKED_WEIGHTS_H_

#include <xnnpack.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "platforms/error.h"
#include "platforms/mapped_file.h"
#include "platforms/memory.h"
#include "platforms/output_file.h"
#include "runtime/model.h"

namespace volvelle {

struct DeleteOperator {
  void operator()(xnn_operator_t op) const { xnn_delete_operator(op); }
};
using XnnOperator = std::unique_ptr<xnn_operator, DeleteOperator>;

// What multiplies by a weight.
struct PackedLinear {
  XnnOperator xnn;    // null: products of our own
  size_t panels = 0;  // the number of theirs among the packed weights
};

// What an XNNPACK status means, to end a sentence.
std::string_view describe(xnn_status status);

// Bytes that a linear's weight is packed into, with a bias; within a per cent.
size_t packed_bytes_of(const Tensor& weight);

// The name of the file beside a model: "m.vvlpack" for "m.vvl". `part` tells stacks of one model
// apart: "m.encoder.vvlpack".
std::string packed_path(std::string_view model_path, std::string_view part = "");

class PackedWeights {
 public:
  PackedWeights();
  PackedWeights(const PackedWeights&) = delete;
  PackedWeights& operator=(const PackedWeights&) = delete;
  ~PackedWeights();

  // Memory is taken in parts of this size at least, one of which may stay empty but for a byte.
  static constexpr size_t kPartBytes = size_t{32} << 20;

  // Lets the weights of `linears` come from the file `path`, or go there where it does not hold
  // them all. No failure is an error: weights that the file cannot take stay in memory.
  // Those of 32 bits always do.
  void use_file(const std::string& path, std::span<const Linear* const> linears);

  // Whether all of use_file's linears come from the file.
  bool found() const { return found_; }

  // Whether a weight is packed for products of our own, as an Int8Matrix or an Int4Matrix, and not
  // for XNNPACK's.
  static bool takes_panels(const Tensor& weight);

  // What multiplies by `linear`'s weight. Weights that must be packed are verified first, and their
  // pages in the model's file are let go. Operators must be deleted before this object.
  Result<PackedLinear> create(const Model& model, const Linear& linear);

  // After the last create and before any operator is reshaped: gives a new file its name and maps
  // it.
  Result<void> finish();

  // Where the panels of this number lie, once all is finished.
  const std::byte* address(size_t number) const;

  size_t bytes() const { return bytes_; }  // of packed weights

 private:
  struct Entry;
  // What XNNPACK makes of a matrix.
  struct Packing {
    size_t bytes = 0;
    uint64_t checksum = 0;
  };
  struct Segment {
    std::byte* memory = nullptr;  // null: in the file
    size_t offset = 0;
  };

  Packing measure(TensorType type, size_t inputs, size_t outputs);
  Packing packing_of(TensorType type, size_t inputs, size_t outputs);
  Entry expected(const Linear& linear);
  std::optional<std::vector<Entry>> read(const MappedFile& file, std::span<const Entry> wanted);
  size_t look_up();
  std::byte* reserve(size_t bytes);
  std::byte* reserve_memory(size_t bytes);
  size_t insert(std::byte* packed, size_t bytes);

  xnn_weights_cache_provider provider_;
  std::vector<Segment> segments_;  // an "offset" of XNNPACK's is an index of these
  std::vector<AlignedBuffer> parts_;
  size_t used_ = 0;  // of the last part
  size_t bytes_ = 0;

  std::vector<Entry> entries_;  // of the file
  std::optional<MappedFile> mapped_;
  std::optional<OutputFile> output_;  // that is being written
  AlignedBuffer packing_;             // the weight that goes to it next
  Entry* present_ = nullptr;          // of the weight that is being created; null: not the file's
  bool found_ = false;
  bool writable_ = false;  // nothing has gone wrong so far
  std::vector<float> ones_;
  std::map<std::tuple<TensorType, size_t, size_t>, Packing> packings_;
};

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_PACKED_WEIGHTS_H_
