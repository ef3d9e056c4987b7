// What an engine controls through a KvCache: imports, pins, deadlines, urgencies, owners, names,
// and the views for attention kernels of its own.

#include "support/devices.hpp"
#include "support/log_capture.hpp"
#include "support/status_matchers.hpp"
#include "support/violations.hpp"
#include "unit/cache/scrub_cache.hpp"
#include "unit/cache/small_cache.hpp"

#include "kvarena/allocator/json.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

namespace kvarena {
namespace {

using test::kSmallBlockSize;
using test::SmallCache;

/// Writes `value` into K and V of the first `tokens` tokens of a sequence, as a transfer would.
void fill_from_outside(SmallCache& t, SequenceId id, std::int64_t tokens, float value) {
  ASSERT_OK(t.cache.synchronize());
  const KvLayerView view = *t.cache.layer_view(0);
  for (std::int64_t token = 0; token < tokens; ++token) {
    const std::int64_t slot = *t.cache.tables().slot_of(id, token);
    for (const PlaneView* plane : {&view.key, &view.value}) {
      for (std::int32_t head = 0; head < plane->num_heads; ++head) {
        auto* const to = reinterpret_cast<float*>(
            plane->base + slot / kSmallBlockSize * plane->block_stride + head * plane->head_stride +
            slot % kSmallBlockSize * plane->token_stride);
        for (std::int32_t dim = 0; dim < plane->head_dim; ++dim) to[dim] = value;
      }
    }
  }
}

// ---- imports ------------------------------------------------------------------------------------

TEST(KvCacheImport, IsReadByAttentionOnlyWhenItIsPublished) {
  SmallCache t;
  const SequenceId id = t.cache.import_sequence(6).value();
  const std::vector<AppendDemand> demand{{id, 1}};
  ASSERT_OK(t.cache.begin_step());
  const Status refused = t.cache.append(demand).status();
  EXPECT_FAILS(refused, failed_precondition, sequence);
  EXPECT_EQ(t.cache.failed_demand(), 0);
  EXPECT_NE(t.cache.describe(refused).find("call publish_import"), std::string::npos);
  ASSERT_OK(t.cache.end_step());
  fill_from_outside(t, id, 6, 3.0F);
  ASSERT_OK(t.cache.publish_import(id));

  ASSERT_OK(t.fill(3.0F));  // K, V and q of the new token
  ASSERT_OK(t.cache.begin_step());
  ASSERT_OK(t.cache.append(demand));
  ASSERT_OK(t.cache.write_kv(
      {.layer = 0, .key = t.buffer(), .value = t.buffer(), .dtype = DType::f32, .scales = {}}));
  float* const out = t.buffer() + SmallCache::kBufferFloats / 2;
  ASSERT_OK(t.cache.attend({.layer = 0,
                            .q = t.buffer(),
                            .q_dtype = DType::f32,
                            .out = out,
                            .out_dtype = DType::f32,
                            .scales = {}}));
  ASSERT_OK(t.cache.end_step());
  ASSERT_OK(t.cache.synchronize());
  for (int i = 0; i < 4 * 8; ++i) ASSERT_FLOAT_EQ(out[i], 3.0F) << "all seven tokens have V = 3";
}

TEST(KvCacheImport, ComesBeforeAnAppendOrBetweenSteps) {
  SmallCache t;
  const SequenceId running = t.sequence_of(1);
  const std::vector<AppendDemand> demand{{running, 1}};
  ASSERT_OK(t.cache.begin_step());
  ASSERT_OK(t.cache.import_sequence(1));
  ASSERT_OK(t.cache.append(demand));
  const auto before = t.state();
  const Status refused = t.cache.import_sequence(1).status();
  EXPECT_FAILS(refused, failed_precondition, step);
  EXPECT_NE(t.cache.describe(refused).find("import_sequence was called in step 1"),
            std::string::npos)
      << t.cache.describe(refused);
  EXPECT_TRUE(before == t.state());
  ASSERT_OK(t.cache.end_step());
}

TEST(KvCacheImport, ThatFailedSaysWhatIsLeft) {
  SmallCache t;
  const SequenceId id = t.cache.import_sequence(6).value();
  ASSERT_OK(t.cache.fail_import(id));
  const Status refused = t.cache.publish_import(id);
  EXPECT_NE(t.cache.describe(refused).find("has failed: destroy it"), std::string::npos);
  const SequenceId other = t.sequence_of(1);
  EXPECT_NE(t.cache.describe(t.cache.publish_import(other)).find("is no import that waits"),
            std::string::npos);
  const Ticket transfer = t.cache.open_ticket().value();
  ASSERT_OK(t.cache.destroy(id, transfer));
  EXPECT_EQ(t.cache.manager().stats().fenced, 2);
  ASSERT_OK(t.cache.retire(transfer));
  EXPECT_EQ(t.cache.manager().stats().free, test::kSmallBlocks - 1);
}

TEST(KvCacheImport, HasTheMaximumOfTheCache) {
  KvCacheOptions options = test::small_options();
  options.max_sequence_tokens = 8;
  SmallCache t(options);
  EXPECT_FAILS(t.cache.import_sequence(9), context_length_exceeded, sequence_length);
  EXPECT_REFUSES(t.cache.import_sequence(1, {.max_length_tokens = 9}), invalid_argument,
                 max_length_tokens);
  EXPECT_OK(t.cache.import_sequence(8));
}

// What others wrote and what was there before is cleared for the next owner, and behind the tokens.
TEST(KvCacheImport, LeavesNothingToOtherOwners) {
  for (const Scrub mode : {Scrub::on_owner_change, Scrub::always}) {
    test::ScrubCache t({"host"}, mode, 4);
    const SequenceId ann = t.create(7);
    ASSERT_OK(t.grow(ann, 16, 1.5F));
    ASSERT_OK(t.cache.destroy(ann));
    const SequenceId bob = t.cache.import_sequence(6, {.owner = 8}).value();
    const std::vector<BlockId> blocks = t.blocks_of(bob);
    ASSERT_OK(t.cache.publish_import(bob));
    ASSERT_OK(t.begin({{bob, 1}}));
    const std::vector<std::byte> pool = t.pool();
    EXPECT_FALSE(test::is_zero(t.token_bytes(pool, blocks[1], 1))) << "an imported token stays";
    EXPECT_TRUE(test::is_zero(t.token_bytes(pool, blocks[1], 3))) << "nothing of Ann behind them";
    ASSERT_OK(t.write({2.0F}));
    ASSERT_OK(t.end());
    ASSERT_OK(t.cache.destroy(bob));
    const SequenceId again = t.create(8);  // the same owner: what the import left counts as unknown
    ASSERT_OK(t.begin({{again, 5}}));
    for (const BlockId block : t.blocks_of(again)) {
      for (std::int64_t token = 0; token < 4; ++token) {
        EXPECT_TRUE(test::is_zero(t.token_bytes(t.pool(), block, token)));
      }
    }
    ASSERT_OK(t.cache.abort_step());
  }
}

// ---- pins, deadlines, owners, urgencies ---------------------------------------------------------

TEST(KvCacheControl, PinsAndOwnersReachReports) {
  KvCacheOptions options = test::small_options();
  options.max_pins = 1;
  SmallCache t(options);
  const SequenceId a = t.cache.create_sequence({.owner = 41}).value();
  ASSERT_TRUE(t.step({{a, 9}}));
  const HolderId pin = t.cache.pin(a, {.num_blocks = 2, .owner = 42, .purpose = "export"}).value();
  EXPECT_FAILS(t.cache.pin(a), exhausted, holder);
  ASSERT_OK(t.cache.set_deadline(a, 123));
  t.cache.publisher().request_details();
  ASSERT_OK(t.cache.publish());
  const PoolDetails details = t.cache.publisher().details();
  ASSERT_EQ(details.holders.size(), 2U);
  EXPECT_EQ(details.holders[0].owner, 41U);
  EXPECT_EQ(details.holders[0].deadline_ns, 123);
  EXPECT_EQ(details.holders[1].purpose, "export");
  EXPECT_EQ(t.cache.snapshot().tables.pins, 1);
  EXPECT_EQ(t.cache.snapshot().tables.pinned_entries, 2);
  const Explanation e = t.cache.tables().explain(100);
  EXPECT_NE(to_string(e).find(" of owner 41"), std::string::npos);
  EXPECT_NE(to_json(e).find("\"purpose\":\"export\""), std::string::npos);
  ASSERT_OK(t.cache.destroy(a));
  EXPECT_EQ(t.cache.manager().stats().free, test::kSmallBlocks - 2);
  ASSERT_OK(t.cache.unpin(pin));
  EXPECT_EQ(t.cache.manager().stats().free, test::kSmallBlocks);
}

TEST(KvCacheControl, EverySequenceAndEveryPinHasAHolder) {
  KvCacheOptions options = test::small_options();
  options.max_sequences = 2;
  options.max_pins = 3;
  SmallCache t(options);
  const SequenceId a = t.sequence_of(1);
  t.sequence_of(1);
  for (int i = 0; i < 3; ++i) ASSERT_OK(t.cache.pin(a));
  EXPECT_REFUSES(t.cache.pin(a), exhausted, max_pins);
  options.max_pins = -1;
  const auto device = HostDevice::create({.capacity_bytes = 1 << 20}).value();
  EXPECT_REFUSES(KvCache::create(*device, options), invalid_argument, max_pins);
}

TEST(KvCacheControl, PromptsAndDecodeInOneStep) {
  KvCacheOptions options = test::small_options();
  options.watermark_blocks = 3;
  SmallCache t(options);
  const SequenceId running = t.sequence_of(16);  // 4 of 8 blocks
  const SequenceId prompt = t.cache.create_sequence().value();
  ASSERT_OK(t.cache.begin_step());
  std::vector<AppendDemand> demands{{prompt, 4, Urgency::admission}, {running, 1, Urgency::growth}};
  const Status refused = t.cache.append(demands).status();
  EXPECT_FAILS(refused, exhausted, block);
  EXPECT_EQ(t.cache.failed_demand(), 0);
  EXPECT_NE(t.cache.describe(refused).find("for new work"), std::string::npos);
  demands.erase(demands.begin());
  EXPECT_OK(t.cache.append(demands));
  ASSERT_OK(t.cache.end_step());
}

// ---- names --------------------------------------------------------------------------------------

TEST(KvCacheControl, ViolationsAndLinesNameTheCache) {
  const std::string name = "llama-3";
  KvCacheOptions options = test::small_options();
  const test::LogCapture capture(LogLevel::warning);
  {
    std::string passing = name;
    options.name = passing;
    SmallCache t(options);
    passing.assign(passing.size(), '?');  // the cache has a copy
    EXPECT_STREQ(t.cache.name(), "llama-3");
    EXPECT_STREQ(t.cache.manager().name(), "llama-3");
    const std::vector<AllocationRecord> records = t.device->tracker().allocations();
    bool is_named = false;
    for (const AllocationRecord& record : records) {
      is_named = is_named || record.description == "kv arena of llama-3";
    }
    EXPECT_TRUE(is_named);
    ASSERT_OK(t.cache.open_ticket());
  }
  EXPECT_TRUE(
      capture.contains(LogLevel::warning, "a cache of llama-3 is freed while 1 open tickets"));
  test::ViolationRecorder recorder;
  BlockManager manager = BlockManager::create({.num_blocks = 2, .name = name}).value();
  const HolderId holder = manager.register_holder({}).value();
  const BlockId id(0);
  const Generation generation(0);
  EXPECT_FAILS(manager.release(holder, std::span(&id, 1), std::span(&generation, 1)),
               double_release, block);
  ASSERT_EQ(recorder.entries().size(), 1U);
  EXPECT_EQ(recorder.entries()[0].object, "llama-3");
}

// ---- views for kernels of the engine's own ------------------------------------------------------

class DeviceBatchTest : public ::testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override { KVARENA_NEEDS_DEVICE(GetParam()); }

