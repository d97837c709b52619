// Drafts from the context.

#include "runtime/prompt_lookup.h"

#include <doctest/doctest.h>

#include <random>
#include <vector>

namespace volvelle {
namespace {

std::vector<int32_t> copy(std::span<const int32_t> tokens) {
  return {tokens.begin(), tokens.end()};
}

TEST_CASE("a draft is what followed the last three tokens when they were there last") {
  PromptLookup lookup;
  std::vector<int32_t> context = {1, 2, 3, 4, 5, 9, 1, 2, 3, 6, 7, 8, 1, 2, 3};
  CHECK(copy(lookup.draft(context, 4)) == std::vector<int32_t>{6, 7, 8, 1});
  CHECK(copy(lookup.draft(context, 2)) == std::vector<int32_t>{6, 7});
  CHECK(lookup.draft(context, 0).empty());
  context.push_back(4);
  CHECK(copy(lookup.draft(context, 3)) == std::vector<int32_t>{5, 9, 1});
  context.push_back(11);
  CHECK(lookup.draft(context, 3).empty());
}

TEST_CASE("a context shorter than three tokens has no draft") {
  PromptLookup lookup;
  std::vector<int32_t> context;
  for (const int32_t token : {5, 5, 5}) {
    CHECK(lookup.draft(context, 8).empty());
    context.push_back(token);
  }
  CHECK(lookup.draft(context, 8).empty());  // the three have not been there before
  context.push_back(5);
  CHECK(copy(lookup.draft(context, 8)) == std::vector<int32_t>{5});
}

TEST_CASE("drafts that are right grow, and those that are wrong shrink again") {
  PromptLookup lookup;
  std::vector<int32_t> context;
  for (int32_t turn = 0; turn < 3; ++turn) {
    for (int32_t token = 0; token < 100; ++token) context.push_back(token);
  }
  size_t length = lookup.draft(context, 100).size();
  for (int turn = 0; turn < 4; ++turn) {
    lookup.judge(length, length);
    const size_t next = lookup.draft(context, 100).size();
    CHECK(next >= length);
    length = next;
  }
  CHECK(length == 16);
  lookup.judge(length, 3);
  CHECK(lookup.draft(context, 100).size() == 4);
}

// Tokens fed in vain by a text whose drafts are all wrong: those it may spend at once, and one in
// thirty-two afterwards.
TEST_CASE("drafts that are never right cease to cost anything that counts") {
  PromptLookup lookup;
  std::vector<int32_t> context;
  std::mt19937 random(1);
  size_t wasted = 0;
  constexpr size_t kTokens = 10000;
  for (size_t i = 0; i < kTokens; ++i) {
    context.push_back(static_cast<int32_t>(random() % 4));  // every three of them recur
    const size_t drafted = lookup.draft(context, 16).size();
    if (drafted > 0) lookup.judge(drafted, 0);
    wasted += drafted;
  }
  CHECK(wasted > 0);
  CHECK(wasted <= 32 + kTokens / 32);
}

}  // namespace
}  // namespace volvelle
