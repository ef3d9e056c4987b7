// Pressure scenarios on every kind of device, scaled down: each passes, and its figures are what
// arithmetic says.

#include "scenarios/memory_reading.hpp"
#include "support/devices.hpp"
#include "unit/scenarios/faulty_memory_device.hpp"
#include "unit/scenarios/small_suite.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena::scenarios {
namespace {

using test::check_of;
using test::failures_of;
using test::figure_of;
using test::report_of;
using test::small_suite;

constexpr std::int64_t kBytesPerToken = 2 * 2 * 2 * 16 * 2;

std::unique_ptr<Device> device_of(DeviceKind kind) {
  if (kind == DeviceKind::host) return test::small_host();
  return test::make_device(kind);
}

class Pressure : public testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override {
    KVARENA_NEEDS_DEVICE(GetParam());
    device_ = device_of(GetParam());
  }
  void TearDown() override {
    if (device_ == nullptr) return;
    EXPECT_EQ(device_->tracker().allocations().size(), 0U);
  }
  SuiteOptions options() { return small_suite(*device_); }
  bool on_host() const { return GetParam() == DeviceKind::host; }

  std::unique_ptr<Device> device_;
};

INSTANTIATE_TEST_SUITE_P(Devices, Pressure, testing::ValuesIn(test::device_kinds()),
                         test::kind_name);

/// The rows of a figure that is a table, each as column and value.
std::vector<std::map<std::string, std::int64_t>> rows_of(const ScenarioReport& report,
                                                         std::string_view name) {
  std::vector<std::map<std::string, std::int64_t>> rows;
  for (const Figure& figure : report.figures) {
    if (figure.name != name) continue;
    const auto& table = std::get<FigureTable>(figure.value);
    for (const auto& row : table.rows) {
      EXPECT_EQ(row.size(), table.columns.size()) << name;
      auto& cells = rows.emplace_back();
      for (std::size_t i = 0; i < row.size(); ++i) cells[table.columns[i]] = row[i];
    }
  }
  return rows;
}

/// One column of them.
std::vector<std::int64_t> column_of(const std::vector<std::map<std::string, std::int64_t>>& rows,
                                    const std::string& column) {
  std::vector<std::int64_t> values;
  for (const auto& row : rows) values.push_back(row.contains(column) ? row.at(column) : -1);
  return values;
}

/// A figure in words; empty when there is none.
std::string words_of(const ScenarioReport& report, std::string_view name) {
  for (const Figure& figure : report.figures) {
    if (figure.name == name) return std::get<std::string>(figure.value);
  }
  return {};
}

using Values = std::vector<std::int64_t>;

TEST_P(Pressure, EveryTableOfMemoryHasTrackerDriverAndProcess) {
  for (const char* name : {"maximum-context", "growth", "near-full", "concurrency"}) {
    const auto rows = rows_of(report_of(options(), name), "memory");
    ASSERT_FALSE(rows.empty()) << name;
    for (const auto& row : rows) {
      for (const char* column : {"tracked_bytes", "weights_bytes", "kv_cache_bytes",
                                 "driver_used_bytes", "process_rss_bytes"}) {
        ASSERT_TRUE(row.contains(column)) << name << ": " << column;
      }
      EXPECT_EQ(row.at("weights_bytes"), options().model.weights_bytes) << name;
      EXPECT_GE(row.at("driver_used_bytes"), row.at("tracked_bytes")) << name;
      EXPECT_GT(row.at("process_rss_bytes"), 0) << name;
    }
  }
}

TEST_P(Pressure, ConcurrencySaysWhatLimitsItsPool) {
  const auto report = report_of(options(), "concurrency");
  EXPECT_EQ(words_of(report, "pool_limited_by"), on_host() ? "run_time" : "max_sequences");
  if (!on_host()) return;
  EXPECT_EQ(figure_of(report, "pool_blocks"), options().sizes.batch_blocks);
  SuiteOptions large = options();
  large.sizes.batch_blocks = 1'000'000'000;
  EXPECT_EQ(words_of(report_of(large, "concurrency"), "pool_limited_by"), "max_sequences");
  const auto small = test::small_host(4 << 20);
  large = small_suite(*small);
  large.sizes.batch_blocks = 1'000'000'000;
  const auto full = report_of(large, "concurrency");
  EXPECT_TRUE(full.passed()) << failures_of(full);
  EXPECT_EQ(words_of(full, "pool_limited_by"), "memory");
  EXPECT_GT(figure_of(full, "pool_blocks") * 16 * kBytesPerToken, 2 << 20);
}

