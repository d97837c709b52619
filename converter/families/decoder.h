// The stacks of today, decoders and encoders, as one list of choices: which norms a block has and
// of which kind, how the rows of q, k and v lie, whether the feed-forward is gated, what tells
// positions, what is scaled and capped. A family states its choices and its tensors' names; the
// rest is shared.

#ifndef VOLVELLE_CONVERTER_FAMILIES_DECODER_H_
#define VOLVELLE_CONVERTER_FAMILIES_DECODER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "converter/families/checkpoint.h"
#include "converter/families/rotary.h"
#include "converter/positions/rotary.h"
#include "converter/recipe.h"
#include "runtime/sinusoids.h"

namespace volvelle {

enum class Bias { kNone, kRequired, kIfPresent };

// Source tensors, without ".weight" and ".bias"; null: the family has none. Those after `block`
// stand in a block: after its name and number, or where they hold "#", which is the number.
struct DecoderNames {
  const char* embedding = nullptr;
  const char *embedding_projection = nullptr, *head_projection = nullptr;
  const char* head_norm = nullptr;    // of what the head's projection gives
  const char* head_bias = nullptr;    // all of the name; null: the head's with ".bias"
  const char* token_types = nullptr;  // a table, whose first row is added to every embedding
  const char* embedding_norm = nullptr;
  const char* learned_table = nullptr;
  const char* final_norm = nullptr;
  const char* head = nullptr;
  const char* block = nullptr;
  const char* attention_norm = nullptr;
  const char *query = nullptr, *key = nullptr, *value = nullptr;
  const char* qkv = nullptr;  // instead of the three
  const char* output = nullptr;
  const char *query_norm = nullptr, *key_norm = nullptr;
  const char* bucket_table = nullptr;  // of biases by distance
  const char *relative_key = nullptr, *relative_query = nullptr, *relative_value = nullptr;
  const char* attention_output_norm = nullptr;
  const char *cross_query = nullptr, *cross_key = nullptr, *cross_value = nullptr;
  const char* cross_key_value = nullptr;  // instead of the two
  const char *cross_output = nullptr, *cross_norm = nullptr;
  const char* feed_forward_norm = nullptr;
  const char* router = nullptr;
  // Before an expert's number, with which the next three then begin; null: each of the three is a
  // stack of all experts' matrices.
  const char* experts = nullptr;
  const char *gate = nullptr, *up = nullptr;
  const char* gate_up = nullptr;  // instead of the two
  const char* down = nullptr;
  const char* feed_forward_output_norm = nullptr;
};

// Names that most families share.
extern const DecoderNames kHuggingFaceNames;
extern const DecoderNames kGgufNames;

// How the rows of a fused q, k and v lie.
enum class FusedRows {
  kQueryKeyValue,  // all of q, all of k, all of v
  kGroups,         // the queries of the first key/value head, its key, its value; of the second …
};

// Biases by distance in T5's buckets.
struct BucketShape {
  uint64_t buckets = 0;
  uint64_t max_distance = 0;
  bool every_layer = false;  // has a table of its own; otherwise all share the first one's
};

// Rows by distance of Shaw et al.
struct RelativeShape {
  uint64_t clip_distance = 0;
  bool unclipped = false;        // positions end at clip_distance
  bool query_minus_key = false;  // rows lie in the order of that, not of key minus query
};

// Rows by distance that each layer's projections of keys and queries make of one table of all
// layers, for each head. He et al. 2021, arXiv:2006.03654, section 3.1.
struct DisentangledShape {
  const char* table = nullptr;
  const char* norm = nullptr;    // of its rows; null: none
  uint64_t rows = 0;             // of the table that are used
  std::vector<uint16_t> row_of;  // [2 * clip + 1], by key minus query
};

// A layer after a stack; see recipe::Layer.
struct LayerShape {
  const char* linear = nullptr;  // null: the embedding's transpose
  uint64_t outputs = 0;
  Bias bias = Bias::kRequired;
  const char* bias_name = nullptr;  // all of it; null: the linear's with ".bias"
  std::optional<file::Activation> activation;
  const char* norm = nullptr;
};

// What an encoder's outputs are made into; see recipe::Task.
struct TaskShape {
  file::TaskKind kind = file::TaskKind::embed;
  file::Pooling pooling = file::Pooling::none;
  std::vector<LayerShape> layers = {};
  std::vector<std::string> labels = {};
  bool multi_label = false;
  bool regression = false;
};

// Beside the first layer; see recipe::Convolution. Its kernel is stored [outputs, inputs, kernel].
struct ConvolutionShape {
  const char* linear = nullptr;
  const char* norm = nullptr;
  uint64_t kernel = 0;
  file::Activation activation = file::Activation::tanh;
};

struct Decoder {
  DecoderNames names;

