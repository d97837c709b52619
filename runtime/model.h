// A model file, mapped and verified. Loading checks the whole table once, structure first
// (FlatBuffers), then meaning (every index, extent, shape and product), and leaves plain structures
// that point into the mapping. What passes can be run on any tokens without undefined behaviour;
// what does not is refused with a sentence that names the field.

#ifndef VOLVELLE_RUNTIME_MODEL_H_
#define VOLVELLE_RUNTIME_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/activation.h"
#include "kernels/quantize.h"
#include "kernels/rotary.h"
#include "kernels/thin_product.h"
#include "platforms/error.h"
#include "platforms/mapped_file.h"
#include "runtime/tokenizer/tokenizer.h"

namespace volvelle {

namespace file {
struct Rotary;
}

enum class TensorType : uint8_t { kF32, kQ8, kQ4 };

// Side columns that a tensor may have.
inline constexpr size_t kMostSideColumns = 64;

// A part of the file and the checksum that it should have.
struct SegmentView {
  std::span<const std::byte> bytes;
  uint64_t checksum = 0;
  uint64_t offset = 0;
};

// A matrix of the file; see file::TensorType for what the bytes mean.
struct Tensor {
  std::string name;
  TensorType type = TensorType::kF32;
  size_t rows = 0;
  size_t columns = 0;
  SegmentView data;
  SegmentView scales;                  // empty for kF32
  SegmentView minima, minimum_scales;  // of kQ4, empty where its blocks have none
  size_t rotation = 1;  // what is stored is W * H, in blocks of so many columns; see file::Tensor
  std::span<const uint32_t> side_columns;  // whose inputs are not rounded, ascending
  SegmentView side, side_scales;           // their weights

  const float* f32() const { return reinterpret_cast<const float*>(data.bytes.data()); }
  const int8_t* q8() const { return reinterpret_cast<const int8_t*>(data.bytes.data()); }
  const uint8_t* q4() const { return reinterpret_cast<const uint8_t*>(data.bytes.data()); }
  const float* row_scales() const { return reinterpret_cast<const float*>(scales.bytes.data()); }
  const uint16_t* block_scales() const {
    return reinterpret_cast<const uint16_t*>(scales.bytes.data());
  }

  size_t padded_columns() const {
    return type == TensorType::kQ4 ? (columns + kQ4Block - 1) / kQ4Block * kQ4Block : columns;
  }
  size_t bytes() const {
    return data.bytes.size() + scales.bytes.size() + minima.bytes.size() +
           minimum_scales.bytes.size() + side.bytes.size() + side_scales.bytes.size();
  }
  size_t blocks() const { return padded_columns() / kQ4Block; }  // of a row of kQ4
  ThinWeights block_minima() const;                              // inputs are blocks
  ThinWeights side_weights() const;                              // inputs are side columns
};

// Row `row` of the tensor as floats: y [columns].
void read_row(const Tensor& tensor, size_t row, float* y);

// How the frequencies were scaled.
struct ScalingRecord {
  std::string kind;  // "none", "linear", "llama3"…
  double factor = 1;
  uint64_t original_context = 0;
  double low_frequency_factor = 0;
  double high_frequency_factor = 0;
};

struct Rotary {
  Pairing pairing = Pairing::kHalf;
  Dial dial;
  Dial long_dial;            // of sequences longer than switch_length, from their first position on
  size_t switch_length = 0;  // 0: never
  // Dynamic NTK: a session of more positions than this turns by a dial of its own. 0: never.
  size_t dynamic_context = 0;
  double base = 0;
  float amplitude = 1;
  std::span<const float> original_frequencies;  // [planes]
  std::span<const float> frequencies;           // [planes]
  ScalingRecord scaling;
  const file::Rotary* record = nullptr;  // all that the file says, for people
};

// Adds row position + row_offset of a table to the embedding.
struct AdditiveTable {
  const Tensor* table = nullptr;  // [rows, width]
  size_t row_offset = 0;
  bool learned = false;  // learned tables cannot be extended
  int32_t padding = -1;  // tokens of this id take the row before; see file::AdditiveTable
};

// ALiBi's slope for each query head.
struct Slopes {
  std::span<const float> values;  // [query heads]
  bool symmetric = false;         // keys after a query, were they seen, would count as those before
};

// T5's biases, one for each distance of a key from its query: what the file's buckets come to.
struct BucketedBias {
  const Tensor* table = nullptr;  // [buckets, query heads]
  size_t max_distance = 0;
  bool bidirectional = false;
  size_t reach = 0;           // keys farther away have the bias of that distance
  std::vector<float> biases;  // [query heads, 2 * reach + 1]
};

// Rows of Shaw et al. for each distance, clipped; a table may be null.
struct ClippedRelative {
  const Tensor* key = nullptr;    // [heads * rows, head_dim]
  const Tensor* query = nullptr;  // the same
  const Tensor* value = nullptr;  // the same
  size_t clip_distance = 0;
  bool unclipped = false;            // positions end at clip_distance
  size_t heads = 1;                  // above 1: of so many query heads each has rows of its own
  size_t rows = 0;                   // of a head
  std::span<const uint16_t> row_of;  // [2 * clip_distance + 1]; empty: there are as many rows
};

// What tells a model the order of its tokens; none: the mask alone.
struct Position {
  std::variant<std::monostate, AdditiveTable, Rotary, Slopes, BucketedBias, ClippedRelative> scheme;
};

enum class NormKind : uint8_t { kRms, kLayer };

struct Norm {
  NormKind kind = NormKind::kRms;
  float epsilon = 0;
  const float* weight = nullptr;  // [width]; null: ones
  const float* bias = nullptr;    // [width], kLayer only; null: zeros
};

// y [outputs] = weight [outputs, inputs] * x [inputs] + bias [outputs]
struct Linear {
  const Tensor* weight = nullptr;
  const float* bias = nullptr;  // null: none

