// Model files in memory, to be damaged and tried.

#ifndef VOLVELLE_TESTS_FUZZ_CONTAINER_H_
#define VOLVELLE_TESTS_FUZZ_CONTAINER_H_

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "platforms/thread_pool.h"
#include "runtime/encoder.h"
#include "runtime/file_format.h"
#include "runtime/model.h"
#include "runtime/session.h"
#include "runtime/translator.h"
#include "schema/volvelle_generated.h"
#include "tests/goldens/golden.h"

namespace volvelle {

// Bytes at the alignment that a mapping has, with nothing after the last that a sanitizer would
// miss.
class FileBytes {
 public:
  explicit FileBytes(const std::vector<std::byte>& bytes)
      : size_(bytes.size()), data_(new(std::align_val_t{64}) std::byte[bytes.size()]) {
    std::ranges::copy(bytes, data_.get());
  }
  std::span<const std::byte> span() const { return {data_.get(), size_}; }

 private:
  struct Delete {
    void operator()(std::byte* data) const { ::operator delete[](data, std::align_val_t{64}); }
  };
  size_t size_;
  std::unique_ptr<std::byte[], Delete> data_;
};

struct Container {
  std::vector<std::byte> bytes;

  HeaderSlot slot() const {
    HeaderSlot slot;
    std::memcpy(&slot, bytes.data(), sizeof slot);
    return slot;
  }
  void set_slot(HeaderSlot slot) {
    slot.checksum = header_checksum(slot);
    std::memcpy(bytes.data(), &slot, sizeof slot);
  }
  std::span<std::byte> table() {
    return std::span(bytes).subspan(slot().table_offset, slot().table_bytes);
  }

  // Makes the checksums of table and header fit again, so that what lies behind them is reached.
  void sign() {
    HeaderSlot signed_slot = slot();
    signed_slot.table_checksum = checksum(table());
    set_slot(signed_slot);
  }
};

inline Container small_model(const std::string& weights,
                             const std::string& golden = "llama_odd_widths") {
  return {convert_to_bytes("tests/goldens/" + golden, weights)};
}

enum class Outcome { kRefused, kRan };

// A few tokens through an encoder and every task, and through the decoder behind it.
inline Result<void> try_encoder(const std::shared_ptr<const Model>& model, const Stack& stack,
                                ThreadPool& pool) {
  Sentence sentence;
  const size_t count = std::min({size_t{8}, stack.context, stack.position_limit});
  for (size_t i = 0; i < count; ++i) {
    sentence.tokens.push_back(static_cast<int32_t>(i * 7 % stack.embedding->rows));
  }
  std::vector<const Task*> tasks = {nullptr};
  for (const Task& task : stack.tasks) tasks.push_back(&task);
  for (const Task* task : tasks) {
    VOLVELLE_ASSIGN_OR_RETURN(const auto encoder, Encoder::open(model, pool, task, 8));
    VOLVELLE_RETURN_IF_ERROR(encoder->run(
        {&sentence, 1}, [](size_t, size_t, std::span<const float>) -> Result<void> { return {}; }));
  }
  if (!model->generates()) return {};
  Generation settings = model->generation();
  settings.beams = std::min<size_t>(settings.beams, 3);
  settings.max_length = 5;
  VOLVELLE_ASSIGN_OR_RETURN(
      const auto translator,
      Translator::open(model, pool,
                       {.longest_source = 8, .longest_target = 5, .beams = settings.beams}));
  VOLVELLE_ASSIGN_OR_RETURN(const Hypothesis best,
                            translator->translate(sentence.tokens, settings));
  return {};
}

// Loads and, if that is accepted, runs a few tokens. A refusal must say what is wrong.
inline Outcome try_model(const std::vector<std::byte>& bytes) {
  static ThreadPool pool = *ThreadPool::make(1);
  const FileBytes copy(bytes);
  const auto refused = [](const Error& error) {
    CHECK(error.message.size() > 20);
    CHECK(error.message.find('\n') == std::string::npos);
    return Outcome::kRefused;
  };
  const auto model = Model::from_bytes(copy.span(), "damaged.vvl");
  if (!model) return refused(model.error());
  if (const Stack* encoder = (*model)->encoder()) {
    const auto status = try_encoder(*model, *encoder, pool);
    return status ? Outcome::kRan : refused(status.error());
  }
  const size_t context = std::min<size_t>(8, (*model)->decoder().context);
  const auto session = Session::open(*model, pool, {.context = context, .chunk = 3});
  if (!session) return refused(session.error());
  std::vector<int32_t> tokens(context);
  for (size_t i = 0; i < context; ++i)
    tokens[i] = static_cast<int32_t>(i * 7 % (*model)->vocabulary());
  const auto logits = (*session)->feed(tokens);
  if (!logits) return refused(logits.error());
  if (const Tokenizer* tokenizer = (*model)->tokenizer()) {
    (void)tokenizer->encode("Ab \xc3\xa9 \xff 12");
    (void)tokenizer->decode(tokens);
  }
  return Outcome::kRan;
}

}  // namespace volvelle

#endif  // VOLVELLE_TESTS_FUZZ_CONTAINER_H_
