// What a family makes of a checkpoint: the model that is to be written, in the schema's own terms,
// with every tensor stated as rows of the source's tensors. A recipe holds no weights and knows no
// family; whoever writes it needs nothing else.

#ifndef VOLVELLE_CONVERTER_RECIPE_H_
#define VOLVELLE_CONVERTER_RECIPE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "converter/positions/rotary.h"
#include "converter/sources/tensor_source.h"
#include "schema/volvelle_generated.h"

namespace volvelle::recipe {

// All rows of one source tensor; a vector counts as rows of one element.
struct Part {
  const SourceTensor* source = nullptr;  // null: zeros
  uint64_t rows = 0;
  // Not 0: heads of this many rows lie in interleaved order and shall lie in half order, i.e. row
  // 2i + b of a head becomes its row b * head_rows / 2 + i. The rows of q and k in GGUF files of
  // architecture llama need it.
  uint64_t head_rows = 0;
};

enum class Use {
  kVector,     // a norm's weight or a bias: always f32
  kLinear,     // multiplied by activations
  kEmbedding,  // rows are looked up; perhaps the head as well
  kHead,       // a head of its own
};

// Parts, one below the other. A vector is a matrix of one row that holds all elements.
struct Tensor {
  std::string name;
  Use use = Use::kVector;
  uint64_t rows = 0;
  uint64_t columns = 0;
  std::vector<Part> parts;
};

// Integers below are indices into Model::tensors or Model::positions; -1 is none.

struct Norm {
  float epsilon = 0;
  int weight = -1;
};

struct Linear {
  int weight = -1;
  int bias = -1;
};

struct Attention {
  uint32_t query_heads = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  float scale = 0;
  uint32_t window = 0;  // 0: all keys are seen
  Linear qkv;
  Linear output;
  std::optional<Norm> query_norm;
  std::optional<Norm> key_norm;
  int position = -1;
};

struct FeedForward {
  file::Activation activation = file::Activation::silu;
  Linear gate_up;
  Linear down;
};

struct Block {
  Norm attention_norm;
  Attention attention;
  Norm feed_forward_norm;
  FeedForward feed_forward;
};

struct Generation {
  std::vector<uint32_t> eos;
  bool sample = false;
  float temperature = 1;
  uint32_t top_k = 0;
  float top_p = 1;
  float min_p = 0;
  float repetition_penalty = 1;
};

struct Model {
  uint32_t vocabulary = 0;
  uint32_t width = 0;
  uint32_t trained_context = 0;
  std::vector<Tensor> tensors;
  std::vector<RotaryPlan> positions;  // no two alike
  int embedding = -1;
  std::vector<Block> blocks;
  Norm final_norm;
  Linear head;  // shares the embedding's tensor when tied
};

}  // namespace volvelle::recipe

#endif  // VOLVELLE_CONVERTER_RECIPE_H_
