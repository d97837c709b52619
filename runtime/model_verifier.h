// Turns a file's FlatBuffers table into the plain structures of a Model, checking every value on
// the way.

#ifndef VOLVELLE_RUNTIME_MODEL_VERIFIER_H_
#define VOLVELLE_RUNTIME_MODEL_VERIFIER_H_

#include <span>
#include <string>

#include "platforms/error.h"
#include "runtime/model.h"
#include "schema/volvelle_generated.h"

namespace volvelle {

class ModelVerifier {
 public:
  // Fills `model`, whose path_ and bytes_ are set, from the bytes of its file.
  static Result<void> verify(Model& model);

 private:
  explicit ModelVerifier(Model& model) : model_(model), unspent_bytes_(model.bytes_.size()) {}

  // Each fails with a sentence that opens with the file's path and `where`.
  Result<SegmentView> locate(const file::Segment* segment, const std::string& where) const;
  Result<SegmentView> locate_checked(const file::Segment* segment, const std::string& where);
  Result<void> spend(uint64_t bytes, const std::string& where);
  Result<void> expect_bytes(const SegmentView& view, uint64_t bytes,
                            const std::string& where) const;
  Result<void> add_tensor(const file::Tensor* tensor, size_t index);
  Result<void> add_position(const file::Position* position, size_t index);
  Result<AdditiveTable> additive_table(const file::AdditiveTable& table, const std::string& where);
  Result<Slopes> slopes(const file::LinearBias& bias, const std::string& where);
  Result<BucketedBias> bucketed_bias(const file::BucketedBias& bias, const std::string& where);
  Result<ClippedRelative> clipped_relative(const file::ClippedRelative& tables,
                                           const std::string& where);
  Result<const Tensor*> position_table(int index, const std::string& where);
  Result<Dial> dial(const file::Segment* coarse, const file::Segment* fine,
                    const file::Rotary& stored, const std::string& where);
  Result<Rotary> rotary(const file::Rotary& rotary, const std::string& where);
  Result<const Tensor*> tensor(int index, const std::string& where) const;
  Result<const float*> vector(int index, size_t width, const std::string& where);
  Result<std::optional<Norm>> norm(const file::Norm* norm, size_t width, const std::string& where);
  Result<Linear> linear(const file::Linear* linear, size_t outputs, size_t inputs,
                        const std::string& where);
  Result<std::optional<Norm>> head_norm(const file::Norm* norm, const Attention& attention,
                                        size_t heads, const std::string& where);
  Result<void> join_position(const file::Attention& stored, Stack& stack, Attention& attention,
                             const std::string& where);
  Result<Attention> attention(const file::Attention& attention, Stack& stack,
                              const std::string& where);
  Result<Expert> expert(const file::Linear* gate_up, const file::Linear* down, bool gated,
                        size_t width, const std::string& where);
  Result<Activation> activation(file::Activation activation, const std::string& where) const;
  Result<FeedForward> feed_forward(const file::FeedForward& feed_forward, size_t width,
                                   const std::string& where);
  Result<Block> block(const file::Block* block, Stack& stack, const std::string& where);
  Result<Convolution> convolution(const file::Convolution& convolution, size_t width,
                                  const std::string& where);
  Result<CrossAttention> cross_attention(const file::CrossAttention& attention, size_t width,
                                         const std::string& where);
  Result<void> add_prompts(const file::Task& stored, Task& task, const std::string& where);
  Result<Task> task(const file::Task& task, size_t width, const std::string& where);
  Result<void> add_embedding(const file::Stack& stored, Stack& stack);
  Result<void> add_head(const file::Stack& stored, Stack& stack);
  Result<void> add_stack(const file::Stack* stored, Stack& stack);
  Result<void> add_stacks(const flatbuffers::Vector<flatbuffers::Offset<file::Stack>>& stacks);
  Result<void> add_tokenizer(const file::Tokenizer& tokenizer);
  Result<void> add_generation(const file::Generation* generation);

  template <typename... Args>
  std::unexpected<Error> refuse(std::format_string<Args...> format, Args&&... args) const {
    return fail("{}: {}", model_.path_, std::format(format, std::forward<Args>(args)...));
  }

  Model& model_;
  uint64_t bias_floats_ = 0;  // that buckets were expanded to so far
  uint64_t unspent_bytes_;    // of the file's, for what loading reads and sessions pack
};

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_MODEL_VERIFIER_H_
