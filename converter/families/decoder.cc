#include "converter/families/decoder.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <format>
#include <initializer_list>
#include <tuple>
#include <utility>
#include <vector>

#include "converter/families/rotary.h"
#include "converter/positions/disentangled.h"

namespace volvelle {

const DecoderKeys kGpt2Keys = {.width = "n_embd",
                               .layers = "n_layer",
                               .query_heads = "n_head",
                               .kv_heads = nullptr,
                               .feed_forward_width = "n_inner",
                               .feed_forward_required = false,
                               .context = "n_positions",
                               .norm = file::NormKind::layer,
                               .epsilon = "layer_norm_epsilon",
                               .default_epsilon = 1e-5,
                               .activation = "activation_function",
                               .default_activation = "gelu_new",
                               .head_dim = nullptr,
                               .rotary = false};

const DecoderNames kHuggingFaceNames = {
    .embedding = "model.embed_tokens",
    .final_norm = "model.norm",
    .head = "lm_head",
    .block = "model.layers",
    .attention_norm = "input_layernorm",
    .query = "self_attn.q_proj",
    .key = "self_attn.k_proj",
    .value = "self_attn.v_proj",
    .output = "self_attn.o_proj",
    .feed_forward_norm = "post_attention_layernorm",
    .gate = "mlp.gate_proj",
    .up = "mlp.up_proj",
    .down = "mlp.down_proj",
};

const DecoderNames kGgufNames = {
    .embedding = "token_embd",
    .final_norm = "output_norm",
    .head = "output",
    .block = "blk",
    .attention_norm = "attn_norm",
    .query = "attn_q",
    .key = "attn_k",
    .value = "attn_v",
    .output = "attn_output",
    .feed_forward_norm = "ffn_norm",
    .gate = "ffn_gate",
    .up = "ffn_up",
    .down = "ffn_down",
};

namespace {

// Far above any model; keeps products of two sizes within 64 bits.
constexpr uint64_t kSizeLimit = uint64_t{1} << 28;

// As the runtime has them.
constexpr uint64_t kMaxWidth = 1 << 20;
constexpr uint64_t kMaxLayers = 1 << 12;
constexpr uint64_t kMaxHeads = 1 << 14;
constexpr uint64_t kMaxHeadDim = 1 << 13;

// Elements of two tensors compared at a time.
constexpr uint64_t kSliceElements = uint64_t{1} << 18;

// Rows of one source matrix in a linear that may be made of several.
struct Rows {
  const char* name;
  uint64_t outputs;
  uint64_t head_rows = 0;  // as in recipe::Part
  uint64_t first = 0;
  uint64_t stored = 0;  // rows that the source matrix has; 0: `outputs`
  uint64_t stack = 0;   // not 0: the source is a stack of so many matrices, of which this is
  uint64_t index = 0;   // the one
};

class Builder {
 public:
  // The stack joins the tensors and positions of `begun`.
  Builder(Checkpoint& checkpoint, const Decoder& decoder, recipe::Model begun = {})
      : checkpoint_(checkpoint),
        decoder_(decoder),
        names_(decoder.names),
        model_(std::move(begun)) {}

  Result<recipe::Model> build() {
    model_.encodes = decoder_.encodes;
    model_.projects_last = decoder_.projects_last;
    model_.mixes_positions = decoder_.mixes_positions;
    model_.width = static_cast<uint32_t>(decoder_.width);
    model_.trained_context = static_cast<uint32_t>(decoder_.context);
    model_.embedding_scale = static_cast<float>(decoder_.embedding_scale);
    model_.logit_scale = static_cast<float>(decoder_.logit_scale);
    model_.logit_soft_cap = static_cast<float>(decoder_.logit_soft_cap);
    VOLVELLE_RETURN_IF_ERROR(add_embedding());
    for (uint64_t layer = 0; layer < decoder_.layers; ++layer) {
      layer_ = std::to_string(layer);
      prefix_ = names_.block != nullptr ? std::format("{}.{}.", names_.block, layer) : "";
      block_ = std::format("{}block.{}.", decoder_.encodes ? "encoder." : "", layer);
      VOLVELLE_ASSIGN_OR_RETURN(recipe::Block block, add_block(layer));
      const bool slides = decoder_.slides && decoder_.slides(layer);
      block.attention.window = static_cast<uint32_t>(slides ? decoder_.window : 0);
      block.attention.chunked = slides && decoder_.chunked;
      block.attention.bidirectional = decoder_.encodes;
      const bool rotates = !decoder_.rotates || decoder_.rotates(layer);
      if (decoder_.plain_head_norms && rotates) {
        block.attention.query_norm =
            recipe::Norm{.kind = decoder_.norm, .epsilon = static_cast<float>(decoder_.epsilon)};
        block.attention.key_norm = block.attention.query_norm;
        block.attention.norm_after_rotation = true;
      }
      if (!decoder_.tempered || decoder_.tempered(layer)) {
        block.attention.temperature = decoder_.temperature;
      }
      VOLVELLE_ASSIGN_OR_RETURN(block.attention.position, position_of(layer, slides));
      if (decoder_.divided_by_layer) block.attention.scale /= static_cast<float>(layer + 1);
      model_.blocks.push_back(std::move(block));
    }
    prefix_.clear();
    block_.clear();
    VOLVELLE_ASSIGN_OR_RETURN(model_.final_norm,
                              add_norm("final_norm", names_.final_norm, decoder_.width));
    if (model_.final_norm && decoder_.final_epsilon != 0) {
      model_.final_norm->epsilon = static_cast<float>(decoder_.final_epsilon);
    }
    VOLVELLE_ASSIGN_OR_RETURN(
        model_.head_projection,
        add_projection("head_projection", names_.head_projection, decoder_.width, embedding_width(),
                       decoder_.head_projection_bias));
    model_.head_activation = decoder_.head_activation;
    VOLVELLE_ASSIGN_OR_RETURN(model_.head_norm,
                              add_norm("head_norm", names_.head_norm, embedding_width()));
    if (decoder_.encodes) {
      VOLVELLE_RETURN_IF_ERROR(add_tasks());
    } else {
      VOLVELLE_RETURN_IF_ERROR(add_head());
    }
    return std::move(model_);
  }

