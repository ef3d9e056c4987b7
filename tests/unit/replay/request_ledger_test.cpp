// Percentiles and means of the ledger, and the weighing of occupancy with time.

#include "replay/instruments.hpp"

#include <gtest/gtest.h>

namespace kvarena::replay {
namespace {

TEST(RequestLedger, PercentilesAreNearestRank) {
  RequestLedger ledger;
  for (std::int64_t i = 100; i >= 1; --i) ledger.start({}, i * 1000);
  ReplayReport report;
  report.block_size = 16;
  ledger.write_to(report);
  EXPECT_EQ(report.queueing.count, 100);
  EXPECT_DOUBLE_EQ(report.queueing.mean_us, 50.5);
  EXPECT_EQ(report.queueing.p50_us, 50);
  EXPECT_EQ(report.queueing.p90_us, 90);
  EXPECT_EQ(report.queueing.p99_us, 99);
  EXPECT_EQ(report.queueing.max_us, 100);
  EXPECT_EQ(report.latency.count, 0);
}

TEST(RequestLedger, OneValueIsEveryPercentile) {
  RequestLedger ledger;
  trace::TraceRequest request;
  request.arrival_us = 5;
  ledger.finish_request(request, 12'999);
  ReplayReport report;
  report.block_size = 16;
  ledger.write_to(report);
  EXPECT_EQ(report.latency.p50_us, 7);
  EXPECT_EQ(report.latency.p99_us, 7);
  EXPECT_EQ(report.completed, 1);
}

TEST(RequestLedger, WasteIsTheShareOfEmptySlots) {
  RequestLedger ledger;
  ledger.finish_sequence(17, 2);
  ledger.finish_sequence(16, 1);
  ReplayReport report;
  report.block_size = 16;
  ledger.write_to(report);
  EXPECT_EQ(report.final_blocks, 3);
  EXPECT_EQ(report.final_tokens, 33);
  EXPECT_DOUBLE_EQ(report.waste, 1.0 - 33.0 / 48.0);
}

TEST(OccupancyMeter, WeighsWithTimeExactly) {
  OccupancyMeter meter;
  meter.record(1'000, {.blocks = 4, .running = 1});
  meter.record(3'000, {.blocks = 10, .running = 7});
  meter.record(3'000, {.blocks = 2, .running = 2});
  meter.record(7'000, {.blocks = 0});
  meter.finish(11'000);
  EXPECT_EQ(meter.elapsed_ns(), 10'000);
  EXPECT_DOUBLE_EQ(meter.time_mean_blocks(), (4.0 * 2 + 2.0 * 4) / 10);
  EXPECT_EQ(meter.peak_running(), 7);
}

TEST(OccupancyMeter, NoTimeNoMean) {
  OccupancyMeter meter;
  meter.record(5, {.blocks = 4});
  EXPECT_EQ(meter.time_mean_blocks(), 0.0);
}

TEST(OccupancyMeter, LongRunsDoNotOverflow) {
  OccupancyMeter meter;
  constexpr std::int64_t kYears = 4'000'000'000'000'000'000;
  meter.record(0, {.blocks = 500'000'000});
  meter.finish(kYears);
  EXPECT_DOUBLE_EQ(meter.time_mean_blocks(), 5e8);
}

}  // namespace
}  // namespace kvarena::replay
