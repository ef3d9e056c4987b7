// What preempted sequences keep: on the step clock with times worked out by hand (1 ms a prompt
// token, 1 s a step that decodes), and with real bytes.

#include "unit/replay/trace_text.hpp"

#include "kvarena/device/host_device.hpp"

#include <gtest/gtest.h>

namespace kvarena::replay {
namespace {

using test::Arrival;
using test::plain_options;
using test::report_of;

ReplayOptions keeping(std::int64_t blocks) {
  ReplayOptions options = plain_options();
  options.pool.num_blocks = blocks;
  options.pool.watermark_blocks = 0;
  options.keep_preempted = true;
  return options;
}

TEST(PreemptedSequences, LoseOnlyWhatOthersNeed) {
  // As StepClock.NewestIsPreemptedAndComputedAgain: at 32 tokens both want a third block of four.
  // The second keeps one of its two (its last token is computed again anyway); the first takes the
  // other for its third block. 16 tokens are computed again, not 32.
  const auto report = report_of({{0, 16, 32}, {0, 16, 32}}, keeping(4));
  EXPECT_EQ(report.preemptions, 1);
  EXPECT_EQ(report.recomputed_tokens, 16);
  EXPECT_EQ(report.prefill_tokens, 32 + 16);
  EXPECT_EQ(report.decode_tokens, 64);
  EXPECT_EQ(report.virtual_us, 32'000 + 32'000'000 + 16'000 + 16'000'000);
}

TEST(PreemptedSequences, LoseEverythingWhenOthersNeedIt) {
  // Two blocks each at 32 tokens; then the first grows to four blocks, which is all there is.
  const auto report = report_of({{0, 16, 48}, {0, 16, 32}}, keeping(4));
  EXPECT_EQ(report.preemptions, 1);
  EXPECT_EQ(report.recomputed_tokens, 32);
  EXPECT_EQ(report.prefill_tokens, 32 + 32);
}

// Kept blocks count as free: with and without keeping, the same are admitted and preempted at the
// same steps, unless time passes otherwise.
TEST(PreemptedSequences, ChangeNothingButWhatIsComputedAgain) {
  std::vector<Arrival> arrivals;
  for (int i = 0; i < 60; ++i) arrivals.push_back({0, 20 + i * 37 % 90, 5 + i * 13 % 60});
  for (const std::int64_t blocks : {12, 17, 30}) {
    ReplayOptions options = keeping(blocks);
    options.costs = {0, 1'000'000, 0};
    const auto kept = report_of(arrivals, options);
    options.keep_preempted = false;
    const auto dropped = report_of(arrivals, options);
    EXPECT_GT(dropped.preemptions, 0) << blocks;
    EXPECT_EQ(kept.completed, 60);
    EXPECT_EQ(kept.decode_tokens, dropped.decode_tokens);
    EXPECT_LT(kept.recomputed_tokens, dropped.recomputed_tokens) << blocks;
    // Prompts were computed once, and what was lost again.
    EXPECT_EQ(kept.prefill_tokens - kept.recomputed_tokens,
              dropped.prefill_tokens - dropped.recomputed_tokens);
  }
}

TEST(PreemptedSequences, EveryReserveThatPreempts) {
  std::vector<Arrival> arrivals;
  for (int i = 0; i < 60; ++i) arrivals.push_back({i * 10, 20 + i * 37 % 90, 5 + i * 13 % 60});
  for (const Reserve reserve : {Reserve::none, Reserve::prompt}) {
    for (const std::int64_t tokens : {24, 2048}) {
      ReplayOptions options = keeping(12);
      options.reserve = reserve;
      options.limits.max_running = 20;
      options.limits.max_batched_tokens = tokens;
      const auto report = report_of(arrivals, options);
      EXPECT_GT(report.preemptions, 0);
      EXPECT_EQ(report.completed, 60);
    }
  }
}

// Every byte of every sequence is read back, those that were kept over a preemption too.
TEST(PreemptedSequences, KeptBytesAreRight) {
  auto device = HostDevice::create();
  ASSERT_TRUE(device.is_ok());
  std::vector<Arrival> arrivals;
  for (int i = 0; i < 20; ++i) arrivals.push_back({0, 20 + i * 37 % 90, 5 + i * 13 % 60});
  ReplayOptions options = keeping(12);
  options.limits.max_running = 16;
  options.limits.max_batched_tokens = 64;
  options.attention.mode = AttentionMode::full;
  options.attention.device = device->get();
  const auto report = report_of(arrivals, options);
  EXPECT_GT(report.preemptions, 0);
  EXPECT_LT(report.recomputed_tokens, report.prefill_tokens);
  EXPECT_EQ(report.verification.sequences_compared, 20);
  EXPECT_EQ(report.verification.failures, 0);
}

TEST(PreemptedSequences, ContradictionsAreRefused) {
  ReplayOptions options = keeping(10);
  options.samples = 2;
  EXPECT_EQ(test::replay_of({{0, 1, 1}}, options).end, ReplayEnd::bad_options);
  options = keeping(10);
  options.clock = ClockKind::linear;
  options.reserve = Reserve::full;
  EXPECT_EQ(test::replay_of({{0, 1, 1}}, options).end, ReplayEnd::bad_options);
}

}  // namespace
}  // namespace kvarena::replay
