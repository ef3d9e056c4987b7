// Replays of models whose layers keep different data: with and without bytes, on every clock; each
// planted fault ends the run.

#include "replay/admission.hpp"
#include "replay/engine_pool.hpp"
#include "support/devices.hpp"
#include "support/text_matchers.hpp"
#include "unit/replay/group_trace_model.hpp"
#include "unit/replay/trace_text.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

namespace kvarena::replay {
namespace {

using test::Arrival;
using test::GroupTraceModel;
using test::plain_options;
using test::replay_of;

const std::vector<Arrival> kArrivals = {{0, 37, 30}, {0, 90, 12}, {200, 16, 47}, {900, 150, 20}};

/// Short prompts with long outputs: they run out of pages while they grow.
const std::vector<Arrival> kGrowing = {{0, 20, 140}, {0, 20, 140}, {0, 18, 90}, {500, 60, 9}};

Device& host() {
  static const std::unique_ptr<Device> device = test::make_device(DeviceKind::host);
  return *device;
}

ReplayOptions options_of(const GroupTraceModel& model) {
  ReplayOptions options = plain_options();
  options.groups = {
      .list = model.groups, .page_sequence_tokens = 1024, .checkpoint_every_tokens = 32};
  options.attention.shape.block_size_tokens = 8;
  options.limits.max_running = 16;
  options.limits.max_batched_tokens = 64;
  return options;
}

ReplayOptions full_options(const GroupTraceModel& model) {
  ReplayOptions options = options_of(model);
  options.attention.device = &host();
  options.attention.mode = AttentionMode::full;
  options.attention.num_threads = 2;
  return options;
}

/// Replays and expects that every check holds.
ReplayReport served(const std::vector<Arrival>& arrivals, const ReplayOptions& options) {
  const auto outcome = replay_of(arrivals, options);
  const ReplayReport& report = outcome.report;
  EXPECT_EQ(outcome.end, ReplayEnd::completed) << outcome.why.found;
  EXPECT_TRUE(report.balanced);
  EXPECT_EQ(report.completed, std::ssize(arrivals));
  const PageStats& pages = report.pages.account;
  EXPECT_EQ(pages.free + pages.evictable, pages.num_pages);
  EXPECT_EQ(report.account.referenced, 0);
  return report;
}

class GroupReplay : public testing::TestWithParam<test::GroupModelKind> {
 protected:
  GroupTraceModel model_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(, GroupReplay, testing::ValuesIn(test::kGroupModelKinds),
                         [](const auto& tested) { return std::string(name_of(tested.param)); });

TEST_P(GroupReplay, AnUnlimitedPoolNeverPreempts) {
  for (const Reserve reserve : {Reserve::prompt, Reserve::none, Reserve::full}) {
    ReplayOptions options = options_of(model_);
    options.reserve = reserve;
    const auto report = served(kArrivals, options);
    EXPECT_EQ(report.preemptions, 0);
    EXPECT_EQ(report.prefill_tokens, 37 + 90 + 16 + 150);
    EXPECT_EQ(report.decode_tokens, 30 + 12 + 47 + 20);
  }
}

TEST_P(GroupReplay, GroupsAndWasteAddUpAtThePeak) {
  const auto report = served(kArrivals, options_of(model_));
  ASSERT_FALSE(report.groups.empty());
  std::int64_t bytes = report.pages.peak_waste_bytes;
  for (const GroupUse& group : report.groups) bytes += group.blocks * group.block_bytes;
  EXPECT_EQ(bytes, report.pages.peak_pages * report.pages.page_bytes);
  EXPECT_GT(report.pages.peak_pages, 0);
  EXPECT_EQ(report.peak_blocks, report.pages.peak_pages);
  EXPECT_LE(report.pages.peak_pages, report.pages.num_pages);
  EXPECT_GE(report.pages.waste, 0.0);
  EXPECT_LT(report.pages.waste, 1.0);
  EXPECT_EQ(report.num_blocks, report.pages.num_pages);
}

TEST_P(GroupReplay, EveryByteAndRowIsVerified) {
  const auto report = served(kArrivals, full_options(model_));
  const verify::VerificationReport& seen = report.verification;
  const std::int64_t tokens = 37 + 30 + 90 + 12 + 16 + 47 + 150 + 20;
  EXPECT_EQ(seen.kv_bytes_written, tokens * model_.token_bytes());
  // What leaves a window is compared when it leaves, the rest at the end.
  EXPECT_EQ(seen.kv_bytes_compared, seen.kv_bytes_written);
  EXPECT_EQ(seen.index_bytes_written, tokens * model_.index_bytes());
  EXPECT_EQ(seen.index_bytes_compared, seen.index_bytes_written);
  EXPECT_EQ(seen.sequences_compared, 4);
  EXPECT_GE(seen.attention_rows, model_.num_attention_layers() * (30 + 12 + 47 + 20));
  EXPECT_LT(seen.max_error, seen.tolerance);
  EXPECT_EQ(seen.failures, 0);
  EXPECT_EQ(report.pool_bytes, report.num_blocks * report.pages.page_bytes);
  EXPECT_EQ(model_.has_states(), seen.state_bytes_compared > 0);
  if (!model_.has_states()) return;
  // A state is written in each step of a sequence, and found by the next one.
  EXPECT_GE(seen.state_bytes_written, (30 + 12 + 47 + 20) * model_.state_bytes());
  EXPECT_GE(seen.state_bytes_compared, (30 + 12 + 47 + 20) * model_.state_bytes());
}

TEST_P(GroupReplay, ASampleIsVerifiedWithTheSameFigures) {
  ReplayOptions options = full_options(model_);
  const auto full = served(kArrivals, options);
  options.attention.mode = AttentionMode::sample;
  options.attention.sample_every = 3;
  const auto sample = served(kArrivals, options);
  EXPECT_EQ(sample.verification.kv_bytes_written, full.verification.kv_bytes_written);
  EXPECT_GT(sample.verification.kv_bytes_compared, 0);
  EXPECT_GT(sample.verification.attention_rows, 0);
  EXPECT_EQ(sample.peak_blocks, full.peak_blocks);
  EXPECT_EQ(sample.virtual_us, full.virtual_us);
}

TEST_P(GroupReplay, BytesChangeNoFigure) {
  ReplayOptions options = options_of(model_);
  options.pool.num_blocks = model_.tight_pages();
  const auto without = served(kGrowing, options);
  ReplayOptions with_bytes = full_options(model_);
  with_bytes.pool.num_blocks = model_.tight_pages();
  const auto with = served(kGrowing, with_bytes);
  EXPECT_EQ(with.virtual_us, without.virtual_us);
  EXPECT_EQ(with.preemptions, without.preemptions);
  EXPECT_EQ(with.peak_blocks, without.peak_blocks);
  EXPECT_DOUBLE_EQ(with.pages.waste, without.pages.waste);
  EXPECT_DOUBLE_EQ(with.time_mean_blocks, without.time_mean_blocks);
}

TEST_P(GroupReplay, PreemptedSequencesFindTheirContentAgain) {
  ReplayOptions options = full_options(model_);
  options.reserve = Reserve::none;
  options.pool.num_blocks = model_.tight_pages();
  options.pool.watermark_blocks = 0;
  const auto report = served(kGrowing, options);
  EXPECT_GT(report.preemptions, 0);
}

TEST_P(GroupReplay, ForksFindTheirContent) {
  ReplayOptions options = full_options(model_);
  options.samples = 3;
  const auto report = served(kArrivals, options);
  EXPECT_EQ(report.forks, 8);
  EXPECT_EQ(report.verification.sequences_compared, 12);
  EXPECT_EQ(report.preemptions, 0);
}

TEST_P(GroupReplay, TheLinearClockHoldsWhatIsPromised) {
  ReplayOptions options = options_of(model_);
  options.clock = ClockKind::linear;
  options.reserve = Reserve::full;
  options.limits = {.max_running = 0, .max_batched_tokens = 0};
  const auto report = served(kArrivals, options);
  EXPECT_GT(report.peak_blocks, 0);
}

TEST_P(GroupReplay, LongPromptsInAPoolOfOneAreCutIntoSmallSteps) {
  // A step of 64 tokens has more blocks of a window than the pool has pages.
  ReplayOptions options = options_of(model_);
  options.pool.num_blocks = model_.pages_of(250);
  options.pool.watermark_blocks = 0;
  options.limits.max_batched_tokens = 240;
  const auto report = served({{0, 240, 10}, {0, 240, 10}}, options);
  EXPECT_EQ(report.prefill_tokens + report.decode_tokens - report.recomputed_tokens, 500);
}

TEST_P(GroupReplay, TheTimelineHasPages) {
  std::ostringstream timeline;
  ReplayOptions options = options_of(model_);
  options.timeline = &timeline;
  const auto report = served(kArrivals, options);
  EXPECT_HAS(timeline.str(), "time_s,running,waiting,blocks,tokens,waste");
  // With nothing running no page is in use.
  EXPECT_HAS(timeline.str(), ",0,0,0,0,0.000000,0,4\n");
}

TEST_P(GroupReplay, PromisesAreThoseOfTheTables) {
  const auto units = PoolUnits::create(options_of(model_)).value();
  BlockManager manager =
      BlockManager::create({.num_blocks = 4096, .max_holders = 4, .groups = units.groups().blocks})
          .value();
  BlockTables tables = BlockTables::create(manager, {.max_sequences = 4,
                                                     .max_pins = 0,
                                                     .can_undo = true,
                                                     .groups = units.groups().tables,
                                                     .checkpoint_every_tokens = 32})
                           .value();
  for (const std::int64_t tokens : {1, 7, 8, 9, 40, 64, 65, 200, 1000}) {
    const SequenceId sequence = tables.create_sequence().value();
    ASSERT_TRUE(tables.promise_capacity(sequence, tokens).is_ok());
    EXPECT_EQ(manager.page_stats().reserved, units.of_length(tokens)) << tokens;
    ASSERT_TRUE(tables.destroy(sequence).is_ok());
  }
}

// ---- faults ------------------------------------------------------------------------------------

/// Changes one byte between two steps.
class BytePlanter final : public ReplayObserver {
 public:
  using Find = std::function<std::byte*(EnginePool&, const Job&)>;
  explicit BytePlanter(Find find) : find_(std::move(find)) {}
  void on_pool(StepPublisher&) override {}
  void on_progress(const ReplayProgress&) override {}
  void on_end(std::unique_ptr<EnginePool>) noexcept override {}
  void between_steps(EnginePool& pool, std::span<const std::unique_ptr<Job>> running) override {
    for (const auto& job : running) {
      if (is_planted || job->length < 50) continue;
      ASSERT_TRUE(pool.cache()->synchronize().is_ok());
      std::byte* const byte = find_(pool, *job);
      *byte ^= std::byte{1};
      is_planted = true;
    }
  }
  bool is_planted = false;

