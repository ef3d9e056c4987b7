// The parts of pressure scenarios: reports, weights, step times, the search for the largest pool,
// the engine's answers.

#include "scenarios/checks.hpp"
#include "scenarios/engine.hpp"
#include "scenarios/memory_reading.hpp"
#include "scenarios/served_model.hpp"
#include "scenarios/step_times.hpp"
#include "unit/scenarios/small_suite.hpp"

#include "verify/step_memory.hpp"

#include "kvarena/cache/cache_footprint.hpp"

#include "support/text_matchers.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace kvarena::scenarios {
namespace {

using test::small_host;
using test::small_model;

TEST(ScenarioReport, PassesWhenEveryCheckHoldsAndThereIsOne) {
  ScenarioReport report;
  EXPECT_FALSE(report.passed());
  EXPECT_TRUE(report.failed());
  EXPECT_TRUE(report.expect_equal("a", 1, 1));
  EXPECT_TRUE(report.expect_at_most("b", std::int64_t{2}, std::int64_t{2}));
  EXPECT_TRUE(report.expect_at_least("c", 2, 3));
  EXPECT_TRUE(report.expect_at_most("d", 0.5, 0.25));
  EXPECT_TRUE(report.passed());
  EXPECT_FALSE(report.expect_at_most("e", std::int64_t{2}, std::int64_t{3}));
  EXPECT_FALSE(report.passed());
  EXPECT_TRUE(report.failed());
  EXPECT_EQ(report.checks.back().expected, "at most 2");
  EXPECT_EQ(report.checks.back().seen, "3");
  EXPECT_FALSE(report.expect_equal("f", 1, 2));
  EXPECT_FALSE(report.expect_at_least("g", 2, 1));
  EXPECT_FALSE(report.expect_same("h", "x", "y"));
  EXPECT_FALSE(report.expect_at_most("i", 0.5, std::nan("")));
}

TEST(ScenarioReport, ASkippedOneNeitherPassesNorFails) {
  ScenarioReport report;
  report.skipped = "no second GPU";
  EXPECT_FALSE(report.passed());
  EXPECT_FALSE(report.failed());
}

TEST(ModelWeights, AreRecordedFilledAndGivenBack) {
  const auto device = small_host();
  const std::uint64_t free_before = device->memory_info()->free_bytes;
  {
    const auto weights = ModelWeights::load(*device, {.bytes = 1'000'003, .piece_bytes = 4096});
    ASSERT_TRUE(weights);
    const auto records = device->tracker().allocations();
    ASSERT_EQ(records.size(), 1U);
    EXPECT_EQ(records[0].purpose, MemoryPurpose::model_weights);
    EXPECT_EQ(records[0].bytes, 1'000'003U);
    EXPECT_EQ(*weights->count_wrong_bytes(), 0);
    static_cast<std::uint8_t*>(weights->data())[1'000'002] ^= 1;
    EXPECT_EQ(*weights->count_wrong_bytes(), 1);
    static_cast<std::uint8_t*>(weights->data())[8192] ^= 1;
    EXPECT_EQ(*weights->count_wrong_bytes(), 2);
  }
  EXPECT_EQ(device->memory_info()->free_bytes, free_before);
}

TEST(ModelWeights, TooLargeIsInsufficientVramAndLeavesNothing) {
  const auto device = small_host();
  const auto weights =
      ModelWeights::load(*device, {.bytes = std::int64_t{test::kSmallDeviceBytes} + 1});
  ASSERT_FALSE(weights);
  EXPECT_EQ(weights.status(),
            insufficient_vram(test::kSmallDeviceBytes + 1, test::kSmallDeviceBytes));
  EXPECT_TRUE(device->tracker().allocations().empty());
}

TEST(StepTimes, MediansAreOfTheFirstAndTheLastTenth) {
  StepTimes times(100);
  for (std::int64_t i = 1; i <= 100; ++i) times.add(i, i <= 10 ? 1'000 + i : i > 90 ? 50 : 9);
  EXPECT_EQ(times.first_median_ns(), 1'006);
  EXPECT_EQ(times.last_median_ns(), 50);
  EXPECT_EQ(StepTimes(10).first_median_ns(), 0);
}

TEST(PoolSearch, FindsTheLastBlockThatFits) {
  const auto device = small_host();
  const auto found =
      find_largest_pool(*device, small_model(), {.pool = {.num_blocks = 1}, .num_threads = 1});
  ASSERT_TRUE(found) << describe(found.status());
  EXPECT_EQ(found->refused.code, StatusCode::insufficient_vram);
  const auto attempt = [&](std::int64_t blocks) {
    return CheckedEngine::create(*device, small_model(),
                                 {.pool = {.num_blocks = blocks}, .num_threads = 1})
        .status();
  };
  EXPECT_TRUE(attempt(found->num_blocks));
  EXPECT_EQ(attempt(found->num_blocks + 1).code, StatusCode::insufficient_vram);
  EXPECT_TRUE(device->tracker().allocations().empty());
}

TEST(PoolSearch, LessThanAskedForIsInsufficientVram) {
  const auto device = test::small_host(1 << 16);
  const auto found =
      find_largest_pool(*device, small_model(), {.pool = {.num_blocks = 1'000}, .num_threads = 1});
  ASSERT_FALSE(found);
  EXPECT_EQ(found.status().code, StatusCode::insufficient_vram);
}

TEST(EngineRequirement, OfAGpuHoldsWhateverCreateAsksFor) {
  const EngineOptions options{.pool = {.num_blocks = 2'048}, .mode = AttentionMode::full};
  const CacheTarget target{.kind = DeviceKind::cuda, .num_sms = 132};
  const ServedModel model = find_served_model("Qwen2.5-0.5B").value();
  const auto cache = cache_footprint(CheckedEngine::cache_options(model, options), target);
  ASSERT_TRUE(cache);
  EXPECT_GT(cache->workspace_bytes, 0);
  EXPECT_GT(cache->table_bytes, 0);
  const std::int64_t verification =
      verify::cuda_step_memory_bytes({.shape = model.shape,
                                      .num_q_heads = model.num_q_heads,
                                      .max_step_tokens = options.max_step_tokens,
                                      .longest_tokens = model.max_context_tokens,
                                      .compares_attention = true});
  constexpr std::int64_t kVerificationAllocations = 9;
  const auto required = CheckedEngine::device_bytes(target, model, options);
  ASSERT_TRUE(required);
  EXPECT_GE(*required,
            cache->pool_bytes + cache->workspace_bytes + cache->table_bytes + verification +
                (cache->device_allocations + kVerificationAllocations) * kDriverPieceBytes);
}

TEST(PlaneResidency, AsksForEveryPlaneOfTheFirstAndLastBlock) {
  const auto device = small_host();
  const auto engine =
      CheckedEngine::create(*device, small_model(), {.pool = {.num_blocks = 3}, .num_threads = 1});
  ASSERT_TRUE(engine);
  const auto seen = check_planes(*device, (*engine)->cache().arena());
  ASSERT_TRUE(seen);
  EXPECT_EQ(seen->planes, 4);
  EXPECT_EQ(seen->ranges, 8);
  EXPECT_EQ(seen->permitted, 8);
  EXPECT_EQ(seen->place, "host_device");
  const auto elsewhere = small_host();
  const auto foreign = check_planes(*elsewhere, (*engine)->cache().arena());
  ASSERT_TRUE(foreign);
  EXPECT_EQ(foreign->permitted, 0);
  EXPECT_HAS(foreign->first_violation, "K of layer 0, block 0");
  ScenarioReport report;
  EXPECT_FALSE(expect_resident(report, "now", *elsewhere, (*engine)->cache().arena()));
  EXPECT_FALSE(report.passed());
}

// ---- the engine ---------------------------------------------------------------------------------

class EngineTest : public testing::Test {
 protected:
  void SetUp() override {
    auto made = CheckedEngine::create(*device_, small_model(),
                                      {.pool = {.num_blocks = 8},
                                       .max_step_tokens = 64,
                                       .mode = AttentionMode::full,
                                       .num_threads = 1});
    ASSERT_TRUE(made);
    engine_ = std::move(*made);
  }
  std::unique_ptr<HostDevice> device_ = small_host();
  std::unique_ptr<CheckedEngine> engine_;
};

TEST_F(EngineTest, ARefusedStepChangesNothingAndTheNextOneRuns) {
  const auto job = engine_->add(200, 0);
  ASSERT_TRUE(job);
  ASSERT_FALSE(engine_->extend(**job, 100, StepWork::attend));
  const PoolState before = pool_state(*engine_);
  const StepRow too_many{*job, 64};
  const StepOutcome outcome = engine_->step({&too_many, 1}, StepWork::attend);
  EXPECT_EQ(outcome.refused.code, StatusCode::exhausted);
  EXPECT_FALSE(outcome.failure);
  EXPECT_EQ(pool_state(*engine_), before);
  EXPECT_EQ((*job)->length, 100);
  ASSERT_FALSE(engine_->extend(**job, 128, StepWork::attend));
  ASSERT_FALSE(engine_->finish(**job));
  EXPECT_EQ(engine_->verification().attention_rows, engine_->results_due());
}

TEST_F(EngineTest, AWrongByteIsFound) {
  const auto job = engine_->add(20, 0);
  ASSERT_TRUE(job);
  ASSERT_FALSE(engine_->extend(**job, 20, StepWork::write));
  ASSERT_TRUE(engine_->cache().synchronize());
  const BlockId block = *engine_->cache().tables().lookup((*job)->sequence, 1);
  std::byte* const byte = engine_->cache().arena().address(block, 1, PlaneKind::value);
  *byte ^= std::byte{1};
  const auto failure = engine_->check(**job);
  ASSERT_TRUE(failure);
  EXPECT_HAS(failure->why.found, "token 16, layer 1, head 0, byte 0");
}

TEST_F(EngineTest, APreemptedSequenceIsComputedAgainWithTheSameBytes) {
  const auto job = engine_->add(20, 10);
  ASSERT_TRUE(job);
  ASSERT_FALSE(engine_->extend(**job, 25, StepWork::attend));
  ASSERT_FALSE(engine_->preempt(**job));
  EXPECT_EQ(engine_->cache().manager().stats().free, 8);
  EXPECT_EQ((*job)->prefill_length, 25);
  ASSERT_TRUE(engine_->resume(**job));
  ASSERT_FALSE(engine_->extend(**job, 30, StepWork::attend));
  EXPECT_TRUE((*job)->is_finished());
  EXPECT_FALSE(engine_->finish(**job));
}

TEST_F(EngineTest, OnlyTheLayersAskedForAreWrittenAndCompared) {
  auto made = CheckedEngine::create(
      *device_, small_model(),
      {.pool = {.num_blocks = 8}, .mode = AttentionMode::full, .layers = {1, 1}, .num_threads = 1});
  ASSERT_TRUE(made);
  CheckedEngine& engine = **made;
  const auto job = engine.add(30, 0);
  ASSERT_TRUE(job);
  ASSERT_FALSE(engine.extend(**job, 30, StepWork::attend));
  ASSERT_FALSE(engine.finish(**job));
  const VerificationReport seen = engine.verification();
  EXPECT_EQ(seen.kv_bytes_written, 30 * 128);
  EXPECT_EQ(seen.kv_bytes_compared, 30 * 128);
  EXPECT_EQ(seen.attention_rows, engine.results_due());
}

TEST(ProcessMemory, SeesWhatIsTouched) {
  const ProcessMemory before = read_process_memory();
  std::vector<char> memory(std::size_t{32} << 20, 1);
  const ProcessMemory after = read_process_memory();
  EXPECT_GE(after.resident - before.resident, std::int64_t{30} << 20);
  if (test::kSanitized) return;
  EXPECT_GE(after.heap_in_use - before.heap_in_use, std::int64_t{32} << 20);
}

}  // namespace
}  // namespace kvarena::scenarios