 private:
  // Where the source keeps what a family calls `name`.
  std::string path_of(std::string_view name) const {
    const size_t number = name.find('#');
    if (number == std::string_view::npos) return prefix_ + std::string(name);
    return std::format("{}{}{}", name.substr(0, number), layer_, name.substr(number + 1));
  }

  int add_tensor(recipe::Tensor tensor) {
    model_.tensors.push_back(std::move(tensor));
    return static_cast<int>(model_.tensors.size()) - 1;
  }

  int add_position(const recipe::PositionPlan& plan) {
    const auto found = std::ranges::find(model_.positions, plan);
    if (found != model_.positions.end()) return static_cast<int>(found - model_.positions.begin());
    model_.positions.push_back(plan);
    return static_cast<int>(model_.positions.size()) - 1;
  }

  Result<int> position_of(uint64_t layer, bool slides) {
    if (!decoder_.slopes.empty()) {
      return add_position(recipe::SlopesPlan{decoder_.slopes, decoder_.encodes});
    }
    if (decoder_.buckets) return bucketed_bias(*decoder_.buckets);
    if (decoder_.relative) return relative_rows(*decoder_.relative);
    if (decoder_.disentangled) return disentangled_rows(*decoder_.disentangled);
    const std::optional<RotaryPlan>& rotary = slides ? decoder_.sliding_rotary : decoder_.rotary;
    if (!rotary || (decoder_.rotates && !decoder_.rotates(layer))) return -1;
    return add_position(*rotary);
  }

  Result<int> add_position_table(const char* name, const char* source, uint64_t rows,
                                 uint64_t columns, bool reversed = false) {
    VOLVELLE_ASSIGN_OR_RETURN(const SourceTensor* table,
                              checkpoint_.require(path_of(source) + ".weight", {rows, columns}));
    return add_tensor({block_ + name,
                       recipe::Use::kTable,
                       rows,
                       columns,
                       {{.source = table, .rows = rows, .reversed = reversed}}});
  }

  Result<int> bucketed_bias(const BucketShape& shape) {
    if (!shape.every_layer && shared_bias_ >= 0) return shared_bias_;  // the first layer's
    recipe::BucketedBias bias{.max_distance = static_cast<uint32_t>(shape.max_distance),
                              .bidirectional = decoder_.encodes};
    VOLVELLE_ASSIGN_OR_RETURN(
        bias.table, add_position_table("attention.bucket_table", names_.bucket_table, shape.buckets,
                                       decoder_.query_heads));
    return shared_bias_ = add_position(bias);
  }

  Result<int> relative_rows(const RelativeShape& shape) {
    recipe::ClippedRelative relative{.clip_distance = static_cast<uint32_t>(shape.clip_distance),
                                     .unclipped = shape.unclipped};
    for (const auto& [name, source, table] :
         {std::tuple{"attention.relative_key", names_.relative_key, &relative.key},
          std::tuple{"attention.relative_query", names_.relative_query, &relative.query},
          std::tuple{"attention.relative_value", names_.relative_value, &relative.value}}) {
      if (source == nullptr) continue;
      VOLVELLE_ASSIGN_OR_RETURN(
          *table, add_position_table(name, source, 2 * shape.clip_distance + 1, decoder_.head_dim,
                                     shape.query_minus_key));
    }
    return add_position(relative);
  }

  // The rows of one head after the other's, as attention reads them.
  Result<int> disentangled_rows(const DisentangledShape& shape) {
    recipe::ClippedRelative relative{
        .clip_distance = static_cast<uint32_t>(shape.row_of.size() / 2),
        .heads = static_cast<uint32_t>(decoder_.query_heads),
        .row_of = shape.row_of};
    const uint64_t width = decoder_.query_heads * decoder_.head_dim;
    VOLVELLE_ASSIGN_OR_RETURN(
        const SourceTensor* table,
        checkpoint_.require(std::string(shape.table) + ".weight", {0, decoder_.width}));
    if (table->rows() < shape.rows) {
      return fail("{}: tensor {} has {} rows; the settings ask for {}", checkpoint_.path(),
                  table->name, table->rows(), shape.rows);
    }
    ProjectedRows rows{.table = table,
                       .rows = shape.rows,
                       .heads = decoder_.query_heads,
                       .epsilon = decoder_.epsilon};
    if (shape.norm != nullptr) {
      const std::string norm = shape.norm;
      VOLVELLE_ASSIGN_OR_RETURN(rows.norm_weight,
                                checkpoint_.require(norm + ".weight", {decoder_.width}));
      VOLVELLE_ASSIGN_OR_RETURN(rows.norm_bias,
                                checkpoint_.require(norm + ".bias", {decoder_.width}));
    }
    for (const auto& [name, source, index] :
         {std::tuple{"attention.relative_key", names_.relative_key, &relative.key},
          std::tuple{"attention.relative_query", names_.relative_query, &relative.query}}) {
      if (source == nullptr) continue;
      VOLVELLE_ASSIGN_OR_RETURN(
          rows.weight, checkpoint_.require(path_of(source) + ".weight", {width, decoder_.width}));
      VOLVELLE_ASSIGN_OR_RETURN(rows.bias, checkpoint_.require(path_of(source) + ".bias", {width}));
      *index = add_tensor({block_ + name,
                           recipe::Use::kTable,
                           decoder_.query_heads * shape.rows,
                           decoder_.head_dim,
                           {},
                           rows});
    }
    return add_position(relative);
  }

