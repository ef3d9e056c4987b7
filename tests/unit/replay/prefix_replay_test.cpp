// Replays with a prefix cache: served one at a time in a pool that forgets nothing, the prompt
// tokens that need no computing are exactly those of full blocks that came before.

#include "unit/replay/trace_text.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <set>
#include <string>

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
  for (const ClockKind clock : {ClockKind::step, ClockKind::linear}) {
    ReplayOptions options = options_of_excerpt();
    options.clock = clock;
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

TEST(PrefixReplay, NeedsAttentionOff) {
  ReplayOptions options = options_of_excerpt();
  options.attention.mode = AttentionMode::sample;
  EXPECT_EQ(run_replay(options).end, ReplayEnd::bad_options);
}

}  // namespace
}  // namespace kvarena::replay
