// VramTracker::set_total: what another allocator reports, without an address.

#include "kvarena/device/vram_tracker.hpp"

#include "support/log_capture.hpp"
#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>

namespace kvarena {
namespace {

const MemoryUsage& usage_of(const MemoryBreakdown& breakdown, MemoryPurpose purpose) {
  return breakdown.by_purpose[static_cast<std::size_t>(purpose)];
}

TEST(VramTotals, CountByPurposeAndAreReplaced) {
  VramTracker tracker;
  ASSERT_OK(tracker.set_total("torch", MemoryPurpose::model_weights, 700));
  ASSERT_OK(tracker.set_total("cutlass", MemoryPurpose::intermediate_buffers, 50));
  ASSERT_OK(tracker.set_total("torch", MemoryPurpose::model_weights, 300));
  const MemoryBreakdown now = tracker.breakdown();
  EXPECT_EQ(now.total.bytes, 350U);
  EXPECT_EQ(now.total.peak_bytes, 750U);
  EXPECT_EQ(now.total.count, 0U);
  EXPECT_EQ(now.reported_bytes, 350U);
  EXPECT_EQ(usage_of(now, MemoryPurpose::model_weights).bytes, 300U);
  EXPECT_EQ(usage_of(now, MemoryPurpose::model_weights).peak_bytes, 700U);
  EXPECT_EQ(usage_of(now, MemoryPurpose::intermediate_buffers).bytes, 50U);
  EXPECT_EQ(now.allocations_ever, 0U);
  const auto totals = tracker.totals();
  ASSERT_EQ(totals.size(), 2U);
  EXPECT_EQ(totals[0].name, "cutlass");
  EXPECT_EQ(totals[1].bytes, 300U);
}

TEST(VramTotals, MoveBetweenPurposesWithoutAPeakOfTheirOwn) {
  VramTracker tracker;
  ASSERT_OK(tracker.set_total("torch", MemoryPurpose::model_weights, 700));
  ASSERT_OK(tracker.set_total("torch", MemoryPurpose::kv_cache, 700));
  const MemoryBreakdown now = tracker.breakdown();
  EXPECT_EQ(usage_of(now, MemoryPurpose::model_weights).bytes, 0U);
  EXPECT_EQ(usage_of(now, MemoryPurpose::kv_cache).bytes, 700U);
  EXPECT_EQ(now.total.peak_bytes, 700U);
}

TEST(VramTotals, ZeroRemovesAndRemovesOnce) {
  VramTracker tracker;
  ASSERT_OK(tracker.set_total("torch", MemoryPurpose::model_weights, 700));
  ASSERT_OK(tracker.set_total("torch", MemoryPurpose::unknown, 0));
  ASSERT_OK(tracker.set_total("torch", MemoryPurpose::unknown, 0));
  EXPECT_TRUE(tracker.totals().empty());
  EXPECT_EQ(tracker.breakdown().total.bytes, 0U);
  EXPECT_EQ(usage_of(tracker.breakdown(), MemoryPurpose::model_weights).bytes, 0U);
  EXPECT_EQ(tracker.breakdown().reported_bytes, 0U);
}

TEST(VramTotals, StandBesideAllocationsInTheReport) {
  VramTracker tracker;
  AllocationRecord record;
  record.pointer = reinterpret_cast<void*>(0x1000);
  record.bytes = 1000;
  ASSERT_OK(tracker.record(record));
  ASSERT_OK(tracker.set_total("torch", MemoryPurpose::model_weights, 3000));
  EXPECT_EQ(tracker.breakdown().total.bytes, 4000U);
  EXPECT_EQ(tracker.breakdown().total.count, 1U);
  const std::string report = tracker.report();
  for (const char* part : {"4000", "75.0%", "reported totals", "ModelWeights \"torch\""}) {
    EXPECT_NE(report.find(part), std::string::npos) << part << " is missing in\n" << report;
  }
}

TEST(VramTotals, RefuseNonsenseAndChangeNothing) {
  VramTracker tracker;
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  EXPECT_FAILS(tracker.set_total("", MemoryPurpose::unknown, 1), invalid_argument, name);
  EXPECT_FAILS(tracker.set_total("a", MemoryPurpose::unknown, kMost + 1), invalid_argument,
               pool_bytes);
  ASSERT_OK(tracker.set_total("a", MemoryPurpose::unknown, kMost));
  EXPECT_FAILS(tracker.set_total("b", MemoryPurpose::unknown, 1), invalid_argument, pool_bytes);
  EXPECT_OK(tracker.set_total("a", MemoryPurpose::unknown, kMost));  // in place of itself
  EXPECT_EQ(tracker.breakdown().total.bytes, kMost);
  EXPECT_EQ(tracker.totals().size(), 1U);
}

TEST(VramTotals, AreLoggedWithTheNewTotal) {
  VramTracker tracker;
  const test::LogCapture log(LogLevel::debug);
  ASSERT_OK(tracker.set_total("torch", MemoryPurpose::model_weights, 24));
  EXPECT_TRUE(log.contains(LogLevel::debug, "reported 24 bytes ModelWeights by \"torch\""));
  EXPECT_TRUE(log.contains(LogLevel::debug, "total 24 bytes"));
}

TEST(VramTotals, SerialsCountRecordsOfOneTracker) {
  VramTracker tracker;
  AllocationRecord record;
  record.pointer = reinterpret_cast<void*>(0x1000);
  record.bytes = 16;
  ASSERT_OK(tracker.record(record));
  EXPECT_EQ(tracker.find(record.pointer)->serial, 1U);
  ASSERT_OK(tracker.erase(record.pointer));
  ASSERT_OK(tracker.record(record));
  EXPECT_EQ(tracker.find(record.pointer)->serial, 2U);
}

}  // namespace
}  // namespace kvarena
