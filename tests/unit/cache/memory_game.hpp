#pragma once

/// @file
/// Everything of kvarena's that takes memory, over and over: weights, streams, staging memory,
/// caches in use, and calls that are refused. For tests that count what reaches the driver.

#include "support/status_matchers.hpp"

#include "kvarena/cache/kv_cache.hpp"
#include "kvarena/device/device.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace kvarena::test {

/// One life of a cache: created, used for some steps, destroyed. Calls `check()` while it lives.
template <class Check>
void live_once(Device& device, std::int64_t num_blocks, Check check) {
  const KvCacheOptions options{.layout = {.num_layers = 2,
                                          .num_kv_heads = 2,
                                          .head_dim_k = 64,
                                          .dtype = DType::bf16,
                                          .block_size_tokens = 16},
                               .size = {.num_blocks = num_blocks},
                               .num_q_heads = 4,
                               .max_sequences = 8,
                               .max_step_tokens = 64};
  Result<KvCache> cache = KvCache::create(device, options);
  ASSERT_OK(cache);
  check();
  const SequenceId id = cache->create_sequence().value();
  for (int step = 0; step < 5; ++step) {
    ASSERT_OK(cache->begin_step());
    ASSERT_OK(cache->append(std::vector<AppendDemand>{{id, 7}}));
    ASSERT_OK(cache->end_step());
  }
  ASSERT_OK(cache->destroy(id));
  check();
}

/// Plays `rounds` rounds, calling `check()` after each. What it leaves is freed.
template <class Check>
void play_memory_game(Device& device, int rounds, Check check) {
  for (int round = 0; round < rounds; ++round) {
    const auto size = static_cast<std::uint64_t>(round + 1) * 1000;
    const auto weights = device.allocate(
        {.bytes = size * 100, .purpose = MemoryPurpose::model_weights, .description = "weights"});
    const auto aligned = device.allocate({.bytes = 3, .alignment_bytes = 4096});
    const auto staging = device.allocate({.bytes = size, .kind = MemoryKind::pinned_staging});
    ASSERT_OK(weights);
    ASSERT_OK(aligned);
    ASSERT_OK(staging);
    EXPECT_FALSE(device.allocate({.bytes = std::uint64_t{1} << 47}));
    EXPECT_FALSE(device.allocate({.bytes = 0}));
    const auto stream = device.create_stream();
    ASSERT_OK(stream);
    live_once(device, 32 + round, check);
    check();
    EXPECT_OK(device.destroy_stream(*stream));
    for (void* memory : {*weights, *aligned, *staging}) EXPECT_OK(device.free(memory));
    check();
  }
}

}  // namespace kvarena::test
