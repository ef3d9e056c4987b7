#pragma once

/// @file
/// What the prefix cache of BlockTables tells about its use: histograms, and what the hit rate
/// would be with other sizes and policies. Plain values; copies may be read from any thread.
///
/// Times are in registrations: the blocks that the cache has registered meanwhile. They need no
/// clock, and are equal on every rank. A cache that turns over all of its blocks has registered
/// about as many as the pool has.

#include "kvarena/allocator/eviction_policy.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvarena {

/// Counts of times, by powers of four.
struct PrefixHistogram {
  static constexpr std::size_t kNumBuckets = 17;    ///< of times
  std::array<std::uint64_t, kNumBuckets> counts{};  ///< by bucket
  std::uint64_t sum = 0;                            ///< of all times

  /// The largest time that bucket `i` counts: 4^i. The last bucket counts all others too.
  static constexpr std::uint64_t bound(std::size_t i) noexcept { return std::uint64_t{1} << 2 * i; }
  /// Counts a time, so often. O(1).
  void add(std::uint64_t time, std::uint64_t times) noexcept {
    const auto bits = time <= 1 ? 0U : 64U - static_cast<unsigned>(__builtin_clzll(time - 1));
    const std::size_t bucket = (bits + 1) / 2;
    counts[bucket < kNumBuckets ? bucket : kNumBuckets - 1] += times;
    sum += time * times;
  }
  /// The number of times.
  std::uint64_t total() const noexcept {
    std::uint64_t all = 0;
    for (const std::uint64_t count : counts) all += count;
    return all;
  }
  friend bool operator==(const PrefixHistogram&, const PrefixHistogram&) = default;
};

/// The policies that the ghost caches play.
inline constexpr std::array kGhostPolicies{EvictionPolicy::tail_first, EvictionPolicy::head_first,
                                           EvictionPolicy::fifo, EvictionPolicy::lfu};
/// Their sizes, in halves of the pool: half of it, all of it, twice and four times.
inline constexpr std::array<std::int64_t, 4> kGhostHalves{1, 2, 4, 8};

/// Figures of the use of a prefix cache since create.
struct PrefixUse {
  PrefixHistogram lifetime;   ///< of published blocks, until they go; in pools of more than 1,024
                              ///< blocks of each 16th block
  PrefixHistogram idle;       ///< of an evicted block, since it was registered or last found
  PrefixHistogram reuse_gap;  ///< of a block that is found, since it was registered or last found
  /// With PrefixOptions::ghost_blocks: hits of a million block references, by policy and size, of a
  /// cache that has only ids (`kvarena replay --pure-cache` has its rules). 0 without.
  std::array<std::array<std::int64_t, kGhostHalves.size()>, kGhostPolicies.size()> ghost_hits_ppm{};
  std::int64_t ghost_sampled_ppm = 0;  ///< of a million block ids, those that the ghosts see
  std::uint64_t ghost_references = 0;  ///< block references observed; 0 without ghosts
  std::int64_t eviction = 0;           ///< EvictionPolicy of the pool
};

}  // namespace kvarena
