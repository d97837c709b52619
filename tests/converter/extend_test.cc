// Positions baked anew in a finished file, against fresh conversions of the same checkpoint.

#include "converter/extend.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "converter/convert.h"
#include "platforms/mapped_file.h"
#include "platforms/updated_file.h"
#include "runtime/file_format.h"
#include "runtime/model.h"
#include "tests/scratch_folder.h"

namespace volvelle {
namespace {

void convert_golden(const std::string& golden, const std::string& output, const std::string& spec,
                    std::optional<uint64_t> context = {}) {
  static ThreadPool pool = *ThreadPool::make(1);
  ConvertOptions options{.source = "tests/goldens/" + golden,
                         .output = output,
                         .weights = WeightType::kF32,
                         .context = context,
                         .force = true};
  if (!spec.empty()) options.scaling = *parse_scaling_spec(spec);
  const auto report = convert(options, pool);
  REQUIRE_MESSAGE(report.has_value(), (report ? "" : report.error().message));
}

Result<ExtendReport> extend_by(const std::string& model, const std::string& spec,
                               const std::string& output = "") {
  return extend({.model = model,
                 .output = output,
                 .scaling = *parse_scaling_spec(spec),
                 .force = !output.empty()});
}

std::string message(const Result<ExtendReport>& result) {
  return result ? "" : result.error().message;
}

// All that a file says about its positions: each dial's bytes and each number that is no offset.
std::string positions_of(const std::string& path) {
  const MappedFile mapped = *MappedFile::open(path);
  const FileTable opened = *open_table(mapped.bytes(), path);
  std::string text = std::to_string(opened.model->stacks()->Get(0)->context());
  const auto add = [&](const void* data, size_t bytes) {
    text +=
        std::format(" [{}:{:x}]", bytes, checksum({static_cast<const std::byte*>(data), bytes}));
  };
  const auto add_floats = [&](const flatbuffers::Vector<float>* values) {
    if (values != nullptr) add(values->data(), values->size() * sizeof(float));
  };
  const auto add_segment = [&](const file::Segment* segment) {
    if (segment != nullptr) add(mapped.bytes().data() + segment->offset(), segment->bytes());
  };
  const auto add_scaling = [&](const file::RotaryScaling* scaling) {
    if (scaling == nullptr) return;
    text +=
        std::format(" ({} {} {} {} {} {} {} {} {} {} {} {})", static_cast<int>(scaling->kind()),
                    scaling->factor(), scaling->original_context(), scaling->low_frequency_factor(),
                    scaling->high_frequency_factor(), scaling->beta_fast(), scaling->beta_slow(),
                    scaling->truncate(), scaling->attention_factor(), scaling->mscale(),
                    scaling->mscale_all_dim(), scaling->turning_planes());
    add_floats(scaling->long_factors());
    add_floats(scaling->short_factors());
  };
  for (const file::Position* position : *opened.model->positions()) {
    const file::Rotary* rotary = position->scheme_as_Rotary();
    if (rotary == nullptr) continue;
    text += std::format("\n{} {} {} {} {} {} {} {}", static_cast<int>(rotary->pairing()),
                        rotary->width(), rotary->base(), rotary->amplitude(), rotary->coarse_rows(),
                        rotary->fine_rows(), rotary->switch_length(), rotary->own_base());
    add_floats(rotary->original_frequencies());
    add_floats(rotary->frequencies());
    add_floats(rotary->long_frequencies());
    add_scaling(rotary->scaling());
    add_scaling(rotary->own_scaling());
    add_floats(rotary->own_frequencies());
    for (const file::Segment* segment :
         {rotary->coarse(), rotary->fine(), rotary->long_coarse(), rotary->long_fine()}) {
      add_segment(segment);
    }
  }
  return text;
}

TEST_CASE("an extended file has the positions of a fresh conversion, and extending twice is once") {
  const ScratchFolder folder;
  const std::string fresh = folder / "fresh.vvl", extended = folder / "extended.vvl",
                    copy = folder / "copy.vvl", converted = folder / "converted.vvl";
  const std::vector<std::string> specs = {"none",
                                          "linear:2",
                                          "ntk:3",
                                          "dynamic:2",
                                          "yarn:4",
                                          "yarn:2.5,original=40,truncate=false",
                                          "llama3:8,original=64",
                                          "theta:5000"};
  // One scheme, two of which one serves windows, partial width, layers without, LongRoPE, GGUF's
  // own divisors, a scaling of the checkpoint's own.
  for (const char* golden :
       {"llama_grouped_heads", "gemma3_spelling_5", "phi", "smollm3", "phi3_longrope",
        "gguf_phi3_longrope/model.gguf", "gguf_llama3_factors/model.gguf", "llama_yarn",
        "llama_proportional", "cohere_proportional", "llama_dynamic", "llama_linear"}) {
    const std::string source = golden;
    if (!std::filesystem::exists("tests/goldens/" + source)) continue;
    convert_golden(source, converted, "");
    convert_golden(source, extended, "");
    for (const std::string& spec : specs) {
      CAPTURE(source);
      CAPTURE(spec);
      convert_golden(source, fresh, spec);
      const auto once = extend_by(converted, spec, copy);
      REQUIRE_MESSAGE(once.has_value(), message(once));
      CHECK(positions_of(copy) == positions_of(fresh));
      CHECK(once->generation == 1);
      CHECK(once->context == (*Model::load(fresh))->decoder().context);

      const auto in_place = extend_by(extended, spec);
      REQUIRE_MESSAGE(in_place.has_value(), message(in_place));
      REQUIRE(Model::load(extended).has_value());
      convert_golden(source, fresh, spec, in_place->context);
      CHECK(positions_of(extended) == positions_of(fresh));
      const auto copied = extend_by(extended, spec, copy);
      REQUIRE_MESSAGE(copied.has_value(), message(copied));
      CHECK(positions_of(copy) == positions_of(fresh));
      // Back to the checkpoint's own, from a file that was extended once or often.
      for (const std::string& longer : {copy, extended}) {
        REQUIRE(extend_by(longer, "original", folder / "again.vvl"));
        CHECK(positions_of(folder / "again.vvl") == positions_of(converted));
      }
    }
    REQUIRE(extend_by(extended, "original"));
    CHECK(positions_of(extended) == positions_of(converted));
    REQUIRE(extend_by(extended, "original"));  // and of what is its own already
    CHECK(positions_of(extended) == positions_of(converted));
    convert_golden(source, fresh, "original");
    CHECK(read_file(fresh) == read_file(converted));
    const uint64_t size = std::filesystem::file_size(copy);
    REQUIRE(extend_by(copy, "none", folder / "again.vvl"));
    REQUIRE(extend_by(folder / "again.vvl", specs.back(), copy));
    CHECK(std::filesystem::file_size(copy) == size);  // copies carry nothing of each other
  }
}

std::string notices_of(const Result<ExtendReport>& result) {
  REQUIRE_MESSAGE(result.has_value(), message(result));
  std::string all;
  for (const std::string& notice : result->notices) all += notice + "\n";
  return all;
}

TEST_CASE("no context is lost to a scaling that serves fewer positions, and the user hears of it") {
  const ScratchFolder folder;
  const std::string path = folder / "model.vvl";
  convert_golden("llama_grouped_heads", path, "");  // trained for 256 positions
  const std::string converted = read_file(path);
  const auto report = extend_by(path, "yarn:4,original=32");
  CHECK(report->context == 256);
  CHECK(notices_of(report) ==
        "the scaling serves 128 positions; the context stays 256, beyond which nothing scales\n");
  CHECK(extend_by(path, "linear:8")->context == 2048);
  for (const char* spec : {"none", "linear:2", "theta:1e6", "llama3:2,original=64", "dynamic:1"}) {
    CAPTURE(spec);
    const auto shorter = extend_by(path, spec);
    CHECK(notices_of(shorter).contains("the context stays 2,048, beyond which nothing scales"));
    CHECK(shorter->context == 2048);
  }
  CHECK(notices_of(extend_by(path, "linear:16"))
            .starts_with("the context becomes 4,096: that before any scaling, times the factor"));
  CHECK(notices_of(extend_by(path, "linear:999999"))
            .starts_with("the context becomes 16,777,216: the most that is possible"));
  CHECK(notices_of(extend_by(path, "original")) == "");
  CHECK((*Model::load(path))->decoder().context == 256);
  // Asked for less, it is given.
  CHECK(
      extend({.model = path, .scaling = *parse_scaling_spec("yarn:4"), .context = 100})->context ==
      100);
  CHECK(notices_of(extend_by(path, "none"))
            .starts_with("the context becomes 256: that before any scaling, times the factor"));
  CHECK(notices_of(extend({.model = path, .scaling = {}, .context = 300})) ==
        "the scaling serves 256 positions; the context becomes 300, beyond which nothing scales\n");
  convert_golden("llama_grouped_heads", path, "yarn:4,original=32");
  CHECK((*Model::load(path))->decoder().context == 256);
}

TEST_CASE("a scaling that only windowed layers would feel leaves them alone") {
  CHECK(local_schemes({true, true}, std::vector<LayerSight>{{0, 512}, {1, 0}}) ==
        std::vector{true, false});
  CHECK(local_schemes({true}, std::vector<LayerSight>{{0, 512}, {-1, 0}}) == std::vector{false});
  CHECK(local_schemes({true, false}, std::vector<LayerSight>{{0, 512}, {1, 0}}) ==
        std::vector{false, false});
  CHECK(local_schemes({true, true, true}, std::vector<LayerSight>{{0, 512}, {0, 0}, {1, 8}}) ==
        std::vector{false, true, false});
}

struct Extended {
  ScratchFolder folder;
  std::string path = folder / "model.vvl";
  std::string before, after;

