#pragma once

/// @file
/// A report in which every figure differs, so that one put in another's place is seen.

#include "kvarena/health/health_report.hpp"

#include <cstdint>

namespace kvarena::test {

inline constexpr std::int64_t kSecond = 1'000'000'000;
/// The publisher's clock has another epoch: it is ahead of the monitor's by this.
inline constexpr std::int64_t kAhead = 7'000'000 * kSecond;

inline DeviceHealth sample_device() {
  DeviceHealth device;
  device.name = "cuda:0 NVIDIA H200";
  device.policy = ResidencyPolicy::vram_only;
  device.resident = true;
  device.memory = {1000, 400};
  device.usage.total = {600, 650, 6};
  device.usage.staging = {11, 12, 1};
  device.usage.by_purpose = {{{300, 301, 3}, {200, 201, 2}, {100, 101, 1}, {0, 7, 0}}};
  device.usage.allocations_ever = 20;
  device.usage.frees_ever = 13;
  device.drift = MemoryDrift{610, 600, 10, 8, 2, 577, 4, 33};
  device.allocations_checked = 7;
  return device;
}

inline PoolSnapshot sample_snapshot() {
  PoolSnapshot snapshot;
  snapshot.step = 41;
  snapshot.published_ns = kAhead + 97 * kSecond;
  BlockStats& blocks = snapshot.blocks;
  blocks = {
      .num_blocks = 100, .free = 50, .referenced = 30, .fenced = 10, .evictable = 8, .offline = 2};
  blocks.reserved = 5;
  blocks.watermark = 4;
  blocks.holders = 3;
  blocks.references = 36;
  blocks.fence_entries = 14;
  blocks.peak_allocated = 71;
  blocks.holders_ever = 999;
  blocks.allocations = 1001;
  blocks.releases = 1002;
  blocks.evictions = 1003;
  blocks.exhaustions = 1004;
  snapshot.tables = {.sequences = 9,
                     .tokens = 480,
                     .entries = 37,
                     .waste_tokens = 21,
                     .pages_used = 15,
                     .pages_total = 64,
                     .sequences_ever = 88,
                     .copies_on_write = 19,
                     .pins = 2,
                     .pinned_entries = 5};
  snapshot.open_tickets = 6;
  snapshot.oldest_ticket = Ticket{77};
  snapshot.oldest_ticket_ns = kAhead + 90 * kSecond;
  snapshot.audit = {640, 16, {}};
  return snapshot;
}

inline HealthReport sample_report() {
  HealthReport report;
  report.healthy = true;
  report.resident = true;
  report.now_ns = 100 * kSecond;
  report.devices.push_back(sample_device());
  PoolHealth pool;
  pool.name = "default";
  pool.snapshot = sample_snapshot();
  pool.published_ns = 97 * kSecond;
  pool.oldest_ticket_ns = 90 * kSecond;
  pool.has_pending_work = true;
  pool.pressure = PressureLevel::elevated;
  pool.pressure_by_vram = true;
  pool.looked_ns = 98 * kSecond;
  pool.pressure_entered = {2, 3, 1, 0};
  pool.preemptions = 55;
  pool.waiting_requests = 12;
  report.pools.push_back(pool);
  report.checks = {5, 1, 95 * kSecond, kSecond / 4, 2 * kSecond};
  return report;
}

/// The sample report; its pool has a prefix cache.
inline HealthReport report_with_prefix() {
  HealthReport report = sample_report();
  PoolSnapshot& snapshot = report.pools[0].snapshot;
  snapshot.has_prefix_cache = 1;
  snapshot.prefix.registered = 30;
  snapshot.prefix.published = 28;
  snapshot.prefix.queries = 9;
  snapshot.prefix.query_tokens = 900;
  snapshot.prefix.hit_tokens = 320;
  snapshot.prefix.duplicates = 6;
  snapshot.prefix.shared = 5;
  snapshot.prefix.broken_chains = 2;
  snapshot.prefix.stops[static_cast<std::size_t>(PrefixStop::capped)] = 3;
  snapshot.prefix.stops[static_cast<std::size_t>(PrefixStop::evicted)] = 4;
  snapshot.prefix.stops[static_cast<std::size_t>(PrefixStop::never_seen)] = 1'500;
  snapshot.prefix.removals_by[static_cast<std::size_t>(PrefixRemoval::over_cap)] = 3;
  snapshot.prefix_use.reuse_gap.add(1, 2);
  snapshot.prefix_use.reuse_gap.add(50, 5);
  snapshot.prefix_use.reuse_gap.add(std::uint64_t{1} << 40, 1);
  snapshot.prefix_use.ghost_sampled_ppm = 125'000;
  snapshot.prefix_use.ghost_references = 77;
  snapshot.prefix_use.ghost_hits_ppm[3][0] = 250'000;
  snapshot.prefix_use.eviction = static_cast<std::int64_t>(EvictionPolicy::lfu);
  return report;
}

/// The sample report; its pool has pages and two groups.
inline HealthReport report_with_groups() {
  HealthReport report = sample_report();
  PoolSnapshot& snapshot = report.pools[0].snapshot;
  snapshot.pages = {.num_pages = 40,
                    .free = 16,
                    .of_groups = 23,
                    .offline = 1,
                    .evictable = 7,
                    .reserved = 5,
                    .watermark = 4,
                    .peak_used = 31,
                    .turned = 88,
                    .page_bytes = 6144};
  snapshot.num_groups = 2;
  snapshot.kinds = {PagedKind::full, PagedKind::window};
  snapshot.groups[0] = {.pages = 11,
                        .blocks_per_page = 3,
                        .block_bytes = 2048,
                        .free = 9,
                        .referenced = 12,
                        .fenced = 4,
                        .evictable = 6,
                        .offline = 2,
                        .stranded = 8};
  snapshot.groups[1] = {.pages = 12,
                        .blocks_per_page = 1,
                        .block_bytes = 5120,
                        .free = 0,
                        .referenced = 7,
                        .fenced = 3,
                        .evictable = 2,
                        .offline = 0,
                        .stranded = 0};
  return report;
}

inline HealthDetails sample_details() {
  HealthDetails details;
  NamedPoolDetails pool{"default", {}};
  pool.details.step = 40;
  pool.details.published_ns = kAhead + 96 * kSecond;
  pool.details.explanation.requested = 1;
  pool.details.explanation.fits = true;
  pool.details.explanation.usable = 58;
  pool.details.explanation.stats = sample_snapshot().blocks;
  pool.details.explanation.num_largest = 1;
  pool.details.explanation.largest[0] = {
      HolderId{4}, 17, 9001, "sequence", 22, 3, kAhead + 66 * kSecond, 90 * kSecond};
  pool.details.holders = {
      pool.details.explanation.largest[0],
      {HolderId{5}, 18, 0, "prefix", 14, 0, 0, 0},
      {HolderId{6}, 19, 0, "export", 2, 0, kAhead + 95 * kSecond, 99 * kSecond},
  };
  details.pools.push_back(pool);
  AllocationRecord arena;
  arena.pointer = reinterpret_cast<void*>(0x7f0000001000);
  arena.bytes = 200;
  arena.purpose = MemoryPurpose::kv_cache;
  arena.description = "arena";
  details.devices.push_back({"cuda:0 NVIDIA H200", {arena}});
  return details;
}

}  // namespace kvarena::test