  Result<void> add_embedding() {
    const std::string name = std::string(names_.embedding) + ".weight";
    VOLVELLE_ASSIGN_OR_RETURN(embedding_,
                              checkpoint_.require(name, {decoder_.vocabulary, embedding_width()}));
    const uint64_t rows = embedding_->rows();
    if (rows >= kSizeLimit)
      return fail("{}: tensor {} has {} rows", checkpoint_.path(), name, rows);
    model_.vocabulary = static_cast<uint32_t>(rows);
    const auto same = [&](const recipe::Tensor& tensor) {
      return tensor.use == recipe::Use::kEmbedding && tensor.parts[0].source == embedding_;
    };
    const auto shared = std::ranges::find_if(model_.tensors, same);
    model_.embedding = shared != model_.tensors.end()
                           ? static_cast<int>(shared - model_.tensors.begin())
                           : add_tensor({decoder_.encodes ? "encoder.embedding" : "embedding",
                                         recipe::Use::kEmbedding,
                                         rows,
                                         embedding_width(),
                                         {{embedding_, rows}}});
    VOLVELLE_ASSIGN_OR_RETURN(
        model_.embedding_projection,
        add_projection("embedding_projection", names_.embedding_projection, embedding_width(),
                       decoder_.width, decoder_.embedding_projection_bias));
    const uint64_t placed = decoder_.projects_last ? embedding_width() : decoder_.width;
    if (names_.token_types != nullptr) {
      VOLVELLE_ASSIGN_OR_RETURN(
          const SourceTensor* types,
          checkpoint_.require(std::string(names_.token_types) + ".weight", {0, embedding_width()}));
      model_.token_types = add_tensor({"token_types",
                                       recipe::Use::kTable,
                                       types->rows(),
                                       embedding_width(),
                                       {{types, types->rows()}}});
    }
    if (names_.learned_table != nullptr) {
      const std::string table = std::string(names_.learned_table) + ".weight";
      const uint64_t needed = decoder_.learned_offset + decoder_.context;
      VOLVELLE_ASSIGN_OR_RETURN(const SourceTensor* source,
                                checkpoint_.require(table, {needed, placed}));
      const int tensor =
          add_tensor({"position_table", recipe::Use::kTable, needed, placed, {{source, needed}}});
      model_.position = add_position(
          recipe::AdditiveTable{.table = tensor,
                                .row_offset = static_cast<uint32_t>(decoder_.learned_offset),
                                .padding = decoder_.padding});
    }
    if (decoder_.sinusoids) model_.position = add_position(*decoder_.sinusoids);
    VOLVELLE_ASSIGN_OR_RETURN(model_.embedding_norm,
                              add_norm("embedding_norm", names_.embedding_norm, placed));
    return {};
  }

  Result<recipe::Layer> add_layer(const LayerShape& shape, uint64_t inputs) {
    recipe::Layer layer{.activation = shape.activation};
    if (shape.linear != nullptr) {
      const Rows rows[] = {{shape.linear, shape.outputs}};
      VOLVELLE_ASSIGN_OR_RETURN(layer.linear, add_linear(shape.linear, inputs, rows, shape.bias));
    } else {
      layer.linear.weight = model_.embedding;
    }
    if (shape.bias_name != nullptr) {
      VOLVELLE_ASSIGN_OR_RETURN(layer.linear.bias,
                                add_vector(shape.bias_name, shape.bias_name, shape.outputs, 0));
    }
    VOLVELLE_ASSIGN_OR_RETURN(layer.norm, add_norm(shape.norm, shape.norm, shape.outputs));
    return layer;
  }

  Result<void> add_tasks() {
    for (const TaskShape& shape : decoder_.tasks) {
      recipe::Task task{.kind = shape.kind,
                        .pooling = shape.pooling,
                        .labels = shape.labels,
                        .multi_label = shape.multi_label,
                        .regression = shape.regression};
      uint64_t inputs = decoder_.width;
      for (const LayerShape& one : shape.layers) {
        LayerShape sized = one;
        if (sized.outputs == 0) sized.outputs = model_.vocabulary;
        VOLVELLE_ASSIGN_OR_RETURN(recipe::Layer layer, add_layer(sized, inputs));
        task.layers.push_back(layer);
        inputs = sized.outputs;
      }
      model_.tasks.push_back(std::move(task));
    }
    return {};
  }

  Result<std::optional<recipe::CrossAttention>> add_cross_attention() {
    if (!decoder_.cross_heads) return std::optional<recipe::CrossAttention>();
    const uint64_t width = *decoder_.cross_heads * decoder_.head_dim;
    const uint64_t source = model_.encoder ? model_.encoder->width : decoder_.width;
    recipe::CrossAttention cross{.heads = static_cast<uint32_t>(*decoder_.cross_heads),
                                 .head_dim = static_cast<uint32_t>(decoder_.head_dim),
                                 .scale = attention_scale()};
    const Rows query[] = {{names_.cross_query, width}};
    const std::vector<Rows> key_value =
        names_.cross_key_value != nullptr
            ? std::vector<Rows>{{names_.cross_key_value, 2 * width}}
            : std::vector<Rows>{{names_.cross_key, width}, {names_.cross_value, width}};
    const Rows output[] = {{names_.cross_output, decoder_.width}};
    VOLVELLE_ASSIGN_OR_RETURN(cross.query, add_linear("cross.query", decoder_.width, query,
                                                      decoder_.query_key_value_bias));
    VOLVELLE_ASSIGN_OR_RETURN(cross.key_value, add_linear("cross.key_value", source, key_value,
                                                          decoder_.query_key_value_bias));
    VOLVELLE_ASSIGN_OR_RETURN(cross.output,
                              add_linear("cross.output", width, output, decoder_.output_bias));
    return cross;
  }

  float attention_scale() const {
    return static_cast<float>(decoder_.attention_scale != 0
                                  ? decoder_.attention_scale
                                  : 1 / std::sqrt(static_cast<double>(decoder_.head_dim)));
  }

  uint64_t embedding_width() const {
    return decoder_.embedding_width != 0 ? decoder_.embedding_width : decoder_.width;
  }

  // None where the family has none.
  Result<std::optional<recipe::Linear>> add_projection(const char* name, const char* source,
                                                       uint64_t inputs, uint64_t outputs,
                                                       Bias bias) {
    if (source == nullptr) return std::optional<recipe::Linear>();
    const Rows rows[] = {{source, outputs}};
    return add_linear(name, inputs, rows, bias);
  }

