// The linear clock against the trace folder's reference figures: the hold model and the paging
// waste, through the real block manager.

#include "support/process_memory.hpp"
#include "unit/replay/fault_planter.hpp"
#include "unit/replay/trace_text.hpp"

#include "support/text_matchers.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <fstream>

namespace kvarena::replay {
namespace {

using test::Arrival;
using test::plain_options;
using test::report_of;

ReplayOptions linear_options() {
  ReplayOptions options = plain_options();
  options.clock = ClockKind::linear;
  options.reserve = Reserve::full;
  options.limits.max_running = 0;
  options.costs = {100'000, 20'000'000, 0};
  return options;
}

double rounded(double value, int places) {
  const double scale = std::pow(10.0, places);
  return std::round(value * scale) / scale;
}

class HoldModel : public testing::TestWithParam<const char*> {};

TEST_P(HoldModel, FiguresOfTheReferenceComeOut) {
  KVARENA_REQUIRE_DATA();
  std::ifstream file(test::data_dir() + "/reference.json");
  const auto reference = nlohmann::json::parse(file).at(GetParam());
  ReplayOptions options = linear_options();
  options.trace.path = test::data_dir() + "/" + reference.at("file").get<std::string>();
  const auto outcome = run_replay(options);
  ASSERT_EQ(outcome.end, ReplayEnd::completed) << outcome.why.found;
  const ReplayReport& report = outcome.report;
  EXPECT_EQ(report.requests, reference.at("requests"));
  EXPECT_EQ(report.completed, reference.at("requests"));
  EXPECT_EQ(report.input_tokens, reference.at("input_tokens"));
  EXPECT_EQ(report.output_tokens, reference.at("output_tokens"));
  const auto& hold = reference.at("hold_model_16");
  EXPECT_EQ(report.peak_blocks, hold.at("peak_blocks"));
  EXPECT_EQ(report.peak_requests, hold.at("peak_requests"));
  EXPECT_DOUBLE_EQ(rounded(report.time_mean_blocks, 3), hold.at("time_mean_blocks").get<double>());
  EXPECT_EQ(report.preemptions, 0);
  EXPECT_TRUE(report.balanced);
}

TEST_P(HoldModel, PagingWasteOfEveryBlockSizeComesOut) {
  KVARENA_REQUIRE_DATA();
  std::ifstream file(test::data_dir() + "/reference.json");
  const auto reference = nlohmann::json::parse(file).at(GetParam());
  int compared = 0;
  for (const auto& [name, figures] : reference.at("paging_waste").items()) {
    if (name.starts_with("reserve")) continue;
    if (test::kSanitized && name != "16") continue;
    ReplayOptions options = linear_options();
    options.attention.shape.block_size_tokens = std::stoi(name);
    options.trace.path = test::data_dir() + "/" + reference.at("file").get<std::string>();
    const auto outcome = run_replay(options);
    ASSERT_EQ(outcome.end, ReplayEnd::completed) << outcome.why.found;
    EXPECT_EQ(outcome.report.final_blocks, figures.at("blocks")) << "block size " << name;
    EXPECT_DOUBLE_EQ(rounded(outcome.report.waste, 6), figures.at("waste_fraction").get<double>())
        << "block size " << name;
    ++compared;
  }
  EXPECT_GE(compared, test::kSanitized ? 1 : 6);
}

INSTANTIATE_TEST_SUITE_P(Traces, HoldModel,
                         testing::Values("mooncake_conversation", "azure_llm_2023_conv",
                                         "azure_llm_2023_code", "agent_miniswe",
                                         "vllm_rtx4090_llama31_8b"));

TEST(LinearClock, HoldsByHand) {
  // 20 tokens: 2 blocks for 10 * 0.1 + 10 * 20 = 201 ms. 33 tokens: 3 blocks for 3.2 + 20 = 23.2
  // ms.
  const auto report = report_of({{0, 10, 10}, {100, 32, 1}}, linear_options());
  EXPECT_EQ(report.peak_blocks, 5);
  EXPECT_EQ(report.peak_requests, 2);
  EXPECT_EQ(report.virtual_us, 201'000);
  EXPECT_NEAR(report.time_mean_blocks, (2 * 201.0 + 3 * 23.2) / 201.0, 1e-12);
  EXPECT_EQ(report.final_blocks, 5);
  EXPECT_NEAR(report.waste, 1.0 - 53.0 / 80.0, 1e-12);
  EXPECT_EQ(report.num_blocks, 5) << "unlimited is the exact worst case";
}

TEST(LinearClock, EndsComeBeforeStartsAtEqualTimes) {
  // The first holds until exactly 201 ms, when the second arrives.
  const auto report = report_of({{0, 10, 10}, {201, 10, 10}}, linear_options());
  EXPECT_EQ(report.peak_blocks, 2);
  EXPECT_EQ(report.peak_requests, 1);
  const auto overlapping = report_of({{0, 10, 10}, {200, 10, 10}}, linear_options());
  EXPECT_EQ(overlapping.peak_blocks, 4);
}

TEST(LinearClock, ASmallPoolMakesRequestsWaitInOrder) {
  ReplayOptions options = linear_options();
  options.pool.num_blocks = 3;
  // 2 blocks until 201 ms; the second needs 3 and waits; the third would fit but waits behind it.
  const auto report = report_of({{0, 10, 10}, {10, 40, 1}, {20, 10, 1}}, options);
  EXPECT_EQ(report.peak_blocks, 3);
  EXPECT_EQ(report.peak_requests, 1);
  EXPECT_EQ(report.queueing.max_us, 205'000);  // 225 - 20
  EXPECT_EQ(report.queueing.p50_us, 191'000);
  EXPECT_EQ(report.virtual_us, 201'000 + 24'000 + 21'000);
}

TEST(LinearClock, MaxRunningMakesRequestsWait) {
  ReplayOptions options = linear_options();
  options.limits.max_running = 1;
  const auto report = report_of({{0, 10, 10}, {0, 10, 10}}, options);
  EXPECT_EQ(report.peak_requests, 1);
  EXPECT_EQ(report.virtual_us, 402'000);
}

TEST(LinearClock, RejectsWhatCanNeverFit) {
  ReplayOptions options = linear_options();
  options.pool.num_blocks = 2;
  const auto report = report_of({{0, 10, 10}, {1, 30, 10}}, options);
  EXPECT_EQ(report.rejected, 1);
  EXPECT_EQ(report.completed, 1);
  EXPECT_EQ(report.requests, 2);
}

TEST(LinearClock, TheExampleHasTheFiguresOfItsPage) {
  ReplayOptions options = linear_options();
  options.trace.path = KVARENA_TRACES "/mooncake_conversation_excerpt.jsonl";
  const auto outcome = run_replay(options);
  ASSERT_EQ(outcome.end, ReplayEnd::completed) << outcome.why.found;
  EXPECT_EQ(outcome.report.completed, 32);
  EXPECT_EQ(outcome.report.input_tokens, 441'842);
  EXPECT_EQ(outcome.report.output_tokens, 12'615);
  EXPECT_EQ(outcome.report.final_blocks, 28'417);
}

TEST(LinearClock, APlantedLostReleaseShowsInTheFigures) {
  ReplayOptions options = linear_options();
  options.pool.num_blocks = 10;
  const std::vector<Arrival> arrivals = {{0, 10, 10}, {300, 10, 10}, {600, 10, 10}};
  const auto sound = report_of(arrivals, options);
  test::FaultPlanter planter(test::Fault::lose_release);
  const auto outcome = test::replay_of(arrivals, options, &planter);
  EXPECT_EQ(outcome.end, ReplayEnd::check_failed);
  EXPECT_HAS(outcome.why.found, "does not balance");
  EXPECT_FALSE(outcome.report.balanced);
  EXPECT_EQ(outcome.report.account.referenced, 1);
  EXPECT_EQ(outcome.report.peak_blocks, sound.peak_blocks + 1);
  EXPECT_GT(outcome.report.time_mean_blocks, sound.time_mean_blocks);
}

TEST(LinearClock, LostBlocksThatStopTheReplayAreExplained) {
  ReplayOptions options = linear_options();
  options.pool.num_blocks = 2;
  test::FaultPlanter planter(test::Fault::lose_release);
  const auto outcome = test::replay_of({{0, 10, 10}, {300, 10, 10}}, options, &planter);
  EXPECT_EQ(outcome.end, ReplayEnd::check_failed);
  EXPECT_HAS(outcome.why.found, "blocks were lost");
}

TEST(LinearClock, RefusesWhatItCannotMean) {
  ReplayOptions options = linear_options();
  options.reserve = Reserve::prompt;
  EXPECT_EQ(test::replay_of({{0, 1, 1}}, options).end, ReplayEnd::bad_options);
  options = linear_options();
  options.samples = 2;
  EXPECT_EQ(test::replay_of({{0, 1, 1}}, options).end, ReplayEnd::bad_options);
  options = linear_options();
  options.attention.mode = AttentionMode::sample;
  EXPECT_EQ(test::replay_of({{0, 1, 1}}, options).end, ReplayEnd::bad_options);
  options = linear_options();
  options.costs.decode_ns = 1'000'000'000'000'000;
  const auto outcome = test::replay_of({{0, 1, 1'000'000}}, options);
  EXPECT_EQ(outcome.end, ReplayEnd::bad_options) << outcome.why.found;
}

}  // namespace
}  // namespace kvarena::replay
