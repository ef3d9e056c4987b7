#pragma once

/// @file
/// The memory that a `KvCache` takes of a device, computed without the device: pure functions of
/// the cache's options and of the few facts of a device that decide sizes. KvCache::create
/// allocates by the same plan, so the prediction equals the allocation to the byte. In builds
/// without CUDA the functions work for a CUDA device too. Any thread.
///
/// The bytes are those asked of the device, as VramTracker counts them. A driver rounds up: CUDA
/// rounds device memory to 2 MiB an allocation, and smaller allocations share. A process also uses
/// memory that is not the cache's: the CUDA context with the kernels it loads
/// (Device::overhead_bytes), and the graphs that the process instantiates.

#include "kvarena/base/export.hpp"
#include "kvarena/base/result.hpp"
#include "kvarena/cache/kv_cache.hpp"
#include "kvarena/device/device.hpp"

#include <cstdint>
#include <type_traits>

namespace kvarena {

/// The facts of a device that decide a cache's sizes.
struct CacheTarget {
  DeviceKind kind = DeviceKind::host;     ///< host or cuda
  std::int32_t num_threads = 0;           ///< host: the default of KvCacheOptions::num_threads; 0:
                                          ///< one a core of this machine
  std::int32_t num_sms = 0;               ///< CUDA: CudaDeviceInfo::num_sms, 1 .. 4096
  std::int64_t bounce_bytes = 256 << 10;  ///< CUDA: CudaDeviceOptions::bounce_bytes
};

/// Returns the target for a device. Returns unsupported (device) for a device of kind cuda that is
/// not a CudaDevice.
KVARENA_EXPORT Result<CacheTarget> target_of(const Device& device);

/// The memory that a cache holds from create to its end. While create runs on CUDA, it also uses
/// the bounce_bytes of one more stream, in pinned memory, and gives them back.
struct CacheFootprint {
  std::int64_t num_blocks = 0;           ///< blocks in the pool; with groups pages
  std::int64_t pool_bytes = 0;           ///< KVCache: num_blocks * KvLayout::block_bytes, or with
                                         ///< groups GroupLayout::page_bytes
  std::int64_t workspace_bytes = 0;      ///< IntermediateBuffers: all attention workspaces
  std::int64_t table_bytes = 0;          ///< IntermediateBuffers: the step's block tables on CUDA
  std::int64_t staging_bytes = 0;        ///< pinned host memory on CUDA: staging ring, home stream
  std::int32_t device_allocations = 0;   ///< number of allocations of device memory
  std::int32_t staging_allocations = 0;  ///< number of allocations of pinned host memory
  std::int64_t host_bytes = 0;           ///< memory of the process: block manager and block tables;
                                         ///< an upper bound, since much of it is committed when it
                                         ///< is first used

  /// The bytes of device memory.
  constexpr std::int64_t device_bytes() const noexcept {
    return pool_bytes + workspace_bytes + table_bytes;
  }
  friend constexpr bool operator==(const CacheFootprint&, const CacheFootprint&) noexcept = default;
};

/// Computes what KvCache::create with these options takes of such a device. `free_bytes`, the
/// device's free memory, matters only for PoolSize::all_free_but_bytes. Returns what create returns
/// for the options: invalid_argument with one of them, unsupported, or insufficient_vram when not
/// even one block fits the budget of PoolSize. Returns invalid_argument (num_sms) for a CUDA target
/// without multiprocessors. O(max_batch_rows * max_decode_tokens) for CUDA.
KVARENA_EXPORT Result<CacheFootprint> cache_footprint(const KvCacheOptions& options,
                                                      const CacheTarget& target,
                                                      std::int64_t free_bytes = 0);

/// Returns `options` with the largest number of blocks for which the whole cache,
/// CacheFootprint::device_bytes, takes at most `budget_bytes`. (The budget of PoolSize is for the
/// pool alone.) One block more would not fit, or is more than a cache can have
/// (KvLayout::kMaxBlocks). `options.size` is replaced. max_batch_blocks and max_sequence_tokens
/// follow the blocks where they are 0. Returns what cache_footprint returns;
/// insufficient_vram{bytes of a cache of one block, budget} when not even that fits;
/// invalid_argument (budget_bytes) for a negative budget, and (watermark_blocks) for a watermark
/// above the blocks that fit.
KVARENA_EXPORT Result<KvCacheOptions> fit_cache(const KvCacheOptions& options,
                                                const CacheTarget& target,
                                                std::int64_t budget_bytes);

static_assert(std::is_trivially_copyable_v<CacheTarget> &&
              std::is_trivially_copyable_v<CacheFootprint>);

}  // namespace kvarena
