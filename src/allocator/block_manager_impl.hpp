#pragma once

/// @file
/// The state of a BlockManager, shared by its sources.

#include "allocator/block_pool.hpp"
#include "allocator/fence_table.hpp"
#include "allocator/holder_table.hpp"
#include "base/id_space.hpp"
#include "base/lazy_array.hpp"
#include "kvarena/allocator/block_manager.hpp"
#include "kvarena/allocator/operation_log.hpp"

#include <cstdint>
#include <string>

namespace kvarena {

struct BlockManager::Impl {
  explicit Impl(const BlockManagerOptions& options)
      : pool(options.groups.empty() ? BlockPool(options.num_blocks, options.eviction)
                                    : BlockPool(options.num_blocks, options.groups,
                                                options.max_holders, options.eviction)),
        holders(options.max_holders),
        fences(options.max_open_tickets, options.max_fence_entries, take_id_space(IdKind::ticket)),
        watermark(options.watermark_blocks),
        page_bytes(options.page_bytes),
        log(options.log),
        name(options.name),
        evicted_ids(pool.pages() == nullptr ? 0 : static_cast<std::size_t>(pool.num_blocks())),
        evicting_demands(evicted_ids.size()) {}

  /// What allocations can use: blocks, or pages in a pool with groups.
  std::int64_t available() const noexcept {
    if (pool.pages() != nullptr) return pool.pages()->available();
    return pool.counts().free + pool.counts().evictable;
  }
  /// Blocks or pages that a request without a reservation may use.
  std::int64_t usable(Urgency urgency) const noexcept {
    const std::int64_t left = left_for(urgency);
    return left > 0 ? left : 0;
  }
  /// The same, below 0 by what the watermark lacks.
  std::int64_t left_for(Urgency urgency) const noexcept {
    const std::int64_t kept = urgency == Urgency::admission ? watermark : 0;
    return available() - reserved - kept;
  }
  /// Takes blocks that a holder is about to get off its reservation, at most `count`.
  void consume_reservation(Holder& holder, std::int64_t count) noexcept {
    const std::int64_t used = count < holder.reserved ? count : holder.reserved;
    holder.reserved -= used;
    reserved -= used;
  }
  /// Refuses a call for lack of blocks, and keeps what explain() will report.
  Status refuse(Resource resource, std::int64_t required, std::int64_t promised, Urgency urgency,
                std::uint64_t subject) noexcept;
  /// Updates the peak of allocated blocks. Pages have a peak of their own.
  void note_peak() noexcept {
    const std::int64_t allocated = pool.num_blocks() - pool.counts().free;
    if (allocated > peak_allocated) peak_allocated = allocated;
  }
  /// Returns why a handle that is not live is refused.
  Status refuse_handle(BlockId id, Generation generation) const noexcept;
  /// Checks whether a block can take one of `references_wanted` more references.
  Status check_retain(BlockId id, Generation generation, std::size_t references_wanted) const;
  /// Gives up one live reference. Returns false, with nothing changed, when the handle is not live.
  bool release_one(BlockId id, Generation generation) noexcept;
  /// Takes the newest release_one back.
  void undo_release_one(BlockId id) noexcept;

