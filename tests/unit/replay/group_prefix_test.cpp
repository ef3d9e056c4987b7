// Replays with a prefix cache of models whose layers keep different data: what a sequence begins
// with is what it should have, in every group.

#include "support/devices.hpp"
#include "support/text_matchers.hpp"
#include "unit/replay/group_trace_model.hpp"
#include "unit/replay/prompt_trace.hpp"
#include "unit/replay/trace_text.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvarena::replay {
namespace {

using test::AtTheFirstEnd;
using test::GroupModelKind;
using test::GroupTraceModel;
using test::Prompt;

/// The second block of a trace is only partly the prompt's, so prompts share 512 tokens.
const std::vector<Prompt> kPrompts{
    {520, 20, {1, 2}}, {530, 3, {1, 3}}, {100, 9, {4}},
    {520, 20, {1, 2}}, {200, 5, {5}},    {100, 30, {4}},
};

class GroupPrefix : public testing::TestWithParam<GroupModelKind> {
 protected:
  GroupPrefix() {
    options_.groups = {
        .list = model_.groups, .page_sequence_tokens = 1024, .checkpoint_every_tokens = 32};
    options_.attention.shape.block_size_tokens = 8;
    options_.limits.max_running = 1;
    options_.limits.max_batched_tokens = 128;
    options_.prefix_cache = true;
    options_.pool.num_blocks = 8 * model_.pages_of(1024);  // nothing is evicted
  }
  void turn_bytes_on(AttentionMode mode) {
    static const std::unique_ptr<Device> device = test::make_device(DeviceKind::host);
    options_.attention.device = device.get();
    options_.attention.mode = mode;
    options_.attention.num_threads = 2;
  }
  ReplayOutcome serve(const std::vector<Prompt>& prompts, ReplayObserver* observer = nullptr) {
    const test::TempFile file(test::trace_of(prompts));
    options_.trace.path = file.path();
    return run_replay(options_, nullptr, observer);
  }

  const GroupTraceModel model_{GetParam()};
  ReplayOptions options_ = test::plain_options();
};

INSTANTIATE_TEST_SUITE_P(, GroupPrefix,
                         testing::Values(GroupModelKind::window, GroupModelKind::chunk,
                                         GroupModelKind::latent, GroupModelKind::shared,
                                         GroupModelKind::state, GroupModelKind::state_in_place),
                         [](const auto& tested) { return std::string(name_of(tested.param)); });

TEST_P(GroupPrefix, WhatIsSharedIsWhatEachShouldHave) {
  const ReplayOutcome plain = serve(kPrompts);
  ASSERT_EQ(plain.end, ReplayEnd::completed) << plain.why.found;
  turn_bytes_on(AttentionMode::full);
  const ReplayOutcome one = serve(kPrompts);
  ASSERT_EQ(one.end, ReplayEnd::completed) << one.why.found;
  const ReplayReport& r = one.report;
  EXPECT_TRUE(r.balanced);
  EXPECT_EQ(r.verification.failures, 0);
  // Equal prompts: all but the last token, in whole blocks of 8. A state is there at multiples of
  // 32 and where a prompt ended.
  EXPECT_GE(r.cached_tokens, 512 + 512 + 96);
  EXPECT_LE(r.cached_tokens, 512 + 519 + 99);
  const std::int64_t all = r.input_tokens + r.output_tokens;
  EXPECT_EQ(r.verification.kv_bytes_written, (all - r.cached_tokens) * model_.token_bytes());
  EXPECT_EQ(plain.report.cached_tokens, r.cached_tokens);
  EXPECT_EQ(plain.report.virtual_us, r.virtual_us);
  EXPECT_EQ(plain.report.prefix.hit_blocks, r.prefix.hit_blocks);
}

TEST_P(GroupPrefix, ManyAtATimeInAScarcePool) {
  turn_bytes_on(AttentionMode::sample);
  options_.attention.sample_every = 4;
  options_.limits.max_running = 6;
  options_.pool.num_blocks = model_.pages_of(560) + 2 * model_.pages_of(130);
  options_.reserve = Reserve::none;
  std::vector<Prompt> prompts = kPrompts;
  prompts.insert(prompts.end(), kPrompts.begin(), kPrompts.end());
  const ReplayOutcome seen = serve(prompts);
  ASSERT_EQ(seen.end, ReplayEnd::completed) << seen.why.found;
  EXPECT_GT(seen.report.prefix.hit_blocks, 0U);
  EXPECT_TRUE(seen.report.balanced);
  EXPECT_EQ(seen.report.verification.failures, 0);
}

// The last tokens of what is shared are read by every kind of attention but chunks: 512 is where a
// chunk begins, so nothing of the one before is read.
TEST_P(GroupPrefix, AByteThatChangedWhileItWasCachedIsFound) {
  turn_bytes_on(AttentionMode::full);
  for (const LayerGroup& group : model_.groups) {
    if (group.kind == PagedKind::state || group.kind == PagedKind::chunk) continue;
    const std::int32_t layer = group.layers.front().layer;
    AtTheFirstEnd flip([layer](EnginePool& pool, const Job& job) {
      const std::int32_t part = pool.cache()->arena().groups()->part_of(layer);
      const std::int64_t slot = pool.tables().slot_of(job.sequence, 511, part).value();
      ASSERT_GE(slot, 0);
      const BlockId block(static_cast<std::int32_t>(slot / pool.block_size()));
      *pool.cache()->arena().address(block, layer, PlaneKind::key) ^= std::byte{1};
    });
    const ReplayOutcome seen = serve({{520, 1, {1, 2}}, {520, 3, {1, 2}}}, &flip);
    EXPECT_EQ(seen.end, ReplayEnd::check_failed) << name_of(group.kind);
    EXPECT_HAS(seen.why.found, "request 1 ");
    EXPECT_HAS(seen.why.found, "layer " + std::to_string(layer));
  }
}

TEST(GroupPrefixRefuses, AModelOfWhichNoLayerKeepsAllTokens) {
  const GroupTraceModel model(GroupModelKind::window_alone);
  ReplayOptions options = test::plain_options();
  options.groups = {.list = model.groups, .page_sequence_tokens = 1024};
  options.attention.shape.block_size_tokens = 8;
  options.prefix_cache = true;
  const auto outcome = test::replay_of({{0, 20, 3}}, options);
  EXPECT_EQ(outcome.end, ReplayEnd::bad_options);
  EXPECT_HAS(outcome.why.found, "no layer keeps all tokens");
}

}  // namespace
}  // namespace kvarena::replay
