// What encoders share: which head a checkpoint has, and the labels of it.

#ifndef VOLVELLE_CONVERTER_FAMILIES_ENCODER_H_
#define VOLVELLE_CONVERTER_FAMILIES_ENCODER_H_

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "converter/families/decoder.h"

namespace volvelle {

// What BERT and those that keep its configuration call them.
extern const DecoderKeys kBertKeys;

// Whether `architectures` says so: "ForMaskedLM".
bool has_architecture(Config& config, std::string_view ending);

// The names of `id2label` in their order, or LABEL_0 and so on, `num_labels` of them.
std::vector<std::string> read_labels(Config& config);

// What checkpoints may hold beside the parts of their own task.
void leave(Checkpoint& checkpoint, std::span<const char* const> tensors);
void leave(Checkpoint& checkpoint, std::initializer_list<const char*> tensors);

// The names that GGUF has for BERT's blocks, and the task of vectors with the pooling that the
// metadata ask for; the format keeps no others.
void read_gguf_encoder(Checkpoint& checkpoint, Decoder& decoder);

// A task of vectors, the mean of all tokens unless told otherwise.
TaskShape embed_task(file::Pooling pooling = file::Pooling::mean);

// The heads that a family's checkpoints may have, one at a time.
struct EncoderHeads {
  std::vector<LayerShape> fill;  // the last one's rows are the embedding's unless it has a name
  std::vector<const char*> fill_copies;  // what checkpoints may hold beside it: tied parts again
  bool pre_training_fills = false;       // "ForPreTraining" has that head as well
  std::vector<LayerShape> classify;      // before the layer of labels
  const char* classifier = "classifier";
  file::Pooling pooling = file::Pooling::first;  // of what classifies
  std::vector<LayerShape> tag;                   // before the layer of labels, "classifier"
};

// The task of vectors, and that of the head that `architectures` says the checkpoint has.
void add_encoder_tasks(Checkpoint& checkpoint, EncoderHeads heads, Decoder& decoder);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_FAMILIES_ENCODER_H_