TEST_P(Pressure, MaximumContextIsReachedAndNotPassed) {
  const auto report = report_of(options(), "maximum-context");
  EXPECT_TRUE(report.passed()) << failures_of(report);
  EXPECT_EQ(figure_of(report, "blocks"), 16);
  EXPECT_EQ(figure_of(report, "prefill_tokens"), 216);
  EXPECT_EQ(check_of(report, "one token past the context").seen,
            "context_length_exceeded, required 257, available 256");
  EXPECT_EQ(check_of(report, "a prompt of 356 tokens, whole").seen,
            "context_length_exceeded, required 356, available 256");
  EXPECT_EQ(figure_of(report, "kv_bytes_written"), 256 * kBytesPerToken);
  const auto rows = rows_of(report, "memory");
  // At creation, at its fullest and at the end.
  EXPECT_EQ(column_of(rows, "tokens"), (Values{0, 216, 256, 0}));
  EXPECT_EQ(column_of(rows, "kv_cache_bytes"), Values(4, 17 * 16 * kBytesPerToken));
}

TEST_P(Pressure, GrowthIsTheLayoutsArithmetic) {
  const auto report = report_of(options(), "growth");
  EXPECT_TRUE(report.passed()) << failures_of(report);
  EXPECT_EQ(figure_of(report, "bytes_per_token"), kBytesPerToken);
  EXPECT_EQ(figure_of(report, "bytes_per_token_per_layer"), kBytesPerToken / 2);
  const auto& blocks = std::get<FigureTable>(report.figures[3].value);
  std::vector<std::int64_t> lengths;
  for (const auto& row : blocks.rows) {
    lengths.push_back(row[0]);
    EXPECT_EQ(row[1], (row[0] + 15) / 16);
    EXPECT_EQ(row[2], row[1] * 16 * kBytesPerToken);
    EXPECT_EQ(row[3], row[0] * kBytesPerToken);
  }
  EXPECT_EQ(lengths, (std::vector<std::int64_t>{0, 1, 16, 128, 256}));
}

TEST_P(Pressure, NearFullHasNoRoomForOneBlockMore) {
  const auto report = report_of(options(), "near-full");
  EXPECT_TRUE(report.passed()) << failures_of(report);
  const std::int64_t blocks = figure_of(report, "largest_pool_blocks");
  EXPECT_GT(blocks, 16);
  if (on_host()) {
    const std::int64_t headroom = figure_of(report, "round_1_headroom_bytes");
    EXPECT_LT(headroom, 16 * kBytesPerToken);
    EXPECT_GE(headroom, 0);
    EXPECT_LE(blocks * 16 * kBytesPerToken, std::int64_t{test::kSmallDeviceBytes});
  }
  EXPECT_EQ(check_of(report, "round 2: a block more").seen, "exhausted, required 1, available 0");
  const auto rows = rows_of(report, "memory");
  const std::int64_t pool = blocks * 16 * kBytesPerToken;
  // At creation, full and released.
  EXPECT_EQ(column_of(rows, "round"), (Values{1, 1, 1, 2, 2, 2}));
  EXPECT_EQ(column_of(rows, "blocks_in_use"), (Values{0, blocks, 0, 0, blocks, 0}));
  EXPECT_EQ(column_of(rows, "kv_cache_bytes"), (Values{pool, pool, 0, pool, pool, 0}));
  // Which allocation it was that one block more had no room for.
  const std::string refused = words_of(report, "one_block_more_refused_request");
  EXPECT_TRUE(refused.starts_with(
      std::to_string(figure_of(report, "one_block_more_required_bytes")) + " bytes"))
      << refused;
  EXPECT_TRUE(refused.find(" for KVCache \"") != std::string::npos ||
              refused.find(" for IntermediateBuffers \"") != std::string::npos)
      << refused;
  EXPECT_TRUE(refused.ends_with('"')) << refused;
}

TEST_P(Pressure, ConcurrencyComparesEveryResultAndLosesNothing) {
  const auto report = report_of(options(), "concurrency");
  EXPECT_TRUE(report.passed()) << failures_of(report);
  EXPECT_GT(figure_of(report, "overload_preemptions"), 0);
  EXPECT_GT(figure_of(report, "overload_admissions_refused"), 0);
  EXPECT_EQ(check_of(report, "overload: sequences that came to their end").seen, "16");
  EXPECT_EQ(check_of(report, "sequences in the batch of 4").seen, "4");
  const auto rows = rows_of(report, "memory");
  const auto batches = rows_of(report, "batches");
  ASSERT_EQ(batches.size(), 4U);
  Values sequences{0};
  for (const auto& batch : batches) sequences.push_back(batch.at("sequences"));
  sequences.push_back(0);
  EXPECT_EQ(column_of(rows, "sequences"), sequences);
  const std::int64_t pool = figure_of(report, "pool_blocks") * 16 * kBytesPerToken;
  EXPECT_EQ(column_of(rows, "kv_cache_bytes"), Values(6, pool));
}