  size_t outputs() const { return weight->rows; }
  size_t inputs() const { return weight->columns; }
};

// What the norms of queries and keys run over.
enum class HeadNormScope : uint8_t {
  kHead,      // each head, with the same weights [head_dim]
  kEachHead,  // each head, with weights of its own [heads, head_dim]
  kAllHeads,  // all heads together [heads * head_dim]
};

// Queries at position p are multiplied by 1 + strength * ln(1 + floor((p + offset) / period)).
struct QueryTemperature {
  float strength = 0;
  size_t period = 1;
  size_t offset = 0;
};

struct Attention {
  size_t query_heads = 0;
  size_t kv_heads = 0;
  size_t head_dim = 0;
  float scale = 0;
  float soft_cap = 0;          // 0: none
  size_t window = 0;           // 0: all
  bool bidirectional = false;  // keys after a query are seen as well; `window` counts both sides
  size_t stretch = 0;  // 0: the context; otherwise keys before the query's own stretch are not seen
  Linear qkv;          // outputs: query heads, key heads, value heads
  Linear output;
  float qkv_limit = 0;  // 0: none
  std::optional<Norm> query_norm;
  std::optional<Norm> key_norm;
  HeadNormScope norm_scope = HeadNormScope::kHead;
  bool norm_after_rotation = false;
  std::optional<QueryTemperature> temperature;
  // At most one of these acts; all null: the mask alone tells the order.
  const Rotary* rotary = nullptr;
  const Slopes* slopes = nullptr;
  const BucketedBias* buckets = nullptr;
  const ClippedRelative* relative = nullptr;

  size_t query_width() const { return query_heads * head_dim; }
  size_t kv_width() const { return kv_heads * head_dim; }
  bool has_position() const {
    return rotary != nullptr || slopes != nullptr || buckets != nullptr || relative != nullptr;
  }
};

// The part of a feed-forward that experts share or have one each of: down(activation(gate) * up),
// or down(activation(up)) where it is plain.
struct Expert {
  Linear gate_up;
  Linear down;
};

struct FeedForward {
  Activation activation = Activation::kSilu;
  bool gated = true;
  std::vector<Expert> experts;  // one where there is no router
  Linear router;                // outputs: experts; no weight: none
  size_t used = 1;              // experts that a token goes through
  bool normalize = false;       // their weights are scaled to sum to one

  size_t inner() const { return experts.front().down.inputs(); }
};

// Attention of a decoder to what the encoder made of a source.
struct CrossAttention {
  size_t heads = 0;
  size_t head_dim = 0;
  float scale = 0;
  Linear query;
  Linear key_value;  // outputs: key heads, value heads
  Linear output;

