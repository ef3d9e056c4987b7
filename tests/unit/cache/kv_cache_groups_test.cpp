// Caches with groups on the host: attention of every kind of layer against double precision, with
// recycled memory poisoned; what create takes and refuses; what calls refuse.

#include "support/process_memory.hpp"
#include "unit/cache/footprint.hpp"
#include "unit/cache/group_engine.hpp"

#include <gtest/gtest.h>

#include <array>
#include <ostream>
#include <string>

namespace kvarena {
namespace {

using test::EngineGroup;
using test::GroupEngine;
using test::GroupEngineOptions;

struct GroupsCase {
  std::string name;
  GroupEngineOptions options;
};

void PrintTo(const GroupsCase& its, std::ostream* out) { *out << its.name; }

EngineGroup group(PagedKind kind, std::vector<GroupLayer> layers, std::int32_t heads,
                  std::int32_t dim, std::int64_t limit = 0, std::int32_t block_size = 4) {
  return {.group = {.kind = kind,
                    .layers = {},
                    .num_kv_heads = heads,
                    .head_dim_k = dim,
                    .dtype = DType::f32,
                    .block_size_tokens = block_size,
                    .limit_tokens = limit},
          .layers = std::move(layers)};
}

std::vector<GroupsCase> cases() {
  constexpr auto kFull = PagedKind::full;
  constexpr auto kWindow = PagedKind::window;
  std::vector<GroupsCase> all;
  all.push_back({"FullAndWindow",
                 {.groups = {group(kFull, {{0}, {3}}, 2, 8),
                             group(kWindow, {{1}, {2}, {4, 2}, {5}}, 1, 16, 9)},
                  .num_pages = 80}});
  all.push_back({"FewPages",
                 {.groups = {group(kFull, {{0}}, 1, 8), group(kWindow, {{1}, {2}, {3}}, 1, 32, 16)},
                  .num_pages = 26}});
  all.push_back({"Threads", all[0].options});
  all.back().options.streams = HostStreams::threads;
  all.back().options.steps_in_flight = 3;
  all.back().options.num_threads = 2;
  all.push_back(
      {"Chunks",
       {.groups = {group(kFull, {{1}}, 4, 12), group(PagedKind::chunk, {{0}, {2}}, 2, 8, 8)},
        .num_pages = 120}});
  for (auto& its : all.back().options.groups) {  // K and V differ
    its.group.dtype = DType::f16;
    its.group.dtype_v = DType::f32;
    its.group.head_dim_v = 16;
  }
  all.push_back({"Encoder",
                 {.groups = {group(kFull, {{0}, {2}}, 2, 8),
                             group(PagedKind::cross, {{1}, {3}}, 4, 8, 21, 8)},
                  .num_pages = 90}});
  all.push_back(
      {"WindowAlone", {.groups = {group(kWindow, {{0}, {1}}, 2, 8, 13)}, .num_pages = 60}});
  all.push_back(
      {"WindowOfOneToken",
       {.groups = {group(kWindow, {{0}}, 2, 8, 1), group(kFull, {{1}}, 1, 8)}, .num_pages = 120}});
  all.push_back({"Latent", {.groups = {group(kFull, {{0}, {1}}, 1, 24)}, .num_pages = 80}});
  all.back().options.groups[0].group.value_in_key = true;
  all.back().options.groups[0].group.head_dim_v = 16;
  all.push_back({"LatentOfAnEncoder",
                 {.groups = {group(kFull, {{0}, {2}}, 1, 24),
                             group(PagedKind::cross, {{1}, {3}}, 1, 24, 21, 8)},
                  .num_pages = 90}});
  all.back().options.groups[1].group.value_in_key = true;
  all.back().options.groups[1].group.head_dim_v = 16;
  all.push_back(
      {"ManyKinds",
       {.groups = {group(kFull, {{0}}, 2, 8, 0, 8), group(kWindow, {{1}, {2}}, 1, 8, 7, 2),
                   group(PagedKind::chunk, {{3}}, 4, 8, 12), group(kWindow, {{4}}, 2, 8, 40)},
        .num_pages = 200}});
  for (const char* name : {"FullAndWindow", "FewPages", "Threads", "Chunks", "Latent"}) {
    const auto found = std::ranges::find(all, name, &GroupsCase::name);
    GroupsCase cached{"Cached" + found->name, found->options};
    cached.options.prefix_cache = true;
    if (cached.options.num_pages < 40) cached.options.num_pages = 36;
    all.push_back(std::move(cached));
  }
  for (const char* name : {"FullAndWindow", "Encoder", "ManyKinds", "CachedFewPages"}) {
    const auto found = std::ranges::find(all, name, &GroupsCase::name);
    GroupsCase scrubbed{"Scrubbed" + found->name, found->options};
    scrubbed.options.scrub = Scrub::always;
    all.push_back(std::move(scrubbed));
  }
  for (const EvictionPolicy policy : kEvictionPolicies) {
    const auto found = std::ranges::find(all, std::string("CachedFewPages"), &GroupsCase::name);
    GroupsCase its{found->name + std::to_string(static_cast<int>(policy)), found->options};
    its.options.eviction = policy;
    if (policy != EvictionPolicy::tail_first) all.push_back(std::move(its));
  }
  return all;
}

class KvCacheGroups : public ::testing::TestWithParam<GroupsCase> {};

TEST_P(KvCacheGroups, AttendExactlyThroughWholeLives) {
  int forks = 0;
  int cuts = 0;
  int aborts = 0;
  int compared = 0;
  int refused = 0;
  int hits = 0;
  for (std::uint64_t seed = 1; seed <= (test::kSanitized ? 1 : 3) && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    GroupEngine engine(GetParam().options, seed);
    ASSERT_TRUE(engine.is_created());
    engine.play(200);
    engine.end();
    forks += engine.num_forks();
    cuts += engine.num_cuts();
    aborts += engine.num_aborts();
    compared += engine.num_compared();
    refused += engine.num_refused();
    hits += engine.num_hits();
  }
  EXPECT_GT(forks, 0);
  EXPECT_GT(cuts, 0);
  EXPECT_GT(aborts, 0);
  EXPECT_GT(compared, test::kSanitized ? 3000 : 10'000);
  EXPECT_EQ(hits > 0, GetParam().options.prefix_cache);
  if (GetParam().name == "FewPages") {
    EXPECT_GT(refused, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(, KvCacheGroups, ::testing::ValuesIn(cases()),
                         [](const auto& tested) { return tested.param.name; });

// ---- single calls ------------------------------------------------------------------------------

class GroupCalls : public ::testing::Test {
 protected:
  /// Layers 0 and 3 of all tokens, 1 with a window of 8, 2 that reads 1, 4 of an encoder.
  std::vector<GroupLayer> full_{{0}, {3}};
  std::vector<GroupLayer> window_{{1}, {2, 1}};
  std::vector<GroupLayer> cross_{{4}};
  std::vector<LayerGroup> groups_{
      {PagedKind::full, full_, 2, 8, 0, DType::f32},
      {PagedKind::window, window_, 1, 8, 0, DType::f32, {}, false, 16, 8},
      {PagedKind::cross, cross_, 2, 8, 0, DType::f32, {}, false, 16, 10}};

  KvCacheOptions options() {
    return {.size = {.num_blocks = 24},
            .num_q_heads = 4,
            .max_sequences = 4,
            .max_sequence_tokens = 200,
            .max_step_tokens = 64,
            .num_threads = 1,
            .groups = groups_};
  }
  Status refusal() { return refusal(options()); }
  /// What create says, also on a device that is too small for the pool. Nothing was allocated.
  static Status refusal(const KvCacheOptions& asked) {
    const Status planned = cache_footprint(asked, {.num_threads = 1}).status();
    for (const std::uint64_t capacity_bytes : {std::uint64_t{0}, std::uint64_t{4096}}) {
      const auto device = HostDevice::create({.capacity_bytes = capacity_bytes}).value();
      EXPECT_EQ(KvCache::create(*device, asked).status(), planned) << capacity_bytes;
      EXPECT_EQ(device->tracker().breakdown().allocations_ever, 0U);
    }
    return planned;
  }
};

TEST_F(GroupCalls, PredictedIsAllocated) {
  const auto device = HostDevice::create({}).value();
  const CacheFootprint predicted = cache_footprint(options(), target_of(*device).value()).value();
  const KvCache cache = KvCache::create(*device, options()).value();
  test::expect_as_predicted(*device, cache, predicted);
  EXPECT_EQ(predicted.num_blocks, 24);
  EXPECT_EQ(cache.arena().groups()->page_bytes() * 24, predicted.pool_bytes);
  const KvCacheOptions fitted =
      fit_cache(options(), target_of(*device).value(), predicted.device_bytes() + 10).value();
  EXPECT_EQ(fitted.size.num_blocks, 24);
}

TEST_F(GroupCalls, BadGroupsAreRefusedByNameAndValue) {
  const auto refused = [&](auto change) {
    const auto groups = groups_;
    const auto full = full_;
    const auto window = window_;
    change();
    const Status status = refusal();
    groups_ = groups;
    full_ = full;
    window_ = window;
    groups_[0].layers = full_;
    groups_[1].layers = window_;
    return status;
  };
  const auto expect = [](const Status& status, Option option, std::int64_t value) {
    EXPECT_EQ(status.code, StatusCode::invalid_argument) << describe(status);
    EXPECT_EQ(status.option, option) << describe(status);
    EXPECT_EQ(static_cast<std::int64_t>(status.subject), value);
  };
  expect(refused([&] { groups_[0].layers = {}; }), Option::num_layers, 0);
  expect(refused([&] {
           window_[0].layer = 3;
           window_[1].reads_layer = 3;
         }),
         Option::layer, 3);
  expect(refused([&] { full_[1].layer = 0; }), Option::layer, 0);
  EXPECT_EQ(describe(refused([&] { full_[1].layer = 0; })),
            "invalid layer: got 0, expected a layer that no other place of a group names");
  expect(refused([&] { window_[1].reads_layer = 0; }), Option::reads_layer, 0);
  EXPECT_EQ(describe(refused([&] { window_[1].reads_layer = 0; })),
            "invalid reads_layer: got 0, expected -1, or a layer of the same group with K and V of "
            "its own");
  expect(refused([&] { window_[1].reads_layer = 2; }), Option::reads_layer, 2);
  expect(refused([&] { groups_[1].limit_tokens = 0; }), Option::limit_tokens, 0);
  expect(refused([&] {
           groups_[1].kind = PagedKind::chunk;
           groups_[1].limit_tokens = 40;
         }),
         Option::limit_tokens, 40);
  expect(refused([&] { groups_[1].num_kv_heads = 3; }), Option::num_q_heads, 4);
  expect(refused([&] { groups_[2].head_dim_k = 5000; }), Option::head_dim_k, 5000);
  expect(refused([&] { groups_[0].limit_tokens = 5; }), Option::limit_tokens, 5);
  expect(refused([&] { groups_[0].rollback_tokens = 5; }), Option::rollback_tokens, 5);
  expect(refused([&] { groups_[1].rollback_tokens = -1; }), Option::rollback_tokens, -1);
  expect(refused([&] { groups_[0].index_dim = 6; }), Option::index_dim, 6);
  groups_[0].num_kv_heads = 4;
  groups_[0].head_dim_k = 4096;
  groups_[0].block_size_tokens = 65536;
  EXPECT_FAILS(refusal(), invalid_argument, block_bytes) << "no page";
}

TEST_F(GroupCalls, OptionsOfStatesAreCheckedBeforeMemoryIsTaken) {
  const GroupLayer recurrent[] = {{5}};
  const StatePlane plane{.dtype = DType::f32, .num_dims = 1, .shape = {64}};
  groups_.push_back({.kind = PagedKind::state, .layers = recurrent, .planes = {&plane, 1}});
  KvCacheOptions asked = options();
  asked.checkpoint_every_tokens = 24;
  EXPECT_REFUSES(refusal(asked), invalid_argument, checkpoint_every_tokens) << "not whole blocks";
  EXPECT_EQ(refusal(asked).required, 16U) << "the nearest below";
  EXPECT_EQ(refusal(asked).available, 32U) << "the nearest above";
  asked.checkpoint_every_tokens = -16;
  EXPECT_REFUSES(refusal(asked), invalid_argument, checkpoint_every_tokens);
  asked = options();
  asked.max_sequences = 0;
  EXPECT_REFUSES(refusal(asked), invalid_argument, max_sequences);
  asked = options();
  asked.prefix_cache.is_on = true;  // of an encoder nobody knows the tokens
  EXPECT_REFUSES(refusal(asked), unsupported, kind);
}

TEST_F(GroupCalls, WhatTheHostLacksIsUnsupported) {
  const auto device = HostDevice::create({}).value();
  KvCacheOptions asked = options();
  asked.order = BlockOrder::layer_major;
  EXPECT_REFUSES(KvCache::create(*device, asked), unsupported, order);
  asked = options();
  asked.eviction = static_cast<EvictionPolicy>(5);
  EXPECT_REFUSES(KvCache::create(*device, asked), invalid_argument, eviction);
  for (const EvictionPolicy policy : kEvictionPolicies) {  // base has the names once more
    const Status status = unsupported_option(Option::eviction, static_cast<std::uint64_t>(policy));
    EXPECT_NE(describe(status).find(": " + std::string(name_of(policy)) + " is"),
              std::string::npos);
  }
  asked = options();
  asked.window_tokens = 8;
  EXPECT_REFUSES(KvCache::create(*device, asked), invalid_argument, window_tokens);
  groups_[1].kind = PagedKind::state;
  EXPECT_REFUSES(KvCache::create(*device, options()), invalid_argument, reads_layer);
}

TEST_F(GroupCalls, TheMemoryOfAGpuIsPlanned) {
  const CacheTarget gpu{.kind = DeviceKind::cuda, .num_sms = 132, .bounce_bytes = 4096};
  const CacheFootprint planned = cache_footprint(options(), gpu).value();
  EXPECT_EQ(planned.pool_bytes, cache_footprint(options(), {.num_threads = 1})->pool_bytes);
  EXPECT_GT(planned.table_bytes, 0);
  EXPECT_GT(planned.staging_bytes, 4096);
  groups_[1].dtype = DType::int8;
  EXPECT_REFUSES(cache_footprint(options(), gpu), unsupported, dtype);
}

TEST_F(GroupCalls, LayersAreWrittenByTheirOwnersOnly) {
  const auto device = HostDevice::create({.streams = HostStreams::inline_calls}).value();
  KvCache cache = KvCache::create(*device, options()).value();
  const SequenceId id = cache.create_sequence({.cross_tokens = 3}).value();
  std::array<float, 256> memory{};
  const auto write = [&](std::int32_t layer) {
    return cache.write_kv(
        {.layer = layer, .key = memory.data(), .value = memory.data(), .dtype = DType::f32});
  };
  const auto attend = [&](std::int32_t layer, bool windowed = false) {
    return cache.attend({.layer = layer,
                         .q = memory.data(),
                         .q_dtype = DType::f32,
                         .out = memory.data(),
                         .out_dtype = DType::f32,
                         .windowed = windowed});
  };
  const auto cross = [&](std::int32_t layer, SequenceId of, const void* key) {
    return cache.write_cross(
        {.layer = layer, .sequence = of, .key = key, .value = memory.data(), .dtype = DType::f32});
  };
  EXPECT_FAILS(cross(4, id, memory.data()), failed_precondition, step);
  ASSERT_OK(cache.begin_step());
  const AppendDemand demand{id, 2};
  ASSERT_OK(cache.append(std::span(&demand, 1)));
  EXPECT_FAILS(write(2), invalid_argument, layer) << "it reads layer 1";
  EXPECT_FAILS(write(4), invalid_argument, layer) << "an encoder's";
  EXPECT_FAILS(write(5), invalid_argument, layer);
  EXPECT_FAILS(cross(1, id, memory.data()), invalid_argument, layer);
  EXPECT_NE(cache.describe(write(4)).find("write them with write_cross"), std::string::npos);
  EXPECT_NE(cache.describe(cross(1, id, memory.data())).find("with write_kv"), std::string::npos);
  EXPECT_FAILS(cross(4, SequenceId(7), memory.data()), not_found, sequence);
  EXPECT_FAILS(cross(4, id, nullptr), invalid_argument, pointer);
  EXPECT_FAILS(attend(2), failed_precondition, layer) << "layer 1 has not been written";
  ASSERT_OK(write(1));
  EXPECT_FAILS(attend(1, true), invalid_argument, layer) << "the group has the window";
  EXPECT_NE(cache.describe(attend(1, true)).find("leave `windowed` unset"), std::string::npos);
  ASSERT_OK(attend(2));
  ASSERT_OK(cross(4, id, memory.data()));
  ASSERT_OK(attend(4));
  const GroupLayout& layout = *cache.arena().groups();
  const auto num_parts = static_cast<std::int32_t>(layout.parts().size());
  EXPECT_FAILS(cache.device_batch(num_parts), invalid_argument, num_groups);
  EXPECT_EQ(cache.device_batch(layout.part_of(4))->lengths[0], 3) << "of the encoder";
  ASSERT_OK(cache.end_step());
  ASSERT_OK(cache.synchronize());
}

TEST_F(GroupCalls, ACutIsExplained) {
  const auto device = HostDevice::create({}).value();
  KvCache cache = KvCache::create(*device, options()).value();
  const SequenceId id = cache.create_sequence().value();
  ASSERT_OK(cache.begin_step());
  const AppendDemand demand{id, 60};
  ASSERT_OK(cache.append(std::span(&demand, 1)));
  ASSERT_OK(cache.end_step());
  const Status status = cache.truncate(id, 20);
  EXPECT_FAILS(status, failed_precondition, sequence_length);
  EXPECT_EQ(cache.describe(status),
            "sequence " + std::to_string(id.value) +
                " does not have what 20 tokens need any more; the longest length up to there that "
                "can be had is 0");
  ASSERT_OK(cache.begin_step());
  const std::vector<SequenceId> others{cache.create_sequence().value(),
                                       cache.create_sequence().value()};
  const std::vector<AppendDemand> many{{others[0], 32}, {others[1], 32}};
  Status refused = cache.append(many).status();
  while (refused.is_ok()) {
    ASSERT_OK(cache.end_step());
    ASSERT_OK(cache.begin_step());
    refused = cache.append(many).status();
  }
  EXPECT_FAILS(refused, exhausted, page);
  EXPECT_NE(cache.describe(refused).find("pages"), std::string::npos) << cache.describe(refused);
  ASSERT_OK(cache.end_step());
}

// -1 in row_slots says that a row is skipped: a window that has given up its first block is not.
TEST(KvCacheWindows, TablesOfWindowsBeginInsideTheArray) {
  const auto device = HostDevice::create({.streams = HostStreams::inline_calls}).value();
  std::vector<EngineGroup> its{group(PagedKind::full, {{0}}, 1, 8),
                               group(PagedKind::window, {{1}}, 1, 8, 9)};
  std::vector<LayerGroup> groups;
  for (EngineGroup& one : its) {
    one.group.layers = one.layers;
    groups.push_back(one.group);
  }
  KvCache cache = KvCache::create(*device, {.size = {.num_blocks = 60},
                                            .num_q_heads = 1,
                                            .max_sequences = 3,
                                            .max_sequence_tokens = 100,
                                            .max_step_tokens = 64,
                                            .groups = groups})
                      .value();
  std::vector<SequenceId> sequences;
  for (int i = 0; i < 3; ++i) sequences.push_back(cache.create_sequence().value());
  const std::int32_t window = cache.arena().groups()->part_of(1);
  for (int step = 0; step < 40; ++step) {
    ASSERT_OK(cache.begin_step());
    const std::vector<AppendDemand> demands{
        {sequences[0], 1}, {sequences[1], 2}, {sequences[2], 1}};
    ASSERT_OK(cache.append(demands));
    const DeviceBatch batch = cache.device_batch(window).value();
    for (std::size_t row = 0; row < demands.size(); ++row) {
      ASSERT_GE(batch.row_slots[row], 0) << step;
      ASSERT_EQ(batch.row_slots[row] * batch.table_stride, batch.row_offsets[row]);
      const std::int64_t last = batch.lengths[row] - 1;
      const std::int64_t slot = cache.tables().slot_of(sequences[row], last, window).value();
      const std::int64_t at = batch.row_offsets[row] + last / 4;
      ASSERT_LT(at, batch.num_table_entries);
      ASSERT_EQ(batch.block_tables[at].value, slot / 4);
    }
    ASSERT_OK(cache.end_step());
  }
}

}  // namespace
}  // namespace kvarena
