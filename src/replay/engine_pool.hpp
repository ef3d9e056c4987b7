#pragma once

/// @file
/// `EnginePool`: the memory of a replay. With attention on, the pool is a KvCache on the given
/// device. With attention off, it is only a block manager and block tables, so a pool of any size
/// needs no memory for KV. Both have the same calls. With groups its units are pages. The size is
/// fixed before the replay starts. Borrows the device. Not movable; one thread at a time.

#include "replay/arrivals.hpp"
#include "replay/failure.hpp"
#include "replay/pool_units.hpp"
#include "replay/replay_options.hpp"
#include "verify/step_memory.hpp"

#include "kvarena/allocator/block_manager.hpp"
#include "kvarena/blocktable/block_tables.hpp"
#include "kvarena/cache/kv_cache.hpp"
#include "kvarena/device/device.hpp"
#include "kvarena/step/step_publisher.hpp"

#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace kvarena::replay {

/// Manager, tables and, with attention on, the bytes of K and V.
class EnginePool {
 public:
  /// Sizes and creates everything; `*pool` is set when nothing failed. On a GPU, an unlimited pool
  /// gets at most the blocks that fit into free memory.
  static MaybeFailure create(const ReplayOptions& options, const TraceSurvey& survey,
                             std::unique_ptr<EnginePool>* pool);
  EnginePool(const EnginePool&) = delete;
  EnginePool& operator=(const EnginePool&) = delete;

  const BlockManager& manager() const noexcept { return cache_ ? cache_->manager() : *manager_; }
  const BlockTables& tables() const noexcept { return cache_ ? cache_->tables() : *tables_; }
  /// nullptr with attention off.
  KvCache* cache() noexcept { return cache_ ? &*cache_ : nullptr; }
  /// Returns the device of the cache. Only with attention on.
  Device& device() noexcept { return *device_; }
  /// What the pool hands out.
  const PoolUnits& units() const noexcept { return *units_; }
  /// Counts of its units: pages, or without groups blocks.
  PageStats unit_stats() const noexcept { return manager().page_stats(); }
  /// Returns the blocks of the worst case when an unlimited pool has fewer; else 0.
  std::int64_t worst_case_blocks() const noexcept { return worst_case_blocks_; }
  /// The memory of the cache's steps; `*memory` is set when nothing failed. Only with attention on.
  MaybeFailure create_step_memory(std::unique_ptr<verify::StepMemory>* memory);
  std::int32_t block_size() const noexcept { return block_size_; }

  /// Does BlockTables::create_sequence for a request, whose id is the owner in explanations.
  /// `since` is the present time by the publisher's clock, not by the replay's, so observers of the
  /// pool see ages in real time.
  /// With a prefix cache it begins with the longest cached prefix of `tokens` under `salt`.
  Result<SequenceId> create_sequence(std::uint64_t owner, std::uint64_t salt,
                                     std::span<const std::int32_t> tokens);
  bool has_prefix_cache() const noexcept { return has_prefix_cache_; }
  /// Returns the blocks or pages that sequences hold: without free and without cached ones.
  std::int64_t held_blocks() const noexcept {
    const PageStats stats = unit_stats();
    return stats.num_pages - stats.available();
  }
  /// BlockTables::fork, as above.
  Result<SequenceId> fork(SequenceId parent, std::int64_t length_tokens);
  Status destroy(SequenceId sequence);
  Status truncate(SequenceId sequence, std::int64_t length_tokens);
  /// BlockTables::reserve_capacity, as admission. With groups it promises, because the blocks of a
  /// window come and go.
  Status reserve_capacity(SequenceId sequence, std::int64_t capacity_tokens);
  Status promise_capacity(SequenceId sequence, std::int64_t capacity_tokens);

  /// Returns the publisher that shows the pool to other threads.
  StepPublisher& publisher() noexcept { return cache_ ? cache_->publisher() : *publisher_; }

  /// Does KvCache::begin_step; with attention off, only tells the publisher.
  Status begin_step();
  /// Returns the slots of states of the step that append has begun; none without groups of states
  /// and with attention off. Valid until end_step.
  std::span<const StateSlots> states() const noexcept { return states_; }
  /// Grows the sequences of a step. Call it once a step, and again after a failure.
  Status append(std::span<const AppendDemand> demands);
  /// With groups and attention off: ends the append, so that what no later token reads is free.
  void settle() noexcept;
  /// Does KvCache::end_step; with attention off, publishes in some of the steps.
  Status end_step();
  /// Publishes between steps.
  Status publish();

  /// Returns the tables' explanation why `blocks` more blocks do not fit.
  std::string explain(std::int64_t blocks, Urgency urgency) const {
    return to_string(tables().explain(blocks, urgency));
  }
  /// Proves manager and tables. O(blocks + entries).
  Status check_invariants() const;

 private:
  EnginePool() = default;
  MaybeFailure fit_unlimited(const ReplayOptions& options, const TraceSurvey& survey,
                             std::int64_t* num_blocks);
  MaybeFailure measure_unit(const UniformLayoutOptions& shape, std::int64_t* unit_bytes) const;
  MaybeFailure create_tables(const ReplayOptions& options, const TraceSurvey& survey,
                             std::int64_t num_blocks);
  MaybeFailure create_cache(const ReplayOptions& options, const TraceSurvey& survey,
                            std::int64_t num_blocks);

  void publish_grown();

  std::optional<PoolUnits> units_;
  ReplayGroups groups_;
  std::span<const StateSlots> states_;  // of the step
  std::int32_t block_size_ = 0;
  bool has_prefix_cache_ = false;
  std::vector<SequenceId> grown_;  // in this step, with a prefix cache
  std::int64_t worst_case_blocks_ = 0;
  verify::StepMemoryOptions step_memory_;
  Device* device_ = nullptr;
  std::optional<KvCache> cache_;
  std::optional<BlockManager> manager_;
  std::optional<BlockTables> tables_;  // behind the manager, which its destructor uses
  std::optional<StepPublisher> publisher_;
  std::uint64_t steps_ended_ = 0;
  bool publication_pending_ = false;
};

}  // namespace kvarena::replay
