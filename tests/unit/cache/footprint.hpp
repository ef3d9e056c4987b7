#pragma once

/// @file
/// What a device's tracker says a cache has allocated, in the terms in which it is predicted.

#include "support/status_matchers.hpp"

#include "kvarena/base/shapes.hpp"
#include "kvarena/cache/cache_footprint.hpp"
#include "kvarena/cache/kv_cache.hpp"
#include "kvarena/device/device.hpp"

#include <gtest/gtest.h>

#include <ostream>
#include <string>

namespace kvarena {

/// How GoogleTest prints a footprint.
inline void PrintTo(const CacheFootprint& f, std::ostream* out) {
  *out << f.num_blocks << " blocks, pool " << f.pool_bytes << ", workspaces " << f.workspace_bytes
       << ", tables " << f.table_bytes << ", staging " << f.staging_bytes << " bytes, "
       << f.device_allocations << " + " << f.staging_allocations << " allocations";
}

namespace test {

/// Options of a cache for a model, of 16-token blocks and with room for 64 sequences.
inline KvCacheOptions options_for(const ModelShape& shape) {
  return {.layout = {.num_layers = shape.num_layers,
                     .num_kv_heads = shape.num_kv_heads,
                     .head_dim_k = shape.head_dim,
                     .dtype = shape.dtype,
                     .block_size_tokens = 16},
          .size = {},
          .num_q_heads = shape.num_q_heads,
          .max_sequences = 64,
          .max_step_tokens = 2048,
          .max_open_tickets = 4};
}

/// The parts of what is allocated on a device that holds nothing but one cache, by their names.
inline CacheFootprint allocated_on(const Device& device, std::int64_t num_blocks) {
  CacheFootprint found{.num_blocks = num_blocks};
  for (const AllocationRecord& record : device.tracker().allocations()) {
    const bool is_pool = record.purpose == MemoryPurpose::kv_cache;
    const bool is_workspace = record.description == "attention workspace";
    const bool is_staging = record.kind == MemoryKind::pinned_staging;
    std::int64_t& part = is_staging     ? found.staging_bytes
                         : is_pool      ? found.pool_bytes
                         : is_workspace ? found.workspace_bytes
                                        : found.table_bytes;
    part += static_cast<std::int64_t>(record.bytes);
    ++(is_staging ? found.staging_allocations : found.device_allocations);
  }
  return found;
}

/// Everything the tracker and the device tell of the only cache there is what was predicted, and
/// nothing more was held on the way.
inline void expect_as_predicted(const Device& device, const KvCache& cache,
                                const CacheFootprint& predicted) {
  CacheFootprint found = allocated_on(device, cache.arena().num_blocks());
  found.host_bytes = predicted.host_bytes;  // which no device tells
  EXPECT_EQ(found, predicted);
  const MemoryBreakdown used = device.tracker().breakdown();
  const auto of = [&](MemoryPurpose purpose) {
    return used.by_purpose[static_cast<std::size_t>(purpose)];
  };
  const auto device_bytes = static_cast<std::uint64_t>(predicted.device_bytes());
  EXPECT_EQ(used.total.bytes, device_bytes);
  EXPECT_EQ(used.total.peak_bytes, device_bytes);
  EXPECT_EQ(used.total.count, static_cast<std::uint64_t>(predicted.device_allocations));
  EXPECT_EQ(of(MemoryPurpose::kv_cache).bytes, static_cast<std::uint64_t>(predicted.pool_bytes));
  EXPECT_EQ(of(MemoryPurpose::kv_cache).count, 1U);
  EXPECT_EQ(of(MemoryPurpose::intermediate_buffers).bytes,
            static_cast<std::uint64_t>(predicted.workspace_bytes + predicted.table_bytes));
  EXPECT_EQ(used.staging.bytes, static_cast<std::uint64_t>(predicted.staging_bytes));
  EXPECT_EQ(used.staging.count, static_cast<std::uint64_t>(predicted.staging_allocations));
}

}  // namespace test
}  // namespace kvarena
