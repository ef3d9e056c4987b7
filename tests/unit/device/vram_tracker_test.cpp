#include "kvarena/device/vram_tracker.hpp"

#include "support/log_capture.hpp"
#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace kvarena {
namespace {

void* at(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

AllocationRecord piece(std::uintptr_t address, std::uint64_t bytes,
                       MemoryPurpose purpose = MemoryPurpose::unknown,
                       MemoryKind kind = MemoryKind::device) {
  return {at(address), bytes, purpose, kind, "piece"};
}

const MemoryUsage& usage_of(const MemoryBreakdown& breakdown, MemoryPurpose purpose) {
  return breakdown.by_purpose[static_cast<std::size_t>(purpose)];
}

TEST(VramTracker, StartsEmpty) {
  const VramTracker tracker;
  const MemoryBreakdown now = tracker.breakdown();
  EXPECT_EQ(now.total.bytes, 0U);
  EXPECT_EQ(now.allocations_ever, 0U);
  EXPECT_TRUE(tracker.allocations().empty());
  EXPECT_NE(tracker.report().find("total"), std::string::npos);
}

TEST(VramTracker, AddsUpByPurpose) {
  VramTracker tracker;
  ASSERT_OK(tracker.record(piece(0x1000, 100, MemoryPurpose::model_weights)));
  ASSERT_OK(tracker.record(piece(0x2000, 200, MemoryPurpose::kv_cache)));
  ASSERT_OK(tracker.record(piece(0x3000, 300, MemoryPurpose::kv_cache)));
  ASSERT_OK(tracker.record(piece(0x4000, 400, MemoryPurpose::intermediate_buffers)));
  ASSERT_OK(tracker.record(piece(0x5000, 500)));
  const MemoryBreakdown now = tracker.breakdown();
  EXPECT_EQ(now.total.bytes, 1500U);
  EXPECT_EQ(now.total.count, 5U);
  EXPECT_EQ(usage_of(now, MemoryPurpose::model_weights).bytes, 100U);
  EXPECT_EQ(usage_of(now, MemoryPurpose::kv_cache).bytes, 500U);
  EXPECT_EQ(usage_of(now, MemoryPurpose::kv_cache).count, 2U);
  EXPECT_EQ(usage_of(now, MemoryPurpose::intermediate_buffers).bytes, 400U);
  EXPECT_EQ(usage_of(now, MemoryPurpose::unknown).bytes, 500U);
}

TEST(VramTracker, KeepsPeaksAfterFrees) {
  VramTracker tracker;
  ASSERT_OK(tracker.record(piece(0x1000, 100, MemoryPurpose::kv_cache)));
  ASSERT_OK(tracker.record(piece(0x2000, 200, MemoryPurpose::model_weights)));
  ASSERT_OK(tracker.erase(at(0x2000)));
  ASSERT_OK(tracker.record(piece(0x2000, 50, MemoryPurpose::kv_cache)));
  const MemoryBreakdown now = tracker.breakdown();
  EXPECT_EQ(now.total.bytes, 150U);
  EXPECT_EQ(now.total.peak_bytes, 300U);
  EXPECT_EQ(usage_of(now, MemoryPurpose::kv_cache).peak_bytes, 150U);
  EXPECT_EQ(usage_of(now, MemoryPurpose::model_weights).peak_bytes, 200U);
  EXPECT_EQ(now.allocations_ever, 3U);
  EXPECT_EQ(now.frees_ever, 1U);
}

TEST(VramTracker, KeepsStagingApart) {
  VramTracker tracker;
  ASSERT_OK(tracker.record(
      piece(0x1000, 64, MemoryPurpose::intermediate_buffers, MemoryKind::pinned_staging)));
  const MemoryBreakdown now = tracker.breakdown();
  EXPECT_EQ(now.total.bytes, 0U);
  EXPECT_EQ(now.staging.bytes, 64U);
  EXPECT_EQ(now.staging.count, 1U);
  EXPECT_NE(to_string(now).find("pinned_staging"), std::string::npos);
}

TEST(VramTracker, RefusesNonsense) {
  VramTracker tracker;
  EXPECT_FAILS(tracker.record(piece(0, 16)), invalid_argument, pointer);
  EXPECT_REFUSES(tracker.record(piece(0x1000, 0)), invalid_argument, bytes);
  EXPECT_REFUSES(tracker.record(piece(0x1000, 16, static_cast<MemoryPurpose>(99))),
                 invalid_argument, purpose);
  AllocationRecord foreign = piece(0x1000, 16);
  foreign.owner = static_cast<AllocationOwner>(99);
  EXPECT_REFUSES(tracker.record(foreign), invalid_argument, owner);
  EXPECT_REFUSES(tracker.set_total("a", static_cast<MemoryPurpose>(99), 1), invalid_argument,
                 purpose);
  EXPECT_REFUSES(tracker.record(piece(0x1000, ~std::uint64_t{0})), invalid_argument, bytes);
  EXPECT_REFUSES(tracker.record(piece(~std::uintptr_t{0} - 15, 64)), invalid_argument, bytes);
  for (const auto purpose : {MemoryPurpose::kv_cache, MemoryPurpose::model_weights}) {
    EXPECT_FAILS(tracker.record(piece(0x1000, 16, purpose, MemoryKind::pinned_staging)),
                 unsupported, allocation);
  }
  EXPECT_EQ(tracker.breakdown().allocations_ever, 0U);
}

TEST(VramTracker, RefusesOverlaps) {
  VramTracker tracker;
  ASSERT_OK(tracker.record(piece(0x1000, 0x100)));
  for (const auto& [address, bytes] : std::vector<std::pair<std::uintptr_t, std::uint64_t>>{
           {0x1000, 0x100},   // the same
           {0x1000, 1},       // its first byte
           {0x10FF, 1},       // its last byte
           {0x1080, 0x1000},  // its second half and more
           {0x0F00, 0x101},   // reaches into it
           {0x0F00, 0x1000},  // covers it
       }) {
    EXPECT_FAILS(tracker.record(piece(address, bytes)), failed_precondition, allocation)
        << std::hex << address << " + " << bytes;
  }
  EXPECT_EQ(tracker.breakdown().total.bytes, 0x100U);
  EXPECT_OK(tracker.record(piece(0x0F00, 0x100)));  // ends where it begins
  EXPECT_OK(tracker.record(piece(0x1100, 0x100)));  // begins where it ends
}

TEST(VramTracker, ErasingWhatIsNotRecordedIsAnError) {
  VramTracker tracker;
  ASSERT_OK(tracker.record(piece(0x1000, 0x100)));
  EXPECT_FAILS(tracker.erase(at(0x1010)), not_found, allocation);
  EXPECT_FAILS(tracker.erase(nullptr), not_found, allocation);
  const auto erased = tracker.erase(at(0x1000));
  ASSERT_OK(erased);
  EXPECT_EQ(erased->bytes, 0x100U);
  EXPECT_EQ(erased->description, "piece");
  EXPECT_FAILS(tracker.erase(at(0x1000)), not_found, allocation);
  EXPECT_EQ(tracker.breakdown().frees_ever, 1U);
}

TEST(VramTracker, FindsTheAllocationThatContainsAnAddress) {
  VramTracker tracker;
  ASSERT_OK(tracker.record(piece(0x1000, 0x100)));
  ASSERT_OK(tracker.record(piece(0x2000, 0x100)));
  EXPECT_FAILS(tracker.find(at(0xFFF)), not_found, allocation);
  EXPECT_EQ(tracker.find(at(0x1000))->pointer, at(0x1000));
  EXPECT_EQ(tracker.find(at(0x10FF))->pointer, at(0x1000));
  EXPECT_FAILS(tracker.find(at(0x1100)), not_found, allocation);
  EXPECT_EQ(tracker.find(at(0x2080))->pointer, at(0x2000));
}

TEST(VramTracker, ListsByAddressWhateverTheOrderOfRecording) {
  VramTracker tracker;
  for (const std::uintptr_t address : {0x3000U, 0x1000U, 0x2000U}) {
    ASSERT_OK(tracker.record(piece(address, 16)));
  }
  const auto all = tracker.allocations();
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0].pointer, at(0x1000));
  EXPECT_EQ(all[1].pointer, at(0x2000));
  EXPECT_EQ(all[2].pointer, at(0x3000));
}