  // A head that is absent or equal to the embedding is the embedding, but not where the settings
  // say that the two differ and there is none; rows of unit length are the head's alone.
  Result<void> add_head() {
    const std::string name = std::string(names_.head) + ".weight";
    model_.head.weight = model_.embedding;
    const std::string bias_name =
        names_.head_bias != nullptr ? names_.head_bias : std::string(names_.head) + ".bias";
    if (decoder_.head_bias == Bias::kRequired ||
        (decoder_.head_bias == Bias::kIfPresent && checkpoint_.optional(bias_name) != nullptr)) {
      VOLVELLE_ASSIGN_OR_RETURN(model_.head.bias,
                                add_vector("head.bias", bias_name, model_.vocabulary, 0));
    }
    if (!decoder_.unit_head && checkpoint_.optional(name) == nullptr) {
      if (!unties()) return {};
      return fail("{}: tensor {} is missing, and tie_word_embeddings is false", checkpoint_.path(),
                  name);
    }
    VOLVELLE_ASSIGN_OR_RETURN(const SourceTensor* head,
                              checkpoint_.require(name, {model_.vocabulary, embedding_width()}));
    if (!decoder_.unit_head) {
      VOLVELLE_ASSIGN_OR_RETURN(const bool tied, equal(*embedding_, *head));
      if (tied) return {};
    }
    recipe::Part rows{head, head->rows()};
    rows.unit = decoder_.unit_head;
    model_.head.weight =
        add_tensor({"head", recipe::Use::kHead, head->rows(), embedding_width(), {rows}});
    return {};
  }

  // Whether the settings say so, and do not merely keep silent.
  bool unties() const {
    const nlohmann::json* tied =
        checkpoint_.gguf() ? nullptr : checkpoint_.config.value("tie_word_embeddings");
    return tied != nullptr && *tied == false;
  }

  // Whether both hold the same values, bit by bit.
  Result<bool> equal(const SourceTensor& first, const SourceTensor& second) {
    const uint64_t columns = first.columns();
    const uint64_t slice = std::max<uint64_t>(1, kSliceElements / columns);
    std::vector<float> a, b;
    for (uint64_t row = 0; row < first.rows(); row += slice) {
      const uint64_t rows = std::min(slice, first.rows() - row);
      a.resize(rows * columns);
      b.resize(rows * columns);
      VOLVELLE_RETURN_IF_ERROR(checkpoint_.source().read(first, row, rows, a));
      VOLVELLE_RETURN_IF_ERROR(checkpoint_.source().read(second, row, rows, b));
      const auto same = [](float x, float y) {
        return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y);
      };
      if (!std::ranges::equal(a, b, same)) return false;
    }
    return true;
  }

  Result<int> add_vector(const std::string& name, const std::string& source, uint64_t width,
                         float plus) {
    // Norms of each head may be stored [heads, head_dim].
    const SourceTensor* found = checkpoint_.optional(source);
    const SourceTensor* tensor = found;
    if (found == nullptr || found->shape.size() != 2 || found->rows() * found->columns() != width) {
      VOLVELLE_ASSIGN_OR_RETURN(tensor, checkpoint_.require(source, {width}));
    }
    recipe::Part part{tensor, width};
    part.plus = plus;
    return add_tensor({block_ + name, recipe::Use::kVector, 1, width, {part}});
  }

  // A norm of heads; those that lie apart become one vector.
  Result<std::optional<recipe::Norm>> add_head_norm(const char* name, const char* source,
                                                    uint64_t heads) {
    const bool shared = decoder_.head_norm_scope == file::HeadNormScope::head;
    const uint64_t width = decoder_.head_dim;
    if (source == nullptr || !decoder_.head_norms_apart) {
      return add_norm(name, source, shared ? width : heads * width,
                      decoder_.head_norm_bias ? decoder_.norm_bias : Bias::kNone);
    }
    recipe::Tensor weight{block_ + name + ".weight", recipe::Use::kVector, 1, heads * width, {}};
    for (uint64_t head = 0; head < heads; ++head) {
      VOLVELLE_ASSIGN_OR_RETURN(
          const SourceTensor* part,
          checkpoint_.require(std::format("{}{}.{}.weight", prefix_, source, head), {width}));
      weight.parts.push_back({part, width});
    }
    return recipe::Norm{.kind = decoder_.norm,
                        .epsilon = static_cast<float>(decoder_.epsilon),
                        .weight = add_tensor(std::move(weight))};
  }

  // None where the family has no such norm.
  Result<std::optional<recipe::Norm>> add_norm(const char* name, const char* source,
                                               uint64_t width) {
    return add_norm(name, source, width, decoder_.norm_bias);
  }

  Result<std::optional<recipe::Norm>> add_norm(const char* name, const char* source, uint64_t width,
                                               Bias bias) {
    if (source == nullptr) return std::optional<recipe::Norm>();
    recipe::Norm norm{.kind = decoder_.norm, .epsilon = static_cast<float>(decoder_.epsilon)};
    if (!decoder_.norm_parameters) return norm;
    const std::string path = path_of(source);
    VOLVELLE_ASSIGN_OR_RETURN(norm.weight, add_vector(std::string(name) + ".weight",
                                                      path + ".weight", width, decoder_.norm_plus));
    if (bias == Bias::kRequired ||
        (bias == Bias::kIfPresent && checkpoint_.optional(path + ".bias"))) {
      VOLVELLE_ASSIGN_OR_RETURN(norm.bias,
                                add_vector(std::string(name) + ".bias", path + ".bias", width, 0));
    }
    return norm;
  }

  Result<const SourceTensor*> require_matrix(const std::string& name, uint64_t rows,
                                             uint64_t columns, uint64_t stack) {
    if (stack != 0) return checkpoint_.require(name, {stack, rows, columns});
    if (decoder_.transposed) return checkpoint_.require(name, {columns, rows});
    return checkpoint_.require(name, {rows, columns});
  }

