#pragma once

/// @file
/// What a `KvCache` takes of a device's memory, without the device: pure functions of the cache's
/// options and of the few facts of a device that decide sizes. KvCache::create allocates by the
/// same plan, so what is predicted is what is allocated, to the byte. They work in builds without
/// CUDA for a CUDA device too. Any thread.
///
/// Bytes are those asked of the device, as VramTracker counts them. A driver rounds up (CUDA:
/// device memory to 2 MiB an allocation, smaller ones sharing); a process also has what is no
/// cache's: the CUDA context with the kernels it loads (Device::overhead_bytes) and the graphs it
/// instantiates.

#include "kvarena/base/export.hpp"
#include "kvarena/base/result.hpp"
#include "kvarena/cache/kv_cache.hpp"
#include "kvarena/device/device.hpp"

#include <cstdint>
#include <type_traits>

namespace kvarena {

/// What of a device decides a cache's sizes.
struct CacheTarget {
  DeviceKind kind = DeviceKind::host;     ///< host or cuda
  std::int32_t num_threads = 0;           ///< host: KvCacheOptions::num_threads where that is 0;
                                          ///< 0: one a core of this machine
  std::int32_t num_sms = 0;               ///< CUDA: CudaDeviceInfo::num_sms, 1 .. 4096
  std::int64_t bounce_bytes = 256 << 10;  ///< CUDA: CudaDeviceOptions::bounce_bytes
};

/// The target that a device is. Returns unsupported (device) for a device of kind cuda that is no
/// CudaDevice.
KVARENA_EXPORT Result<CacheTarget> target_of(const Device& device);

/// What a cache holds from create to its end. While create runs on CUDA, another stream's
/// bounce_bytes of pinned memory come and go.
struct CacheFootprint {
  std::int64_t num_blocks = 0;           ///< blocks in the pool
  std::int64_t pool_bytes = 0;           ///< KVCache: num_blocks * KvLayout::block_bytes
  std::int64_t workspace_bytes = 0;      ///< IntermediateBuffers: all attention workspaces
  std::int64_t table_bytes = 0;          ///< IntermediateBuffers: CUDA: the step's block tables
  std::int64_t staging_bytes = 0;        ///< pinned host memory: CUDA: staging ring, home stream
  std::int32_t device_allocations = 0;   ///< how many allocations the device memory is
  std::int32_t staging_allocations = 0;  ///< how many the pinned host memory is
  std::int64_t host_bytes = 0;           ///< of the process: block manager and block tables, at
                                         ///< most: much of it is committed when it is first used

  /// Memory of the device.
  constexpr std::int64_t device_bytes() const noexcept {
    return pool_bytes + workspace_bytes + table_bytes;
  }
  friend constexpr bool operator==(const CacheFootprint&, const CacheFootprint&) noexcept = default;
};

/// What KvCache::create with these options takes of such a device. `free_bytes`, the device's free
/// memory, matters for PoolSize::all_free_but_bytes only. Returns what create returns of the
/// options: invalid_argument naming one, unsupported, insufficient_vram when not even one block
/// fits PoolSize's budget; and invalid_argument (num_sms) for a target without multiprocessors.
/// O(max_batch_rows * max_decode_tokens) for CUDA.
KVARENA_EXPORT Result<CacheFootprint> cache_footprint(const KvCacheOptions& options,
                                                      const CacheTarget& target,
                                                      std::int64_t free_bytes = 0);

/// `options` with the most blocks whose whole cache, CacheFootprint::device_bytes, is at most
/// `budget_bytes` (where PoolSize's budget is the pool's alone): one block more would not fit, or
/// is more than a cache can have (KvLayout::kMaxBlocks). `options.size` is replaced;
/// max_batch_blocks and max_sequence_tokens follow the blocks where they are 0. Returns as
/// cache_footprint; insufficient_vram{of a cache of one block, budget} when not even that fits;
/// invalid_argument (budget_bytes) for a negative budget, (watermark_blocks) for one above the
/// blocks that fit.
KVARENA_EXPORT Result<KvCacheOptions> fit_cache(const KvCacheOptions& options,
                                                const CacheTarget& target,
                                                std::int64_t budget_bytes);

static_assert(std::is_trivially_copyable_v<CacheTarget> &&
              std::is_trivially_copyable_v<CacheFootprint>);

}  // namespace kvarena
