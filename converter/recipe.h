// What a family makes of a checkpoint: the model that is to be written, in the schema's own terms,
// with every tensor stated as rows of the source's tensors. A recipe holds no weights and knows no
// family; whoever writes it needs nothing else.

#ifndef VOLVELLE_CONVERTER_RECIPE_H_
#define VOLVELLE_CONVERTER_RECIPE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "converter/positions/rotary.h"
#include "converter/sources/tensor_source.h"
#include "platforms/error.h"
#include "platforms/thread_pool.h"
#include "runtime/sinusoids.h"
#include "schema/volvelle_generated.h"

namespace volvelle::recipe {

// Row or column i is what would be number order[i]; null: each is where it is.
using Order = std::shared_ptr<const std::vector<uint32_t>>;

// Rows of one source tensor; a vector counts as rows of one element.
struct Part {
  const SourceTensor* source = nullptr;  // null: zeros
  uint64_t rows = 0;
  // Not 0: heads of this many rows lie in interleaved order and shall lie in half order, i.e. row
  // 2i + b of a head becomes its row b * head_rows / 2 + i. The rows of q and k in GGUF files of
  // architecture llama need it.
  uint64_t head_rows = 0;
  uint64_t first_row = 0;   // of the source, or of its transpose
  bool transposed = false;  // the source is stored [inputs, outputs]
  bool reversed = false;    // the source's last row comes first
  float plus = 0;           // added to every value: norms that are stored less one
  bool unit = false;        // rows are divided by their lengths
  Order row_order = {};     // of the part; not with head_rows, transposed or reversed
  Order column_order = {};  // not with transposed
};

enum class Use {
  kVector,     // a norm's weight or a bias: always f32
  kTable,      // rows of positions: always f32
  kLinear,     // multiplied by activations
  kEmbedding,  // rows are looked up; perhaps the head as well
  kHead,       // a head of its own
};

// Makes [rows, columns] of a tensor out of others of the source.
using Computation =
    std::function<Result<std::vector<float>>(const TensorSource& source, const ThreadPool& pool)>;

// Parts, one below the other. A vector is a matrix of one row that holds all elements.
struct Tensor {
  std::string name;
  Use use = Use::kVector;
  uint64_t rows = 0;
  uint64_t columns = 0;
  std::vector<Part> parts;
  Computation computation = {};  // instead of parts; stored as f32
};

// Integers below are indices into Model::tensors or Model::positions; -1 is none.

struct Norm {
  file::NormKind kind = file::NormKind::rms;
  float epsilon = 0;
  int weight = -1;
  int bias = -1;
};

struct Linear {
  int weight = -1;
  int bias = -1;
};

// Queries at position p are multiplied by 1 + strength * ln(1 + floor((p + offset) / period)).
struct QueryTemperature {
  float strength = 0;
  uint32_t period = 0;
  uint32_t offset = 0;
};

struct Attention {
  uint32_t query_heads = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  float scale = 0;
  uint32_t window = 0;         // 0: all keys are seen
  bool bidirectional = false;  // keys after a query are seen as well; `window` counts both sides
  bool chunked = false;  // `window` is the length of a stretch, of which a query sees its own only
  float soft_cap = 0;
  float qkv_limit = 0;
  Linear qkv;
  Linear output;
  std::optional<Norm> query_norm;
  std::optional<Norm> key_norm;
  file::HeadNormScope norm_scope = file::HeadNormScope::head;
  bool norm_after_rotation = false;
  std::optional<QueryTemperature> temperature;
  int position = -1;
};

struct Expert {
  Linear gate_up;
  Linear down;
};

struct FeedForward {
  file::Activation activation = file::Activation::silu;
  bool plain = false;
  std::vector<Expert> experts;  // one where there is no router
  std::optional<Linear> router;
  uint32_t used = 1;  // experts that a token goes through, their worths scaled to sum to one
};

// Attention of a decoder to what its encoder made.
struct CrossAttention {
  uint32_t heads = 0;
  uint32_t head_dim = 0;
  float scale = 0;
  Linear query;
  Linear key_value;
  Linear output;
};

// Of a token's neighbours, added to what its block makes of it; see file::Convolution.
struct Convolution {
  uint32_t kernel = 1;
  Linear linear;
  std::optional<file::Activation> activation;
  std::optional<Norm> norm;
};

struct Block {
  file::Residual residual = file::Residual::sequential;
  std::optional<Norm> attention_norm;
  Attention attention;
  std::optional<Norm> attention_output_norm;
  std::optional<Norm> cross_norm;
  std::optional<CrossAttention> cross;
  std::optional<Norm> feed_forward_norm;
  FeedForward feed_forward;
  std::optional<Norm> feed_forward_output_norm;
  float branch_scale = 1;
  std::optional<Convolution> convolution;
};

// A slope for each query head.
struct SlopesPlan {
  std::vector<float> slopes;
  bool symmetric = false;

