// Scenarios allocation-failure and leaks, as they are and with defects planted.

#include "small_pressure.hpp"

#include "support/process_memory.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

namespace kvarena::replay::pressure {
namespace {

constexpr std::uint64_t kCapacity = 48 << 20;

/// Blocks of 4 KiB, sequences of 1 MiB and weights of 4 MiB, so that what a small cache needs fits
/// into what is too small for them.
PressureOptions options_for(Device& device, PressureFault fault = PressureFault::none) {
  PressureOptions options = test::small_pressure(device);
  options.model.max_context_tokens = 4096;
  options.model.weights_bytes = 4 << 20;
  options.sizes.load_cycles = 4;
  options.sizes.sequence_cycles = 40;
  options.fault = fault;
  return options;
}

/// Whether a check whose words begin so did not hold.
bool has_failed(const ScenarioReport& report, std::string_view words) {
  return std::any_of(report.checks.begin(), report.checks.end(), [words](const Check& check) {
    return !check.held && check.what.starts_with(words);
  });
}

ScenarioReport run(Device& device, const char* scenario, PressureFault fault) {
  return test::report_of(options_for(device, fault), scenario);
}

TEST(AllocationFailureScenario, PassesAndShowsWhatWasRequiredAndAvailable) {
  const auto device = test::small_host(kCapacity);
  const ScenarioReport report = run(*device, "allocation-failure", PressureFault::none);
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

TEST(AllocationFailureScenario, FindsBytesThatAreNotThoseAskedFor) {
  const auto device = test::small_host(kCapacity);
  const ScenarioReport report = run(*device, "allocation-failure", PressureFault::byte_count);
  EXPECT_TRUE(report.failed());
  EXPECT_TRUE(has_failed(report, "sequence: bytes required"));
  EXPECT_TRUE(has_failed(report, "arena: bytes required"));
}

TEST(AllocationFailureScenario, FindsALeak) {
  const auto device = test::small_host(kCapacity);
  const ScenarioReport report = run(*device, "allocation-failure", PressureFault::leak);
  EXPECT_TRUE(report.failed());
  EXPECT_TRUE(has_failed(report, "first fill: tracked bytes, all instances dropped"));
  EXPECT_EQ(device->tracker().breakdown().total.count, 0U) << "the fault ends with its scenario";
}

TEST(LeaksScenario, Passes) {
  const auto device = test::small_host(kCapacity);
  const ScenarioReport report = run(*device, "leaks", PressureFault::none);
  EXPECT_TRUE(report.passed()) << test::failures_of(report);
  EXPECT_EQ(test::figure_of(report, "load_cycles"), 4);
  EXPECT_EQ(test::figure_of(report, "load_first_cycle_bytes"), 0) << "a host device has no context";
  EXPECT_EQ(test::figure_of(report, "load_free_bytes_after_last"), 48 << 20);
  EXPECT_EQ(test::figure_of(report, "create_cycles"), 40);
  EXPECT_EQ(test::figure_of(report, "create_free_bytes_after_last"), 48 << 20);
}

TEST(LeaksScenario, FindsALeak) {
  const auto device = test::small_host(kCapacity);
  const ScenarioReport report = run(*device, "leaks", PressureFault::leak);
  EXPECT_TRUE(report.failed());
  EXPECT_TRUE(has_failed(report, "load, cycles with other free bytes"));
  EXPECT_TRUE(has_failed(report, "load, last cycle against the first: tracked allocations"));
  EXPECT_TRUE(has_failed(report, "create, cycles with other tracked memory"));
}

TEST(LeaksScenario, FindsAResidencyLie) {
  const auto device = test::small_host(kCapacity);
  const ScenarioReport report = run(*device, "leaks", PressureFault::residency);
  EXPECT_TRUE(report.failed());
  EXPECT_TRUE(has_failed(report, "residency violations"));
}

TEST(LeaksScenario, HoldsTheProcessToItsBound) {
  const auto device = test::small_host(kCapacity);
  PressureOptions options = options_for(*device);
  options.sizes.resident_growth_bytes = -1;
  const ScenarioReport report = test::report_of(options, "leaks");
  EXPECT_TRUE(has_failed(report, "load, growth of the process's resident bytes"));
}

}  // namespace
}  // namespace kvarena::replay::pressure
