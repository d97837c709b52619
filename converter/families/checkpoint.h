// A checkpoint as families see it, whatever files it came in: settings, tensors, and which of the
// two naming traditions they follow.

#ifndef VOLVELLE_CONVERTER_FAMILIES_CHECKPOINT_H_
#define VOLVELLE_CONVERTER_FAMILIES_CHECKPOINT_H_

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "converter/families/config.h"
#include "converter/sources/tensor_source.h"
#include "platforms/error.h"

namespace volvelle {

enum class Naming {
  kHuggingFace,  // config.json; "model.layers.0.self_attn.q_proj.weight"
  kGguf,         // metadata; "blk.0.attn_q.weight"
};

class Checkpoint {
 public:
  // `path` names the checkpoint in errors.
  Checkpoint(std::string path, Naming naming, Config config, std::unique_ptr<TensorSource> source)
      : config(std::move(config)),
        naming(naming),
        path_(std::move(path)),
        source_(std::move(source)) {}

  Config config;
  const Naming naming;

  // The tensor of that name, with or without the prefix "model." that some files lack; null when
  // absent. It counts as used.
  const SourceTensor* optional(const std::string& name);

  // The same, but it must be there and have this shape. An expected dimension of 0 may be any.
  Result<const SourceTensor*> require(const std::string& name,
                                      std::initializer_list<uint64_t> shape);

  // Fails when a tensor is left that nobody has asked for and that is not one of those which older
  // programs stored although they follow from the settings, nor a bias of zeros.
  Result<void> check_all_used() const;

  const TensorSource& source() const { return *source_; }
  const std::string& path() const { return path_; }
  bool gguf() const { return naming == Naming::kGguf; }

 private:
  std::string path_;
  std::unique_ptr<TensorSource> source_;
  std::set<const SourceTensor*> used_;
};

// "[32, 64]"
std::string shape_text(const std::vector<uint64_t>& shape);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_FAMILIES_CHECKPOINT_H_
