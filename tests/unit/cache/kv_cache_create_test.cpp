// KvCache::create: what it refuses, what it allocates, and that a failure leaves nothing behind.

#include "support/fake_memory_source.hpp"
#include "support/faulty_device.hpp"
#include "support/status_matchers.hpp"
#include "unit/cache/small_cache.hpp"

#include <gtest/gtest.h>

#include <functional>

namespace kvarena {
namespace {

using test::small_options;

struct Refusal {
  StatusCode code;
  test::Blame blame;
  std::function<void(KvCacheOptions&)> spoil;
};

const std::vector<Refusal>& refusals() {
  constexpr auto kInvalid = StatusCode::invalid_argument;
  constexpr auto kUnsupported = StatusCode::unsupported;
  static const std::vector<Refusal> list{
      {kInvalid, Option::num_layers, [](auto& o) { o.layout.num_layers = 0; }},
      {kInvalid, Option::dtype, [](auto& o) { o.layout.dtype = static_cast<DType>(99); }},
      {kInvalid, Option::tile_order,
       [](auto& o) { o.layout.tile_order = static_cast<TileOrder>(99); }},
      {kInvalid, Option::order, [](auto& o) { o.order = static_cast<BlockOrder>(99); }},
      {kInvalid, Option::audit_blocks_per_step, [](auto& o) { o.audit_blocks_per_step = -1; }},
      {kInvalid, Option::num_kv_heads, [](auto& o) { o.layout.num_kv_heads = 0; }},
      {kInvalid, Option::head_dim_k, [](auto& o) { o.layout.head_dim_k = -1; }},
      {kInvalid, Option::block_size_tokens, [](auto& o) { o.layout.block_size_tokens = 0; }},
      {kInvalid, Option::size, [](auto& o) { o.size = {}; }},
      {kInvalid, Option::size, [](auto& o) { o.size.budget_bytes = 1 << 20; }},
      {kInvalid, Option::num_q_heads, [](auto& o) { o.num_q_heads = 0; }},
      {kInvalid, Option::num_q_heads, [](auto& o) { o.num_q_heads = 2; }},
      {kInvalid, Option::num_q_heads, [](auto& o) { o.num_q_heads = 6; }},
      {kInvalid, Option::num_q_heads, [](auto& o) { o.num_q_heads = 8192; }},
      {kInvalid, Option::max_sequences, [](auto& o) { o.max_sequences = 0; }},
      {kInvalid, Option::max_sequences, [](auto& o) { o.max_sequences = -4; }},
      {kInvalid, Option::max_sequences,
       [](auto& o) {
         o.max_sequences = 0;
         o.max_batch_rows = 4;
       }},
      {kInvalid, Option::max_batch_rows, [](auto& o) { o.max_batch_rows = -1; }},
      {kInvalid, Option::max_step_tokens, [](auto& o) { o.max_step_tokens = 0; }},
      {kInvalid, Option::max_step_tokens, [](auto& o) { o.max_step_tokens = 1LL << 40; }},
      {kInvalid, Option::max_batch_blocks, [](auto& o) { o.max_batch_blocks = -1; }},
      {kInvalid, Option::watermark_blocks, [](auto& o) { o.watermark_blocks = -1; }},
      {kInvalid, Option::watermark_blocks, [](auto& o) { o.watermark_blocks = 9; }},
      {kInvalid, Option::window_tokens, [](auto& o) { o.window_tokens = -1; }},
      {kInvalid, Option::steps_in_flight, [](auto& o) { o.steps_in_flight = 0; }},
      {kInvalid, Option::steps_in_flight, [](auto& o) { o.steps_in_flight = 17; }},
      {kInvalid, Option::max_open_tickets, [](auto& o) { o.max_open_tickets = 0; }},
      {kInvalid, Option::max_open_tickets, [](auto& o) { o.max_open_tickets = 1 << 20; }},
      {kInvalid, Option::max_sequence_tokens, [](auto& o) { o.max_sequence_tokens = -1; }},
      {kInvalid, Option::max_sequence_tokens, [](auto& o) { o.max_sequence_tokens = 1LL << 31; }},
      {kInvalid, Option::max_decode_tokens, [](auto& o) { o.max_decode_tokens = 0; }},
      {kInvalid, Option::max_decode_tokens, [](auto& o) { o.max_decode_tokens = 17; }},
      {kInvalid, Option::batch_invariant_tokens, [](auto& o) { o.batch_invariant_tokens = -1; }},
      {kInvalid, Option::max_shared_rows, [](auto& o) { o.max_shared_rows = -1; }},
      {kInvalid, Option::max_shared_rows, [](auto& o) { o.max_shared_rows = 4097; }},
      {kUnsupported, Option::home_stream, [](auto& o) { o.home_stream = &o; }},
      {kInvalid, Option::num_threads, [](auto& o) { o.num_threads = -1; }},
      {kInvalid, Option::num_threads, [](auto& o) { o.num_threads = 1 << 20; }},
      {kUnsupported, Option::dtype, [](auto& o) { o.layout.dtype = DType::fp8_e4m3; }},
      {kUnsupported, Option::dtype, [](auto& o) { o.layout.dtype = DType::int8; }},
      {kUnsupported, Option::tile_order,
       [](auto& o) {
         o.layout.block_size_tokens = 16;
         o.layout.head_dim_k = 32;
         o.layout.dtype = DType::f16;
         o.layout.tile_order = TileOrder::chunked;
       }},
  };
  return list;
}

TEST(KvCacheCreate, RefusesEachOptionByNameAndLeavesNothing) {
  const auto device = HostDevice::create({.capacity_bytes = 1 << 24}).value();
  for (std::size_t i = 0; i < refusals().size(); ++i) {
    const Refusal& refusal = refusals()[i];
    KvCacheOptions options = small_options();
    refusal.spoil(options);
    const Status status = KvCache::create(*device, options).status();
    EXPECT_TRUE(test::fails_with(status, refusal.code, refusal.blame)) << "refusal " << i;
    EXPECT_EQ(device->tracker().breakdown().total.count, 0U) << "refusal " << i;
  }
}

TEST(KvCacheCreate, MoreThanTheDeviceHasIsInsufficientVram) {
  const auto device = HostDevice::create({.capacity_bytes = 16 << 10}).value();
  KvCacheOptions options = small_options();
  const auto block_bytes = KvLayout::create(options.layout)->block_bytes();
  options.size.num_blocks = 1 << 20;
  const Result<KvCache> cache = KvCache::create(*device, options);
  EXPECT_FAILS(cache, insufficient_vram, device_memory);
  EXPECT_EQ(cache.status().required, static_cast<std::uint64_t>(block_bytes) << 20);
  EXPECT_EQ(cache.status().available, 16U << 10);
  EXPECT_NE(device->describe(cache.status()).find("KVCache"), std::string::npos);
  options.size = {.budget_bytes = 1};  // refused by the plan, before the device is asked
  const Status planned = KvCache::create(*device, options).status();
  EXPECT_EQ(planned.code, StatusCode::insufficient_vram);
  EXPECT_NE(device->describe(planned).find("in use now"), std::string::npos);
  options.size = {.all_free_but_bytes = 0};  // nothing left for the workspaces
  EXPECT_FAILS(KvCache::create(*device, options), insufficient_vram, device_memory);
  EXPECT_EQ(device->memory_info()->free_bytes, 16U << 10);
}

TEST(KvCacheCreate, RunsOutOfStreams) {
  const auto device = HostDevice::create({.max_streams = 1}).value();
  ASSERT_OK(device->create_stream());
  EXPECT_FAILS(KvCache::create(*device, small_options()), exhausted, stream);
  EXPECT_EQ(device->tracker().breakdown().total.count, 0U);
}

TEST(KvCacheCreate, OnePoolAllocationAndWorkspacesByName) {
  test::FakeMemorySource memory;
  const auto device = HostDevice::create({.memory = &memory}).value();
  for (const std::int32_t window : {0, 16}) {
    KvCacheOptions options = small_options();
    options.window_tokens = window;
    options.steps_in_flight = 3;
    const Result<KvCache> cache = KvCache::create(*device, options);
    ASSERT_OK(cache);
    const MemoryBreakdown used = device->tracker().breakdown();
    const auto& pool = used.by_purpose[static_cast<std::size_t>(MemoryPurpose::kv_cache)];
    const auto& work =
        used.by_purpose[static_cast<std::size_t>(MemoryPurpose::intermediate_buffers)];
    EXPECT_EQ(pool.count, 1U);
    EXPECT_EQ(pool.bytes, static_cast<std::uint64_t>(cache->arena().bytes()));
    EXPECT_EQ(work.count, window == 0 ? 3U : 6U);
    EXPECT_EQ(used.total.count, pool.count + work.count);
  }
  EXPECT_EQ(device->tracker().breakdown().total.bytes, 0U);
  EXPECT_EQ(memory.live_bytes, 0);
}

TEST(KvCacheCreate, BytesReturnExactlyAfterEachOfManyLives) {
  test::FakeMemorySource memory;
  const auto device =
      HostDevice::create({.streams = HostStreams::manual, .memory = &memory}).value();
  for (int life = 0; life < 20; ++life) {
    Result<KvCache> cache = KvCache::create(*device, small_options());
    ASSERT_OK(cache);
    const SequenceId id = *cache->create_sequence();
    ASSERT_OK(cache->begin_step());
    ASSERT_OK(cache->append(std::vector<AppendDemand>{{id, 9}}));
    if (life % 2 == 0) {
      ASSERT_OK(cache->end_step());
    }
    ASSERT_OK(cache->fence(cache->stream()));
    KvCache moved = std::move(*cache);  // destroyed in the middle of a step, a fence open
    EXPECT_EQ(moved.tables().stats().tokens, 9);
  }
  EXPECT_EQ(device->tracker().breakdown().total.count, 0U);
  EXPECT_EQ(memory.live_bytes, 0);
  EXPECT_EQ(memory.num_live, 0);
}

TEST(KvCacheCreate, AFailureOfAnyDeviceCallLeavesNothing) {
  test::FakeMemorySource memory;
  KvCacheOptions options = small_options();
  options.window_tokens = 8;
  const auto device = HostDevice::create({.max_streams = 1, .memory = &memory}).value();
  bool created = false;
  const std::int64_t num_calls = test::fail_every_call(
      *device,
      [&](test::FaultyDevice& faulty) {
        const Result<KvCache> cache = KvCache::create(faulty, options);
        created = cache.is_ok();
        if (!created) {
          EXPECT_EQ(cache.status().native, 719);
        }
      },
      [&](std::int64_t n) {
        EXPECT_EQ(device->tracker().breakdown().total.count, 0U) << "call " << n;
        EXPECT_EQ(memory.live_bytes, 0) << "call " << n;
        // The only stream is there again.
        const Result<StreamId> stream = device->create_stream();
        ASSERT_OK(stream) << "call " << n;
        ASSERT_OK(device->destroy_stream(*stream));
      });
  EXPECT_TRUE(created);
  EXPECT_GT(num_calls, 10);
}

TEST(KvCacheCreate, MoveAssignmentFreesWhatWasThere) {
  const auto device = HostDevice::create().value();
  KvCache first = KvCache::create(*device, small_options()).value();
  const std::uint64_t one = device->tracker().breakdown().total.bytes;
  KvCache second = KvCache::create(*device, small_options()).value();
  EXPECT_EQ(device->tracker().breakdown().total.bytes, 2 * one);
  first = std::move(second);
  EXPECT_EQ(device->tracker().breakdown().total.bytes, one);
  EXPECT_OK(first.create_sequence());
}

}  // namespace
}  // namespace kvarena
