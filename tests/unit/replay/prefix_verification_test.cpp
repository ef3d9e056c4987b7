// A prefix cache with real bytes: what sequences share is what each of them should have, and a hit
// that is wrong makes the run fail.

#include "support/devices.hpp"
#include "support/process_memory.hpp"
#include "support/status_matchers.hpp"
#include "support/tables_access.hpp"
#include "support/text_matchers.hpp"
#include "unit/replay/fault_planter.hpp"
#include "unit/replay/prompt_trace.hpp"
#include "unit/replay/trace_text.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace kvarena {

/// Reaches into a prefix cache.
struct PrefixProbe {
  static const std::int32_t* tokens_of(const BlockTables& tables, BlockId id) {
    return test::parts_of(tables).prefix->index_.tokens_of(id);
  }
  /// Makes a first block without others behind it a hit for other tokens, or another salt.
  static void claim(const BlockTables& tables, BlockId id, std::span<const std::int32_t> tokens,
                    std::uint64_t salt) {
    PrefixCache& cache = *test::parts_of(tables).prefix;
    PrefixIndex& index = cache.index_;
    const Generation generation = index.block(id).generation;
    index.erase(id);
    Hash128 chain;
    cache.hash_.extend({}, tokens.data(), tokens.size(), std::span(&chain, 1));
    index.insert(id, generation, chain ^ cache.hash_.root_of(salt), {tokens.data(), {}, {}, salt},
                 0);
    index.block(id).marks |= PrefixBlock::kPublished;
  }
};

namespace replay {
namespace {

constexpr std::int64_t kBytesPerToken = 2 * 2 * (16 + 16) * 2;

using test::AtTheFirstEnd;
using test::Prompt;
using test::trace_of;

class PrefixVerification : public testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override {
    KVARENA_NEEDS_DEVICE(GetParam());
    device_ = test::make_device(GetParam());
    options_ = test::plain_options();
    options_.attention.device = device_.get();
    options_.attention.mode = AttentionMode::full;
    options_.limits.max_batched_tokens = 512;
    options_.limits.max_running = 1;
    options_.pool.num_blocks = 512;
    options_.prefix_cache = true;
  }
  ReplayOutcome serve(const std::vector<Prompt>& prompts, ReplayObserver* observer = nullptr) {
    const test::TempFile file(trace_of(prompts));
    options_.trace.path = file.path();
    return run_replay(options_, nullptr, observer);
  }