  // y = x * (rows, one below the other)^T + bias
  Result<recipe::Linear> add_linear(const char* name, uint64_t inputs, std::span<const Rows> rows,
                                    Bias bias) {
    recipe::Tensor weight{block_ + name + ".weight", recipe::Use::kLinear, 0, inputs, {}};
    recipe::Tensor offset{block_ + name + ".bias", recipe::Use::kVector, 1, 0, {}};
    bool biased = false;
    for (const Rows& part : rows) {
      const std::string source = path_of(part.name);
      const uint64_t stored = part.stored != 0 ? part.stored : part.outputs;
      VOLVELLE_ASSIGN_OR_RETURN(const SourceTensor* matrix,
                                require_matrix(source + ".weight", stored, inputs, part.stack));
      weight.parts.push_back({matrix, part.outputs, part.head_rows,
                              part.index * stored + part.first, decoder_.transposed});
      weight.rows += part.outputs;

      const SourceTensor* vector = nullptr;
      const bool wanted = bias == Bias::kRequired ||
                          (bias == Bias::kIfPresent && checkpoint_.optional(source + ".bias"));
      if (wanted) {
        VOLVELLE_ASSIGN_OR_RETURN(vector, checkpoint_.require(source + ".bias", {stored}));
      }
      biased |= vector != nullptr;
      offset.parts.push_back({vector, part.outputs, part.head_rows, part.first});
      offset.columns += part.outputs;
    }
    recipe::Linear linear{.weight = add_tensor(std::move(weight))};
    if (biased) linear.bias = add_tensor(std::move(offset));
    return linear;
  }

  // The rows of q, then k, then v, wherever they lie.
  std::vector<Rows> query_key_value_rows() const {
    const uint64_t head = decoder_.head_dim, kv_heads = decoder_.kv_heads;
    const uint64_t query_rows = decoder_.query_heads * head, kv_rows = kv_heads * head;
    const uint64_t reordered = decoder_.interleaved_rows ? head : 0;
    if (names_.qkv == nullptr) {
      return {{names_.query, query_rows, reordered},
              {names_.key, kv_rows, reordered},
              {names_.value, kv_rows}};
    }
    const uint64_t stored = query_rows + 2 * kv_rows;
    std::vector<Rows> rows;
    const auto add = [&](uint64_t first, uint64_t count, uint64_t head_rows) {
      rows.push_back({names_.qkv, count, head_rows, first, stored});
    };
    if (decoder_.fused_rows == FusedRows::kQueryKeyValue) {
      add(0, query_rows, reordered);
      add(query_rows, kv_rows, reordered);
      add(query_rows + kv_rows, kv_rows, 0);
      return rows;
    }
    // A group holds the queries that share a key/value head, then its key and its value.
    const uint64_t queries = decoder_.query_heads / kv_heads * head, group = queries + 2 * head;
    for (uint64_t g = 0; g < kv_heads; ++g) add(g * group, queries, reordered);
    for (uint64_t g = 0; g < kv_heads; ++g) add(g * group + queries, head, reordered);
    for (uint64_t g = 0; g < kv_heads; ++g) add(g * group + queries + head, head, 0);
    return rows;
  }

  std::vector<Rows> feed_forward_rows() const {
    const uint64_t inner = decoder_.feed_forward_width;
    if (decoder_.plain_feed_forward) return {{names_.up, inner}};
    if (names_.gate_up != nullptr) {
      if (!decoder_.up_first) return {{names_.gate_up, 2 * inner}};
      return {{names_.gate_up, inner, 0, inner, 2 * inner},
              {names_.gate_up, inner, 0, 0, 2 * inner}};
    }
    return {{names_.gate, inner}, {names_.up, inner}};
  }

  Result<recipe::Attention> add_attention() {
    const Decoder& shape = decoder_;
    recipe::Attention attention;
    attention.query_heads = static_cast<uint32_t>(shape.query_heads);
    attention.kv_heads = static_cast<uint32_t>(shape.kv_heads);
    attention.head_dim = static_cast<uint32_t>(shape.head_dim);
    attention.scale = attention_scale();
    attention.soft_cap = static_cast<float>(shape.attention_soft_cap);
    attention.qkv_limit = static_cast<float>(shape.qkv_limit);
    attention.norm_scope = shape.head_norm_scope;
    VOLVELLE_ASSIGN_OR_RETURN(attention.qkv,
                              add_linear("attention.qkv", shape.width, query_key_value_rows(),
                                         shape.query_key_value_bias));
    VOLVELLE_ASSIGN_OR_RETURN(
        attention.query_norm,
        add_head_norm("attention.query_norm", names_.query_norm, shape.query_heads));
    VOLVELLE_ASSIGN_OR_RETURN(attention.key_norm,
                              add_head_norm("attention.key_norm", names_.key_norm, shape.kv_heads));
    const Rows output[] = {{names_.output, shape.width}};
    VOLVELLE_ASSIGN_OR_RETURN(
        attention.output, add_linear("attention.output", shape.query_heads * shape.head_dim, output,
                                     shape.output_bias));
    return attention;
  }

  // Where experts are stacked, that of `index`.
  Result<recipe::Expert> add_expert(uint64_t index = 0) {
    recipe::Expert expert;
    const bool stacked = decoder_.experts != 0 && names_.experts == nullptr;
    const auto place = [&](Rows rows) {
      if (stacked) rows.stack = decoder_.experts, rows.index = index;
      return rows;
    };
    std::vector<Rows> gate_up = feed_forward_rows();
    std::ranges::transform(gate_up, gate_up.begin(), place);
    const Bias gate_up_bias = decoder_.bare_gate_up ? Bias::kNone : decoder_.feed_forward_bias;
    VOLVELLE_ASSIGN_OR_RETURN(
        expert.gate_up, add_linear("feed_forward.gate_up", decoder_.width, gate_up, gate_up_bias));
    const Rows down[] = {place({names_.down, decoder_.width})};
    VOLVELLE_ASSIGN_OR_RETURN(expert.down,
                              add_linear("feed_forward.down", decoder_.feed_forward_width, down,
                                         decoder_.feed_forward_bias));
    return expert;
  }