TEST(VramTracker, ReportsPurposesAndLargestAllocations) {
  VramTracker tracker;
  ASSERT_OK(tracker.record(
      {at(0x100000), 3 << 20, MemoryPurpose::kv_cache, MemoryKind::device, "kv arena"}));
  ASSERT_OK(tracker.record(
      {at(0x900000), 1 << 20, MemoryPurpose::model_weights, MemoryKind::device, "layers 0-3"}));
  ASSERT_OK(
      tracker.record({at(0xB00000), 10, MemoryPurpose::unknown, MemoryKind::device, "small one"}));
  const std::string report = tracker.report(2);
  for (const char* part : {"KVCache", "3145728", "3.00 MiB", "75.0%", "ModelWeights", "25.0%",
                           "\"kv arena\"", "\"layers 0-3\"", "largest 2 of 3"}) {
    EXPECT_NE(report.find(part), std::string::npos) << part << " is missing in\n" << report;
  }
  EXPECT_EQ(report.find("small one"), std::string::npos);
  EXPECT_LT(report.find("kv arena"), report.find("layers 0-3"));
}

TEST(VramTracker, MovesWithItsRecords) {
  VramTracker first;
  ASSERT_OK(first.record(piece(0x1000, 16)));
  VramTracker second = std::move(first);
  EXPECT_EQ(second.breakdown().total.bytes, 16U);
  first = VramTracker();
  EXPECT_EQ(first.breakdown().total.bytes, 0U);
}

