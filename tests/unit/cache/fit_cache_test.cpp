// fit_cache: the largest cache within a budget, exactly, and that it can be had.

#include "support/reserved_memory.hpp"
#include "support/status_matchers.hpp"
#include "unit/cache/footprint.hpp"
#include "unit/cache/small_cache.hpp"

#include "kvarena/cache/cache_footprint.hpp"
#include "kvarena/device/host_device.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace kvarena {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;
constexpr CacheTarget kH200{.kind = DeviceKind::cuda, .num_sms = 132};
constexpr CacheTarget kHost{.kind = DeviceKind::host, .num_threads = 2};

KvCacheOptions options_of(const char* model) { return test::options_for(*find_model_shape(model)); }

/// Bytes of `options` with so many blocks.
std::int64_t bytes_of(KvCacheOptions options, const CacheTarget& target, std::int64_t blocks) {
  options.size = {.num_blocks = blocks};
  return cache_footprint(options, target).value().device_bytes();
}

TEST(FitCache, TakesTheLastBlockThatFits) {
  for (const ModelShape& shape : model_shapes()) {
    for (const CacheTarget& target : {kH200, kHost}) {
      for (const std::int64_t longest : {std::int64_t{0}, std::int64_t{8192}}) {
        KvCacheOptions options = test::options_for(shape);
        options.max_sequence_tokens = longest;
        for (const std::int64_t budget : {3 * kGiB + 1, 80 * kGiB, 141 * kGiB - 7}) {
          SCOPED_TRACE(std::string(shape.name) + " in " + std::to_string(budget));
          const Result<KvCacheOptions> fitted = fit_cache(options, target, budget);
          ASSERT_OK(fitted);
          const std::int64_t blocks = fitted->size.num_blocks;
          ASSERT_LE(bytes_of(options, target, blocks), budget);
          ASSERT_GT(bytes_of(options, target, blocks + 1), budget);
        }
      }
    }
  }
}

TEST(FitCache, IsExactAtTheByte) {
  const KvCacheOptions options = options_of("Qwen2.5-0.5B");
  for (const CacheTarget& target : {kH200, kHost}) {
    for (const std::int64_t blocks : {1, 2, 3, 31, 32, 33, 1000, 123'457}) {
      const std::int64_t needed = bytes_of(options, target, blocks);
      EXPECT_EQ(fit_cache(options, target, needed)->size.num_blocks, blocks);
      const Result<KvCacheOptions> less = fit_cache(options, target, needed - 1);
      if (blocks > 1) {
        EXPECT_EQ(less->size.num_blocks, blocks - 1);
        continue;
      }
      EXPECT_FAILS(less, insufficient_vram, device_memory);
      EXPECT_EQ(less.status().required, static_cast<std::uint64_t>(needed));
      EXPECT_EQ(less.status().available, static_cast<std::uint64_t>(needed - 1));
    }
  }
}

TEST(FitCache, ChangesTheSizeAlone) {
  KvCacheOptions options = options_of("Llama-3.1-8B");
  options.size = {.budget_bytes = 5};
  const KvCacheOptions fitted = fit_cache(options, kH200, 60 * kGiB).value();
  EXPECT_EQ(fitted.size.budget_bytes, 0);
  EXPECT_EQ(fitted.size.all_free_but_bytes, -1);
  EXPECT_EQ(fitted.max_batch_blocks, 0);
  EXPECT_EQ(fitted.max_batch_rows, 0);
  EXPECT_EQ(fitted.layout.tile_order, std::nullopt);
  // The pool alone would have had more.
  options.size = {.budget_bytes = 60 * kGiB};
  EXPECT_LT(fitted.size.num_blocks, cache_footprint(options, kH200)->num_blocks);
}

TEST(FitCache, RefusesByName) {
  KvCacheOptions options = options_of("Llama-3.1-8B");
  EXPECT_REFUSES(fit_cache(options, kH200, -1), invalid_argument, budget_bytes);
  EXPECT_FAILS(fit_cache(options, kH200, 0), insufficient_vram, device_memory);
  EXPECT_REFUSES(fit_cache(options, {.kind = DeviceKind::cuda}, kGiB), invalid_argument, num_sms);
  options.watermark_blocks = 1000;
  EXPECT_REFUSES(fit_cache(options, kH200, kGiB), invalid_argument, watermark_blocks);
  EXPECT_OK(fit_cache(options, kH200, 4 * kGiB));
  options.num_q_heads = 7;
  EXPECT_REFUSES(fit_cache(options, kH200, kGiB), invalid_argument, num_q_heads);
}

TEST(FitCache, ABudgetPastWhatACacheCanHaveGivesTheLargestCache) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  KvCacheOptions options = test::small_options();  // blocks of 1 KiB
  const KvCacheOptions on_host = fit_cache(options, kHost, kMost).value();
  EXPECT_EQ(on_host.size.num_blocks, KvLayout::kMaxBlocks);
  EXPECT_OK(cache_footprint(on_host, kHost));
  // On CUDA the ring holds four times the blocks, in 30 bits.
  KvCacheOptions on_cuda = fit_cache(options, kH200, kMost).value();
  EXPECT_EQ(on_cuda.size.num_blocks, 1 << 28);
  EXPECT_OK(cache_footprint(on_cuda, kH200));
  ++on_cuda.size.num_blocks;
  EXPECT_REFUSES(cache_footprint(on_cuda, kH200), invalid_argument, max_batch_blocks);
  // A pool is one allocation of at most 2^48 bytes.
  options = options_of("Llama-3.1-405B");
  const KvCacheOptions large = fit_cache(options, kHost, kMost).value();
  const std::int64_t block_bytes = KvLayout::create(options.layout)->block_bytes();
  EXPECT_EQ(large.size.num_blocks, (std::int64_t{1} << 48) / block_bytes);
}

TEST(FitCache, ADeviceOfTheBudgetHasRoomForThatCacheAndNotForOneBlockMore) {
  for (const char* model : {"Llama-3.1-8B", "Phi-3-mini-4k-instruct", "Qwen2.5-0.5B"}) {
    constexpr std::int64_t kBudget = 141 * kGiB + 12'345;
    test::ReservedMemory memory;
    const auto device = HostDevice::create({.capacity_bytes = std::uint64_t{kBudget},
                                            .streams = HostStreams::manual,
                                            .memory = &memory})
                            .value();
    KvCacheOptions options = options_of(model);
    options.num_threads = 2;
    options = fit_cache(options, target_of(*device).value(), kBudget).value();
    EXPECT_OK(KvCache::create(*device, options)) << model;
    ++options.size.num_blocks;
    EXPECT_FAILS(KvCache::create(*device, options), insufficient_vram, device_memory) << model;
    EXPECT_EQ(memory.reserved_bytes, 0) << model;
  }
}

}  // namespace
}  // namespace kvarena