 private:
  Find find_;
};

/// The first byte of K of the oldest block that is held in a layer.
std::byte* oldest_key(EnginePool& pool, const Job& job, std::int32_t layer) {
  const std::int32_t part = pool.cache()->arena().groups()->part_of(layer);
  for (std::int64_t token = 0; token < job.length; ++token) {
    const auto slot = pool.tables().slot_of(job.sequence, token, part);
    if (!slot || *slot < 0) continue;
    const BlockId block(static_cast<std::int32_t>(*slot / pool.block_size()));
    return pool.cache()->arena().address(block, layer, PlaneKind::key);
  }
  return nullptr;
}

TEST_P(GroupReplay, AFlippedByteOfAnyGroupIsFound) {
  for (const LayerGroup& group : model_.groups) {
    if (group.kind == PagedKind::state) continue;
    const std::int32_t layer = group.layers.front().layer;
    BytePlanter planter(
        [layer](EnginePool& pool, const Job& job) { return oldest_key(pool, job, layer); });
    const auto outcome = replay_of(kArrivals, full_options(model_), &planter);
    EXPECT_TRUE(planter.is_planted);
    EXPECT_EQ(outcome.end, ReplayEnd::check_failed);
    EXPECT_HAS(outcome.why.found, "layer " + std::to_string(layer));
  }
}

/// Replays with one byte of an index key, or of a scale, that is as it was before its token came.
std::string found_with_stale_index(bool is_scale) {
  const GroupTraceModel model(test::GroupModelKind::index);
  BytePlanter planter([is_scale](EnginePool& pool, const Job& job) {
    const IndexView view = pool.cache()->index_view(1).value();
    const std::int64_t slot = pool.tables().slot_of(job.sequence, 41, 0).value();
    const auto token = static_cast<std::int32_t>(slot % view.block_size);
    const std::int64_t block = slot / view.block_size;
    const std::int64_t at =
        is_scale ? scale_byte(view.index, view.block_size, block, 0, token) + 2
                 : block * view.index.block_stride + token * view.index.token_stride + 5;
    return view.index.base + at;
  });
  const auto outcome = replay_of(kArrivals, full_options(model), &planter);
  EXPECT_TRUE(planter.is_planted);
  EXPECT_EQ(outcome.end, ReplayEnd::check_failed);
  return outcome.why.found;
}

TEST(GroupReplayOfIndexes, AStaleKeyAndAStaleScaleAreFound) {
  const std::string key = found_with_stale_index(false);
  EXPECT_HAS(key, "the index key of request");
  EXPECT_HAS(key, "token 41, layer 1: byte 5 is");
  EXPECT_HAS(found_with_stale_index(true), "token 41, layer 1: the scale is");
}

class GroupReplayOfStates : public GroupReplay {};

INSTANTIATE_TEST_SUITE_P(, GroupReplayOfStates,
                         testing::Values(test::GroupModelKind::state,
                                         test::GroupModelKind::state_in_place),
                         [](const auto& tested) { return std::string(name_of(tested.param)); });

TEST_P(GroupReplayOfStates, AStateThatChangedIsFound) {
  BytePlanter planter([this](EnginePool& pool, const Job& job) {
    const StateView view = pool.cache()->state_view(model_.first_state_layer()).value();
    const GroupLayout& layout = *pool.cache()->arena().groups();
    const PagedBlocks& blocks = layout.states()[0].blocks;
    std::vector<BlockId> ids(static_cast<std::size_t>(blocks.num_parts));
    std::vector<Generation> generations(ids.size());
    const auto table = static_cast<std::int32_t>(layout.parts().size());
    EXPECT_TRUE(
        pool.tables().state_blocks(job.sequence, job.length, table, ids, generations).is_ok());
    const BlockPlace place = pool.manager().place_of(ids[static_cast<std::size_t>(view.part)]);
    const std::int64_t slot =
        place.page * blocks.ids_per_page(layout.page_bytes()) + place.slot * blocks.ids_per_block();
    return view.base + slot * view.slot_stride + view.planes[1].offset;
  });
  const auto outcome = replay_of(kArrivals, full_options(model_), &planter);
  EXPECT_TRUE(planter.is_planted);
  EXPECT_EQ(outcome.end, ReplayEnd::check_failed);
  EXPECT_HAS(outcome.why.found, "the state of request");
  EXPECT_HAS(outcome.why.found, "plane 1, byte 0");
}

// ---- what is refused ---------------------------------------------------------------------------

TEST(GroupReplayRefuses, WhatAPoolWithGroupsDoesNotDo) {
  const GroupTraceModel model(test::GroupModelKind::window);
  const auto refused = [&](const std::function<void(ReplayOptions&)>& change) {
    ReplayOptions options = options_of(model);
    change(options);
    const auto outcome = replay_of(kArrivals, options);
    EXPECT_EQ(outcome.end, ReplayEnd::bad_options);
    return outcome.why.found;
  };
  EXPECT_HAS(refused([](ReplayOptions& o) { o.keep_preempted = true; }),
             "keeping preempted blocks");
  EXPECT_HAS(refused([](ReplayOptions& o) {
               o.samples = 2;
               o.reserve = Reserve::full;
             }),
             "samples with everything reserved");
  std::vector<LayerGroup> with_encoder = model.groups;
  with_encoder.back().kind = PagedKind::cross;
  EXPECT_HAS(refused([&](ReplayOptions& o) { o.groups.list = with_encoder; }), "an encoder");
}

TEST(GroupReplayRefuses, APoolWithoutAPage) {
  const GroupTraceModel model(test::GroupModelKind::window);
  ReplayOptions options = options_of(model);
  options.pool.pool_bytes = 100;
  const auto outcome = replay_of(kArrivals, options);
  EXPECT_EQ(outcome.end, ReplayEnd::does_not_fit);
  EXPECT_HAS(outcome.why.found, "does not hold one page");
}

}  // namespace
}  // namespace kvarena::replay
