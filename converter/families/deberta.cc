// DeBERTa v2 and v3: BERT's blocks, whose attention asks content of position and position of
// content, with rows for buckets of distances. He et al. 2021, arXiv:2006.03654 and 2111.09543.

#include <cmath>

#include "converter/families/decoder.h"
#include "converter/families/encoder.h"
#include "converter/families/family.h"
#include "converter/positions/disentangled.h"

namespace volvelle {
namespace {

constexpr DecoderNames kNames = {
    .embedding = "deberta.embeddings.word_embeddings",
    .embedding_norm = "deberta.embeddings.LayerNorm",
    .block = "deberta.encoder.layer",
    .attention_norm = "attention.output.LayerNorm",
    .query = "attention.self.query_proj",
    .key = "attention.self.key_proj",
    .value = "attention.self.value_proj",
    .output = "attention.output.dense",
    .feed_forward_norm = "output.LayerNorm",
    .up = "intermediate.dense",
    .down = "output.dense",
};

constexpr const char* kPositionTable = "deberta.embeddings.position_embeddings";
constexpr uint64_t kMostKernel = 63;
constexpr uint64_t kMostRows = uint64_t{1} << 15;

// Which of the two terms there are: "c2p|p2c", or a list.
struct Terms {
  bool content_to_position = false;
  bool position_to_content = false;
};

Terms read_terms(Config& config) {
  Terms terms;
  const auto name = [&](const std::string& term) {
    if (term == "c2p") {
      terms.content_to_position = true;
    } else if (term == "p2c") {
      terms.position_to_content = true;
    } else if (!term.empty()) {
      config.refuse("pos_att_type", "names \"{}\", neither c2p nor p2c", term);
    }
  };
  const nlohmann::json* stated = config.value("pos_att_type");
  if (stated == nullptr) return terms;
  if (stated->is_array()) {
    for (const nlohmann::json& term : *stated) {
      name(term.is_string() ? term.get<std::string>() : term.dump());
    }
    return terms;
  }
  const std::string text = config.text("pos_att_type", "");
  for (size_t first = 0; first <= text.size();) {
    const size_t end = std::min(text.find('|', first), text.size());
    std::string term = text.substr(first, end - first);
    std::erase(term, ' ');
    name(term);
    first = end + 1;
  }
  return terms;
}

void read_convolution(Config& config, Decoder& decoder) {
  const double kernel = config.number("conv_kernel_size", 0);
  Decoder convolution;
  read_activation(config, "conv_act", "tanh", convolution);
  config.expect("conv_groups", 1);
  if (kernel <= 0) return;
  if (config.count("conv_kernel_size") % 2 == 0 || kernel > kMostKernel) {
    config.refuse("conv_kernel_size", "is {}, even or above {}", kernel, kMostKernel);
  }
  decoder.convolution = ConvolutionShape{.linear = "deberta.encoder.conv.conv",
                                         .norm = "deberta.encoder.conv.LayerNorm",
                                         .kernel = config.count("conv_kernel_size"),
                                         .activation = convolution.activation};
}

// A number of which everything below 1 stands for none.
uint64_t count_or_none(Config& config, const char* key) {
  const double stated = config.number(key, -1);
  if (stated < 1) return 0;
  return config.count(key);
}

void read_relative_positions(Checkpoint& checkpoint, const Terms& terms, Decoder& decoder) {
  Config& config = checkpoint.config;
  const uint64_t stated = count_or_none(config, "max_relative_positions");
  const uint64_t reach = stated != 0 ? stated : decoder.context;
  const uint64_t buckets = count_or_none(config, "position_buckets");
  const uint64_t span = buckets != 0 ? buckets : reach;
  const std::string norm = config.text("norm_rel_ebd", "none");
  if (norm != "none" && norm != "layer_norm") {
    config.refuse("norm_rel_ebd", "is \"{}\", neither none nor layer_norm", norm);
  }
  if (span > kMostRows || (buckets != 0 && (buckets < 4 || reach <= buckets / 2 + 1))) {
    config.refuse("position_buckets", "is {} for distances up to {}, which is no sensible division",
                  buckets, reach);
    return;
  }
  const bool shared = config.flag("share_att_key", false);
  if (!terms.content_to_position && !terms.position_to_content) {
    return leave(checkpoint,
                 {"deberta.encoder.rel_embeddings.weight", "deberta.encoder.LayerNorm.weight",
                  "deberta.encoder.LayerNorm.bias"});
  }
  DisentangledShape shape{
      .table = "deberta.encoder.rel_embeddings",
      .norm = norm == "layer_norm" ? "deberta.encoder.LayerNorm" : nullptr,
      .rows = 2 * span,
      .row_of = disentangled_row_of({static_cast<uint32_t>(span), static_cast<uint32_t>(buckets),
                                     static_cast<uint32_t>(reach)})};
  if (shape.row_of.empty()) {
    config.refuse("max_relative_positions", "is {}, farther than is supported", reach);
  }
  if (terms.content_to_position) {
    decoder.names.relative_key = shared ? "attention.self.key_proj" : "attention.self.pos_key_proj";
  }
  if (terms.position_to_content) {
    decoder.names.relative_query =
        shared ? "attention.self.query_proj" : "attention.self.pos_query_proj";
  }
  decoder.disentangled = std::move(shape);
}

void read_tasks(Checkpoint& checkpoint, Decoder& decoder) {
  Config& config = checkpoint.config;
  Decoder pooler;
  read_activation(config, "pooler_hidden_act", "gelu", pooler);
  config.value("pooler_hidden_size");
  bool legacy = false;
  if (has_architecture(config, "ForMaskedLM")) {
    config.value("legacy");  // the tensors' names decide
    legacy = checkpoint.optional("lm_predictions.lm_head.dense.weight") == nullptr &&
             checkpoint.optional("lm_predictions.lm_head.bias") == nullptr;
  }
  add_encoder_tasks(
      checkpoint,
      {.fill = {{.linear =
                     legacy ? "cls.predictions.transform.dense" : "lm_predictions.lm_head.dense",
                 .outputs = decoder.width,
                 .activation = decoder.activation,
                 .norm = legacy ? "cls.predictions.transform.LayerNorm"
                                : "lm_predictions.lm_head.LayerNorm"},
                {.bias_name = legacy ? "cls.predictions.bias" : "lm_predictions.lm_head.bias"}},
       .fill_copies = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"},
       .classify = {{.linear = "pooler.dense",
                     .outputs = decoder.width,
                     .activation = pooler.activation}}},
      decoder);
}

}  // namespace

Result<recipe::Model> describe_deberta_v2(Checkpoint& checkpoint) {
  Config& config = checkpoint.config;
  VOLVELLE_ASSIGN_OR_RETURN(Decoder decoder,
                            read_decoder(checkpoint, {.kv_heads = nullptr,
                                                      .norm = file::NormKind::layer,
                                                      .epsilon = "layer_norm_eps",
                                                      .default_epsilon = 1e-7,
                                                      .default_activation = "gelu",
                                                      .head_dim = nullptr,
                                                      .rotary = false}));
  config.value("attention_probs_dropout_prob");
  config.value("pooler_dropout");
  config.expect("embedding_size", decoder.width);
  config.expect("attention_head_size", decoder.head_dim);
  decoder.names = kNames;
  decoder.encodes = true;
  decoder.residual = file::Residual::post_norm;
  require_biases(decoder);
  decoder.plain_feed_forward = true;
  read_convolution(config, decoder);
  if (config.number("type_vocab_size", 0) > 0) {
    decoder.names.token_types = "deberta.embeddings.token_type_embeddings";
  }
  if (config.flag("position_biased_input", true)) {
    decoder.names.learned_table = kPositionTable;
  } else {
    checkpoint.optional(std::string(kPositionTable) + ".weight");  // is stored, but not added
  }
  const Terms terms = read_terms(config);
  // Scores are sums of as many terms, whether distances count or not.
  const int count = 1 + terms.content_to_position + terms.position_to_content;
  decoder.attention_scale = 1 / std::sqrt(static_cast<double>(decoder.head_dim) * count);
  if (config.flag("relative_attention", false)) {
    read_relative_positions(checkpoint, terms, decoder);
    decoder.mixes_positions = decoder.names.learned_table != nullptr;
  }
  read_tasks(checkpoint, decoder);
  return build(checkpoint, decoder);
}

}  // namespace volvelle
