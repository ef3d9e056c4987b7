// In overload a pool of pages serves at least 0.96 of the requests a step that an allocator exact
// to the byte serves, whatever a model's layers keep: requests of real traces, 40 GB. Prints a line
// for each model and trace; docs/benchmarks.md has them.

#include "model/overload/overload_game.hpp"
#include "support/test_files.hpp"
#include "trace/trace_reader.hpp"

#include "kvarena/capacity/kv_memory.hpp"
#include "kvarena/capacity/model_presets.hpp"
#include "kvarena/capacity/storage_format.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <ostream>
#include <string>
#include <vector>

namespace kvarena::model {
namespace {

constexpr double kLeastSpeed = 0.96;

using Requests = std::vector<OverloadRequest>;

/// The first `count` requests of a trace.
Requests requests_of(const std::string& name, std::size_t count) {
  auto reader = trace::TraceReader::open({.path = test::data_dir() + "/" + name}, nullptr);
  EXPECT_TRUE(reader.is_ok()) << name;
  Requests requests;
  while (reader && requests.size() < count) {
    const auto next = reader->next();
    if (!next || !*next) break;
    requests.push_back({(*next)->input_tokens, (*next)->output_tokens});
  }
  EXPECT_EQ(requests.size(), count) << name;
  return requests;
}

/// The groups of a preset with blocks of 16 tokens in its own types, as they are planned.
std::vector<PagedGroup> groups_of(const std::string& name) {
  const auto model = capacity::find_model_preset(name);
  EXPECT_TRUE(model.has_value()) << name;
  const auto memory = capacity::group_memory(
      *model,
      {.format = *capacity::find_storage_format("bf16"), .kept = capacity::KeptTokens::model});
  EXPECT_TRUE(memory.is_ok());
  std::vector<PagedGroup> groups;
  for (const capacity::GroupMemory& group : *memory) groups.push_back(group.paged);
  return groups;
}

struct OverloadCase {
  const char* name;
  const char* preset;
  std::int64_t most_prompt = 1 << 24;  // tokens; longer ones are cut
  std::int64_t most_output = 1 << 24;
};

void PrintTo(const OverloadCase& its, std::ostream* out) { *out << its.name; }

const std::vector<OverloadCase> kCases = {
    {"Gemma3", "Gemma-3-27B"},
    {"GptOss", "gpt-oss-120b"},
    {"Llama4", "Llama-4-Scout-17B-16E"},
    {"Qwen3Next", "Qwen3-Next-80B-A3B"},
    {"Nemotron3", "Nemotron-3-Nano-30B-A3B"},
    {"DeepSeek", "DeepSeek-V3"},
    {"Phi3Window", "Phi-3-mini-4k-instruct", 3000, 1000},
};

class Overload : public ::testing::TestWithParam<OverloadCase> {
 protected:
  /// Plays one trace on both pools and compares them.
  static void compare(const char* trace, Requests requests) {
    const OverloadCase& its = GetParam();
    for (OverloadRequest& request : requests) {
      request.prompt = std::min(request.prompt, its.most_prompt);
      request.output = std::min(request.output, its.most_output);
    }
    const std::vector<PagedGroup> groups = groups_of(its.preset);
    const auto exact_memory = exact_pool(groups);
    const OverloadResult exact = play_overload(groups, *exact_memory, requests);
    const auto pages = paged_pool(groups, requests.size());
    const OverloadResult paged = play_overload(groups, *pages, requests);
    ASSERT_TRUE(exact.is_complete);
    ASSERT_TRUE(paged.is_complete);
    const double speed = static_cast<double>(exact.steps) / static_cast<double>(paged.steps);
    std::printf(
        "%-24s %-5s exact %6lld steps, waste %4.1f %%; pages %6lld steps, waste %4.1f %%; "
        "speed %.3f\n",
        its.preset, trace, static_cast<long long>(exact.steps), 100.0 * exact.waste,
        static_cast<long long>(paged.steps), 100.0 * paged.waste, speed);
    EXPECT_GE(speed, kLeastSpeed) << its.preset << ", " << trace;
  }
};

TEST_P(Overload, ServesNearlyAsMuchAsAnExactAllocator) {
  KVARENA_REQUIRE_DATA();
  const Requests chat = requests_of("azure_llm_2023_conv.csv", 2000);
  const Requests longs = requests_of("mooncake_conversation.jsonl", 600);
  Requests mixed(chat.begin(), chat.begin() + 1000);
  mixed.insert(mixed.end(), longs.begin(), longs.begin() + 300);
  mixed.insert(mixed.end(), chat.begin() + 1000, chat.end());
  compare("chat", chat);
  compare("long", longs);
  compare("mixed", mixed);
}

INSTANTIATE_TEST_SUITE_P(, Overload, ::testing::ValuesIn(kCases),
                         [](const auto& tested) { return tested.param.name; });

// Worked out by hand: a pool that holds one of two sequences serves them one after the other.
TEST(OverloadGame, CountsStepsAsWorkedOutByHand) {
  const std::vector<PagedGroup> groups{
      {.kind = PagedKind::full, .num_layers = 1, .layer_bytes = std::int64_t{16} * 100'000'000}};
  // 100 MB a token: 400 tokens fit, 396 with 1 % left. 16 tokens a step.
  const Requests requests{{200, 64}, {200, 64}};
  const auto exact = exact_pool(groups);
  const OverloadResult one = play_overload(groups, *exact, requests);
  EXPECT_TRUE(one.is_complete);
  EXPECT_EQ(one.steps, 4 + 4);
  EXPECT_EQ(one.preemptions, 0);
  // 25 blocks fit, a prompt has 13.
  const auto paged = paged_pool(groups, requests.size());
  const OverloadResult other = play_overload(groups, *paged, requests);
  EXPECT_TRUE(other.is_complete);
  EXPECT_EQ(other.steps, 4 + 4);
  // Two prompts of 100 tokens enter. In step 7 the first has 212 tokens and the second finds no
  // room beside its 196: it starts over at once, and again in step 10, in which the first ends.
  const auto again = exact_pool(groups);
  const OverloadResult preempted = play_overload(groups, *again, Requests{{100, 160}, {100, 160}});
  EXPECT_EQ(preempted.preemptions, 2);
  EXPECT_EQ(preempted.steps, 10 + 10);
}

}  // namespace
}  // namespace kvarena::model
