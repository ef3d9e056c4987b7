#pragma once

/// @file
/// `GhostIndex`: says online what the hit rate of a prefix cache would be with half, twice and four
/// times the blocks, and with other eviction policies. It plays every request through caches that
/// have ids and no blocks, by the rules of `kvarena replay --pure-cache`: no engine, nothing is
/// pinned.
///
/// A sample of the ids, by their hash, is enough: a cache of 1/8 of the blocks sees 1/8 of the ids.
/// While the largest cache fits in `max_sampled_blocks`, all ids are in the sample and the figures
/// are exact. With a smaller sample a hit behind an absent id that is not in the sample is counted:
/// orders that evict heads (head_first, fifo) then look better than they are.
///
/// All memory is allocated at create, and committed when it is first used. Deterministic.
/// Move-only; one thread at a time.

#include "allocator/eviction_order.hpp"
#include "base/lazy_array.hpp"
#include "kvarena/base/result.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvarena {

/// What a GhostIndex plays.
struct GhostIndexOptions {
  /// Blocks of the real cache, 1 .. KvLayout::kMaxBlocks / 4.
  std::int64_t num_blocks = 0;
  /// Ids of the largest cache of a policy, 4 .. 2^24. Error falls and memory grows with it.
  std::int64_t max_sampled_blocks = std::int64_t{1} << 15;
  /// Borrowed for the call of create. Without priority, which a replay of ids cannot know.
  std::span<const EvictionPolicy> policies = kAll;

  static constexpr std::array kAll{EvictionPolicy::tail_first, EvictionPolicy::head_first,
                                   EvictionPolicy::fifo, EvictionPolicy::lfu};
};

/// What one of the caches would have done.
struct GhostReport {
  EvictionPolicy policy{};
  std::int64_t num_blocks = 0;  ///< of that cache
  double block_hit_rate = 0;    ///< hits / block references, 0 .. 1; 0 before the first reference
};

/// One cache of ids: which would be in a prefix cache of so many blocks.
class GhostCache {
 public:
  /// Throws std::bad_alloc.
  GhostCache(EvictionPolicy policy, std::int64_t capacity_blocks);

  bool contains(std::uint64_t id) const noexcept { return find(id) != 0; }
  /// Uses an id that is in the cache, or inserts it and evicts another if need be. O(1) on average.
  void touch(std::uint64_t id) noexcept;
  EvictionPolicy policy() const noexcept { return order_.policy(); }
  std::int64_t capacity_blocks() const noexcept { return static_cast<std::int64_t>(ids_.size()); }

 private:
  std::size_t bucket_of(std::uint64_t id) const noexcept;
  std::uint32_t find(std::uint64_t id) const noexcept;
  void unlink(std::uint32_t block) noexcept;

  EvictionOrder order_;
  LazyArray<std::uint64_t> ids_;      // [capacity], by block
  LazyArray<std::uint32_t> chains_;   // [capacity], the next block + 1 of the same bucket; 0: none
  LazyArray<std::uint32_t> buckets_;  // a power of two; the first block + 1; 0: none
};

/// Caches of all policies and sizes.
class GhostIndex {
 public:
  /// The sizes, in halves of the real cache.
  static constexpr std::array<std::int64_t, 4> kHalves{1, 2, 4, 8};

  /// Allocates everything. Returns invalid_argument (num_blocks, capacity, eviction), or exhausted
  /// (host_memory).
  static Result<GhostIndex> create(const GhostIndexOptions& options);
  /// Returns an upper bound of the memory of such an index.
  static std::int64_t host_bytes(const GhostIndexOptions& options) noexcept;

  /// Plays a request: `ids` are the ids of its full blocks, from the first. An id stands for a
  /// whole prefix, as a hash of a prefix index does. O(ids in the sample x caches).
  void observe(std::span<const std::uint64_t> ids) noexcept;
  /// Returns one report for each cache: by policy as given, then by size. Allocates the list.
  std::vector<GhostReport> reports() const;
  /// Returns the hit rate of report number `cache`. Allocates nothing.
  double hit_rate(std::size_t cache) const noexcept;
  /// The share of ids that the caches see, above 0 .. 1.
  double sampled_share() const noexcept;
  /// References observed, and those that were in the sample.
  std::int64_t block_refs() const noexcept { return block_refs_; }
  std::int64_t sampled_refs() const noexcept { return sampled_refs_; }

 private:
  struct Cache {
    GhostCache ids;
    std::int64_t num_blocks;
    std::int64_t hits;
  };
  explicit GhostIndex(const GhostIndexOptions& options);
  bool is_sampled(std::uint64_t id) const noexcept;

  std::int64_t num_blocks_;
  std::int64_t block_refs_ = 0;
  std::int64_t sampled_refs_ = 0;
  std::uint64_t kept_;  // hashes below it are in the sample, of 2^32
  std::vector<Cache> caches_;
};

}  // namespace kvarena
