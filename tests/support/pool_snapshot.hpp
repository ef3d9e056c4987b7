#pragma once

/// @file
/// Everything a BlockManager shows, as values, so that a test can say "nothing changed".

#include "kvarena/allocator/block_manager.hpp"

#include <array>
#include <bit>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

namespace kvarena::test {

/// A copy of the accounts, every block's state and count, and every holder's totals.
struct PoolSnapshot {
  using Holder =
      std::tuple<HolderId, std::uint64_t, std::uint64_t, std::string, std::int64_t, std::int64_t>;

  std::vector<std::int64_t> counts;
  std::vector<BlockState> states;
  std::vector<std::uint32_t> references;
  std::vector<Holder> holders;
  std::vector<std::int64_t> pages;  // of the pool and of each group

  friend bool operator==(const PoolSnapshot&, const PoolSnapshot&) = default;
};

/// The accounts of a pool as numbers, without `exhaustions`: a refused call may count itself.
inline std::vector<std::int64_t> counts_of(const BlockStats& s) {
  return {s.num_blocks,
          s.free,
          s.referenced,
          s.fenced,
          s.evictable,
          s.offline,
          s.reserved,
          s.watermark,
          s.holders,
          s.references,
          s.fence_entries,
          s.peak_allocated,
          static_cast<std::int64_t>(s.holders_ever),
          static_cast<std::int64_t>(s.allocations),
          static_cast<std::int64_t>(s.releases),
          static_cast<std::int64_t>(s.evictions)};
}

/// The figures of pages, and of each group, as numbers.
inline std::vector<std::int64_t> page_figures(const BlockManager& manager) {
  std::vector<std::int64_t> all;
  const auto add = [&all](const auto& stats) {
    using Figures = std::array<std::int64_t, sizeof(stats) / sizeof(std::int64_t)>;
    const auto figures = std::bit_cast<Figures>(stats);
    all.insert(all.end(), figures.begin(), figures.end());
  };
  add(manager.page_stats());
  const auto num_groups = static_cast<std::int32_t>(manager.groups().size());
  for (std::int32_t group = 0; group < num_groups; ++group) add(manager.group_stats(group));
  return all;
}

/// Reads a snapshot. O(num_blocks).
inline PoolSnapshot snapshot_of(const BlockManager& manager) {
  PoolSnapshot snapshot;
  snapshot.counts = counts_of(manager.stats());
  for (std::int32_t i = 0; i < manager.num_blocks(); ++i) {
    snapshot.states.push_back(manager.state(BlockId(i)));
    snapshot.references.push_back(manager.reference_count(BlockId(i)));
  }
  for (const HolderReport& holder : manager.holders()) {
    snapshot.holders.emplace_back(holder.holder, holder.number, holder.owner,
                                  std::string(holder.purpose), holder.references, holder.reserved);
  }
  snapshot.pages = page_figures(manager);
  return snapshot;
}

}  // namespace kvarena::test