  // One expert, or a router and many.
  Result<recipe::FeedForward> add_feed_forward() {
    recipe::FeedForward feed_forward{.activation = decoder_.activation,
                                     .plain = decoder_.plain_feed_forward};
    if (decoder_.experts == 0) {
      VOLVELLE_ASSIGN_OR_RETURN(recipe::Expert only, add_expert());
      feed_forward.experts.push_back(only);
      return feed_forward;
    }
    feed_forward.used = static_cast<uint32_t>(decoder_.used_experts);
    const Rows router[] = {{names_.router, decoder_.experts}};
    VOLVELLE_ASSIGN_OR_RETURN(feed_forward.router, add_linear("feed_forward.router", decoder_.width,
                                                              router, Bias::kNone));
    const std::string prefix = prefix_, block = block_;
    for (uint64_t e = 0; e < decoder_.experts; ++e) {
      if (names_.experts != nullptr) prefix_ = std::format("{}{}.{}.", prefix, names_.experts, e);
      block_ = std::format("{}expert.{}.", block, e);
      VOLVELLE_ASSIGN_OR_RETURN(recipe::Expert expert, add_expert(e));
      feed_forward.experts.push_back(expert);
    }
    prefix_ = prefix;
    block_ = block;
    return feed_forward;
  }

  Result<recipe::Convolution> add_convolution(const ConvolutionShape& shape) {
    recipe::Convolution convolution{.kernel = static_cast<uint32_t>(shape.kernel),
                                    .activation = shape.activation};
    const uint64_t width = decoder_.width, kernel = shape.kernel;
    const std::string name = shape.linear;
    VOLVELLE_ASSIGN_OR_RETURN(const SourceTensor* stored,
                              checkpoint_.require(name + ".weight", {width, width, kernel}));
    const auto neighbour_by_neighbour = [=](const TensorSource& source,
                                            const ThreadPool&) -> Result<std::vector<float>> {
      std::vector<float> values(width * width * kernel), ordered(values.size());
      VOLVELLE_RETURN_IF_ERROR(source.read(*stored, 0, width * width, values));
      for (uint64_t i = 0; i < values.size(); ++i) {
        const uint64_t output = i / kernel / width, input = i / kernel % width;
        ordered[(output * kernel + i % kernel) * width + input] = values[i];
      }
      return ordered;
    };
    convolution.linear.weight = add_tensor({block_ + "convolution.weight",
                                            recipe::Use::kVector,
                                            width,
                                            kernel * width,
                                            {},
                                            neighbour_by_neighbour});
    VOLVELLE_ASSIGN_OR_RETURN(convolution.linear.bias,
                              add_vector("convolution.bias", name + ".bias", width, 0));
    const std::string prefix = std::exchange(prefix_, "");
    VOLVELLE_ASSIGN_OR_RETURN(convolution.norm, add_norm("convolution.norm", shape.norm, width));
    prefix_ = prefix;
    return convolution;
  }

  Result<recipe::Block> add_block(uint64_t layer) {
    const Decoder& shape = decoder_;
    recipe::Block block;
    block.residual = shape.residual;
    block.branch_scale = static_cast<float>(shape.branch_scale);
    const bool bare = shape.bare_first_layer && layer == 0;
    VOLVELLE_ASSIGN_OR_RETURN(
        block.attention_norm,
        add_norm("attention_norm", bare ? nullptr : names_.attention_norm, shape.width));
    VOLVELLE_ASSIGN_OR_RETURN(block.attention, add_attention());
    VOLVELLE_ASSIGN_OR_RETURN(
        block.attention_output_norm,
        add_norm("attention_output_norm", names_.attention_output_norm, shape.width));
    VOLVELLE_ASSIGN_OR_RETURN(block.cross, add_cross_attention());
    if (block.cross) {
      VOLVELLE_ASSIGN_OR_RETURN(block.cross_norm,
                                add_norm("cross_norm", names_.cross_norm, shape.width));
    }
    VOLVELLE_ASSIGN_OR_RETURN(block.feed_forward_norm,
                              add_norm("feed_forward_norm", names_.feed_forward_norm, shape.width));
    VOLVELLE_ASSIGN_OR_RETURN(block.feed_forward, add_feed_forward());
    VOLVELLE_ASSIGN_OR_RETURN(
        block.feed_forward_output_norm,
        add_norm("feed_forward_output_norm", names_.feed_forward_output_norm, shape.width));
    if (shape.convolution && layer == 0) {
      VOLVELLE_ASSIGN_OR_RETURN(block.convolution, add_convolution(*shape.convolution));
    }
    return block;
  }

  Checkpoint& checkpoint_;
  const Decoder& decoder_;
  const DecoderNames& names_;
  const SourceTensor* embedding_ = nullptr;
  std::string layer_;
  std::string prefix_;  // of source tensors
  std::string block_;   // of the model's
  recipe::Model model_;
  int shared_bias_ = -1;
};

}  // namespace

void read_activation(Config& config, const std::string& key, const std::string& fallback,
                     Decoder& decoder) {
  constexpr std::array<std::pair<std::string_view, file::Activation>, 10> kActivations = {{
      {"silu", file::Activation::silu},
      {"swish", file::Activation::silu},
      {"gelu", file::Activation::gelu_erf},
      {"gelu_new", file::Activation::gelu_tanh},
      {"gelu_pytorch_tanh", file::Activation::gelu_tanh},
      {"gelu_fast", file::Activation::gelu_tanh},
      {"quick_gelu", file::Activation::gelu_sigmoid},
      {"relu", file::Activation::relu},
      {"relu2", file::Activation::relu_squared},
      {"tanh", file::Activation::tanh},
  }};
  const std::string name = config.text(key, fallback);
  for (const auto& [known, activation] : kActivations) {
    if (name == known) {
      decoder.activation = activation;
      return;
    }
  }
  config.refuse(key, "is \"{}\", which is not implemented", name);
}