  size_t width() const { return heads * head_dim; }
};

enum class Residual : uint8_t { kSequential, kParallel, kPostNorm, kNormed, kTwiceNormed };

// Of a token's neighbours, added to what its block makes of it; see file::Convolution.
struct Convolution {
  size_t kernel = 1;
  Linear linear;  // inputs: kernel * width
  std::optional<Activation> activation;
  std::optional<Norm> norm;
};

// See file::Residual for what the layouts mean.
struct Block {
  Residual residual = Residual::kSequential;
  std::optional<Norm> attention_norm;
  Attention attention;
  std::optional<Norm> attention_output_norm;
  std::optional<Norm> cross_norm;
  std::optional<CrossAttention> cross;  // none: a decoder alone, or an encoder
  std::optional<Norm> feed_forward_norm;
  FeedForward feed_forward;
  std::optional<Norm> feed_forward_output_norm;
  float branch_scale = 1;
  std::optional<Convolution> convolution;
};

enum class Pooling : uint8_t { kNone, kFirst, kMean, kMax, kLast, kWeightedMean, kRootMean };
enum class TaskKind : uint8_t { kEmbed, kFill, kClassify, kTag };

// y = norm(activation(linear(x)))
struct Layer {
  Linear linear;
  std::optional<Activation> activation;
  std::optional<Norm> norm;
};

// What an encoder's outputs are made into; see file::Task.
struct Task {
  TaskKind kind = TaskKind::kEmbed;
  Pooling pooling = Pooling::kNone;
  std::vector<Layer> layers;
  bool normalize = false;
  bool multi_label = false;  // labels exclude each other not
  bool regression = false;   // outputs are values, not logits
  std::vector<std::string> labels;
  std::vector<Pooling> further_poolings;  // behind `pooling`'s elements
  size_t max_tokens = 0;                  // of a text; 0: as many as there are positions
  std::vector<std::pair<std::string, std::string>> prompts;  // names and texts
  std::optional<size_t> default_prompt;                      // of those

  // Elements of what pooling makes of rows `width` wide.
  size_t pooled(size_t width) const { return width * (1 + further_poolings.size()); }

  // Elements of each output row, of a stack `width` wide.
  size_t outputs(size_t width) const {
    return layers.empty() ? pooled(width) : layers.back().linear.outputs();
  }
};

struct Stack {
  size_t width = 0;
  size_t context = 0;          // positions that may be asked for: [0, context)
  size_t trained_context = 0;  // positions that it was trained for
  size_t position_limit = 0;   // what its schemes can reach, at least `context`
  const Tensor* embedding = nullptr;
  float embedding_scale = 1;
  const Tensor* token_types = nullptr;         // [types, embedding's width]; null: none
  std::optional<Linear> embedding_projection;  // from the embedding's width to the stack's
  bool projects_last = false;                  // after positions and embedding_norm
  const AdditiveTable* additive = nullptr;     // null: none
  std::optional<Norm> embedding_norm;
  std::vector<Block> blocks;
  std::optional<Norm> final_norm;
  std::optional<Linear> head_projection;
  std::optional<Activation> head_activation;  // of what head_projection gives
  std::optional<Norm> head_norm;              // and of that
  Linear head;                                // of a decoder
  float logit_scale = 1;
  float logit_soft_cap = 0;
  std::vector<Task> tasks;  // of an encoder

  const Task* task(TaskKind kind) const {
    for (const Task& task : tasks) {
      if (task.kind == kind) return &task;
    }
    return nullptr;
  }
};

enum class EarlyStopping : uint8_t { kNo, kYes, kNever };

// What generation does unless told otherwise.
struct Generation {
  std::vector<int32_t> eos;
  bool sample = false;
  float temperature = 1;
  size_t top_k = 0;  // 0: all
  float top_p = 1;
  float min_p = 0;
  float repetition_penalty = 1;