  Extended() {
    convert_golden("llama_grouped_heads", path, "");  // 256 positions
    REQUIRE(extend_by(path, "linear:2"));             // 512
    before = read_file(path);
    REQUIRE(extend_by(path, "yarn:4"));  // 1024
    after = read_file(path);
  }
  // The context of a model of these bytes; 0: it is refused.
  size_t context(const std::string& bytes) const {
    const auto model = Model::load(folder.write("tried.vvl", bytes));
    return model ? (*model)->decoder().context : 0;
  }
};

TEST_CASE("killed at any point, an extension leaves the former model or the new one") {
  const Extended model;
  const std::string &before = model.before, &after = model.after;
  REQUIRE(after.size() > before.size());
  // Only one header slot differs in what the former file had.
  std::string masked = after.substr(0, before.size());
  masked.replace(kSlotOffsets[0], sizeof(HeaderSlot), before, kSlotOffsets[0], sizeof(HeaderSlot));
  CHECK(masked == before);

  // Before the slot is written, some of the appended bytes are there.
  for (size_t bytes = before.size(); bytes <= after.size(); bytes += 97) {
    CHECK(model.context(before + after.substr(before.size(), bytes - before.size())) == 512);
  }
  // Some of the slot's bytes are.
  for (size_t bytes = 0; bytes <= sizeof(HeaderSlot); ++bytes) {
    std::string torn = after;
    torn.replace(kSlotOffsets[0] + bytes, sizeof(HeaderSlot) - bytes, before,
                 kSlotOffsets[0] + bytes, sizeof(HeaderSlot) - bytes);
    const size_t context = model.context(torn);
    CHECK((context == 512 || (context == 1024 && torn == after)));
  }
  // A page of the slot that was lost as a whole.
  std::string lost = after;
  lost.replace(0, 512, 512, '\0');
  CHECK(model.context(lost) == 512);
}

TEST_CASE(
    "a newer generation that is damaged or cut short gives way to the former, which says so") {
  const Extended model;
  for (size_t bytes = model.before.size(); bytes < model.after.size(); bytes += 41) {
    CHECK(model.context(model.after.substr(0, bytes)) == 512);
  }
  // The third generation took the first one's slot.
  CHECK(model.context(model.after.substr(0, model.before.size() - 1)) == 0);
  HeaderSlot slot;
  std::memcpy(&slot, model.after.data(), sizeof slot);
  std::string damaged = model.after;
  damaged[slot.table_offset + slot.table_bytes / 2] ^= 1;
  const std::string path = model.folder.write("damaged.vvl", damaged);
  const auto loaded = Model::load(path);
  REQUIRE(loaded.has_value());
  CHECK((*loaded)->decoder().context == 512);
  CHECK((*loaded)->damage().contains("checksum"));
  CHECK((*loaded)->file_generation() == 2);
  // Extending it heals it.
  REQUIRE(extend_by(path, "yarn:4"));
  CHECK((*Model::load(path))->decoder().context == 1024);
  CHECK((*Model::load(path))->damage().empty());
}

TEST_CASE("an extension that was killed halfway is overwritten by the next") {
  const Extended model;
  const std::string path =
      model.folder.write("model.vvl", model.before + std::string(100'000, 'x'));
  REQUIRE(extend_by(path, "yarn:4"));
  CHECK(read_file(path) == model.after);
}

TEST_CASE("whoever has the file mapped sees the same model before and after") {
  const Extended model;
  const auto loaded = Model::load(model.path);
  REQUIRE(loaded.has_value());
  const Rotary& rotary = std::get<Rotary>((*loaded)->positions()[0].scheme);
  const std::vector<float> row(rotary.dial.coarse, rotary.dial.coarse + rotary.dial.width());
  REQUIRE(extend_by(model.path, "linear:8"));
  REQUIRE(extend_by(model.path, "ntk:8"));
  CHECK(std::equal(row.begin(), row.end(), rotary.dial.coarse));
  CHECK((*loaded)->decoder().context == 1024);
  for (const Tensor& tensor : (*loaded)->tensors()) CHECK((*loaded)->verify_contents(tensor));
}

TEST_CASE("what cannot be extended is refused in a sentence and stays as it is") {
  const ScratchFolder folder;
  const std::string path = folder / "model.vvl";
  for (const auto& [golden, words] :
       {std::pair{"bloom", "have no limit"},
        {"gpt2", "learned, which cannot be extended"},
        {"t5_decoder", "biases by distance"},
        {"transformer_relative", "rows of learned tables by distance (Shaw)"},
        {"transformer_halves", "added to embeddings"}}) {
    convert_golden(golden, path, "");
    const std::string bytes = read_file(path);
    for (const std::string& output : {std::string(), folder / "copy.vvl"}) {
      const auto refused = extend_by(path, "yarn:4", output);
      CHECK(message(refused).contains(words));
      CHECK(message(refused).starts_with(path));
    }
    CHECK(read_file(path) == bytes);
  }
  CHECK_FALSE(std::filesystem::exists(folder / "copy.vvl"));
  CHECK(message(extend_by(folder / "none.vvl", "none")).contains("no such file"));
  CHECK(message(extend_by(folder.path(), "none")).contains("not a regular file"));
  CHECK(message(extend_by(folder.write("letter", std::string(100'000, 'x')), "none"))
            .contains("not a Volvelle model"));

  convert_golden("llama_grouped_heads", path, "");
  for (const uint64_t context : {uint64_t{0}, kMaxContext + 1, ~uint64_t{0}}) {
    CHECK(
        message(extend({.model = path, .scaling = {}, .context = context})).contains("--context"));
  }
  const auto held = UpdatedFile::open(path);
  REQUIRE(held.has_value());
  CHECK(message(extend_by(path, "yarn:4")).contains("another process is changing it"));
}

TEST_CASE("a file that does not load is not extended in place, and stays as it is") {
  const ScratchFolder folder;
  const std::string path = folder / "model.vvl";
  convert_golden("llama_grouped_heads", path, "");
  const std::string whole = read_file(path);
  HeaderSlot slot;
  std::memcpy(&slot, whole.data(), sizeof slot);
  const std::span table = std::as_bytes(std::span(whole)).subspan(slot.table_offset);
  const file::Model* model = file::GetModel(table.data());
  // Numbers of a tensor and of a block that nobody asks for when positions are baked.
  const auto field = [&](const void* of, flatbuffers::voffset_t which) {
    return reinterpret_cast<const char*>(
               static_cast<const flatbuffers::Table*>(of)->GetAddressOf(which)) -
           whole.data();
  };
  const file::Block* block = model->stacks()->Get(0)->blocks()->Get(0);
  for (const ptrdiff_t at : {field(model->tensors()->Get(0), file::Tensor::VT_ROWS),
                             field(model->tensors()->Get(3), file::Tensor::VT_COLUMNS),
                             field(block->attention(), file::Attention::VT_HEAD_DIM)}) {
    CAPTURE(at);
    std::string damaged = whole;
    const uint32_t impossible = 12345;
    std::memcpy(damaged.data() + at, &impossible, sizeof impossible);
    HeaderSlot lying = slot;
    lying.table_checksum =
        checksum(std::as_bytes(std::span(damaged)).subspan(slot.table_offset, slot.table_bytes));
    lying.checksum = header_checksum(lying);
    std::memcpy(damaged.data(), &lying, sizeof lying);
    folder.write("model.vvl", damaged);
    CHECK(message(extend_by(path, "yarn:4")).starts_with(path));
    CHECK(read_file(path) == damaged);
  }
}

// Runs `body`, which returns an exit status, in a process of its own.
template <typename Body>
int status_of(const Body& body) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) ::_exit(body());
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_CASE("a process that is killed while it extends leaves a model, and so do several at once") {
  const ScratchFolder folder;
  const std::string path = folder / "model.vvl";
  convert_golden("llama_grouped_heads", path, "");  // 256 positions; extended, 512 or 1024
  const auto check_whole = [&] {
    const auto model = Model::load(path);
    REQUIRE_MESSAGE(model.has_value(), (model ? "" : model.error().message));
    const size_t context = (*model)->decoder().context;
    CHECK((context == 256 || context == 512 || context == 1024));
    CHECK((*model)->damage().empty());
  };
  const auto extend_again_and_again = [&] {
    for (int round = 0; round < 1000; ++round) {
      const auto done = extend_by(path, round % 2 == 0 ? "linear:2" : "yarn:4");
      if (!done && !message(done).contains("another process")) ::_exit(1);
    }
  };
  for (int round = 0; round < 40; ++round) {
    CAPTURE(round);
    std::vector<pid_t> children;
    for (int i = 0; i < 1 + round % 3; ++i) {
      children.push_back(::fork());
      REQUIRE(children.back() >= 0);
      if (children.back() == 0) {
        extend_again_and_again();
        ::_exit(0);
      }
    }
    ::usleep(1000 + 700 * round);
    for (const pid_t child : children) ::kill(child, SIGKILL);
    for (const pid_t child : children) {
      int status = 0;
      REQUIRE(::waitpid(child, &status, 0) == child);
      CHECK((WIFSIGNALED(status) || WEXITSTATUS(status) == 0));
    }
    check_whole();
  }
  REQUIRE(extend_by(path, "yarn:4"));
  CHECK((*Model::load(path))->decoder().context == 1024);
}

TEST_CASE("a disk without room leaves the file as it was") {
  const ScratchFolder folder;
  const std::string path = folder / "model.vvl";
  convert_golden("llama_grouped_heads", path, "");
  const std::string bytes = read_file(path);
  CHECK(status_of([&] {
          std::signal(SIGXFSZ, SIG_IGN);
          const rlimit limit = {.rlim_cur = bytes.size() + 1000, .rlim_max = bytes.size() + 1000};
          if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
          return message(extend_by(path, "yarn:4")).contains("may not grow that large") ? 0 : 2;
        }) == 0);
  CHECK(read_file(path) == bytes);
}

TEST_CASE("a file that this user may not write to is refused") {
  const ScratchFolder folder;
  const std::string path = folder / "model.vvl";
  convert_golden("llama_grouped_heads", path, "");
  REQUIRE(::chmod(path.c_str(), 0444) == 0);
  REQUIRE(::chmod(folder.path().c_str(), 0755) == 0);
  CHECK(status_of([&] {
          constexpr uid_t kNobody = 65534;
          if (::geteuid() == 0 && ::seteuid(kNobody) != 0) return 1;
          return message(extend_by(path, "yarn:4")).contains("read-only") ? 0 : 2;
        }) == 0);
}

}  // namespace
}  // namespace volvelle
