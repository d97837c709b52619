// What encoders share: which head a checkpoint has, and the labels of it.

#ifndef VOLVELLE_CONVERTER_FAMILIES_ENCODER_H_
#define VOLVELLE_CONVERTER_FAMILIES_ENCODER_H_

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "converter/families/decoder.h"

namespace volvelle {

// Whether `architectures` says so: "ForMaskedLM".
bool has_architecture(Config& config, std::string_view ending);

// The names of `id2label` in their order, or LABEL_0 and so on, `num_labels` of them.
std::vector<std::string> read_labels(Config& config);

// What checkpoints may hold beside the parts of their own task.
void leave(Checkpoint& checkpoint, std::initializer_list<const char*> tensors);

// The names that GGUF has for BERT's blocks, and the task of vectors with the pooling that the
// metadata ask for; the format keeps no others.
void read_gguf_encoder(Checkpoint& checkpoint, Decoder& decoder);

// A task of vectors, the mean of all tokens unless told otherwise.
TaskShape embed_task(file::Pooling pooling = file::Pooling::mean);

// A task whose last layer gives a logit for each label: `kind` is classify or tag. The layers
// before it are `layers`.
TaskShape label_task(Config& config, file::TaskKind kind, file::Pooling pooling,
                     std::vector<LayerShape> layers, const char* classifier);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_FAMILIES_ENCODER_H_
