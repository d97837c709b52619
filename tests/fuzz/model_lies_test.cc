// Model files whose checksums hold and whose tables lie on purpose: small files that would take
// hours or all memory, numbers that are none, positions past a dial's end.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <format>
#include <limits>
#include <string>
#include <vector>

#include "platforms/memory.h"
#include "tests/fuzz/container.h"

namespace volvelle {
namespace {

using flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;

// What a hand-made file of one-element weights says too much of.
struct Excess {
  size_t blocks = 1, tensors = 0, tensor_name = 1, positions = 0, steps = 0, step_text = 1,
         templates = 0, added = 0, biases = 0;
  // Of one more tensor, [2, 8].
  std::vector<uint32_t> side_columns = {};
  file::TensorType side_type = file::TensorType::q8;
  uint64_t side_bytes = 0;
};

// All tables of a kind are one table, listed again and again.
Container make_model(const Excess& excess) {
  constexpr size_t kDataBytes = 1 << 20;
  std::vector<std::byte> bytes(kFirstSegmentOffset + kDataBytes);
  const std::span data = std::span(bytes).subspan(kFirstSegmentOffset);
  const auto segment = [&](uint64_t length) {
    return file::Segment(kFirstSegmentOffset, length, checksum(data.first(length)));
  };
  FlatBufferBuilder b;
  const file::Segment none;
  const auto tensor = [&](uint64_t rows, const std::string& name) {
    const file::Segment weights = segment(rows * sizeof(float));
    return file::CreateTensor(b, b.CreateString(name), file::TensorType::f32, rows, 1, &weights,
                              &none);
  };
  std::vector<Offset<file::Tensor>> tensors = {tensor(1, "one"), tensor(2, "two"),
                                               tensor(3, "three")};
  if (!excess.side_columns.empty()) {
    const bool quantised = excess.side_type == file::TensorType::q8;
    const file::Segment data = segment(quantised ? 16 : 64), scales = segment(quantised ? 8 : 0);
    const file::Segment side = segment(excess.side_bytes), side_scales = segment(8);
    tensors.push_back(file::CreateTensor(b, b.CreateString("beside"), excess.side_type, 2, 8, &data,
                                         &scales, 0, &none, &none,
                                         b.CreateVector(excess.side_columns), &side, &side_scales));
  }
  tensors.resize(tensors.size() + excess.tensors, tensor(1, std::string(excess.tensor_name, 'n')));

  const auto norm = file::CreateNorm(b, file::NormKind::rms, 1e-5f, 0);
  const auto one = file::CreateLinear(b, 0), two = file::CreateLinear(b, 1),
             three = file::CreateLinear(b, 2);
  const auto attention =
      file::CreateAttention(b, 1, 1, 1, 1.0f, 0.0f, file::Mask::causal, 0, three, one);
  const auto feed_forward = file::CreateFeedForward(b, file::Activation::silu, two, one);
  const auto block =
      file::CreateBlock(b, file::Residual::sequential, norm, attention, norm, feed_forward);
  const std::vector<Offset<file::Block>> blocks(excess.blocks, block);
  const auto stack = file::CreateStack(b, file::StackKind::decoder, 1, 8, 8, 0, 1.0f, -1,
                                       b.CreateVector(blocks), norm, file::CreateLinear(b, 0));

  const file::Segment dial = segment(kDataBytes);
  const std::vector<float> frequencies = {1};
  const auto stored_frequencies = b.CreateVector(frequencies);
  const auto rotary = file::CreateRotary(b, file::Pairing::half, 2, 1, stored_frequencies,
                                         stored_frequencies, 0, 1, &dial, kDataBytes / 8, &dial, 1);
  const auto position = file::CreatePosition(b, file::Scheme::Rotary, rotary.Union());
  std::vector<Offset<file::Position>> positions(excess.positions, position);
  if (excess.biases > 0) {
    constexpr uint64_t kBuckets = 4096;
    tensors.push_back(tensor(kBuckets, "buckets"));
    const auto bias = file::CreateBucketedBias(b, static_cast<int>(tensors.size()) - 1,
                                               /*bidirectional=*/false, 1 << 20);
    positions.resize(excess.biases,
                     file::CreatePosition(b, file::Scheme::BucketedBias, bias.Union()));
  }

  const auto text = b.CreateString(std::string(excess.step_text, 't'));
  const std::vector<Offset<file::DecoderStep>> steps(
      excess.steps, file::CreateDecoderStep(b, file::DecoderKind::replace, text, text));
  const std::vector<Offset<file::ChatTemplate>> templates(excess.templates,
                                                          file::CreateChatTemplate(b, text, &dial));
  const std::vector<file::AddedToken> added(excess.added,
                                            file::AddedToken(0, false, false, false, false, false));
  constexpr size_t kPieceBytes = 4000;
  const uint32_t piece_end = kPieceBytes;
  const size_t end_at = kDataBytes - 64, piece_at = end_at - 4032;
  std::memcpy(&data[end_at], &piece_end, sizeof piece_end);
  const auto part = [&](size_t at, size_t length) {
    return file::Segment(kFirstSegmentOffset + at, length, checksum(data.subspan(at, length)));
  };
  const file::Segment piece_ends = part(end_at, sizeof piece_end),
                      piece_bytes = part(piece_at, kPieceBytes);
  const auto tokenizer =
      file::CreateTokenizer(b, file::TokenizerModel::bpe, &piece_ends, &piece_bytes, &none, false,
                            false, false, -1, 0, 0, b.CreateVector(steps),
                            b.CreateVectorOfStructs(added), 0, 0, -1, 0, b.CreateVector(templates));

  const auto name = b.CreateString("lies");
  file::FinishModelBuffer(
      b, file::CreateModel(b, name, name, name, name, 1, b.CreateVector(tensors),
                           b.CreateVector(positions), b.CreateVector(&stack, 1), tokenizer));
  HeaderSlot slot;
  slot.generation = 1;
  slot.table_offset = bytes.size();
  slot.table_bytes = b.GetSize();
  const auto table = std::as_bytes(std::span(b.GetBufferPointer(), b.GetSize()));
  Container container{std::vector<std::byte>((bytes.size() + table.size() + 127) / 64 * 64)};
  std::ranges::copy(bytes, container.bytes.begin());
  std::ranges::copy(table, container.bytes.begin() + slot.table_offset);
  slot.file_bytes = container.bytes.size();
  container.set_slot(slot);
  container.sign();
  return container;
}

TEST_CASE("a small file that shares its tables or bytes takes neither long nor much memory") {
  REQUIRE(try_model(make_model({}).bytes) == Outcome::kRan);
  const std::vector<std::pair<std::string, Excess>> lies = {
      {"a thousand blocks are one", {.blocks = 1000}},
      {"a million blocks are one", {.blocks = 1000000}},
      {"tensors share a long name", {.tensors = 60000, .tensor_name = 16 << 20}},
      {"a million tensors are one", {.tensors = 1000000}},
      {"positions share a dial", {.positions = 100000}},
      {"biases by distance reach far", {.biases = 60}},
      {"steps share a long text", {.steps = 500000, .step_text = 16 << 20}},
      {"a few steps share a long text", {.steps = 30, .step_text = 32 << 20}},
      {"chat templates share a text", {.templates = 30}},
      {"a million chat templates are one", {.step_text = 1 << 20, .templates = 1000000}},
      {"a token is added a million times", {.added = 1000000}}};
  const uint64_t before = memory_use()->peak;
  for (const auto& [lie, excess] : lies) {
    CAPTURE(lie);
    const Container model = make_model(excess);
    const auto start = std::chrono::steady_clock::now();
    const Outcome outcome = try_model(model.bytes);
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
    // A long name is cut, and a thousand blocks of one weight still fit the file's bytes.
    const bool harmless = excess.tensors == 60000 || excess.blocks == 1000;
    CHECK(outcome == (harmless ? Outcome::kRan : Outcome::kRefused));
  }
  CHECK(memory_use()->peak - before < uint64_t{2} << 30);
}

// Writes a scalar field of a table; it must be stored.
template <typename T>
void set_field(const void* table, flatbuffers::voffset_t field, T value) {
  auto* fields = static_cast<flatbuffers::Table*>(const_cast<void*>(table));
  REQUIRE(fields->SetField(field, value));
}

// The model, once its checksums hold, is refused in that sentence.
void check_refused(Container& model, const std::string& sentence) {
  CAPTURE(sentence);
  model.sign();
  const FileBytes bytes(model.bytes);
  const auto refused = Model::from_bytes(bytes.span(), "lies.vvl");
  REQUIRE(!refused.has_value());
  CAPTURE(refused.error().message);
  CHECK(refused.error().message.contains(sentence));
}

TEST_CASE("a model whose table is shorter than its context is refused") {
  Container model = small_model("q4");
  const auto* stack = file::GetModel(model.table().data())->stacks()->Get(0);
  const auto* rotary =
      file::GetModel(model.table().data())->positions()->Get(0)->scheme_as_Rotary();
  REQUIRE(rotary != nullptr);
  const uint32_t reach = rotary->coarse_rows() * rotary->fine_rows();
  set_field<uint32_t>(stack, file::Stack::VT_CONTEXT, reach);
  model.sign();
  CHECK(try_model(model.bytes) == Outcome::kRan);
  set_field<uint32_t>(stack, file::Stack::VT_CONTEXT, reach + 1);
  model.sign();
  const FileBytes bytes(model.bytes);
  const auto refused = Model::from_bytes(bytes.span(), "short.vvl");
  REQUIRE(!refused.has_value());
  CHECK(
      refused.error().message.contains(std::format("convert again with --context {}", reach + 1)));
}

TEST_CASE("numbers of a scheme that no such scheme has are refused, each in a sentence") {
  const auto refuse = [](const char* golden, const auto& lie, const std::string& sentence) {
    CAPTURE(golden);
    Container model = small_model("f32", golden);
    REQUIRE(try_model(model.bytes) == Outcome::kRan);
    lie(file::GetModel(model.table().data()));
    check_refused(model, sentence);
  };
  const auto buckets = [](const file::Model* m) {
    return m->positions()->Get(0)->scheme_as_BucketedBias();
  };
  const auto relative = [](const file::Model* m) {
    return m->positions()->Get(0)->scheme_as_ClippedRelative();
  };
  for (const uint32_t distance : {1u, 16u, (1u << 20) + 1, UINT32_MAX}) {
    refuse(
        "t5_decoder",
        [&](const file::Model* m) {
          set_field<uint32_t>(buckets(m), file::BucketedBias::VT_MAX_DISTANCE, distance);
        },
        "out of range");
  }
  refuse(
      "t5_decoder",
      [&](const file::Model* m) {
        set_field<int32_t>(buckets(m), file::BucketedBias::VT_TABLE, 0);
      },
      "has biases of 30 heads for 3 query heads");
  for (const uint32_t clip : {0u, 5u, 7u, UINT32_MAX}) {
    refuse(
        "transformer_relative",
        [&](const file::Model* m) {
          set_field<uint32_t>(relative(m), file::ClippedRelative::VT_CLIP_DISTANCE, clip);
        },
        std::format("needs {} for distances up to {}", 2 * uint64_t{clip} + 1, clip));
  }
  refuse(
      "bert_relative_key",
      [&](const file::Model* m) {
        set_field<uint32_t>(m->stacks()->Get(0), file::Stack::VT_CONTEXT, 65);
      },
      "its tables reach 64 positions but the model advertises 65");
  refuse(
      "bert_relative_key",
      [&](const file::Model* m) {
        set_field<int32_t>(m->stacks()->Get(0), file::Stack::VT_TOKEN_TYPES, 1 << 20);
      },
      "stack, token_types: there is no tensor 1048576");
  refuse(
      "bert_relative_key",
      [&](const file::Model* m) {
        set_field<uint8_t>(m->stacks()->Get(0), file::Stack::VT_HEAD_ACTIVATION, 200);
      },
      "stack, head_activation: activation 200 is unknown");
  const auto task = [](const file::Model* m) { return m->stacks()->Get(0)->tasks()->Get(0); };
  for (const uint8_t pooling : {0, 7, 255}) {
    refuse(
        "sentence_two_modes",
        [&](const file::Model* m) {
          const_cast<uint8_t&>(*task(m)->further_poolings()->Data()) = pooling;
        },
        std::format("further_poolings: {} is unknown", pooling));
  }
  refuse(
      "sentence_two_modes",
      [&](const file::Model* m) { set_field<uint8_t>(task(m), file::Task::VT_POOLING, 0); },
      "there are 1 after pooling 0");
  // A gap is a token's, a class a text's: 1 is to fill, 2 to classify, 3 to tag.
  for (const auto& [golden, kind] :
       {std::pair("bert_fill", 2), {"bert_tag", 2}, {"bert_classify", 1}, {"bert_classify", 3}}) {
    refuse(
        golden,
        [&](const file::Model* m) {
          const auto* tasks = m->stacks()->Get(0)->tasks();
          for (const file::Task* one : *tasks) {
            if (one->kind() != file::TaskKind::embed) {
              set_field<uint8_t>(one, file::Task::VT_KIND, static_cast<uint8_t>(kind));
            }
          }
        },
        std::format("kind {} does not go with pooling", kind));
  }
  refuse(
      "deberta_v2_absolute",
      [&](const file::Model* m) {
        set_field<uint8_t>(m->stacks()->Get(0), file::Stack::VT_MIXES_POSITIONS, 0);
      },
      "its positions would act twice");
}

TEST_CASE("a tensor that is rotated or has minima as none can be is refused") {
  const auto refuse = [](const char* weights, const auto& lie, const std::string& sentence) {
    Container model = small_model(weights, "llama_wide_heads_biases");
    REQUIRE(try_model(model.bytes) == Outcome::kRan);
    const auto* tensors = file::GetModel(model.table().data())->tensors();
    const auto rotated = std::ranges::find_if(
        *tensors, [](const file::Tensor* tensor) { return tensor->rotation() != 0; });
    REQUIRE(rotated != tensors->end());
    lie(*rotated);
    check_refused(model, sentence);
  };
  for (const uint32_t block : {3u, 48u, 1u << 16, 1u << 31, UINT32_MAX}) {
    refuse(
        "q8",
        [&](const file::Tensor* tensor) {
          set_field<uint32_t>(tensor, file::Tensor::VT_ROTATION, block);
        },
        "it cannot be rotated in blocks of");
  }
  const auto minima = [](const file::Tensor* tensor, uint64_t bytes) {
    auto* segment = const_cast<file::Segment*>(tensor->minima());
    REQUIRE(segment != nullptr);
    *segment = file::Segment(tensor->data()->offset(), bytes, 0);
  };
  refuse("q8", [&](const file::Tensor* tensor) { minima(tensor, 64); }, "only q4 has minima");
  refuse(
      "q4", [&](const file::Tensor* tensor) { minima(tensor, 1); },
      "what is rotated has no minima");
  refuse(
      "q4",
      [&](const file::Tensor* tensor) {
        minima(tensor, 1);
        set_field<uint32_t>(tensor, file::Tensor::VT_ROTATION, 1);
      },
      "the segment has 1 bytes");
}

TEST_CASE("side columns that are no columns, in no order or without their weights are refused") {
  using enum file::TensorType;
  const auto make = [](std::vector<uint32_t> columns, uint64_t bytes, file::TensorType type = q8) {
    Excess excess;
    excess.side_columns = std::move(columns);
    excess.side_bytes = bytes;
    excess.side_type = type;
    return make_model(excess);
  };
  const auto refuse = [](Container model, const std::string& sentence) {
    check_refused(model, sentence);
  };
  CHECK(try_model(make({0, 3, 7}, 6).bytes) == Outcome::kRan);
  for (const std::vector<uint32_t>& columns :
       {std::vector<uint32_t>{8}, {3, 3}, {3, 2}, {0, UINT32_MAX}}) {
    refuse(make(columns, 2 * columns.size()), "its side columns must be");
  }
  refuse(make(std::vector<uint32_t>(100, 1), 200), "its side columns must be");
  refuse(make({0, 3, 7}, 5), "the segment has 5 bytes");
  refuse(make({0, 3, 7}, 6, f32), "f32 has no side columns");
}

TEST_CASE("a dial that no block turns by is not read, however far the model's context reaches") {
  Container model = small_model("f32");
  const file::Model* table = file::GetModel(model.table().data());
  const file::Stack* stack = table->stacks()->Get(0);
  for (const file::Block* block : *stack->blocks())
    set_field<int32_t>(block->attention(), file::Attention::VT_POSITION, -1);
  constexpr uint32_t kFar = (1 << 24) - 16;  // near the farthest that a model may reach
  set_field<uint32_t>(stack, file::Stack::VT_CONTEXT, kFar);
  model.sign();
  const FileBytes bytes(model.bytes);
  const auto loaded = Model::from_bytes(bytes.span(), "far.vvl");
  REQUIRE_MESSAGE(loaded, loaded.error().message);
  ThreadPool pool = *ThreadPool::make(1);
  const auto session =
      Session::open(*loaded, pool, {.context = 8, .chunk = 8, .first_position = kFar - 8});
  REQUIRE_MESSAGE(session, session.error().message);
  CHECK((*session)->feed(std::vector<int32_t>{1, 2, 3}).has_value());
}

// Overwrites the bytes of a segment that stands in the table and signs it again.
void rewrite(Container& model, const file::Segment* segment, size_t at, auto value) {
  const std::span bytes = std::span(model.bytes).subspan(segment->offset(), segment->bytes());
  REQUIRE(at + sizeof value <= bytes.size());
  std::memcpy(&bytes[at], &value, sizeof value);
  *const_cast<file::Segment*>(segment) =
      file::Segment(segment->offset(), segment->bytes(), checksum(bytes));
}

TEST_CASE("a weight, scale or dial that is no number is refused") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(),
                  kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr uint16_t kHalfInfinity = 0xff80, kHalfNan = 0x7fc0;
  for (const char* weights : {"f32", "q8", "q4"}) {
    const Container honest = small_model(weights);
    const auto table_of = [](Container& model) { return file::GetModel(model.table().data()); };
    const auto try_all = [&](const auto& segment_of, size_t width) {
      for (const bool nan : {false, true}) {
        Container model = honest;
        const file::Segment* segment = segment_of(table_of(model));
        const size_t last = segment->bytes() - width;
        width == 4 ? rewrite(model, segment, last, nan ? kNan : -kInfinity)
                   : rewrite(model, segment, last, nan ? kHalfNan : kHalfInfinity);
        model.sign();
        CHECK(try_model(model.bytes) == Outcome::kRefused);
      }
    };
    Container model = honest;
    const file::Model* table = table_of(model);
    for (unsigned i = 0; i < table->tensors()->size(); ++i) {
      CAPTURE(table->tensors()->Get(i)->name()->str());
      const file::TensorType type = table->tensors()->Get(i)->type();
      if (type == file::TensorType::f32) {
        try_all([&](const file::Model* m) { return m->tensors()->Get(i)->data(); }, 4);
      } else {
        try_all([&](const file::Model* m) { return m->tensors()->Get(i)->scales(); },
                type == file::TensorType::q4 ? 2 : 4);
      }
    }
    for (const bool fine : {false, true}) {
      try_all(
          [&](const file::Model* m) {
            const file::Rotary* rotary = m->positions()->Get(0)->scheme_as_Rotary();
            return fine ? rotary->fine() : rotary->coarse();
          },
          4);
    }
  }
}

TEST_CASE("scales that no real weight has are refused or run") {
  for (const float scale : {0.0f, -0.0f, -1.0f, 1e-45f, 3e38f}) {
    for (const char* weights : {"q8", "q4"}) {
      Container model = small_model(weights);
      for (const file::Tensor* tensor : *file::GetModel(model.table().data())->tensors()) {
        if (tensor->type() == file::TensorType::f32) continue;
        const auto half = static_cast<uint16_t>(std::bit_cast<uint32_t>(scale) >> 16);
        tensor->type() == file::TensorType::q8 ? rewrite(model, tensor->scales(), 0, scale)
                                               : rewrite(model, tensor->scales(), 0, half);
      }
      model.sign();
      (void)try_model(model.bytes);
    }
  }
}

TEST_CASE("numbers that overflow on the way are an error and not an answer") {
  for (const char* weights : {"f32", "q8", "q4"}) {
    CAPTURE(weights);
    Container model = small_model(weights);
    const auto* tensors = file::GetModel(model.table().data())->tensors();
    for (const file::Tensor* tensor : *tensors) {
      if (!tensor->name()->str().ends_with("norm.weight")) continue;
      for (size_t i = 0; i < tensor->columns(); ++i)
        rewrite(model, tensor->data(), i * sizeof(float), 3e38f);
    }
    model.sign();
    CHECK(try_model(model.bytes) == Outcome::kRefused);
  }
}

}  // namespace
}  // namespace volvelle
