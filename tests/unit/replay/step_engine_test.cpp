// Continuous batching on the step clock, with times worked out by hand. Costs: 1 ms a prompt token,
// 1 s a step that decodes.

#include "unit/replay/trace_text.hpp"

#include "support/text_matchers.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <sstream>

namespace kvarena::replay {
namespace {

using test::Arrival;
using test::plain_options;
using test::replay_of;
using test::report_of;

TEST(StepClock, OneRequest) {
  const auto report = report_of({{5000, 100, 3}}, plain_options());
  EXPECT_EQ(report.steps, 4);  // the prompt, then three tokens
  EXPECT_EQ(report.virtual_us, 100'000 + 3'000'000);
  EXPECT_EQ(report.prefill_tokens, 100);
  EXPECT_EQ(report.decode_tokens, 3);
  EXPECT_EQ(report.queueing.max_us, 0);
  EXPECT_EQ(report.latency.max_us, 3'100'000);
  EXPECT_EQ(report.final_blocks, 7);
  EXPECT_EQ(report.peak_blocks, 7);
  EXPECT_EQ(report.peak_requests, 1);
}

TEST(StepClock, IdleTimeIsSkipped) {
  const auto report = report_of({{0, 10, 1}, {1'000'000'000, 10, 1}}, plain_options());
  EXPECT_EQ(report.steps, 4);
  EXPECT_EQ(report.virtual_us, 1'000'000'000'000 + 1'010'000);
}

TEST(StepClock, AnOutputOfNothingEndsWithItsPrompt) {
  ReplayOptions options = plain_options();
  options.samples = 4;
  const auto report = report_of({{0, 100, 0}}, options);
  EXPECT_EQ(report.steps, 1);
  EXPECT_EQ(report.completed, 1);
  EXPECT_EQ(report.forks, 0);
}

TEST(StepClock, PromptsAreCutIntoChunksBesideDecodes) {
  ReplayOptions options = plain_options();
  options.limits.max_batched_tokens = 64;
  options.limits.max_running = 4;
  // Steps: [64][36 + 28 of the second][1 + 63][1 + 9] ...
  const auto report = report_of({{0, 100, 10}, {0, 100, 1}}, options);
  EXPECT_EQ(report.prefill_tokens, 200);
  // Prompts: 64, 36+28, then decoding beside 63 and 9; the second decodes in the step after.
  EXPECT_EQ(report.steps, 2 + 10);
  EXPECT_EQ(report.virtual_us, 200'000 + 10 * 1'000'000);
}

TEST(StepClock, ArrivalsDuringAStepWaitForItsEnd) {
  // The first prompt's step lasts until 100 ms; the second request arrives at 50 ms.
  const auto report = report_of({{0, 100, 1}, {50, 10, 1}}, plain_options());
  EXPECT_EQ(report.queueing.max_us, 50'000);
  EXPECT_EQ(report.queueing.p50_us, 0);
}

TEST(StepClock, AdmissionIsFirstComeFirstServed) {
  ReplayOptions options = plain_options();
  options.reserve = Reserve::full;
  options.pool.num_blocks = 10;
  // 8 blocks; then 5, which have to wait; then 1, which would fit but came later.
  const auto report = report_of({{0, 120, 8}, {1, 70, 1}, {2, 10, 1}}, options);
  EXPECT_EQ(report.preemptions, 0);
  // The first ends at 120 ms + 8 s; only then do the others start, together.
  EXPECT_EQ(report.queueing.p50_us, 8'120'000 - 2'000);
  EXPECT_EQ(report.queueing.max_us, 8'120'000 - 1'000);
  EXPECT_EQ(report.peak_blocks, 8);
}

TEST(StepClock, MaxRunningLimitsSequences) {
  ReplayOptions options = plain_options();
  options.limits.max_running = 2;
  const auto report = report_of({{0, 16, 4}, {0, 16, 4}, {0, 16, 4}}, options);
  EXPECT_EQ(report.peak_requests, 2);
  EXPECT_EQ(report.queueing.max_us, 32'000 + 4'000'000);
}

TEST(StepClock, NewestIsPreemptedAndComputedAgain) {
  ReplayOptions options = plain_options();
  options.pool.num_blocks = 4;
  options.pool.watermark_blocks = 0;
  // Two sequences of 16 prompt tokens hold one block each, two after the next token, and each wants
  // a third at its 33rd token: the second is thrown out with 32 tokens, waits for the first to end,
  // and computes its 32 tokens again.
  const auto report = report_of({{0, 16, 32}, {0, 16, 32}}, options);
  EXPECT_EQ(report.preemptions, 1);
  EXPECT_EQ(report.recomputed_tokens, 32);
  EXPECT_EQ(report.prefill_tokens, 32 + 32);
  EXPECT_EQ(report.decode_tokens, 64);
  EXPECT_EQ(report.peak_blocks, 4);
  // 32 ms of prompts, 32 steps of the first, then 32 ms and the second's last 16 tokens.
  EXPECT_EQ(report.virtual_us, 32'000 + 32'000'000 + 32'000 + 16'000'000);
  EXPECT_EQ(report.queueing.max_us, 0) << "waiting counts up to the first admission";
}

TEST(StepClock, FullReservationNeverPreempts) {
  std::vector<Arrival> arrivals;
  for (int i = 0; i < 40; ++i) arrivals.push_back({i * 10, 20 + i * 7 % 50, 5 + i * 13 % 60});
  for (const std::int64_t blocks : {9, 14, 40}) {
    ReplayOptions options = plain_options();
    options.reserve = Reserve::full;
    options.pool.num_blocks = blocks;
    EXPECT_EQ(report_of(arrivals, options).preemptions, 0);
    options.reserve = Reserve::none;
    options.pool.watermark_blocks = 0;
    const auto careless = report_of(arrivals, options);
    EXPECT_EQ(careless.completed, 40);
    if (blocks == 9) {
      EXPECT_GT(careless.preemptions, 0);
    }
  }
}

TEST(StepClock, WatermarkHoldsAdmissionBack) {
  ReplayOptions options = plain_options();
  options.reserve = Reserve::prompt;
  options.pool.num_blocks = 10;
  options.pool.watermark_blocks = 8;
  const auto none = replay_of({{0, 16, 20}, {0, 16, 20}, {0, 16, 20}}, options);
  EXPECT_EQ(none.end, ReplayEnd::check_failed) << "a replay that serves nobody shows nothing";
  EXPECT_EQ(none.report.watermark_blocks, 8);
  EXPECT_EQ(none.report.rejected, 3) << "3 blocks late in life, of 10 less 8";
  options.pool.watermark_blocks = 7;
  const auto tight = report_of({{0, 16, 20}, {0, 16, 20}, {0, 16, 20}, {0, 16, 20}}, options);
  EXPECT_EQ(tight.peak_requests, 3) << "a fourth would leave less than the watermark";
  EXPECT_EQ(tight.completed, 4);
}

TEST(StepClock, ContextLimitRejects) {
  ReplayOptions options = plain_options();
  options.limits.max_context_tokens = 40;
  const auto report = report_of({{0, 30, 10}, {0, 31, 10}, {0, 10, 1}}, options);
  EXPECT_EQ(report.rejected, 1);
  EXPECT_EQ(report.completed, 2);
  EXPECT_EQ(report.input_tokens, 71);
}

TEST(StepClock, MaxRequestsStopsEarly) {
  ReplayOptions options = plain_options();
  options.limits.max_requests = 2;
  EXPECT_EQ(report_of({{0, 30, 10}, {0, 31, 10}, {0, 10, 1}}, options).requests, 2);
}

TEST(StepClock, SamplesForkAndCopyOnWrite) {
  ReplayOptions options = plain_options();
  options.samples = 3;
  // 20 prompt tokens: a full block shared by three, and a partial one that two of them copy.
  const auto report = report_of({{0, 20, 5}}, options);
  EXPECT_EQ(report.forks, 2);
  EXPECT_EQ(report.copies_on_write, 2);
  EXPECT_EQ(report.decode_tokens, 15);
  EXPECT_EQ(report.peak_blocks, 4);
  EXPECT_EQ(report.peak_requests, 3);
  EXPECT_EQ(report.final_blocks, 6) << "entries of three tables";
  EXPECT_EQ(report.completed, 1);
  // A prompt that fills its blocks has nothing to copy.
  EXPECT_EQ(report_of({{0, 32, 5}}, options).copies_on_write, 0);
}

TEST(StepClock, SamplesWithFullReservationFitAndNeverPreempt) {
  std::vector<Arrival> arrivals;
  for (int i = 0; i < 30; ++i) arrivals.push_back({i * 100, 20 + i * 7 % 50, 5 + i * 13 % 60});
  ReplayOptions options = plain_options();
  options.samples = 4;
  options.reserve = Reserve::full;
  options.pool.num_blocks = 60;
  const auto report = report_of(arrivals, options);
  EXPECT_EQ(report.preemptions, 0);
  EXPECT_EQ(report.completed, 30);
  EXPECT_EQ(report.forks, 90);
  EXPECT_EQ(report.account.reserved, 0);
}

TEST(StepClock, SamplesUnderPressureStillComplete) {
  std::vector<Arrival> arrivals;
  for (int i = 0; i < 30; ++i) arrivals.push_back({i * 100, 20 + i * 7 % 50, 5 + i * 13 % 60});
  for (const Reserve reserve : {Reserve::prompt, Reserve::none}) {
    ReplayOptions options = plain_options();
    options.samples = 3;
    options.reserve = reserve;
    options.pool.num_blocks = 12;
    options.pool.watermark_blocks = 0;
    const auto report = report_of(arrivals, options);
    EXPECT_GT(report.preemptions, 0);
    EXPECT_EQ(report.completed, 30);
    EXPECT_EQ(report.decode_tokens, 3 * report.output_tokens);
    EXPECT_EQ(report.prefill_tokens, report.input_tokens + report.recomputed_tokens)
        << "what is computed again is exactly what was lost";
  }
}

TEST(StepClock, UnlimitedIsNeverShort) {
  std::vector<Arrival> arrivals;
  for (int i = 0; i < 100; ++i) arrivals.push_back({i, 20 + i * 7 % 50, 5 + i * 13 % 60});
  for (const std::int64_t running : {0, 5, 64}) {
    for (const std::int32_t samples : {1, 4}) {
      ReplayOptions options = plain_options();
      options.limits.max_running = running;
      options.limits.max_batched_tokens = running == 0 ? 0 : 64;
      options.samples = samples;
      const auto report = report_of(arrivals, options);
      EXPECT_EQ(report.preemptions, 0);
      EXPECT_EQ(report.account.exhaustions, 0U);
      EXPECT_EQ(report.watermark_blocks, 0);
    }
  }
}

TEST(StepClock, SameInputSameReport) {
  std::vector<Arrival> arrivals;
  for (int i = 0; i < 50; ++i) arrivals.push_back({i, 20 + i * 7 % 50, 5 + i * 13 % 60});
  ReplayOptions options = plain_options();
  options.pool.num_blocks = 20;
  options.reserve = Reserve::none;
  const auto first = report_of(arrivals, options);
  const auto second = report_of(arrivals, options);
  EXPECT_EQ(first.virtual_us, second.virtual_us);
  EXPECT_EQ(first.steps, second.steps);
  EXPECT_EQ(first.preemptions, second.preemptions);
  EXPECT_EQ(first.time_mean_blocks, second.time_mean_blocks);
}

TEST(StepClock, RefusesLimitsThatContradict) {
  ReplayOptions options = plain_options();
  options.limits.max_running = 0;
  EXPECT_EQ(replay_of({{0, 1, 1}}, options).end, ReplayEnd::bad_options);
  options = plain_options();
  options.limits.max_running = options.limits.max_batched_tokens + 1;
  EXPECT_EQ(replay_of({{0, 1, 1}}, options).end, ReplayEnd::bad_options);
  options = plain_options();
  options.samples = 257;
  EXPECT_EQ(replay_of({{0, 1, 1}}, options).end, ReplayEnd::bad_options);
  options = plain_options();
  options.limits.max_running = 2;
  options.samples = 3;
  EXPECT_EQ(replay_of({{0, 1, 1}}, options).end, ReplayEnd::bad_options);
  options = plain_options();
  options.pool.num_blocks = 10;
  options.pool.watermark_blocks = 11;
  EXPECT_EQ(replay_of({{0, 1, 1}}, options).end, ReplayEnd::bad_options);
}

TEST(StepClock, PoolBytesBecomeBlocks) {
  ReplayOptions options = plain_options();
  // 2 layers x 2 heads x (16 + 16) elements x 2 bytes x 16 tokens = 4096 bytes a block.
  options.pool.pool_bytes = 4096 * 7 + 100;
  EXPECT_EQ(report_of({{0, 30, 10}}, options).num_blocks, 7);
  options.pool.pool_bytes = 4095;
  const auto outcome = replay_of({{0, 30, 10}}, options);
  EXPECT_EQ(outcome.end, ReplayEnd::does_not_fit);
  EXPECT_HAS(outcome.why.expected, "4096");
}

TEST(StepClock, ABadLineLateInTheTraceEndsTheReplay) {
  const test::TempFile file(test::mooncake_trace({{0, 10, 1}, {5, 10, 1}}) + "{\"timestamp\": 9");
  ReplayOptions options = plain_options();
  options.trace.path = file.path();
  const auto outcome = run_replay(options);
  EXPECT_EQ(outcome.end, ReplayEnd::bad_input);
  EXPECT_HAS(headline(outcome.why), ":3:16");
  options.limits.max_requests = 2;
  EXPECT_EQ(run_replay(options).end, ReplayEnd::completed) << "the bad line is not reached";
}

TEST(StepClock, AReplayThatIsStoppedReportsWhatItDid) {
  class Stopper final : public ProgressSink {
   public:
    void on_progress(const ReplayProgress& progress) override { stop = progress.requests_done > 0; }
    std::atomic<bool> stop{false};
  } stopper;
  const test::TempFile file(test::mooncake_trace({{0, 10, 4}, {0, 10, 400}, {900'000, 10, 4}}));
  for (const bool linear : {false, true}) {
    ReplayOptions options = plain_options();
    options.clock = linear ? ClockKind::linear : ClockKind::step;
    options.reserve = Reserve::full;
    options.trace.path = file.path();
    options.trace.stop = &stopper.stop;
    stopper.stop = false;
    const auto outcome = run_replay(options, &stopper);
    EXPECT_EQ(outcome.end, ReplayEnd::interrupted);
    ASSERT_TRUE(outcome.has_report);
    EXPECT_GE(outcome.report.completed, 1);
    EXPECT_LT(outcome.report.completed, 3);
    // Before it begins there is nothing to report.
    EXPECT_EQ(run_replay(options).end, ReplayEnd::interrupted);
    EXPECT_FALSE(run_replay(options).has_report);
  }
}

TEST(StepClock, TimelineIsAStepFunctionWithTheFiguresOfTheReport) {
  std::stringstream lines;
  ReplayOptions options = plain_options();
  options.timeline = &lines;
  const auto report = report_of({{0, 100, 3}, {600'000, 10, 1}}, options);
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  EXPECT_EQ(line, "time_s,running,waiting,blocks,tokens,waste,preemptions,completed");
  std::vector<std::string> rows;
  while (std::getline(lines, line)) rows.push_back(line);
  ASSERT_GE(rows.size(), 4U);
  EXPECT_LT(rows.size(), 12U) << "ten idle minutes take no rows";
  EXPECT_EQ(rows[0], "0.000000,1,0,7,100,0.107143,0,0");
  EXPECT_EQ(rows[1], "1.000000,1,0,7,101,0.098214,0,0");
  EXPECT_EQ(rows.back(), "601.010000,0,0,0,0,0.000000,0,2");
  EXPECT_EQ(report.completed, 2);
  lines.setstate(std::ios::badbit);  // who gave the stream says so: it may be nobody's loss
  EXPECT_EQ(replay_of({{0, 1, 1}}, options).end, ReplayEnd::completed);
}

class CountingSink : public ProgressSink {
 public:
  void on_progress(const ReplayProgress& progress) override {
    ++calls;
    EXPECT_GE(progress.tokens_done, last.tokens_done);
    EXPECT_GE(progress.requests_done, last.requests_done);
    last = progress;
  }
  int calls = 0;
  ReplayProgress last;
};

TEST(StepClock, ProgressReachesItsTotals) {
  const test::TempFile file(test::mooncake_trace({{0, 10, 4}, {5, 10, 4}}));
  ReplayOptions options = plain_options();
  options.trace.path = file.path();
  CountingSink sink;
  ASSERT_EQ(run_replay(options, &sink).end, ReplayEnd::completed);
  EXPECT_GT(sink.calls, 3);
  EXPECT_EQ(sink.last.requests_done, 2);
  EXPECT_EQ(sink.last.requests_total, 2);
  EXPECT_EQ(sink.last.tokens_done, 28);
  EXPECT_EQ(sink.last.tokens_total, 28);
}

}  // namespace
}  // namespace kvarena::replay