  // Of decoders behind an encoder; see file::Generation. Ids below 0: none.
  int32_t decoder_start = -1;
  int32_t forced_bos = -1;
  int32_t forced_eos = -1;
  size_t beams = 1;
  float length_penalty = 1;
  EarlyStopping early_stopping = EarlyStopping::kNo;
  size_t no_repeat_ngram = 0;
  size_t min_length = 0;
  size_t max_length = 0;
  std::vector<std::vector<int32_t>> bad_words;
};

// Where sessions keep the weights that they pack, of 4 and 8 bits: in their memory, or in a file
// beside the model for them all and for later starts (see packed_weights.h).
enum class PackedIn : uint8_t { kMemory, kFile };

// Calls function(linear, share) for every linear of the stack but a head, in the order of
// execution; `share` is the part of tokens that go through it: below 1 for experts, 0 for what a
// source goes through once.
using VisitLinear = std::function<void(const Linear& linear, double share)>;
void visit_linears(const Stack& stack, const VisitLinear& function);

class Model {
 public:
  // Maps and verifies the file at `path`.
  static Result<std::shared_ptr<const Model>> load(const std::string& path,
                                                   PackedIn packed_in = PackedIn::kMemory);

  // The same for bytes already in memory, which must outlive the model and be aligned to 64; `name`
  // stands in messages.
  static Result<std::shared_ptr<const Model>> from_bytes(std::span<const std::byte> bytes,
                                                         std::string name);

  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const std::string& path() const { return path_; }
  PackedIn packed_in() const { return packed_in_; }
  const std::string& name() const { return name_; }
  const std::string& origin() const { return origin_; }
  const std::string& family() const { return family_; }
  const std::string& licence() const { return licence_; }
  size_t vocabulary() const { return vocabulary_; }  // rows of the head: the width of logits
  const std::vector<Tensor>& tensors() const { return tensors_; }
  const std::vector<Position>& positions() const { return positions_; }
  bool generates() const { return generates_; }  // has a decoder
  const Stack& decoder() const { return decoder_; }
  const Stack* encoder() const { return encoder_ ? &*encoder_ : nullptr; }  // null: it has none
  // What tokens go into first.
  const Stack& input() const { return encoder_ ? *encoder_ : decoder_; }
  const Tokenizer* tokenizer() const {
    return tokenizer_ ? &*tokenizer_ : nullptr;
  }  // null: the file has none
  const Generation& generation() const { return generation_; }
  uint64_t file_bytes() const { return bytes_.size(); }
  uint64_t table_bytes() const { return table_bytes_; }
  uint64_t file_generation() const { return file_generation_; }  // 1, and one more by extension

  // Why a newer generation of the file was passed over for this one; empty: there is none.
  const std::string& damage() const { return damage_; }

  // The linears of a stack, its head's included, each of which every run of it may use.
  static std::vector<const Linear*> linears_of(const Stack& stack);

  // The same for the decoder and its head, or for an encoder that is alone.
  void for_each_linear(const VisitLinear& function) const;

  // Bytes of packed weights that one decoded token reads: every linear's codes and scales, the
  // head's included.
  size_t weight_bytes_per_token() const;

  // Checks a tensor's bytes against their checksums, and that its floats and scales are finite.
  Result<void> verify_contents(const Tensor& tensor) const;

  // The same for those bytes of a tensor that a packed weight does not contain.
  Result<void> verify_unpacked(const Tensor& tensor) const;

  // Lets the system forget a tensor's pages, which have been packed: they come back from the file
  // when touched.
  void drop_pages(const Tensor& tensor) const;

  // Why a token id cannot be fed to this stack of the model; success when it can.
  Result<void> check_tokens(const Stack& stack, std::span<const int32_t> tokens) const;

 private:
  friend class ModelVerifier;
  Model() = default;
  void read_ahead(const SegmentView& segment) const;  // all of which is about to be read
  Result<void> verify_segments(const Tensor& tensor,
                               std::initializer_list<const SegmentView*> segments) const;
  std::unexpected<Error> no_number(const Tensor& tensor) const;

  std::optional<MappedFile> file_;
  std::span<const std::byte> bytes_;
  uint64_t table_bytes_ = 0;
  uint64_t file_generation_ = 0;
  std::string damage_;
  PackedIn packed_in_ = PackedIn::kMemory;
  std::string path_, name_, origin_, family_, licence_;
  size_t vocabulary_ = 0;
  std::vector<Tensor> tensors_;
  std::vector<Position> positions_;
  bool generates_ = false;
  Stack decoder_;
  std::optional<Stack> encoder_;
  std::optional<Tokenizer> tokenizer_;
  Generation generation_;
};

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_MODEL_H_
