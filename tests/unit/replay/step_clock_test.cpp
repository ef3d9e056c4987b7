// The clocks of the step engine, and the times of each request, worked out by hand.

#include "replay/engines.hpp"

#include "unit/replay/trace_text.hpp"

#include "support/text_matchers.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <sstream>

namespace kvarena::replay {
namespace {

using test::plain_options;
using test::report_of;
using test::small_model;

ReplayOptions roofline_options() {
  ReplayOptions options = plain_options();
  options.clock = ClockKind::roofline;
  options.roofline = small_model();
  options.costs.step_ns = 0;
  return options;
}

TEST(RooflineClock, StepsTakeTheirWork) {
  // A prompt of 200 tokens: 2 ms of arithmetic; then 201 and 202 tokens to read beside the weights.
  const auto report = report_of({{0, 200, 2}}, roofline_options());
  EXPECT_EQ(report.steps, 3);
  EXPECT_EQ(report.virtual_us, 2'000 + 1'201 + 1'202);
}

TEST(RooflineClock, ChunksSeeWhatCameBefore) {
  ReplayOptions options = roofline_options();
  options.limits.max_batched_tokens = 64;
  options.limits.max_running = 64;
  // 64 and 64 tokens, then 22: weights, and 64, 128, 150 tokens' KV; then one of 151.
  const auto report = report_of({{0, 150, 1}}, options);
  EXPECT_EQ(report.steps, 4);
  EXPECT_EQ(report.virtual_us, 4 * 1'000 + 64 + 128 + 150 + 151);
}

TEST(RooflineClock, EveryStepCostsItsOverhead) {
  ReplayOptions options = roofline_options();
  options.costs.step_ns = 7'000;
  EXPECT_EQ(report_of({{0, 200, 2}}, options).virtual_us, 2'000 + 1'201 + 1'202 + 3 * 7);
}

TEST(RooflineClock, NeedsItsNumbersAndNoOtherClockDoes) {
  ReplayOptions options = roofline_options();
  options.roofline.reset();
  EXPECT_EQ(test::replay_of({{0, 1, 1}}, options).end, ReplayEnd::bad_options);
  options = plain_options();
  options.roofline = small_model();
  EXPECT_EQ(test::replay_of({{0, 1, 1}}, options).end, ReplayEnd::bad_options);
}

TEST(FixedClock, SumsItsCosts) {
  ReplayOptions options = plain_options();
  options.costs = {.prefill_ns = 10, .decode_ns = 2'000, .step_ns = 100};
  const auto clock = make_step_clock(options);
  EXPECT_EQ(clock->step_ns({.prompt_tokens = 5, .decode_tokens = 0, .rows = {}}), 150);
  EXPECT_EQ(clock->step_ns({.prompt_tokens = 5, .decode_tokens = 3, .rows = {}}), 2'150);
  options.costs.prefill_ns = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(make_step_clock(options)->step_ns({.prompt_tokens = 2, .rows = {}}), std::nullopt);
  EXPECT_EQ(make_step_clock(options)->step_ns({.prompt_tokens = 1, .rows = {}}), std::nullopt);
}

TEST(RequestTimes, AreThoseOfEachRequestInOrder) {
  ReplayOptions options = plain_options();
  options.limits.max_running = 1;
  options.limits.max_context_tokens = 100;
  std::ostringstream times;
  options.request_times = &times;
  // 16 ms and 2 s; too long; then 16 ms and 1 s.
  report_of({{0, 16, 2}, {1, 100, 1}, {2, 16, 1}}, options);
  EXPECT_EQ(times.str(),
            "request,arrival_s,started_s,prompt_s,finished_s\n"
            "0,0.000000,0.000000,0.016000,2.016000\n"
            "1,0.001000,,,\n"
            "2,0.002000,2.016000,2.032000,3.032000\n");
}

TEST(RequestTimes, OfPreemptedRequestsAreTheirFirst) {
  ReplayOptions options = plain_options();
  options.pool.num_blocks = 4;
  options.pool.watermark_blocks = 0;
  std::ostringstream times;
  options.request_times = &times;
  const auto report = report_of({{0, 16, 32}, {0, 16, 32}}, options);
  EXPECT_EQ(report.preemptions, 1);
  EXPECT_HAS(times.str(), "\n1,0.000000,0.000000,0.032000,48.064000\n");
}

}  // namespace
}  // namespace kvarena::replay