TEST_P(Pressure, LongGenerationHoldsItsMemory) {
  const auto report = report_of(options(), "long-generation");
  EXPECT_TRUE(report.passed()) << failures_of(report);
  EXPECT_GE(figure_of(report, "appends"), 4'000);
  EXPECT_GT(figure_of(report, "sequences_finished"), 4'000 / 64);
  EXPECT_EQ(figure_of(report, "batch"), 8);
}

TEST_P(Pressure, EveryGroupOfLayersIsExhaustedAndRecovers) {
  const auto report = report_of(options(), "groups");
  EXPECT_TRUE(report.passed()) << failures_of(report);
  EXPECT_GE(figure_of(report, "pages"), 16);
  EXPECT_GE(figure_of(report, "sequences_admitted"), 1);
  EXPECT_GE(figure_of(report, "preemptions"), 1);
  std::int64_t groups = 0;
  for (const auto& figure : report.figures) {
    if (figure.name == "groups") groups = std::ssize(std::get<FigureTable>(figure.value).rows);
  }
  EXPECT_GE(groups, 3) << "all tokens, a window, a state";
  for (std::int64_t g = 0; g < groups; ++g) {
    const std::string who = "group " + std::to_string(g);
    const auto check = check_of(report, who + ": a block of " + who + " more");
    EXPECT_EQ(check.seen, "exhausted (page) of " + who + ", required 1, available 0");
    EXPECT_TRUE(check.held);
    EXPECT_TRUE(check_of(report, who + ": its pages").held) << "every page of the pool";
    EXPECT_TRUE(check_of(report, "all groups: a block of " + who + " more").held);
  }
}

TEST_P(Pressure, NothingIsLeftAndEveryScenarioSaysWhatItChecked) {
  SuiteOptions all = options();
  for (const auto& scenario : scenarios()) {
    // A GPU's memory comes in pieces larger than this model's budgets.
    if (on_host() || scenario.name != "allocation-failure") {
      all.scenarios.emplace_back(scenario.name);
    }
  }
  const auto outcome = run_suite(all, nullptr);
  EXPECT_FALSE(outcome.failure) << outcome.failure->why.found;
  ASSERT_EQ(outcome.report.scenarios.size(), all.scenarios.size());
  for (const auto& scenario : outcome.report.scenarios) {
    EXPECT_FALSE(scenario.failed()) << scenario.name << ": " << failures_of(scenario);
    if (!scenario.skipped.empty()) continue;
    EXPECT_FALSE(scenario.figures.empty()) << scenario.name;
    std::set<std::string> names;
    for (const auto& figure : scenario.figures) {
      EXPECT_TRUE(names.insert(figure.name).second) << scenario.name << ": " << figure.name;
    }
  }
}

TEST(PressureRun, WhatDoesNotFitIsRefusedBeforeAnythingRuns) {
  const auto device = test::small_host(1 << 20);
  const auto outcome = run_suite(small_suite(*device), nullptr);
  ASSERT_TRUE(outcome.failure);
  EXPECT_EQ(outcome.failure->end, RunEnd::does_not_fit);
  EXPECT_FALSE(outcome.has_report);
  // Weights, the blocks of one context and one more, workspaces.
  EXPECT_GT(outcome.required_bytes, (1 << 20) + 77 + 17 * 16 * kBytesPerToken);
  EXPECT_EQ(outcome.failure->why.expected.find(std::to_string(outcome.required_bytes) + " bytes"),
            0U)
      << outcome.failure->why.expected;
  EXPECT_EQ(outcome.failure->why.found, "host has 1048576 bytes (1.00 MiB) free");
}

/// What a scenario is said to need is enough, and a byte less is not.
TEST(Requirement, IsEnoughForEveryScenario) {
  const auto probe = test::small_host();
  for (const Scenario& scenario : scenarios()) {
    if (scenario.name == "neighbours") continue;
    SuiteOptions options = small_suite(*probe);
    const auto required = scenario.required_bytes({.options = options, .scenario = scenario.name});
    ASSERT_TRUE(required) << scenario.name;
    const auto device = test::small_host(static_cast<std::uint64_t>(*required));
    options.device = device.get();
    const ScenarioReport report = report_of(options, std::string(scenario.name));
    EXPECT_TRUE(report.passed()) << scenario.name << ": " << failures_of(report);
    const auto small = test::small_host(static_cast<std::uint64_t>(*required - 1));
    options.device = small.get();
    options.scenarios = {std::string(scenario.name)};
    EXPECT_FALSE(run_suite(options, nullptr).has_report) << scenario.name;
  }
}

TEST(PressureRun, AnUnknownScenarioIsWrongUsage) {
  const auto device = test::small_host();
  auto options = small_suite(*device);
  options.scenarios = {"growth", "grwoth"};
  const auto outcome = run_suite(options, nullptr);
  ASSERT_TRUE(outcome.failure);
  EXPECT_EQ(outcome.failure->end, RunEnd::bad_options);
  EXPECT_EQ(headline(outcome.failure->why), "scenarios: found grwoth");
}

/// Breaks what it is told to when a scenario begins.
class Saboteur : public ProgressSink {
 public:
  explicit Saboteur(Device& device) : device_(device) {}
  void on_begin(std::string_view, std::string_view) override {}
  void on_progress(std::string_view name, std::string_view) override {
    if (name != "near-full" || taken_ != nullptr) return;
    const auto memory = device_.allocate({.bytes = 4096, .description = "not the scenario's"});
    taken_ = memory ? *memory : nullptr;
  }
  void on_end(const ScenarioReport&) override {
    if (taken_ != nullptr) static_cast<void>(device_.free(std::exchange(taken_, nullptr)));
  }

 private:
  Device& device_;
  void* taken_ = nullptr;
};

TEST(PressureRun, AScenarioThatFailsDoesNotEndTheRun) {
  const auto device = test::small_host();
  auto options = small_suite(*device);
  options.scenarios = {"near-full", "concurrency"};
  Saboteur saboteur(*device);
  const auto outcome = run_suite(options, &saboteur);
  ASSERT_TRUE(outcome.failure);
  EXPECT_EQ(outcome.failure->end, RunEnd::check_failed);
  ASSERT_EQ(outcome.report.scenarios.size(), 2U);
  EXPECT_TRUE(outcome.report.scenarios[0].failed());
  EXPECT_TRUE(outcome.report.scenarios[1].passed()) << failures_of(outcome.report.scenarios[1]);
  EXPECT_EQ(outcome.failure->why.found, "1 of 2 scenarios failed");
}

/// Stops the run when a scenario has come to some point.
class Stopper : public ProgressSink {
 public:
  explicit Stopper(std::string_view scenario) : scenario_(scenario) {}
  void on_begin(std::string_view, std::string_view) override {}
  void on_progress(std::string_view name, std::string_view) override {
    if (name == scenario_) stop = true;
  }
  void on_end(const ScenarioReport&) override {}
  std::atomic<bool> stop{false};

 private:
  std::string_view scenario_;
};

TEST(PressureRun, WhatWasFinishedBeforeAnInterruptionIsKept) {
  for (const char* name : {"maximum-context", "near-full", "concurrency", "long-generation"}) {
    const auto device = test::small_host();
    auto options = small_suite(*device);
    options.scenarios = {"growth", name, "neighbours"};
    Stopper stopper(name);
    options.stop = &stopper.stop;
    const auto outcome = run_suite(options, &stopper);
    ASSERT_TRUE(outcome.failure) << name;
    EXPECT_EQ(outcome.failure->end, RunEnd::interrupted) << name;
    ASSERT_EQ(outcome.report.scenarios.size(), name == std::string("maximum-context") ? 1U : 2U);
    const ScenarioReport& last = outcome.report.scenarios.back();
    EXPECT_TRUE(last.interrupted()) << name;
    EXPECT_FALSE(last.passed() || last.failed()) << name;
    if (last.name != "maximum-context") {
      EXPECT_TRUE(outcome.report.scenarios[0].passed()) << name;
    }
    EXPECT_EQ(outcome.report.not_run.back(), "neighbours") << name;
    EXPECT_TRUE(device->tracker().allocations().empty()) << name;
  }
}

/// Interrupts each scenario as it begins.
class StopsAtOnce final : public Stopper {
 public:
  StopsAtOnce() : Stopper("") {}
  void on_begin(std::string_view, std::string_view) override { stop = true; }
};

TEST(PressureRun, AnInterruptedScenarioHasNotFailed) {
  for (const Scenario& scenario : scenarios()) {
    StopsAtOnce stopper;
    const auto device = test::small_host();
    auto options = small_suite(*device);
    options.scenarios = {std::string(scenario.name)};
    options.stop = &stopper.stop;
    const auto outcome = run_suite(options, &stopper);
    for (const ScenarioReport& report : outcome.report.scenarios) {
      EXPECT_FALSE(report.failed()) << scenario.name << ": " << failures_of(report);
    }
  }
}

TEST(PressureRun, LeaksSaysNothingOfAFirstCycleThatWasNotDone) {
  StopsAtOnce stopper;
  const auto device = test::small_host();
  auto options = small_suite(*device);
  options.scenarios = {"leaks"};
  options.stop = &stopper.stop;
  const auto outcome = run_suite(options, &stopper);
  ASSERT_EQ(outcome.report.scenarios.size(), 1U);
  const ScenarioReport& leaks = outcome.report.scenarios[0];
  EXPECT_TRUE(leaks.interrupted());
  EXPECT_EQ(figure_of(leaks, "load_cycles"), 0);
  EXPECT_EQ(figure_of(leaks, "load_free_bytes_after_first"), -1);
  EXPECT_TRUE(leaks.checks.empty()) << failures_of(leaks);
}

TEST(PressureFaults, TheMatchingCheckFails) {
  const struct {
    test::MemoryFault fault;
    const char* scenario;
    const char* check;
  } matches[] = {
      {test::MemoryFault::byte_count, "growth",
       "lengths whose KV bytes are not tokens x bytes a token, within one block"},
      {test::MemoryFault::residency, "maximum-context", "place of 4 K and V planes, before decode"},
      {test::MemoryFault::residency, "long-generation", "residency violations in all readings"}};
  for (const auto& match : matches) {
    const auto device = test::small_host();
    SuiteOptions options = small_suite(*device);
    test::FaultyMemoryDevice faulty(*device, match.fault);
    options.device = &faulty;
    const ScenarioReport report = report_of(options, match.scenario);
    EXPECT_TRUE(report.failed()) << match.scenario;
    EXPECT_FALSE(report.ended) << match.scenario << ": " << report.ended->why.found;
    const auto check = check_of(report, match.check);
    EXPECT_EQ(check.what, match.check) << match.scenario;
    EXPECT_FALSE(check.held) << match.scenario << ": " << failures_of(report);
  }
}

TEST(PressureFaults, ALostPoolLeavesNoRoomForTheLargest) {
  const auto device = test::small_host();
  SuiteOptions options = small_suite(*device);
  test::FaultyMemoryDevice faulty(*device, test::MemoryFault::leak);
  options.device = &faulty;
  const ScenarioReport report = report_of(options, "near-full");
  EXPECT_TRUE(report.failed());
  ASSERT_TRUE(report.ended) << failures_of(report);
  EXPECT_EQ(report.ended->end, RunEnd::does_not_fit) << report.ended->why.found;
}

TEST(ServedModels, AreThePublishedNumbers) {
  EXPECT_EQ(served_model_names(),
            (std::vector<std::string>{"Phi-3-mini", "Phi-3-mini-4k-instruct", "Qwen2.5-0.5B"}));
  for (const char* name : {"Phi-3-mini", "Phi-3-mini-4k-instruct"}) {
    const ServedModel phi = find_served_model(name).value();
    EXPECT_EQ(phi.name, "Phi-3-mini");
    EXPECT_EQ(phi.weights_bytes, 7'642'159'104);
    EXPECT_EQ(phi.shape.dtype, DType::f16);
    const auto layout = KvLayout::create(phi.shape);
    ASSERT_TRUE(layout);
    EXPECT_EQ(layout->bytes_per_token(), 393'216);
    EXPECT_EQ(layout->bytes_per_token() / phi.shape.num_layers, 12'288);
    EXPECT_EQ(phi.num_q_heads, 32);
    EXPECT_EQ(phi.max_context_tokens, 4096);
  }
  const ServedModel qwen = find_served_model("Qwen2.5-0.5B").value();
  EXPECT_EQ(qwen.weights_bytes, 988'065'536);
  EXPECT_EQ(KvLayout::create(qwen.shape)->bytes_per_token(), 12'288);
  EXPECT_EQ(qwen.num_q_heads, 14);
  EXPECT_EQ(qwen.max_context_tokens, 32'768);
  EXPECT_FALSE(find_served_model("GPT-9"));
}

}  // namespace
}  // namespace kvarena::scenarios
