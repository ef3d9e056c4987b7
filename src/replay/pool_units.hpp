#pragma once

/// @file
/// `PoolUnits`: what a pool hands out, and how many of these a sequence takes. Without groups a
/// unit is a block. With groups it is a page, which is carved into blocks of one group of layers.
/// An immutable value.

#include "replay/replay_options.hpp"

#include "kvarena/allocator/page_pool.hpp"
#include "kvarena/base/group_layout.hpp"
#include "kvarena/base/result.hpp"
#include "kvarena/blocktable/table_groups.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace kvarena::replay {

/// The groups of a pool as a cache has them.
struct PoolGroups {
  GroupLayout layout;
  std::vector<BlockGroup> blocks;  ///< by table
  std::vector<TableGroup> tables;  ///< first the parts of the layout, then its groups of states
};

class PoolUnits {
 public:
  /// Plans the pool of the options. Returns what plan_groups returns.
  static Result<PoolUnits> create(const ReplayOptions& options);

  bool has_groups() const noexcept { return groups_.has_value(); }
  /// The groups. Requires has_groups.
  const PoolGroups& groups() const noexcept { return *groups_; }
  /// Bytes of a page. Requires has_groups.
  std::int64_t page_bytes() const noexcept { return groups_->layout.page_bytes(); }
  /// "block" or "page".
  const char* name() const noexcept { return has_groups() ? "page" : "block"; }

  /// The most units that a sequence of up to `tokens` tokens takes, and those that
  /// BlockTables::promise_capacity promises to a new one. 0 for 0 tokens.
  std::int64_t of_length(std::int64_t tokens) const noexcept;
  /// The most units beyond these that `step_tokens` new tokens of a step take: their blocks in
  /// groups that keep no more than some of them. 0 without groups.
  std::int64_t of_step(std::int64_t step_tokens) const noexcept;
  /// The most units that a fork costs beyond those of its length.
  std::int64_t of_fork() const noexcept;

 private:
  PoolUnits() = default;
  std::int64_t pages_of_group(std::size_t group, std::int64_t tokens) const noexcept;

  std::int64_t block_size_ = 1;
  std::optional<PoolGroups> groups_;
};

}  // namespace kvarena::replay