namespace {

// Refuses sizes that no stack has, by the keys that state them.
void check_sizes(Config& config, const DecoderKeys& keys, const Decoder& decoder) {
  const struct {
    const char* key;
    uint64_t size;
    uint64_t most;
  } sizes[] = {{keys.width, decoder.width, kMaxWidth},
               {keys.layers, decoder.layers, kMaxLayers},
               {keys.query_heads, decoder.query_heads, kMaxHeads},
               {keys.kv_heads, decoder.kv_heads, kMaxHeads},
               {keys.head_dim, decoder.head_dim, kMaxHeadDim},
               {keys.feed_forward_width, decoder.feed_forward_width, kMaxWidth},
               {keys.context, decoder.context, kSizeLimit}};
  for (const auto& [key, size, most] : sizes) {
    if (key != nullptr && size > most) {
      config.refuse(key, "is {}; {} is the most that is supported", size, most);
    }
  }
  const bool head_stated = keys.head_dim != nullptr && config.has(keys.head_dim);
  if (decoder.head_dim == 0) {
    config.refuse(keys.query_heads, "is {}, more than the width of {} can be shared among",
                  decoder.query_heads, decoder.width);
  } else if (keys.rotary && decoder.head_dim % 2 != 0) {
    config.refuse(head_stated ? keys.head_dim : keys.query_heads,
                  "gives heads of {} elements, which cannot be rotated in pairs", decoder.head_dim);
  }
  if (decoder.query_heads % std::max<uint64_t>(1, decoder.kv_heads) != 0) {
    config.refuse(keys.kv_heads, "is {}, which {} query heads cannot share evenly",
                  decoder.kv_heads, decoder.query_heads);
  }
  if (!(decoder.epsilon > 0 && decoder.epsilon < 1)) {
    config.refuse(keys.epsilon, "is {}, not between 0 and 1", decoder.epsilon);
  }
}

void read_hugging_face(Config& config, const DecoderKeys& keys, Decoder& decoder) {
  decoder.names = kHuggingFaceNames;
  decoder.vocabulary = config.count(keys.vocabulary);
  decoder.width = config.count(keys.width);
  decoder.layers = config.count(keys.layers);
  decoder.query_heads = config.count(keys.query_heads);
  decoder.kv_heads = keys.kv_heads != nullptr ? config.count(keys.kv_heads, decoder.query_heads)
                                              : decoder.query_heads;
  decoder.feed_forward_width = keys.feed_forward_width == nullptr ? 4 * decoder.width
                               : keys.feed_forward_required
                                   ? config.count(keys.feed_forward_width)
                                   : config.count(keys.feed_forward_width, 4 * decoder.width);
  decoder.context = keys.default_context != 0 ? config.count(keys.context, keys.default_context)
                                              : config.count(keys.context);
  if (keys.epsilon == nullptr) {
    decoder.epsilon = keys.default_epsilon;
  } else {
    decoder.epsilon = keys.default_epsilon != 0 ? config.number(keys.epsilon, keys.default_epsilon)
                                                : config.number(keys.epsilon);
  }
  config.flag("tie_word_embeddings", false);  // the tensors decide
  if (keys.activation != nullptr) {
    read_activation(config, keys.activation, keys.default_activation, decoder);
  }
  const uint64_t heads = std::max<uint64_t>(1, decoder.query_heads);
  const uint64_t fallback =
      keys.default_head_dim != 0 ? keys.default_head_dim : decoder.width / heads;
  decoder.head_dim = keys.head_dim != nullptr ? config.count(keys.head_dim, fallback) : fallback;
  check_sizes(config, keys, decoder);
  if (!keys.rotary) return;
  config.expect("position_embedding_type", "rope");
  decoder.rotary =
      hugging_face_rotary(config, "full_attention", decoder.head_dim, keys.rotary_dialect);
  decoder.sliding_rotary =
      hugging_face_rotary(config, "sliding_attention", decoder.head_dim, keys.rotary_dialect);
}

// What GGUF calls the sizes of all architectures.
DecoderKeys gguf_keys(const DecoderKeys& keys) {
  return {.width = "embedding_length",
          .layers = "block_count",
          .query_heads = "attention.head_count",
          .kv_heads = "attention.head_count_kv",
          .feed_forward_width = "feed_forward_length",
          .context = "context_length",
          .epsilon = keys.norm == file::NormKind::rms ? "attention.layer_norm_rms_epsilon"
                                                      : "attention.layer_norm_epsilon",
          .head_dim = "attention.key_length",
          .rotary = keys.rotary};
}

Result<void> read_gguf(Checkpoint& checkpoint, const DecoderKeys& keys, Decoder& decoder) {
  Config& config = checkpoint.config;
  decoder.names = kGgufNames;
  config.optional_count("vocab_size");  // the embedding decides
  decoder.width = config.count(keys.width);
  decoder.layers = config.count(keys.layers);
  decoder.query_heads = config.count(keys.query_heads);
  decoder.kv_heads = config.count(keys.kv_heads, decoder.query_heads);
  decoder.feed_forward_width = config.count(keys.feed_forward_width);
  decoder.context = config.count(keys.context);
  decoder.epsilon = config.number(keys.epsilon);
  const uint64_t heads = std::max<uint64_t>(1, decoder.query_heads);
  decoder.head_dim = config.count(keys.head_dim, decoder.width / heads);
  if (config.count("attention.value_length", decoder.head_dim) != decoder.head_dim) {
    config.refuse("attention.value_length", "differs from the keys', which is not implemented");
  }
  if (config.number("attention.sliding_window", 0) != 0) {  // 0 is written for none
    decoder.window = config.count("attention.sliding_window");
    decoder.slides = [](uint64_t) { return true; };
  }
  check_sizes(config, keys, decoder);
  VOLVELLE_RETURN_IF_ERROR(config.status());
  if (!keys.rotary) return {};
  VOLVELLE_ASSIGN_OR_RETURN(decoder.rotary, gguf_rotary(checkpoint, decoder.head_dim));
  decoder.sliding_rotary = decoder.rotary;
  return {};
}

}  // namespace

