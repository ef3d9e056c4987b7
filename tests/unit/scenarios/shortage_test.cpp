// Scenarios allocation-failure and leaks, as they are and with defects planted.

#include "faulty_memory_device.hpp"
#include "small_suite.hpp"

#include "device/forwarding_device.hpp"
#include "scenarios/memory_reading.hpp"
#include "support/process_memory.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace kvarena::scenarios {
namespace {

using test::MemoryFault;

constexpr std::uint64_t kCapacity = 48 << 20;

/// Blocks of 4 KiB, sequences of 1 MiB and weights of 4 MiB, so that what a small cache needs fits
/// into what is too small for them.
SuiteOptions options_for(Device& device) {
  SuiteOptions options = test::small_suite(device);
  options.model.max_context_tokens = 4096;
  options.model.weights_bytes = 4 << 20;
  options.sizes.load_cycles = 4;
  options.sizes.sequence_cycles = 40;
  return options;
}

/// Whether a check whose words begin so did not hold.
bool has_failed(const ScenarioReport& report, std::string_view words) {
  return std::any_of(report.checks.begin(), report.checks.end(), [words](const Check& check) {
    return !check.held && check.what.starts_with(words);
  });
}

ScenarioReport run(Device& device, const char* scenario) {
  return test::report_of(options_for(device), scenario);
}

/// With a defect; all that was lost has been given back when it returns.
ScenarioReport run(Device& device, const char* scenario, MemoryFault fault) {
  test::FaultyMemoryDevice faulty(device, fault);
  return run(faulty, scenario);
}

TEST(AllocationFailureScenario, PassesAndShowsWhatWasRequiredAndAvailable) {
  const auto device = test::small_host(kCapacity);
  const ScenarioReport report = run(*device, "allocation-failure");
  EXPECT_TRUE(report.passed()) << test::failures_of(report);
  EXPECT_EQ(test::figure_of(report, "weights_required_bytes"), 4 << 20);
  EXPECT_EQ(test::figure_of(report, "weights_available_bytes"), (4 << 20) / 8 * 7);
  EXPECT_EQ(test::figure_of(report, "sequence_required_bytes"), 1 << 20);
  EXPECT_EQ(test::figure_of(report, "sequence_available_bytes"), (1 << 20) / 8 * 7);
  EXPECT_EQ(test::figure_of(report, "arena_required_bytes"), (48 << 20) + 4096);
  EXPECT_EQ(test::figure_of(report, "arena_available_bytes"), 48 << 20);
  // Weights and a sequence's blocks, and something for the cache's workspaces.
  EXPECT_LE(test::figure_of(report, "first_instances"), 48 / 5);
  EXPECT_GE(test::figure_of(report, "first_instances"), 48 / 6);
  EXPECT_EQ(device->tracker().breakdown().total.count, 0U);
}

TEST(LeaksScenario, Passes) {
  const auto device = test::small_host(kCapacity);
  const ScenarioReport report = run(*device, "leaks");
  EXPECT_TRUE(report.passed()) << test::failures_of(report);
  EXPECT_EQ(test::figure_of(report, "load_cycles"), 4);
  EXPECT_EQ(test::figure_of(report, "load_first_cycle_bytes"), 0) << "a host device has no context";
  EXPECT_EQ(test::figure_of(report, "load_free_bytes_after_last"), 48 << 20);
  EXPECT_EQ(test::figure_of(report, "create_cycles"), 40);
  EXPECT_EQ(test::figure_of(report, "create_free_bytes_after_last"), 48 << 20);
}

TEST(PlantedDefects, AreFoundByTheirChecks) {
  const struct {
    MemoryFault fault;
    const char* scenario;
    std::vector<std::string_view> failed;  // checks, by their first words
  } matches[] = {{MemoryFault::byte_count,
                  "allocation-failure",
                  {"sequence: bytes required", "arena: bytes required"}},
                 {MemoryFault::leak,
                  "allocation-failure",
                  {"first fill: tracked bytes, all instances dropped"}},
                 {MemoryFault::leak,
                  "leaks",
                  {"load, cycles with other free bytes",
                   "load, last cycle against the first: tracked allocations",
                   "create, cycles with other tracked memory"}},
                 {MemoryFault::residency, "leaks", {"residency violations"}}};
  for (const auto& [fault, scenario, failed] : matches) {
    const auto device = test::small_host(kCapacity);
    const ScenarioReport report = run(*device, scenario, fault);
    EXPECT_TRUE(report.failed()) << scenario << ": " << failed.front();
    for (const auto words : failed)
      EXPECT_TRUE(has_failed(report, words)) << scenario << ": " << words;
    EXPECT_EQ(device->tracker().breakdown().total.count, 0U) << scenario;
  }
}

/// A device that takes memory of the process when a model is unloaded, and keeps it.
class GreedyDevice final : public ForwardingDevice {
 public:
  /// So many bytes in each unloading from the first to the last.
  GreedyDevice(Device& inner, std::size_t bytes, int first, int last)
      : ForwardingDevice(inner), bytes_(bytes), first_(first), last_(last) {}
  Status free(void* pointer) override {
    const Result<AllocationRecord> record = tracker().find(pointer);
    if (record && record->purpose == MemoryPurpose::model_weights) {
      ++unloaded_;
      if (first_ <= unloaded_ && unloaded_ <= last_) kept_.emplace_back(bytes_, '\1');
    }
    return ForwardingDevice::free(pointer);
  }