  template <class T>
  static std::vector<T> read(SmallCache& t, const T* from, std::int64_t count) {
    std::vector<T> values(static_cast<std::size_t>(count));
    EXPECT_OK(t.device->copy(values.data(), from, values.size() * sizeof(T), t.cache.stream()));
    EXPECT_OK(t.cache.synchronize());
    return values;
  }
  /// The batch says on the device what the tables say here.
  static void expect_batch(SmallCache& t, const std::vector<AppendDemand>& demands,
                           const StepBatch& step) {
    const DeviceBatch batch = t.cache.device_batch().value();
    const std::int64_t rows = std::ssize(demands);
    ASSERT_EQ(batch.num_rows, rows);
    ASSERT_EQ(batch.num_tokens, step.num_tokens);
    const auto row_slots = read(t, batch.row_slots, rows);
    const auto row_offsets = read(t, batch.row_offsets, rows);
    const auto lengths = read(t, batch.lengths, rows);
    const auto num_blocks = read(t, batch.num_blocks, rows);
    const auto q_offsets = read(t, batch.q_offsets, rows + 1);
    const auto slots = read(t, batch.slots, batch.num_tokens);
    EXPECT_TRUE(std::equal(slots.begin(), slots.end(), step.slots.begin(), step.slots.end()));
    EXPECT_EQ(batch.slots, step.device_slots);
    std::int64_t q = 0;
    std::int32_t longest = 0;
    std::int32_t most = 0;
    for (std::size_t r = 0; r < demands.size(); ++r) {
      const SequenceInfo info = *t.cache.tables().info(demands[r].sequence);
      EXPECT_EQ(lengths[r], info.length_tokens);
      EXPECT_EQ(num_blocks[r], (info.length_tokens + kSmallBlockSize - 1) / kSmallBlockSize);
      EXPECT_EQ(q_offsets[r], q);
      EXPECT_EQ(row_offsets[r], row_slots[r] * batch.table_stride);
      ASSERT_LE(row_offsets[r] + num_blocks[r], batch.num_table_entries);
      const auto row = read(t, batch.block_tables + row_offsets[r], num_blocks[r]);
      for (std::int32_t j = 0; j < num_blocks[r]; ++j) {
        EXPECT_EQ(row[static_cast<std::size_t>(j)],
                  *t.cache.tables().lookup(demands[r].sequence, j));
      }
      q += demands[r].num_tokens;
      longest = std::max(longest, lengths[r]);
      most = std::max(most, demands[r].num_tokens);
    }
    EXPECT_EQ(q_offsets.back(), q);
    EXPECT_EQ(batch.max_length_tokens, longest);
    EXPECT_EQ(batch.max_new_tokens, most);
  }
};

TEST_P(DeviceBatchTest, IsWhatTheTablesSay) {
  SmallCache t(GetParam());
  std::vector<SequenceId> ids;
  for (int i = 0; i < 3; ++i) ids.push_back(t.cache.create_sequence().value());
  EXPECT_FAILS(t.cache.device_batch(), failed_precondition, step);
  const std::vector<std::vector<AppendDemand>> steps{{{ids[0], 5}, {ids[1], 1}},
                                                     {{ids[2], 9}, {ids[0], 4}},
                                                     {{ids[1], 1}, {ids[2], 1}, {ids[0], 1}}};
  for (const std::vector<AppendDemand>& demands : steps) {
    ASSERT_OK(t.cache.begin_step());
    EXPECT_FAILS(t.cache.device_batch(), failed_precondition, step);
    const Result<StepBatch> batch = t.cache.append(demands);
    ASSERT_OK(batch);
    expect_batch(t, demands, *batch);
    ASSERT_OK(t.cache.end_step());
  }
  const Status refused = t.cache.device_batch().status();
  EXPECT_NE(t.cache.describe(refused).find("device_batch was called outside a step"),
            std::string::npos);
}

TEST_P(DeviceBatchTest, LayersAreViewsOfThePool) {
  SmallCache t(GetParam());
  const KvLayerView view = t.cache.layer_view(0).value();
  EXPECT_EQ(view.key.base, t.cache.arena().base());
  EXPECT_EQ(view.num_blocks, test::kSmallBlocks);
  EXPECT_FAILS(t.cache.layer_view(1), invalid_argument, layer);
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceBatchTest, ::testing::ValuesIn(test::device_kinds()),
                         [](const auto& kind) {
                           return kind.param == DeviceKind::host ? "host" : "cuda";
                         });

}  // namespace
}  // namespace kvarena
