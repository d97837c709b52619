// What a session promises (runtime/README.md).

#include <doctest/doctest.h>
#include <malloc.h>

#include <algorithm>
#include <string>
#include <vector>

#include "platforms/thread_pool.h"
#include "runtime/session.h"
#include "tests/goldens/golden.h"

namespace volvelle {
namespace {

std::shared_ptr<const Model> model_of(const std::string& golden,
                                      const std::string& weights = "q4") {
  return convert_to_model("tests/goldens/" + golden, weights);
}

std::vector<float> copy(const Result<std::span<const float>>& logits) {
  if (!logits) FAIL(logits.error().message);
  return {logits->begin(), logits->end()};
}

TEST_CASE("a refused call leaves the session as it was") {
  ThreadPool pool = *ThreadPool::make(1);
  const auto model = model_of("llama_grouped_heads");
  const auto vocabulary = static_cast<int32_t>(model->vocabulary());
  const auto session = *Session::open(model, pool, {.context = 6});
  const auto untouched = *Session::open(model, pool, {.context = 6});
  const std::vector<int32_t> first = {1, 2, 3}, next = {4};
  copy(session->feed(first));
  copy(untouched->feed(first));

  const std::vector<std::pair<std::vector<int32_t>, std::string>> refusals = {
      {{4, vocabulary}, "vocabulary"},
      {{-1}, "vocabulary"},
      {{}, "no tokens"},
      {{1, 2, 3, 4}, "--context"}};
  for (const auto& [tokens, word] : refusals) {
    const auto refused = session->feed(tokens);
    REQUIRE(!refused.has_value());
    CHECK(refused.error().message.find(word) != std::string::npos);
    CHECK(session->tokens() == 3);
  }
  CHECK(copy(session->feed(next)) == copy(untouched->feed(next)));
}

TEST_CASE("nothing is allocated after a session has opened") {
  ThreadPool pool = *ThreadPool::make(1);
  for (const char* weights : {"f32", "q8", "q4"}) {
    CAPTURE(weights);
    const auto session =
        *Session::open(model_of("mistral_sliding_window", weights), pool, {.chunk = 16});
    const std::vector<int32_t> prompt(40, 5), next = {6};
    (void)mallinfo2();
    const size_t before = mallinfo2().uordblks;
    for (int turn = 0; turn < 3; ++turn) {
      (void)session->feed(prompt);
      for (int i = 0; i < 8; ++i) (void)session->feed(next);
      session->clear();
    }
    CHECK(mallinfo2().uordblks == before);
  }
}

TEST_CASE("what a session will hold is known before it is opened") {
  ThreadPool pool = *ThreadPool::make(2);
  for (const char* golden : {"llama_grouped_heads", "mistral_sliding_window", "gpt2"}) {
    for (const char* weights : {"f32", "q8", "q4"}) {
      for (const CacheType cache : {CacheType::kF32, CacheType::kQ8}) {
        CAPTURE(golden);
        CAPTURE(weights);
        const auto model = model_of(golden, weights);
        const SessionOptions options{.cache = cache, .context = 40, .chunk = 16};
        const MemoryPlan plan = *Session::plan(*model, pool, options);
        const auto session = *Session::open(model, pool, options);
        CHECK(plan.cache == session->cache_bytes());
        CHECK(plan.scratch == session->scratch_bytes());
        // Tiny models' few outputs are padded to tiles of 8 or 16.
        CHECK(plan.packed >= session->packed_bytes());
        CHECK(plan.packed <= session->packed_bytes() * 5 / 4);
      }
    }
  }
}

TEST_CASE("a cleared session gives what a new one gives") {
  ThreadPool pool = *ThreadPool::make(2);
  const auto model = model_of("mistral_sliding_window");
  const std::vector<int32_t> long_text(37, 9), text = {1, 2, 3, 4, 5};
  const auto used = *Session::open(model, pool, {.chunk = 8});
  const auto fresh = *Session::open(model, pool, {.chunk = 8});
  copy(used->feed(long_text));
  used->clear();
  CHECK(copy(used->feed(text)) == copy(fresh->feed(text)));
}

TEST_CASE("a sliding layer keeps its window and the chunk, not the context") {
  ThreadPool pool = *ThreadPool::make(1);
  const auto sliding = model_of("mistral_sliding_window");
  const auto& blocks = sliding->decoder().blocks;
  const size_t window = blocks[0].attention.window, chunk = 4;
  REQUIRE(window > 0);
  size_t rows = 0;
  const size_t slots = cache_slots(CacheType::kF32, window + chunk - 1);
  for (const Block& block : blocks) rows += 2 * block.attention.kv_heads * slots;
  const size_t row_bytes = cache_row_elements(blocks[0].attention.head_dim) * sizeof(float);
  const auto session = *Session::open(sliding, pool, {.cache = CacheType::kF32, .chunk = chunk});
  CHECK(session->cache_bytes() >= rows * row_bytes);
  CHECK(session->cache_bytes() <=
        rows * row_bytes + blocks.size() * 2 * 64 + 4096);  // cache lines and a page
}

TEST_CASE("the same tokens give the same logits on any number of threads") {
  const auto model = model_of("llama_wide_heads_biases");
  const std::vector<int32_t> tokens = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8,
                                       9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6};
  std::vector<std::vector<float>> results;
  for (size_t threads : {1, 2, 3}) {
    ThreadPool pool = *ThreadPool::make(threads);
    results.push_back(copy((*Session::open(model, pool, {}))->feed(tokens)));
  }
  CHECK(results[0] == results[1]);
  CHECK(results[0] == results[2]);
}

TEST_CASE("a context or a first position past the model's is refused before anything is computed") {
  ThreadPool pool = *ThreadPool::make(1);
  const auto model = model_of("llama_grouped_heads");
  const size_t context = model->decoder().context;
  CHECK(Session::open(model, pool, {.context = context}).has_value());
  for (const SessionOptions& options :
       {SessionOptions{.context = context + 1}, SessionOptions{.first_position = context},
        SessionOptions{.context = context, .first_position = 1}}) {
    const auto refused = Session::open(model, pool, options);
    REQUIRE(!refused.has_value());
    CHECK(refused.error().message.find("--context") != std::string::npos);
  }
}

// Wrong guesses of several lengths, with caches that wrap around, and padding, which moves what
// follows it. Where the length matters nobody may guess.
TEST_CASE("tokens that are taken back leave no trace") {
  ThreadPool pool = *ThreadPool::make(1);
  for (const std::string name :
       {"llama_grouped_heads", "mistral_sliding_window", "opt", "gemma2", "bloom"}) {
    for (const CacheType cache : {CacheType::kF32, CacheType::kF16, CacheType::kQ8}) {
      CAPTURE(name);
      const auto model = model_of(name, "q8");
      const auto guessing =
          *Session::open(model, pool, {.cache = cache, .context = 48, .chunk = 8});
      const auto plain = *Session::open(model, pool, {.cache = cache, .context = 48, .chunk = 8});
      CHECK_FALSE(guessing->length_matters());
      std::vector<int32_t> text = {4, 2, 7};
      copy(guessing->feed(text));
      copy(plain->feed(text));
      for (int32_t turn = 0; turn < 30; ++turn) {
        const std::vector<int32_t> next = {5 + turn};
        const std::vector<float> expected = copy(plain->feed(next));
        const size_t wrong = static_cast<size_t>(turn) % 8;
        std::vector<int32_t> guess = next;
        for (size_t i = 0; i < wrong; ++i) guess.push_back(static_cast<int32_t>(1 + i));
        std::vector<float> logits;
        REQUIRE(guessing->feed_all(guess, [&](size_t first, size_t, std::span<const float> rows) {
          if (first == 0) logits.assign(rows.begin(), rows.begin() + expected.size());
          return Result<void>();
        }));
        CHECK(logits == expected);
        guessing->take_back(std::span(guess).subspan(1));
        CHECK(guessing->tokens() == plain->tokens());
      }
    }
  }
}

TEST_CASE("the length matters where dials change with it") {
  ThreadPool pool = *ThreadPool::make(1);
  CHECK((*Session::open(model_of("phi3_longrope"), pool, {}))->length_matters());
  CHECK_FALSE((*Session::open(model_of("llama_yarn"), pool, {}))->length_matters());
}

}  // namespace
}  // namespace volvelle