  uint64_t vocabulary = 0;  // 0: as many as the embedding has rows
  uint64_t width = 0;
  uint64_t embedding_width = 0;  // 0: the same
  bool projects_last = false;    // the embedding, after positions and norm
  uint64_t layers = 0;
  uint64_t query_heads = 0;
  uint64_t kv_heads = 0;
  uint64_t head_dim = 0;
  uint64_t feed_forward_width = 0;
  uint64_t context = 0;

  file::NormKind norm = file::NormKind::rms;
  double epsilon = 0;
  double final_epsilon = 0;  // of the final norm; 0: the same
  Bias norm_bias = Bias::kNone;
  float norm_plus = 0;            // added to every norm's weight
  bool norm_parameters = true;    // false: norms have neither weight nor bias
  bool bare_first_layer = false;  // has no norm before attention
  file::Residual residual = file::Residual::sequential;

  file::Activation activation = file::Activation::silu;
  bool plain_feed_forward = false;  // not gated
  bool up_first = false;            // in names.gate_up
  FusedRows fused_rows = FusedRows::kQueryKeyValue;
  bool transposed = false;        // linears are stored [inputs, outputs]
  bool interleaved_rows = false;  // rows of q and k lie in interleaved order; half order is wanted

  Bias query_key_value_bias = Bias::kNone;
  Bias output_bias = Bias::kNone;
  Bias feed_forward_bias = Bias::kNone;
  bool bare_gate_up = false;  // which has none
  Bias head_bias = Bias::kNone;
  Bias head_projection_bias = Bias::kNone;
  Bias embedding_projection_bias = Bias::kNone;
  std::optional<file::Activation> head_activation;  // of what the head's projection gives
  file::HeadNormScope head_norm_scope = file::HeadNormScope::head;
  bool plain_head_norms = false;  // rotated queries and keys are then normed, without weights
  bool head_norm_bias = true;     // where other norms have one
  bool head_norms_apart = false;  // each head's is a tensor of its own, named by its number

  uint64_t experts = 0;       // 0: one feed-forward and no router
  uint64_t used_experts = 0;  // by a token
  std::optional<recipe::QueryTemperature> temperature;
  std::function<bool(uint64_t)> tempered;  // whether a layer's queries are; empty: all

  double attention_scale = 0;     // 0: 1 / sqrt(head_dim)
  bool divided_by_layer = false;  // that scale, by 1 in the first layer, by 2 in the second …
  double attention_soft_cap = 0;
  double qkv_limit = 0;
  double embedding_scale = 1;
  double branch_scale = 1;
  double logit_scale = 1;
  double logit_soft_cap = 0;
  bool unit_head = false;  // the head's rows are divided by their lengths

