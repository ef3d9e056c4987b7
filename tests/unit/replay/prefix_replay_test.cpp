// Replays with a prefix cache: served one at a time in a pool that forgets nothing, the prompt
// tokens that need no computing are exactly those of full blocks that came before.

#include "unit/replay/trace_text.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace kvarena::replay {
namespace {

constexpr const char* kExcerpt = KVARENA_TRACES "/mooncake_conversation_excerpt.jsonl";
constexpr std::int64_t kBlock = 512;  // tokens of the trace's blocks

ReplayOptions options_of_excerpt() {
  ReplayOptions options = test::plain_options();
  options.trace.path = kExcerpt;
  options.attention.shape.block_size_tokens = kBlock;
  options.limits.max_batched_tokens = 0;
  options.limits.max_running = 1;
  options.pool.num_blocks = 1 << 20;
  options.prefix_cache = true;
  return options;
}

// By the rules of the trace: an id is a whole prefix, and the last id may be of a block that is not
// full. One token of each prompt is always computed.
std::int64_t reusable_tokens() {
  std::ifstream file(kExcerpt);
  std::set<std::int64_t> seen;
  std::int64_t tokens = 0;
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json request = nlohmann::json::parse(line);
    const std::int64_t length = request.at("input_length");
    std::int64_t hits = 0;
    for (const std::int64_t id : request.at("hash_ids")) {
      if (!seen.contains(id)) break;
      ++hits;
    }
    tokens += std::min(hits, (length - 1) / kBlock) * kBlock;
    for (const std::int64_t id : request.at("hash_ids")) seen.insert(id);
  }
  return tokens;
}

TEST(PrefixReplay, SavesExactlyWhatTheTraceRepeats) {
  const std::int64_t reusable = reusable_tokens();
  ASSERT_GT(reusable, 0);
  for (const ClockKind clock : {ClockKind::step, ClockKind::linear, ClockKind::roofline}) {
    ReplayOptions options = options_of_excerpt();
    options.clock = clock;
    if (clock == ClockKind::roofline) options.roofline = test::small_model();
    if (clock == ClockKind::linear) options.reserve = Reserve::full;
    const ReplayOutcome with = run_replay(options);
    ASSERT_EQ(with.end, ReplayEnd::completed) << with.why.found;
    EXPECT_TRUE(with.report.balanced);
    EXPECT_EQ(with.report.cached_tokens, reusable);
    EXPECT_EQ(with.report.prefill_tokens, with.report.input_tokens - reusable);
    EXPECT_EQ(static_cast<std::int64_t>(with.report.prefix.hit_tokens), reusable);
    options.prefix_cache = false;
    const ReplayOutcome without = run_replay(options);
    EXPECT_EQ(without.report.prefill_tokens, without.report.input_tokens);
    EXPECT_FALSE(without.report.has_prefix_cache);
    EXPECT_LT(with.report.virtual_us, without.report.virtual_us);
    EXPECT_EQ(with.report.final_tokens, without.report.final_tokens);
  }
}

