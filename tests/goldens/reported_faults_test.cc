// Faults that users of transformer runtimes and converters have reported, one test for each kind: a
// golden comes out right, and the same golden with the fault put in does not, by a hundred
// tolerances. The reports are named beside the tests.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>
#include <string>
#include <vector>

#include "converter/positions/alibi.h"
#include "kernels/rotary.h"
#include "runtime/file_format.h"
#include "tests/converter/tiny_checkpoint.h"
#include "tests/goldens/golden.h"

namespace volvelle {
namespace {

using nlohmann::json;

constexpr float kFar = 100 * kTolerance;

ThreadPool& pool() {
  static ThreadPool only = *ThreadPool::make(1);
  return only;
}

// A part of a model that was made for one test alone, to put a fault in before a session opens.
template <typename Part>
Part& breakable(const Part& part) {
  return const_cast<Part&>(part);
}

std::vector<float> run(std::shared_ptr<const Model> model, const Golden& golden,
                       size_t chunk = 512) {
  return logits_of(*open_session(std::move(model), pool(), golden, golden.tokens.size(), chunk),
                   golden.tokens);
}

// From the golden's logits, in ranges: the whole, or rows from `first` on.
float distance(std::span<const float> logits, const Golden& golden, size_t first = 0) {
  return largest_difference(logits, std::span(golden.logits).subspan(first * golden.vocabulary)) /
         golden.range();
}

void check_right(std::shared_ptr<const Model> model, const Golden& golden) {
  CHECK(distance(run(std::move(model), golden), golden) <= kTolerance);
}

void check_wrong(std::shared_ptr<const Model> model, const Golden& golden) {
  CHECK(distance(run(std::move(model), golden), golden) > kFar);
}

std::shared_ptr<const Model> model_of(const Golden& golden) {
  return convert_to_model(golden.source, "f32", golden.context);
}

std::shared_ptr<const Model> model_of(const AlteredCheckpoint& checkpoint, const Golden& golden) {
  return convert_to_model(checkpoint.source(), "f32", golden.context);
}

// What a configuration that says the same, and one that has lost something, must lead to.
struct Settings {
  std::string golden;
  std::function<void(json& config)> alike;  // empty: as it is
  std::function<void(json& config)> faulty;
};

void check(const Settings& settings) {
  CAPTURE(settings.golden);
  const Golden golden = read_golden(settings.golden);
  const auto as_it_is = [](json&) {};
  const AlteredCheckpoint alike(settings.golden, settings.alike ? settings.alike : as_it_is);
  check_right(model_of(alike, golden), golden);
  const AlteredCheckpoint faulty(settings.golden, settings.faulty);
  check_wrong(model_of(faulty, golden), golden);
}

// A number in a GGUF file, and another that stands for its being ignored.
template <typename Number>
void check_gguf(const std::string& folder, const char* key, Number ignored) {
  CAPTURE(folder);
  const Golden golden = read_golden(folder);
  check_right(model_of(golden), golden);
  const AlteredCheckpoint faulty(folder, key, ignored);
  check_wrong(model_of(faulty, golden), golden);
}

// Every block's rows of q and k, and their biases, in another order: what stood at order(row) of a
// head stands at `row`. `kept` holds the new values.
void reorder_rows(const Model& model, size_t (*order)(size_t row, size_t head_dim),
                  std::deque<std::vector<float>>& kept) {
  for (const Block& block : model.decoder().blocks) {
    const Attention& attention = block.attention;
    const Tensor& weight = *attention.qkv.weight;
    const size_t head_dim = attention.head_dim, columns = weight.columns;
    const size_t rows = attention.query_width() + attention.kv_width();
    std::vector<float>& values =
        kept.emplace_back(weight.f32(), weight.f32() + weight.rows * columns);
    for (size_t row = 0; row < rows; ++row) {
      const size_t from = row - row % head_dim + order(row % head_dim, head_dim);
      std::copy_n(weight.f32() + from * columns, columns, values.data() + row * columns);
    }
    SegmentView& data = breakable(weight).data;
    data.bytes = std::as_bytes(std::span(values));
    data.checksum = checksum(data.bytes);
    if (const float* bias = attention.qkv.bias) {
      std::vector<float>& offsets = kept.emplace_back(bias, bias + weight.rows);
      for (size_t row = 0; row < rows; ++row) {
        offsets[row] = bias[row - row % head_dim + order(row % head_dim, head_dim)];
      }
      breakable(attention).qkv.bias = offsets.data();
    }
  }
}

size_t half_from_interleaved(size_t row, size_t head_dim) {
  return row < head_dim / 2 ? 2 * row : 2 * row - head_dim + 1;
}

size_t interleaved_from_half(size_t row, size_t head_dim) {
  return row / 2 + row % 2 * (head_dim / 2);
}

// Not at all: github.com/ggml-org/llama.cpp/issues/2376 (grouped heads give gibberish),
// github.com/huggingface/transformers/issues/31766 (k by the heads of q).
// Once too often: github.com/jzhang38/TinyLlama/issues/24.
TEST_CASE("rows of q and k that are permuted twice or not at all would be noticed") {
  for (const std::string folder :
       {"gguf_llama", "gguf_llama_biases", "gguf_mixtral", "gguf_mistral3", "gguf_granite",
        "gguf_smollm3", "gguf_olmo", "gguf_baichuan_7b",  // permuted in the file
        "gguf_qwen2", "gguf_qwen3", "gguf_phi3", "gguf_starcoder2", "gguf_falcon_grouped",
        "gguf_olmo2", "gguf_gemma", "llama_grouped_heads"}) {  // not
    CAPTURE(folder);
    const Golden golden = read_golden(folder);
    check_right(model_of(golden), golden);
    for (const auto order : {half_from_interleaved, interleaved_from_half}) {
      std::deque<std::vector<float>> kept;
      const auto faulty = model_of(golden);
      reorder_rows(*faulty, order, kept);
      check_wrong(faulty, golden);
    }
  }
}

// github.com/vllm-project/vllm/pull/941: GPT-J's pairs taken for GPT-NeoX's.
TEST_CASE("the wrong pairing would be noticed by every golden that has pairs") {
  size_t seen[2] = {0, 0};
  for (const Golden& golden : read_goldens()) {
    CAPTURE(golden.name);
    const auto model = model_of(golden);
    bool pairs = false;
    for (const Position& position : model->positions()) {
      const auto* rotary = std::get_if<Rotary>(&position.scheme);
      if (rotary == nullptr || rotary->dial.planes == 1) continue;  // one pair pairs but one way
      const bool half = rotary->pairing == Pairing::kHalf;
      breakable(*rotary).pairing = half ? Pairing::kInterleaved : Pairing::kHalf;
      ++seen[half];
      pairs = true;
    }
    if (pairs) check_wrong(model, golden);
  }
  CHECK(seen[0] >= 15);
  CHECK(seen[1] >= 50);
}

void move_into_rope_parameters(json& config, const char* share_key, const char* base_key) {
  json inner = json::object();
  if (config["rope_scaling"].is_object()) inner = config["rope_scaling"];
  if (inner.contains("type")) inner["rope_type"] = inner["type"];
  inner.erase("type");
  if (!inner.contains("rope_type")) inner["rope_type"] = "default";
  inner["rope_theta"] = config[base_key];
  inner["partial_rotary_factor"] = config[share_key];
  for (const char* key : {"rope_scaling", base_key, share_key}) config.erase(key);
  config["rope_parameters"] = inner;
}

// github.com/huggingface/transformers/pull/44985: rotary_pct lost between its two names;
// github.com/vllm-project/vllm/pull/29966: a share applied once by each of two names.
TEST_CASE("the rotated part of a head is read under each of its names") {
  const auto lose = [](const char* pointer) {
    return [pointer](json& config) {
      const json::json_pointer key(pointer);
      config[key.parent_pointer()].erase(key.back());
    };
  };
  check({"gpt_neox_sequential", {}, lose("/rotary_pct")});
  check({"gpt_neox_partial_linear", {}, lose("/rotary_pct")});
  check({"phi_partial_linear", {}, lose("/partial_rotary_factor")});
  check({"stablelm_parallel_norms", {}, lose("/partial_rotary_factor")});
  check({"phi3_partial", {}, lose("/partial_rotary_factor")});
  check({"gptj", {}, lose("/rotary_dim")});
  for (const auto& [folder, share_key, base_key] :
       {std::tuple{"gpt_neox_sequential", "rotary_pct", "rotary_emb_base"},
        {"gpt_neox_partial_linear", "rotary_pct", "rotary_emb_base"},
        {"phi_partial_linear", "partial_rotary_factor", "rope_theta"},
        {"stablelm_parallel_norms", "partial_rotary_factor", "rope_theta"},
        {"phi3_partial", "partial_rotary_factor", "rope_theta"}}) {
    const auto move = [=](json& config) { move_into_rope_parameters(config, share_key, base_key); };
    check({folder, move, [=](json& config) {
             move(config);
             config["rope_parameters"].erase("partial_rotary_factor");
           }});
  }
  check_gguf("gguf_phi2", "phi2.rope.dimension_count", 10u);
  check_gguf("gguf_stablelm", "stablelm.rope.dimension_count", 16u);
  check_gguf("gguf_gptneox_sequential", "gptneox.rope.dimension_count", 16u);
  check_gguf("gguf_chatglm", "chatglm.rope.dimension_count", 12u);
  check_gguf("gguf_glm4", "glm4.rope.dimension_count", 12u);
}

// github.com/ml-explore/mlx-lm/pull/1698: glm-4-9b's configuration has no partial_rotary_factor,
// and the whole head was rotated.
TEST_CASE("where no key states the rotated part of a head, each family has its own") {
  const auto without = [](const char* key) { return [key](json& config) { config.erase(key); }; };
  const auto share = [](const char* key, double value) {
    return [=](json& config) { config[key] = value; };
  };
  check({"stablelm", without("partial_rotary_factor"), share("partial_rotary_factor", 1)});
  check({"gpt_neox_parallel", without("rotary_pct"), share("rotary_pct", 1)});
  check(
      {"phi_query_key_norms", without("partial_rotary_factor"), share("partial_rotary_factor", 1)});
  check({"persimmon", without("partial_rotary_factor"), share("partial_rotary_factor", 1)});
  check({"glm", without("partial_rotary_factor"), share("partial_rotary_factor", 1)});
  check({"glm4", without("partial_rotary_factor"), share("partial_rotary_factor", 1)});
  check({"phi3", without("partial_rotary_factor"), share("partial_rotary_factor", 0.5)});

  // GPT-J's is a number of elements, 64, where a head has as many (GPTJConfig).
  for (const uint64_t head_dim : {32, 96, 256}) {
    CAPTURE(head_dim);
    auto tensors = std::make_unique<MemorySource>();
    tensors->add("transformer.wte.weight", {8, head_dim});
    const std::string block = "transformer.h.0.";
    for (const char* name : {"q_proj", "k_proj", "v_proj", "out_proj"}) {
      tensors->add(block + "attn." + name + ".weight", {head_dim, head_dim});
    }
    tensors->add(block + "mlp.fc_in.weight", {4 * head_dim, head_dim});
    tensors->add(block + "mlp.fc_in.bias", {4 * head_dim});
    tensors->add(block + "mlp.fc_out.weight", {head_dim, 4 * head_dim});
    tensors->add(block + "mlp.fc_out.bias", {head_dim});
    for (const std::string& norm : {block + "ln_1", std::string("transformer.ln_f")}) {
      tensors->add(norm + ".weight", {head_dim});
      tensors->add(norm + ".bias", {head_dim});
    }
    tensors->add("lm_head.weight", {8, head_dim}, 1);
    tensors->add("lm_head.bias", {8});
    const Described described = describe_tiny({{"model_type", "gptj"},
                                               {"vocab_size", 8},
                                               {"n_positions", 64},
                                               {"n_embd", head_dim},
                                               {"n_layer", 1},
                                               {"n_head", 1}},
                                              std::move(tensors));
    REQUIRE(described.error() == "");
    CHECK(std::get<RotaryPlan>(described.model->positions.at(0)).width ==
          std::min<uint64_t>(64, head_dim));
  }
}

// github.com/ggml-org/llama.cpp/pull/8676: Llama 3.1 run with plain frequencies.
TEST_CASE("llama3 scaling that is ignored would be noticed") {
  for (const std::string folder : {"llama_llama3_scaling", "llama_spelling_5", "cohere_llama3",
                                   "glm_llama3", "phi_partial_llama3", "gguf_llama3_factors"}) {
    CAPTURE(folder);
    const Golden golden = read_golden(folder);
    const auto right = model_of(golden);
    check_right(right, golden);
    check_wrong(convert_to_model(golden.source, "f32", right->decoder().context, "none"), golden);
  }
}

// github.com/ml-explore/mlx-lm/pull/1507, github.com/vllm-project/vllm/pull/46280: the stated
// factor was not forwarded, and the formula's was taken.
TEST_CASE("an attention_factor that is stated stands in the formula's place") {
  const auto unstated = [](json& config) { config["rope_scaling"].erase("attention_factor"); };
  check({"llama_yarn_attention_factor", {}, unstated});
  check({"phi3_longrope_partial", {}, unstated});
  check_gguf("gguf_llama_yarn_attn_factor", "llama.rope.scaling.attn_factor", 1.0f);
}

// github.com/huggingface/transformers/issues/38224: the quotient of the contexts was taken.
TEST_CASE("YaRN scales by the factor that is stated, not by the quotient of two contexts") {
  const auto quotient = [](json& config) {
    config["rope_scaling"]["factor"] =
        config["max_position_embeddings"].get<double>() /
        config["rope_scaling"]["original_max_position_embeddings"].get<double>();
  };
  check({"qwen2_yarn_factor_is_not_the_ratio", {}, quotient});
  for (const std::string folder : {"qwen2_yarn", "cohere_yarn", "glm_yarn", "phi_partial_yarn"}) {
    check({folder, {}, quotient});
  }
}

// Cosines and sines of every position of a dial: [positions, 2, planes].
std::vector<float> rows_of(const Dial& dial) {
  std::vector<uint32_t> positions(dial.positions());
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<float> rows(positions.size() * dial.width());
  read_dial(dial, positions, rows.data());
  return rows;
}

// Position p turns by row p of `rows` from now on.
void turn_by(const Rotary& rotary, const std::vector<float>& rows, std::vector<float>& unturned) {
  const size_t planes = rotary.dial.planes;
  unturned.assign(2 * planes, 0.0f);
  std::fill_n(unturned.begin(), planes, 1.0f);
  breakable(rotary).dial = {rows.data(), unturned.data(), rows.size() / (2 * planes), 1, planes};
}

// github.com/jundot/omlx/pull/3594: positions past the trained horizon were served unscaled.
TEST_CASE("scaling that is lost past the original context would be noticed") {
  for (const std::string folder :
       {"llama_llama3_scaling", "llama_yarn_spelling_5", "llama_yarn_mscales", "qwen2_yarn",
        "cohere_llama3", "cohere_yarn", "glm_llama3", "glm_yarn", "phi_partial_llama3",
        "phi_partial_yarn", "gguf_qwen2_yarn"}) {
    CAPTURE(folder);
    const Golden golden = read_golden(folder);
    const auto faulty = model_of(golden);
    const std::vector<float> right = run(faulty, golden);
    CHECK(distance(right, golden) <= kTolerance);

    const Rotary& rotary = *faulty->decoder().blocks[0].attention.rotary;
    const size_t original = rotary.scaling.original_context;
    REQUIRE(original > 0);
    REQUIRE(original < golden.tokens.size());
    const auto unscaled = convert_to_model(golden.source, "f32", faulty->decoder().context, "none");
    const std::vector<float> tail = rows_of(unscaled->decoder().blocks[0].attention.rotary->dial);
    std::vector<float> rows = rows_of(rotary.dial), unturned;
    const size_t changed = original * rotary.dial.width();
    std::copy(tail.begin() + changed, tail.end(), rows.begin() + changed);
    turn_by(rotary, rows, unturned);

    const std::vector<float> wrong = run(faulty, golden);
    const size_t before = original * golden.vocabulary;
    CHECK(distance(std::span(wrong).subspan(before), golden, original) > kFar);
    CHECK(largest_difference(std::span(wrong).first(before), std::span(right).first(before)) <=
          kTolerance * golden.range());
  }
}

// github.com/vllm-project/vllm/pull/29111: sliding layers turned as the full ones do, scaling too.
TEST_CASE("Gemma 3's sliding layers have a base of their own and no scaling") {
  const auto global_base = [](json& config) {
    config["rope_local_base_freq"] = config["rope_theta"];
  };
  const auto unread = [](json& config) { config.erase("rope_local_base_freq"); };
  for (const std::string folder : {"gemma3_spelling_4", "gemma3_seven_layers"}) {
    check({folder, {}, global_base});
    check({folder, {}, unread});
  }
  check({"gemma3_spelling_5", {}, [](json& config) {
           config["rope_parameters"]["sliding_attention"] = {
               {"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", 100.0}};
         }});
  check_gguf("gguf_gemma3_local_base", "gemma3.rope.freq_base_swa", 1000.0f);
  check_gguf("gguf_gemma3_local_base", "gemma3.rope.freq_base_swa", 10000.0f);

  const Golden golden = read_golden("gguf_gemma3");  // where no key states it
  const auto faulty = model_of(golden);
  check_right(faulty, golden);
  const Rotary* full = nullptr;
  for (const Block& block : faulty->decoder().blocks) {
    if (block.attention.window == 0) full = block.attention.rotary;
  }
  REQUIRE(full != nullptr);
  for (const Block& block : faulty->decoder().blocks) breakable(block.attention).rotary = full;
  check_wrong(faulty, golden);
}

// github.com/ml-explore/mlx/pull/3071: one geometric row for any number of heads;
// github.com/baichuan-inc/Baichuan2/issues/225: 40 heads.
TEST_CASE("ALiBi's slopes for 3, 6, 10, 12 and 40 heads are not one geometric row") {
  const auto one_row = [](size_t heads) {
    std::vector<float> slopes(heads);
    for (size_t head = 0; head < heads; ++head) {
      slopes[head] = std::exp2(-8.0f * (head + 1) / heads);
    }
    return slopes;
  };
  for (const std::string folder :
       {"bloom", "bloom_residual_after_norm", "falcon_alibi_12_heads", "mpt", "mpt_clipped",
        "baichuan_13b", "gguf_baichuan_13b", "gguf_bloom", "gguf_mpt"}) {
    CAPTURE(folder);
    const Golden golden = read_golden(folder);
    const auto faulty = model_of(golden);
    check_right(faulty, golden);
    const Attention& attention = faulty->decoder().blocks[0].attention;
    const Slopes& slopes = *attention.slopes;
    const bool divided = golden.name.starts_with("falcon");  // adds them before it divides scores
    std::vector<float> row = one_row(attention.query_heads);
    for (float& slope : row) slope *= divided ? attention.scale : 1;
    breakable(slopes).values = row;
    check_wrong(faulty, golden);
  }

  // Press et al.: 2^(-8i/32) for i in [1, 32], then every other of the 64 that would be.
  const std::vector<float> bloom = bloom_slopes(40), mpt = mpt_slopes(40, 8),
                           falcon = falcon_slopes(40, 64);
  for (int head = 0; head < 40; ++head) {
    const double exact =
        std::exp2(head < 32 ? -8.0 * (head + 1) / 32 : -8.0 * (2 * (head - 32) + 1) / 64);
    CAPTURE(head);
    CHECK(bloom[head] == doctest::Approx(exact).epsilon(1e-6));
    CHECK(mpt[head] == doctest::Approx(exact).epsilon(1e-6));
    CHECK(falcon[head] == doctest::Approx(exact / 8).epsilon(1e-6));
    CHECK(std::abs(one_row(40)[head] / exact - 1) > 0.01);
  }
}

// github.com/keras-team/keras-hub/pull/2977: with a cache, a single token's bias was all zeros.
TEST_CASE("ALiBi's bias is there when a single token is decoded") {
  for (const std::string folder :
       {"bloom", "bloom_residual_after_norm", "falcon_alibi", "falcon_alibi_12_heads", "mpt",
        "baichuan_13b", "gguf_bloom", "gguf_mpt", "gguf_baichuan_13b"}) {
    CAPTURE(folder);
    const Golden golden = read_golden(folder);
    const auto model = model_of(golden);
    CHECK(distance(run(model, golden, 1), golden) <= kTolerance);

    const size_t last = golden.tokens.size() - 1;
    const auto session = open_session(model, pool(), golden, golden.tokens.size());
    const std::span<const int32_t> tokens = golden.tokens;
    logits_of(*session, tokens.first(last));
    const std::vector<float> zeros(model->decoder().blocks[0].attention.query_heads);
    breakable(*model->decoder().blocks[0].attention.slopes).values = zeros;
    CHECK(distance(logits_of(*session, tokens.subspan(last)), golden, last) > kFar);
  }
}

// github.com/pegainfer-project/pegainfer/issues/220: a table of 4096 rows where 40960 positions
// were admitted.
TEST_CASE("tables reach every position that the model advertises, and none beyond is admitted") {
  for (const std::string folder :
       {"llama_grouped_heads", "gpt_neox_parallel", "cohere", "glm", "llama_yarn", "phi3_longrope",
        "gguf_phi3", "mistral_sliding_window", "gguf_gemma3", "marian_decoder", "xglm"}) {
    CAPTURE(folder);
    Golden golden = read_golden(folder);
    const auto model = convert_to_model(golden.source, "f32");
    const Stack& stack = model->decoder();
    CHECK(stack.context == stack.trained_context);
    const SessionOptions too_long{.context = stack.context + 1};
    CHECK_FALSE(Session::open(model, pool(), too_long).has_value());

    // The last position's logits are those of a file whose tables reach four times as far.
    while (golden.tokens.size() < stack.context) {
      golden.tokens.push_back(golden.tokens[golden.tokens.size() * 7 % 31]);
    }
    const auto longer = convert_to_model(golden.source, "f32", 4 * stack.context);
    golden.logits = run(longer, golden);
    check_right(model, golden);

    // As if tables ended halfway and positions beyond were held at the last row.
    std::deque<std::vector<float>> kept;
    for (const Position& position : model->positions()) {
      const auto hold = [&](std::span<const float> rows, size_t width, size_t offset) {
        std::vector<float>& held = kept.emplace_back(rows.begin(), rows.end());
        const size_t half = offset + stack.context / 2;
        for (size_t row = half; row < rows.size() / width; ++row) {
          std::copy_n(held.begin() + (half - 1) * width, width, held.begin() + row * width);
        }
        return std::span(held);
      };
      if (const auto* rotary = std::get_if<Rotary>(&position.scheme)) {
        const size_t width = rotary->dial.width();
        const Dial& dial = rotary->switch_length > 0 ? rotary->long_dial : rotary->dial;
        hold(rows_of(dial), width, 0);
        breakable(*rotary).switch_length = 0;
        std::vector<float>& rows = kept.back();
        turn_by(*rotary, rows, kept.emplace_back());
      } else if (const auto* table = std::get_if<AdditiveTable>(&position.scheme)) {
        const Tensor& tensor = *table->table;
        breakable(tensor).data.bytes = std::as_bytes(
            hold({tensor.f32(), tensor.rows * tensor.columns}, tensor.columns, table->row_offset));
      }
    }
    check_wrong(model, golden);
  }
}

// github.com/pytorch/torchchat/pull/1462: a second turn began at the wrong position;
// github.com/huggingface/transformers/pull/15751: positions were counted from the new tokens alone.
TEST_CASE("positions go on after what is cached, and begin anew only when a session is cleared") {
  for (const Golden& golden : read_goldens()) {
    CAPTURE(golden.name);
    const auto model = model_of(golden);
    const std::span<const int32_t> tokens = golden.tokens;
    const size_t count = tokens.size(), half = count / 2, last = count - 1;
    const auto session = open_session(model, pool(), golden, count);
    logits_of(*session, tokens.first(half));
    CHECK(distance(logits_of(*session, tokens.subspan(half)), golden, half) <= kTolerance);
    session->clear();
    logits_of(*session, tokens.first(1));
    for (size_t i = 1; i < last; ++i) logits_of(*session, tokens.subspan(i, 1));
    CHECK(distance(logits_of(*session, tokens.subspan(last)), golden, last) <= kTolerance);
    session->clear();
    CHECK(distance(logits_of(*session, tokens), golden) <= kTolerance);
  }

  // As if the second half's tokens, the first half cached, were counted from 0 again.
  for (const std::string folder :
       {"llama_grouped_heads", "gpt_neox_parallel", "cohere", "gptj", "llama_yarn", "gguf_llama",
        "mistral_sliding_window", "opt", "gpt2", "xglm", "marian_decoder", "xlm"}) {
    CAPTURE(folder);
    const Golden golden = read_golden(folder);
    const auto faulty = model_of(golden);
    const size_t half = golden.tokens.size() / 2;
    std::deque<std::vector<float>> kept;
    for (const Position& position : faulty->positions()) {
      const auto restart = [&](std::span<const float> rows, size_t width, size_t offset) {
        std::vector<float>& again = kept.emplace_back(rows.begin(), rows.end());
        const size_t first = (offset + half) * width;
        std::copy(rows.begin() + offset * width, rows.end() - half * width, again.begin() + first);
        return std::span(again);
      };
      if (const auto* rotary = std::get_if<Rotary>(&position.scheme)) {
        restart(rows_of(rotary->dial), rotary->dial.width(), 0);
        std::vector<float>& rows = kept.back();
        turn_by(*rotary, rows, kept.emplace_back());
      } else if (const auto* table = std::get_if<AdditiveTable>(&position.scheme)) {
        const Tensor& tensor = *table->table;
        breakable(tensor).data.bytes = std::as_bytes(restart(
            {tensor.f32(), tensor.rows * tensor.columns}, tensor.columns, table->row_offset));
      }
    }
    const std::vector<float> logits = run(faulty, golden);
    const size_t before = half * golden.vocabulary;
    CHECK(distance(std::span(logits).subspan(before), golden, half) > kFar);
    CHECK(largest_difference(std::span(logits).first(before),
                             std::span(golden.logits).first(before)) <=
          kTolerance * golden.range());
  }
}

}  // namespace
}  // namespace volvelle