  uint64_t window = 0;                   // keys that a sliding layer sees
  bool chunked = false;                  // of its query's own stretch of so many
  std::function<bool(uint64_t)> slides;  // whether a layer does; empty: none
  // Positions of full and of sliding layers; none: the mask alone tells.
  std::optional<RotaryPlan> rotary;
  std::optional<RotaryPlan> sliding_rotary;
  std::function<bool(uint64_t)> rotates;  // whether a layer does; empty: all
  std::vector<float> slopes;              // ALiBi's, of every layer
  uint64_t learned_offset = 0;            // row of position 0 in the learned table
  int32_t padding = -1;                   // a token of the row before that, where ids decide
  std::optional<SinusoidPlan> sinusoids;  // of the embedding's width, instead of a learned table
  std::optional<BucketShape> buckets;
  std::optional<RelativeShape> relative;
  std::optional<DisentangledShape> disentangled;
  bool mixes_positions = false;  // at the embedding and in attention
  std::optional<ConvolutionShape> convolution;

  bool encodes = false;  // an encoder: attention goes to both sides, tasks follow
  std::vector<TaskShape> tasks;
  std::optional<uint64_t> cross_heads;  // of attention to an encoder; none: there is none
};

// What config.json calls the sizes, today's spelling unless told otherwise, and what it means where
// it is silent.
struct DecoderKeys {
  const char* vocabulary = "vocab_size";
  const char* width = "hidden_size";
  const char* layers = "num_hidden_layers";
  const char* query_heads = "num_attention_heads";
  const char* kv_heads = "num_key_value_heads";          // null: as many as query heads
  const char* feed_forward_width = "intermediate_size";  // null: 4 * width
  bool feed_forward_required = true;                     // otherwise 4 * width
  const char* context = "max_position_embeddings";
  uint64_t default_context = 0;  // 0: must be stated
  file::NormKind norm = file::NormKind::rms;
  const char* epsilon = "rms_norm_eps";   // null: the family knows
  double default_epsilon = 0;             // 0: must be stated
  const char* activation = "hidden_act";  // null: the family knows
  const char* default_activation = "silu";
  const char* head_dim = "head_dim";  // may be stated; null: may not
  uint64_t default_head_dim = 0;      // 0: width / query heads
  bool rotary = true;
  RotaryDialect rotary_dialect;
};

// What GPT-2 and GPT-J call them.
extern const DecoderKeys kGpt2Keys;

// What config.json or the metadata say of all such models, rotary positions included, biases and
// windows not.
Result<Decoder> read_decoder(Checkpoint& checkpoint, const DecoderKeys& keys = {});

// The activation that `key` names.
void read_activation(Config& config, const std::string& key, const std::string& fallback,
                     Decoder& decoder);

// Biases of q, k, v and the output, and of the feed-forward, where config.json's `attention_bias`
// and `mlp_bias` say so.
void read_attention_bias(Config& config, Decoder& decoder);
void read_feed_forward_bias(Config& config, Decoder& decoder);

// How many of the experts a token goes through; a `fallback` of 0: must be stated.
void read_used_experts(Config& config, const std::string& key, uint64_t fallback, Decoder& decoder);

// Every norm and every linear of a block has a bias.
void require_biases(Decoder& decoder);

// Norms of queries and keys under the names that most families give them.
void name_head_norms(const Checkpoint& checkpoint, Decoder& decoder);

// `window` keys for every layer, which all turn by the same dial; 0: no layer slides.
void slide_every_layer(uint64_t window, Decoder& decoder);

// Windows by `layer_types`, or by `use_sliding_window` and `max_window_layers` (Qwen's spelling).
void read_layer_windows(Config& config, Decoder& decoder);

// Which layers slide by `layer_types`; without it, those that `slides` names.
void read_layer_types(Config& config, Decoder& decoder, std::function<bool(uint64_t)> slides);

// Which layers rotate, by `no_rope_layers` or every `no_rope_layer_interval`th not.
void read_rotating_layers(Config& config, Decoder& decoder);

// Finds the tensors.
Result<recipe::Model> build(Checkpoint& checkpoint, const Decoder& decoder);

// Those of an encoder and of the decoder that attends to it.
Result<recipe::Model> build_pair(Checkpoint& checkpoint, const Decoder& encoder,
                                 const Decoder& decoder);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_FAMILIES_DECODER_H_