  bool operator==(const SlopesPlan&) const = default;
};

// A table that is added to embeddings. Sinusoids are a SinusoidPlan until the context is known that
// they must reach.
struct AdditiveTable {
  int table = -1;
  uint32_t row_offset = 0;
  bool learned = true;
  int32_t padding = -1;  // tokens of this id take the row before position 0's

  bool operator==(const AdditiveTable&) const = default;
};

// T5's biases by distance.
struct BucketedBias {
  int table = -1;  // [buckets, query heads]
  uint32_t max_distance = 0;
  bool bidirectional = false;

  bool operator==(const BucketedBias&) const = default;
};

// Rows by distance, of Shaw et al.
struct ClippedRelative {
  int key = -1, query = -1, value = -1;  // [2 * clip_distance + 1, head_dim]
  uint32_t clip_distance = 0;
  bool unclipped = false;        // positions end at clip_distance
  uint32_t heads = 1;            // above 1: so many times these rows, a head's after the other's
  std::vector<uint16_t> row_of;  // [2 * clip_distance + 1]: which row; empty: each has its own

  bool operator==(const ClippedRelative&) const = default;
};

using PositionPlan = std::variant<RotaryPlan, AdditiveTable, SinusoidPlan, SlopesPlan, BucketedBias,
                                  ClippedRelative>;

struct Generation {
  std::vector<uint32_t> eos;
  bool sample = false;
  float temperature = 1;
  uint32_t top_k = 0;
  float top_p = 1;
  float min_p = 0;
  float repetition_penalty = 1;

  // Of decoders behind an encoder; see file::Generation.
  int32_t decoder_start = -1;
  int32_t forced_bos = -1;
  int32_t forced_eos = -1;
  uint32_t beams = 1;
  float length_penalty = 1;
  file::EarlyStopping early_stopping = file::EarlyStopping::no;
  uint32_t no_repeat_ngram = 0;
  uint32_t min_length = 0;
  uint32_t max_length = 0;
  std::vector<std::vector<uint32_t>> bad_words;
};

// y = norm(activation(x * weight^T + bias))
struct Layer {
  Linear linear;
  std::optional<file::Activation> activation;
  std::optional<Norm> norm;
};

// What an encoder's outputs are made into.
struct Task {
  file::TaskKind kind = file::TaskKind::embed;
  file::Pooling pooling = file::Pooling::none;
  std::vector<Layer> layers;
  bool normalize = false;
  std::vector<std::string> labels;
  bool multi_label = false;
  std::vector<file::Pooling> further_poolings;
  uint32_t max_tokens = 0;                                        // 0: as many as positions
  std::vector<std::pair<std::string, std::string>> prompts = {};  // names and texts
  int default_prompt = -1;
  bool regression = false;
};

struct Stack {
  uint32_t width = 0;
  uint32_t trained_context = 0;
  int embedding = -1;
  std::optional<Linear> embedding_projection;  // from the embedding's width to the model's
  float embedding_scale = 1;
  int token_types = -1;  // a table, whose first row is added to every embedding
  int position = -1;     // a table that is added to embeddings
  std::optional<Norm> embedding_norm;
  bool projects_last = false;    // the embedding, after positions and norm
  bool mixes_positions = false;  // at the embedding and in attention
  std::vector<Block> blocks;
  std::optional<Norm> final_norm;
  std::optional<Linear> head_projection;            // before the head
  std::optional<file::Activation> head_activation;  // of what head_projection gives
  std::optional<Norm> head_norm;                    // and of that
  Linear head;                                      // shares the embedding's tensor when tied
  float logit_scale = 1;
  float logit_soft_cap = 0;
  std::vector<Task> tasks;  // of an encoder
};

// A stack, and what all of its stacks share.
struct Model : Stack {
  uint32_t vocabulary = 0;
  std::vector<Tensor> tensors;
  std::vector<PositionPlan> positions;  // no two alike
  bool encodes = false;                 // the stack itself is an encoder
  std::optional<Stack> encoder;         // what the stack decodes
};

}  // namespace volvelle::recipe

#endif  // VOLVELLE_CONVERTER_RECIPE_H_