  std::unique_ptr<Device> device_;
  ReplayOptions options_;
};

INSTANTIATE_TEST_SUITE_P(Devices, PrefixVerification, testing::ValuesIn(test::device_kinds()),
                         test::kind_name);

// The second block of a trace is only partly the prompt's, so prompts share 512 tokens.
const std::vector<Prompt> kPrompts{
    {520, 20, {1, 2}}, {530, 3, {1, 3}}, {100, 9, {4}},
    {520, 20, {1, 2}}, {700, 5, {5, 6}}, {100, 30, {4}},
};

TEST_P(PrefixVerification, WhatIsSharedIsWhatEachShouldHave) {
  const ReplayOutcome one = serve(kPrompts);
  ASSERT_EQ(one.end, ReplayEnd::completed) << one.why.found;
  const ReplayReport& r = one.report;
  EXPECT_TRUE(r.balanced);
  // All but the last token of a prompt, in blocks of 16: ids 1 and 2 give 512 tokens and 7 more.
  EXPECT_EQ(r.cached_tokens, 512 + 512 + 96);
  const std::int64_t all = r.input_tokens + r.output_tokens;
  EXPECT_EQ(r.verification.kv_bytes_written, (all - r.cached_tokens) * kBytesPerToken);
  EXPECT_EQ(r.verification.kv_bytes_compared, all * kBytesPerToken) << "what is shared too";
  EXPECT_EQ(r.verification.failures, 0);
}

TEST_P(PrefixVerification, ManyAtATimeInAScarcePoolWithEveryPolicy) {
  for (const EvictionPolicy policy : {EvictionPolicy::tail_first, EvictionPolicy::head_first,
                                      EvictionPolicy::fifo, EvictionPolicy::lfu}) {
    if (test::kThreadSanitizer && policy != EvictionPolicy::tail_first) continue;
    options_.policy = policy;
    options_.limits.max_running = 6;
    options_.pool.num_blocks = 70;
    options_.reserve = Reserve::none;
    std::vector<Prompt> prompts = kPrompts;
    prompts.insert(prompts.end(), kPrompts.begin(), kPrompts.end());
    const ReplayOutcome seen = serve(prompts);
    ASSERT_EQ(seen.end, ReplayEnd::completed) << name_of(policy) << ": " << seen.why.found;
    EXPECT_GT(seen.report.prefix.hit_blocks, 0U);
    EXPECT_GT(seen.report.prefix.removals_by[static_cast<std::size_t>(PrefixRemoval::evicted)], 0U)
        << name_of(policy);
    EXPECT_TRUE(seen.report.balanced);
  }
}

TEST_P(PrefixVerification, SamplesAndTenants) {
  options_.samples = 3;
  options_.reserve = Reserve::full;
  options_.limits.max_running = 9;
  options_.trace.salt_column = "tenant";
  std::vector<Prompt> prompts = kPrompts;
  prompts.insert(prompts.end(), kPrompts.begin(), kPrompts.end());
  for (std::size_t i = 0; i < prompts.size(); i += 2) prompts[i].tenant = "b";
  const ReplayOutcome seen = serve(prompts);
  ASSERT_EQ(seen.end, ReplayEnd::completed) << seen.why.found;
  EXPECT_EQ(seen.report.salts, 2);
  EXPECT_GT(seen.report.prefix.hit_blocks, 0U);
}

TEST_P(PrefixVerification, ACachedBlockThatWasRewrittenIsSeen) {
  AtTheFirstEnd rewrite([](EnginePool& pool, const Job& job) {
    const BlockId block = *pool.tables().lookup(job.sequence, 0);
    KvCache& cache = *pool.cache();
    std::byte* const address = cache.arena().address(block, 0, PlaneKind::key);
    std::byte byte{};
    ASSERT_OK(cache.synchronize());
    ASSERT_OK(pool.device().copy(&byte, address, 1, cache.stream()));
    ASSERT_OK(cache.synchronize());
    byte ^= std::byte{1};
    ASSERT_OK(pool.device().copy(address, &byte, 1, cache.stream()));
    ASSERT_OK(cache.synchronize());
  });
  const ReplayOutcome seen = serve({{100, 3, {4}}, {60, 3, {7}}, {100, 3, {4}}}, &rewrite);
  EXPECT_EQ(seen.end, ReplayEnd::check_failed);
  EXPECT_HAS(seen.why.found, "request 2 ");
}

TEST_P(PrefixVerification, AHitOnOtherTokensIsSeen) {
  AtTheFirstEnd claim([](EnginePool& pool, const Job& job) {
    const BlockId block = *pool.tables().lookup(job.sequence, 0);
    const auto content = std::make_shared<verify::SequenceContent>(verify::SequenceContent{
        .owner = 1, .prompt_tokens = 20, .block_tokens = 512, .blocks = {3}});
    const verify::TokenStream other(content, 0);
    std::vector<std::int32_t> tokens;
    for (std::int64_t i = 0; i < 16; ++i) tokens.push_back(other.token(i));
    PrefixProbe::claim(pool.tables(), block, tokens, 0);
  });
  const ReplayOutcome seen = serve({{20, 3, {1}}, {20, 3, {3}}}, &claim);
  EXPECT_EQ(seen.end, ReplayEnd::check_failed);
  EXPECT_HAS(seen.why.found, "request 1 ");
  EXPECT_EQ(seen.report.cached_tokens, 16) << "the wrong block was found";
}

TEST_P(PrefixVerification, AHitOfAnotherTenantIsSeen) {
  options_.trace.salt_column = "tenant";
  AtTheFirstEnd claim([](EnginePool& pool, const Job& job) {
    const BlockId block = *pool.tables().lookup(job.sequence, 0);
    const std::int32_t* const own =
        PrefixProbe::tokens_of(pool.tables(), block);  // the same tokens, of salt 2
    PrefixProbe::claim(pool.tables(), block, std::vector(own, own + 16), 2);
  });
  const std::vector<Prompt> prompts{{20, 3, {1}, "a"}, {20, 3, {1}, "b"}};
  const ReplayOutcome seen = serve(prompts, &claim);
  EXPECT_EQ(seen.end, ReplayEnd::check_failed);
  EXPECT_HAS(seen.why.found, "request 1 ");
  const ReplayOutcome sound = serve(prompts);
  EXPECT_EQ(sound.end, ReplayEnd::completed) << sound.why.found;
  EXPECT_EQ(sound.report.cached_tokens, 0);
}

}  // namespace
}  // namespace replay
}  // namespace kvarena