// Many at a time, too few blocks, preemption and forks: the accounts balance, and no more is saved.
TEST(PrefixReplay, AScarcePoolForgetsAndBalances) {
  for (const Reserve reserve : {Reserve::none, Reserve::prompt, Reserve::full}) {
    for (const bool keeps : {false, true}) {
      ReplayOptions options = options_of_excerpt();
      options.attention.shape.block_size_tokens = 16;
      options.limits.max_batched_tokens = 8192;
      options.limits.max_running = 64;
      options.pool.num_blocks = 12'000;
      options.reserve = reserve;
      options.keep_preempted = keeps && reserve != Reserve::full;
      options.samples = options.keep_preempted ? 1 : 2;
      const ReplayOutcome seen = run_replay(options);
      ASSERT_EQ(seen.end, ReplayEnd::completed) << seen.why.found;
      const ReplayReport& r = seen.report;
      EXPECT_TRUE(r.balanced);
      EXPECT_GT(r.prefix.hit_blocks, 0u);
      EXPECT_GT(r.prefix.removals_by[static_cast<std::size_t>(PrefixRemoval::evicted)], 0u);
      EXPECT_LE(r.peak_blocks, 12'000);
      EXPECT_EQ(r.account.free + r.account.evictable, 12'000);
    }
  }
}

// A request of a trace by hand: so many tokens, the ids of its blocks, and its tenant.
struct Prompt {
  std::int64_t tokens;
  std::vector<std::int64_t> ids;
  std::string tenant = "a";
};

ReplayOutcome serve(const std::vector<Prompt>& prompts, ReplayOptions options) {
  std::string text;
  for (const Prompt& p : prompts) {
    text += nlohmann::json{{"timestamp", 0},
                           {"input_length", p.tokens},
                           {"output_length", 0},
                           {"hash_ids", p.ids},
                           {"tenant", p.tenant}}
                .dump() +
            "\n";
  }
  const test::TempFile file(text);
  options.trace.path = file.path();
  return run_replay(options);
}

// Prompts of two full blocks and a token in a pool of five blocks: what the policies keep differs.
TEST(PrefixReplay, EachPolicyKeepsWhatItSays) {
  const Prompt a{1025, {1, 2, 100}};
  const Prompt b{1025, {3, 4, 101}};
  const Prompt c{1025, {5, 6, 102}};
  const Prompt d{513, {7, 103}};
  struct Case {
    std::vector<Prompt> prompts;
    std::int64_t tail_first, head_first, fifo, lfu;  // blocks hit
  };
  const std::vector<Case> cases{
      {{a, b, a, c, a}, 2 + 2, 2 + 2, 2 + 0, 2 + 2},  // used again: fifo does not care
      {{a, a, b, c, a}, 2 + 0, 2 + 0, 2 + 0, 2 + 2},  // used twice: lfu keeps it
      {{a, b, d, a}, 1, 0, 1, 1},                     // one block goes: of a prompt the last, or
                                                      // the first, without which none is found
  };
  for (const Case& one : cases) {
    const std::pair<EvictionPolicy, std::int64_t> expected[] = {
        {EvictionPolicy::tail_first, one.tail_first},
        {EvictionPolicy::head_first, one.head_first},
        {EvictionPolicy::fifo, one.fifo},
        {EvictionPolicy::lfu, one.lfu}};
    for (const auto& [policy, hits] : expected) {
      ReplayOptions options = options_of_excerpt();
      options.pool.num_blocks = 5;
      options.policy = policy;
      const ReplayOutcome seen = serve(one.prompts, options);
      ASSERT_EQ(seen.end, ReplayEnd::completed) << seen.why.found;
      EXPECT_EQ(static_cast<std::int64_t>(seen.report.prefix.hit_blocks), hits) << name_of(policy);
      EXPECT_EQ(seen.report.cached_tokens, hits * kBlock) << name_of(policy);
    }
  }
  ReplayOptions options = options_of_excerpt();
  options.policy = EvictionPolicy::priority;
  EXPECT_EQ(run_replay(options).end, ReplayEnd::bad_options);
}

TEST(PrefixReplay, NoTenantFindsBlocksOfAnother) {
  const std::vector<Prompt> prompts{{1025, {1, 2, 9}, "a"},
                                    {1025, {1, 2, 9}, "b"},
                                    {1025, {1, 2, 9}, "a"},
                                    {1025, {1, 2, 9}, "c"}};
  ReplayOptions options = options_of_excerpt();
  const ReplayOutcome together = serve(prompts, options);
  EXPECT_EQ(together.report.prefix.hit_blocks, 6u);
  EXPECT_EQ(together.report.salts, 0);
  for (const ClockKind clock : {ClockKind::step, ClockKind::linear}) {
    options.clock = clock;
    if (clock == ClockKind::linear) options.reserve = Reserve::full;
    options.trace.salt_column = "tenant";
    const ReplayOutcome apart = serve(prompts, options);
    ASSERT_EQ(apart.end, ReplayEnd::completed) << apart.why.found;
    EXPECT_EQ(apart.report.salts, 3);
    EXPECT_EQ(apart.report.prefix.hit_blocks, 2u) << "tenant a finds its own";
    EXPECT_EQ(apart.report.prefix.stops[static_cast<std::size_t>(PrefixStop::other_salt)], 2u);
  }
  options.trace.salt_column = "team";
  EXPECT_EQ(serve(prompts, options).end, ReplayEnd::bad_input);
  options.trace.salt_column = "tenant";
  options.prefix_cache = false;
  EXPECT_EQ(serve(prompts, options).end, ReplayEnd::bad_options);
}

}  // namespace
}  // namespace kvarena::replay