  /// The blocks of many demands together.
  struct DemandTotals {
    std::int64_t blocks = 0;
    std::int64_t pages = 0;          ///< of a pool with groups; then the next two are pages too
    std::int64_t for_growth = 0;     ///< beyond promises
    std::int64_t for_admission = 0;  ///< beyond promises
    std::int64_t beyond_promises() const noexcept { return for_growth + for_admission; }
    /// The urgency that says which blocks all of them may use together.
    Urgency urgency() const noexcept {
      return for_admission > 0 ? Urgency::admission : Urgency::growth;
    }
  };
  Status add_up(std::span<const HolderDemand> demands, Urgency urgency,
                DemandTotals& totals) noexcept;
  Status refuse_demands(std::span<const HolderDemand> demands, Urgency urgency,
                        const DemandTotals& totals) noexcept;
  Result<std::int64_t> allocate(std::span<const HolderDemand> demands, std::span<BlockId> ids,
                                std::span<Generation> generations, Urgency urgency);
  Status retain(HolderId holder, std::span<const BlockId> ids,
                std::span<const Generation> generations);
  Status release(HolderId holder, std::span<const BlockId> ids,
                 std::span<const Generation> generations);
  // With groups (group_allocation.cpp, group_transitions.cpp, group_checks.cpp):
  Status add_up_pages(std::span<const HolderDemand> demands, Urgency urgency,
                      DemandTotals& totals) noexcept;
  std::int32_t group_in_want(std::span<const HolderDemand> demands, Urgency urgency,
                             Urgency served) noexcept;
  Status check_pages(std::span<const HolderDemand> demands, Urgency urgency,
                     const DemandTotals& totals) noexcept;
  BlockId take_one(const HolderDemand& demand, Holder& holder, bool turns) noexcept;
  std::int64_t take_pages(const HolderDemand& demand, BlockId* ids, Generation* generations,
                          std::int64_t budget) noexcept;
  void take_leftover(const HolderDemand& demand, std::span<BlockId> ids,
                     Generation* generations) noexcept;
  /// The demand whose turn it is has evicted a block.
  void note_evicted(BlockId id) noexcept {
    evicting_demands[num_evicted] = demand_in_turn;
    evicted_ids[num_evicted++] = id;
  }
  Result<std::int64_t> allocate_in_groups(std::span<const HolderDemand> demands,
                                          std::span<BlockId> ids, std::span<Generation> generations,
                                          Urgency urgency);
  Status retain_in_groups(Holder& holder, std::span<const BlockId> ids);
  Status release_in_groups(HolderId holder, std::span<const BlockId> ids,
                           std::span<const Generation> generations);
  bool lower(BlockId id, Generation generation) noexcept;
  void undo_lower(BlockId id) noexcept;
  bool is_unheld(BlockId id) const noexcept;
  void end_released_one(Holder& holder, BlockId id) noexcept;
  void end_released(Holder& holder, std::span<const BlockId> ids) noexcept;
  std::int64_t idle_pages(std::span<const BlockId> ids) noexcept;
  Result<bool> quarantine_in_page(BlockId id);
  /// Returns the pages that come back when every open ticket up to and including `last` has
  /// retired.
  std::int64_t returning_pages(Ticket last) const noexcept;
  PageStats page_stats() const noexcept;
  /// Checks what the running totals of pages and groups alone can prove. O(groups).
  Status check_page_totals() const noexcept;
  Status check_page_lists() const;
  /// Proves that a block's word and its page agree.
  Status check_place(BlockId id) const noexcept;
  /// The blocks of the pages of groups; without groups all blocks.
  std::int64_t num_carved() const noexcept;
  /// Fills in the pages and groups of a pool with groups.
  void describe_pages(Explanation& explanation) const noexcept;

  Status release_after(Ticket ticket, HolderId holder, std::span<const BlockId> ids,
                       std::span<const Generation> generations);
  Status set_content(BlockId id, Generation generation, BlockContent content);
  // With an eviction order (eviction.cpp):
  /// Returns what release would return, and changes nothing.
  Status check_release(const Holder& holder, HolderId holder_id, std::span<const BlockId> ids,
                       std::span<const Generation> generations) noexcept;
  Status set_retention(BlockId id, Generation generation, const RetentionHint& retention);
  Status advance_clock(std::int64_t now);
  Result<bool> quarantine(BlockId id);
  Status restore(BlockId id);
  Status retire(Ticket ticket);

  /// Whether a block needs no closer check: it is free or referenced, has a valid count, and is
  /// neither marked nor fenced. Most blocks are plain.
  bool is_plain(BlockId id) const noexcept {
    if (pool.fence_head(id) != BlockPool::kNoFence) return false;
    const std::uint32_t word = pool.record(id).word;
    return word == 0 || (word > BlockPool::kHeld && word - BlockPool::kHeld <= references &&
                         word - BlockPool::kHeld <= BlockPool::kCount);
  }
  BlockStats stats() const noexcept;
  /// Returns how many blocks come back when every open ticket up to and including `last` has
  /// retired.
  std::int64_t returning(Ticket last) const noexcept;
  /// Fills in the largest holders and the blocks that tickets hold back.
  void name_holders(Explanation& explanation) const noexcept;
  /// Proves one block, for check_blocks.
  Status check_block(BlockId id) const noexcept;

  void append_log(const Operation& operation) {
    if (log != nullptr) [[unlikely]]
      log->append(operation);
  }

  BlockPool pool;
  HolderTable holders;
  FenceTable fences;
  std::int64_t watermark;
  std::int64_t page_bytes;  // for reports
  OperationLog* log;
  std::string name;
  std::int64_t reserved = 0;
  std::int64_t references = 0;  // of all holders
  std::int64_t peak_allocated = 0;
  std::uint64_t allocations = 0;
  std::uint64_t releases = 0;
  std::uint64_t evictions = 0;
  std::uint64_t exhaustions = 0;
  Explanation refusal;               // of the last exhausted call, without holders and tickets
  std::uint64_t claim_serial = 1;    // see BlockManager::claim_serial
  std::uint64_t calls = 0;           // stamps the holders of allocate_each
  std::int64_t refused_demand = -1;  // with groups: of the last allocate_each
  std::uint32_t demand_in_turn = 0;  // with groups: of the present allocate_each
  LazyArray<BlockId> evicted_ids;    // with groups: by the last allocation. Else the pool has them
  LazyArray<std::uint32_t> evicting_demands;  // with groups: by which demand each of these
  std::size_t num_evicted = 0;                // by the last allocation
};

}  // namespace kvarena