TEST(VramTracker, TextFromOutsideForgesNoLine) {
  VramTracker tracker;
  const test::LogCapture log(LogLevel::debug);
  AllocationRecord forger = piece(0x1000, 64);
  forger.description = "x\n2026-01-01 critical FORGED \x1b[31mred\x7f\xff caf\xc3\xa9";
  ASSERT_OK(tracker.record(forger));
  ASSERT_OK(tracker.set_total("pool\r\x1b[2J", MemoryPurpose::unknown, 1));
  EXPECT_EQ(tracker.allocations()[0].description,
            "x?2026-01-01 critical FORGED ?[31mred?? caf\xc3\xa9");
  EXPECT_EQ(tracker.totals()[0].name, "pool??[2J");
  for (const test::LogCapture::Line& line : log.lines()) {
    EXPECT_EQ(line.text.find_first_of("\n\r\x1b\x7f"), std::string::npos) << line.text;
  }
  EXPECT_EQ(tracker.report().find_first_of("\r\x1b"), std::string::npos);
  ASSERT_OK(tracker.set_total("pool\r\x1b[2J", MemoryPurpose::unknown, 0));
  EXPECT_TRUE(tracker.totals().empty()) << "the same name, the same total";
}

TEST(VramTracker, LogsEachChangeWithTheNewTotal) {
  VramTracker tracker;
  ASSERT_OK(tracker.record(piece(0x1000, 1000)));
  const test::LogCapture log(LogLevel::debug);
  ASSERT_OK(tracker.record(piece(0x2000, 24, MemoryPurpose::kv_cache)));
  EXPECT_TRUE(log.contains(LogLevel::debug, "allocated 24 bytes KVCache"));
  EXPECT_TRUE(log.contains(LogLevel::debug, "total 1024 bytes"));
  ASSERT_OK(tracker.erase(at(0x1000)));
  EXPECT_TRUE(log.contains(LogLevel::debug, "freed 1000 bytes Unknown"));
  EXPECT_TRUE(log.contains(LogLevel::debug, "total 24 bytes"));
}

// Writers keep the invariant that KV and weights always come in equal pairs of (bytes, bytes) per
// thread, so a torn snapshot would show totals that no instant had.
TEST(VramTracker, ReportsAreConsistentWhileOthersAllocate) {
  VramTracker tracker;
  constexpr int kWriters = 3;
  constexpr int kRounds = 2000;
  std::atomic<int> failures{0};
  std::atomic<bool> done{false};
  std::vector<std::thread> writers;
  for (int w = 0; w < kWriters; ++w) {
    writers.emplace_back([&, w] {
      for (int i = 0; i < kRounds; ++i) {
        const auto base = static_cast<std::uintptr_t>(w + 1) << 32;
        if (!tracker.record(piece(base, 64, MemoryPurpose::kv_cache))) ++failures;
        if (!tracker.record(piece(base + 64, 32, MemoryPurpose::model_weights))) ++failures;
        if (!tracker.erase(at(base))) ++failures;
        if (!tracker.erase(at(base + 64))) ++failures;
      }
    });
  }
  std::thread reader([&] {
    while (!done) {
      const MemoryBreakdown now = tracker.breakdown();
      std::uint64_t bytes = 0;
      std::uint64_t count = 0;
      for (const MemoryUsage& usage : now.by_purpose) {
        bytes += usage.bytes;
        count += usage.count;
      }
      if (bytes != now.total.bytes || count != now.total.count) ++failures;
      if (now.allocations_ever - now.frees_ever != now.total.count) ++failures;
      if (now.total.bytes > now.total.peak_bytes) ++failures;
      if (tracker.report().empty()) ++failures;
      std::uintptr_t last = 0;
      for (const AllocationRecord& record : tracker.allocations()) {
        if (reinterpret_cast<std::uintptr_t>(record.pointer) <= last) ++failures;
        last = reinterpret_cast<std::uintptr_t>(record.pointer);
      }
    }
  });
  for (std::thread& writer : writers) writer.join();
  done = true;
  reader.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(tracker.breakdown().total.count, 0U);
  EXPECT_EQ(tracker.breakdown().allocations_ever, 2U * kWriters * kRounds);
}

}  // namespace
}  // namespace kvarena