 private:
  const std::size_t bytes_;
  const int first_, last_;
  int unloaded_ = 0;
  std::vector<std::string> kept_;
};

ScenarioReport leaks_with(std::size_t bytes, int first, int last) {
  const auto device = test::small_host(kCapacity);
  GreedyDevice greedy(*device, bytes, first, last);
  SuiteOptions options = options_for(greedy);
  options.sizes.load_cycles = 9;
  return test::report_of(options, "leaks");
}

TEST(LeaksScenario, WhatTheProcessTakesOnceIsNoLeak) {
  const ScenarioReport report = leaks_with(std::size_t{35} << 20, 2, 2);
  EXPECT_TRUE(report.passed()) << test::failures_of(report);
}

TEST(LeaksScenario, WhatTheProcessTakesInEveryCycleIsALeak) {
  if (test::kSanitized) GTEST_SKIP() << "a sanitizer's own memory grows, too";
  const ScenarioReport report = leaks_with(64 << 10, 1, 9);
  const std::int64_t growth = test::figure_of(report, "load_heap_bytes_per_cycle");
  EXPECT_LT(std::abs(growth - (64 << 10)), 1024) << growth;  // the heap has other users
  EXPECT_TRUE(has_failed(report, "load, bytes in use of the process's heap"));
  EXPECT_TRUE(has_failed(report, "load, resident bytes of the process"));
}

TEST(LeaksScenario, CyclesThatAreAlikeAreOneRow) {
  const auto device = test::small_host(kCapacity);
  const ScenarioReport report = run(*device, "leaks");
  for (const Figure& figure : report.figures) {
    if (figure.name != "create_memory") continue;
    const auto& table = std::get<FigureTable>(figure.value);
    ASSERT_EQ(table.rows.size(), 1U);
    EXPECT_EQ(table.rows[0][0], 0);
    EXPECT_EQ(table.rows[0][1], 41);
  }
}

TEST(ProcessGrowth, IsWhatGoesOnAfterTheFirstThird) {
  const auto growth = [](std::vector<std::int64_t> values) { return growth_per_cycle(values); };
  EXPECT_EQ(growth({}), 0);
  EXPECT_EQ(growth({7}), 0);
  EXPECT_EQ(growth({1, 4}), 3);
  EXPECT_EQ(growth({0, 10, 20, 30, 40, 50, 60, 70, 80, 90}), 10);
  EXPECT_EQ(growth({0, 35, 35, 35, 35, 35, 35, 35, 35, 35}), 0);
  EXPECT_EQ(growth({0, 5, 1, 1, 90, 1, 1, 90, 1, 90}), 0) << "taken and given back";
  EXPECT_EQ(growth({0, 0, 3, 3, 3, 6, 6, 6, 9}), 1) << "every third cycle";
}

}  // namespace
}  // namespace kvarena::scenarios