Result<Decoder> read_decoder(Checkpoint& checkpoint, const DecoderKeys& keys) {
  Config& config = checkpoint.config;
  Decoder decoder;
  decoder.norm = keys.norm;
  if (checkpoint.gguf()) {
    VOLVELLE_RETURN_IF_ERROR(read_gguf(checkpoint, gguf_keys(keys), decoder));
  } else {
    read_hugging_face(config, keys, decoder);
  }
  VOLVELLE_RETURN_IF_ERROR(config.status());
  return decoder;
}

namespace {

// Which layers `layer_types` calls sliding; none after a fault.
std::optional<std::vector<bool>> sliding_layers(Config& config, const nlohmann::json& types,
                                                uint64_t layers) {
  if (!types.is_array() || types.size() != layers) {
    config.refuse("layer_types", "does not name the type of {} layers", layers);
    return std::nullopt;
  }
  std::vector<bool> slides;
  for (const nlohmann::json& type : types) {
    if (type != "full_attention" && type != "sliding_attention") {
      config.refuse("layer_types", "names a type of layer that is not implemented: {}",
                    type.dump());
      return std::nullopt;
    }
    slides.push_back(type == "sliding_attention");
  }
  return slides;
}

}  // namespace

void read_attention_bias(Config& config, Decoder& decoder) {
  const Bias bias = config.flag("attention_bias", false) ? Bias::kRequired : Bias::kNone;
  decoder.query_key_value_bias = bias;
  decoder.output_bias = bias;
}

void read_feed_forward_bias(Config& config, Decoder& decoder) {
  decoder.feed_forward_bias = config.flag("mlp_bias", false) ? Bias::kRequired : Bias::kNone;
}

void read_used_experts(Config& config, const std::string& key, uint64_t fallback,
                       Decoder& decoder) {
  decoder.used_experts = fallback != 0 ? config.count(key, fallback) : config.count(key);
  if (decoder.used_experts > decoder.experts) {
    config.refuse(key, "exceeds the {} experts", decoder.experts);
  }
}

void require_biases(Decoder& decoder) {
  decoder.norm_bias = Bias::kRequired;
  decoder.query_key_value_bias = Bias::kRequired;
  decoder.output_bias = Bias::kRequired;
  decoder.feed_forward_bias = Bias::kRequired;
}

void name_head_norms(const Checkpoint& checkpoint, Decoder& decoder) {
  decoder.names.query_norm = checkpoint.gguf() ? "attn_q_norm" : "self_attn.q_norm";
  decoder.names.key_norm = checkpoint.gguf() ? "attn_k_norm" : "self_attn.k_norm";
}

void slide_every_layer(uint64_t window, Decoder& decoder) {
  decoder.window = window;
  if (window != 0) decoder.slides = [](uint64_t) { return true; };
  decoder.sliding_rotary = decoder.rotary;
}

void read_layer_windows(Config& config, Decoder& decoder) {
  const bool used = config.flag("use_sliding_window", false);
  const uint64_t window = config.count("sliding_window", 0);
  const double stated_first = config.number("max_window_layers", 0);
  const uint64_t first = static_cast<uint64_t>(std::clamp(stated_first, 0.0, 1e9));
  const nlohmann::json* types = config.value("layer_types");
  if (types == nullptr) {
    if (used && window == 0)
      config.refuse("sliding_window", "is missing though use_sliding_window is set");
    decoder.window = window;
    if (used) decoder.slides = [first](uint64_t layer) { return layer >= first; };
    return;
  }

  const std::optional<std::vector<bool>> slides = sliding_layers(config, *types, decoder.layers);
  if (!slides || !std::ranges::contains(*slides, true)) return;
  if (!used || window == 0) {
    config.refuse("layer_types",
                  "names sliding layers, but use_sliding_window or sliding_window is not set");
    return;
  }
  decoder.window = window;
  decoder.slides = [slides = *slides](uint64_t layer) { return slides[layer]; };
}

void read_layer_types(Config& config, Decoder& decoder, std::function<bool(uint64_t)> slides) {
  decoder.slides = std::move(slides);
  const nlohmann::json* types = config.value("layer_types");
  if (types == nullptr) return;
  if (const auto stated = sliding_layers(config, *types, decoder.layers)) {
    decoder.slides = [stated = *stated](uint64_t layer) { return stated[layer]; };
  }
}

void read_rotating_layers(Config& config, Decoder& decoder) {
  const uint64_t interval = config.count("no_rope_layer_interval", 4);
  decoder.rotates = [interval](uint64_t layer) { return (layer + 1) % interval != 0; };
  // In spite of its name the list says which layers do rotate: 1.
  const nlohmann::json* listed = config.value("no_rope_layers");
  if (listed == nullptr || !listed->is_array() || listed->empty()) return;
  std::vector<bool> rotates;
  for (const nlohmann::json& one : *listed) {
    if (one != 0 && one != 1) config.refuse("no_rope_layers", "holds {}", one.dump());
    rotates.push_back(one == 1);
  }
  if (rotates.size() != decoder.layers) {
    config.refuse("no_rope_layers", "does not speak of {} layers", decoder.layers);
    rotates.resize(decoder.layers);
  }
  decoder.rotates = [rotates](uint64_t layer) { return rotates[layer]; };
}

Result<recipe::Model> build(Checkpoint& checkpoint, const Decoder& decoder) {
  VOLVELLE_RETURN_IF_ERROR(checkpoint.config.status());
  return Builder(checkpoint, decoder).build();
}

Result<recipe::Model> build_pair(Checkpoint& checkpoint, const Decoder& encoder,
                                 const Decoder& decoder) {
  VOLVELLE_RETURN_IF_ERROR(checkpoint.config.status());
  VOLVELLE_ASSIGN_OR_RETURN(recipe::Model source, Builder(checkpoint, encoder).build());
  recipe::Model begun;
  begun.tensors = std::move(source.tensors);
  begun.positions = std::move(source.positions);
  begun.encoder = std::move(static_cast<recipe::Stack&>(source));
  return Builder(checkpoint, decoder, std::move(begun)).build();
}

}  // namespace volvelle
