#pragma once

/// @file
/// `BlockManager`: the record of who holds which block. It handles ids only, no bytes and no
/// device. Every block is in exactly one state, and `free + fenced + evictable + referenced +
/// offline == num_blocks` at every instant.
///
/// A caller asks `claims` before it writes into a block. When others have a claim, the caller
/// writes to a copy, so the bytes that others rely on are never rewritten.
///
/// The manager is deterministic: the same calls give the same ids and fail at the same call. No
/// address, hash or event decides anything, and no clock but the one that the caller advances. The
/// block released last is handed out first; a fresh pool hands out 0, 1, 2, ... When no block is
/// free, an evictable block is taken, by default the one that became evictable first
/// (EvictionPolicy). The blocks of one release call are freed in the order given.
///
/// A call for many blocks takes all or nothing and changes nothing on failure. Programmer errors
/// (double release, stale handle, a holder that releases more than it holds) are found in every
/// build at O(1), reported to the violation handler, and refused. Memory is allocated only at
/// create: 16 bytes a block (with a policy other than tail_first 28 to 64), plus the tables of
/// holders, tickets and fence entries. `host_bytes` returns how much.
///
/// With `groups` the pool is equal pages that each group carves into blocks of its own size
/// (page_pool.hpp has the order of allocation). Reservations, the watermark and all questions about
/// what is available then count pages; without groups a page is a block.
///
/// One thread at a time. Move-only.

#include "kvarena/allocator/accounts.hpp"
#include "kvarena/allocator/block_manager_options.hpp"
#include "kvarena/allocator/holders.hpp"
#include "kvarena/allocator/page_pool.hpp"
#include "kvarena/base/export.hpp"
#include "kvarena/base/ids.hpp"
#include "kvarena/base/result.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace kvarena {

/// The free list, reference counts, tickets and accounts of a pool.
class KVARENA_EXPORT BlockManager {
 public:
  /// The average number of holders of a block for which default table sizes are made.
  static constexpr std::int64_t kSharers = 64;

  /// Allocates all tables. Returns invalid_argument with the option, its value and its range.
  static Result<BlockManager> create(const BlockManagerOptions& options);
  /// Returns the host memory of the tables that create allocates with valid `options`. It is an
  /// upper bound, because the system commits the memory of fence entries when they are first used.
  static std::int64_t host_bytes(const BlockManagerOptions& options) noexcept;
  ~BlockManager();
  BlockManager(BlockManager&&) noexcept;
  BlockManager& operator=(BlockManager&&) noexcept;

  // ---- holders -------------------------------------------------------------------------------

  /// Registers a holder. Returns exhausted (holder). O(1).
  Result<HolderId> register_holder(const HolderInfo& info);
  /// Ends a holder and its reservation. Returns not_found, or failed_precondition (holder) with the
  /// number of references that it still has. O(1).
  Status unregister_holder(HolderId holder);
  /// Promises `count` available blocks to `holder`, in place of its earlier promise. The holder's
  /// next allocations use these blocks; no other holder can. `urgency` says which blocks an
  /// increase may use. With groups it promises pages, and from the first call until the holder ends
  /// nobody takes single blocks of the pages that it turns (page_pool.hpp). Returns exhausted
  /// (reservation), not_found (holder), or invalid_argument (reservation) when `count` is negative.
  /// O(1); with groups the first call for a holder is O(its pages), and so is its end.
  Status reserve(HolderId holder, std::int64_t count, Urgency urgency = Urgency::admission);
  /// Changes when a holder should end (HolderInfo::deadline_ns; 0: no deadline). It decides nothing
  /// and is not logged, as all facts of HolderInfo. Returns not_found. O(1).
  Status set_deadline(HolderId holder, std::int64_t deadline_ns);

  // ---- blocks --------------------------------------------------------------------------------

  /// Takes ids.size() blocks with one reference each for `holder`, and writes their ids and
  /// generations (spans of equal size). Returns how many of them were evictable until now; these
  /// are the last ids, and the caller forgets what it cached in them. Returns exhausted (block)
  /// whose `subject` is the first holder that did not fit, not_found (holder), or invalid_argument
  /// (span_size). O(1) a block.
  Result<std::int64_t> allocate(HolderId holder, std::span<BlockId> ids,
                                std::span<Generation> generations,
                                Urgency urgency = Urgency::growth);
  /// Takes blocks for many holders in one all-or-nothing call. The ids are written holder by
  /// holder. A holder that appears twice is duplicate_argument (holder), unless its demands follow
  /// one another with rising groups. Returns exhausted (page) in a pool with groups, in pages,
  /// whose `subject` is the group that did not fit, and invalid_argument (num_groups) for a group
  /// that does not exist. Demands may have urgencies of their own. Those for growth are then served
  /// first, and those for admission get what is left above the watermark, whatever their order: the
  /// call fits when the blocks beyond promises fit, for admission if any of these is for admission.
  /// The status names the first holder that did not fit in this sense.
  Result<std::int64_t> allocate_each(std::span<const HolderDemand> demands, std::span<BlockId> ids,
                                     std::span<Generation> generations,
                                     Urgency urgency = Urgency::growth);
  /// Returns ok when can_allocate(count, urgency), or else refuses like allocate: exhausted
  /// (block), which counts and can be explained. For callers that register a holder only when its
  /// blocks can be had. Returns invalid_argument (num_blocks) for a negative count. O(1).
  Status check_available(std::int64_t count, Urgency urgency = Urgency::growth);
  /// Takes one more reference on each block for `holder`. A block without unfenced references can
  /// be retained while its content is published: it becomes referenced again. Returns stale_handle
  /// (block) for a handle with an old generation and for a block that cannot be retained, exhausted
  /// (block) when the revived blocks are promised to others or a block has too many references, or
  /// not_found (holder, block).
  Status retain(HolderId holder, std::span<const BlockId> ids,
                std::span<const Generation> generations);
  /// Gives up one reference of `holder` on each block, in the order of the home stream. A block
  /// without references is free (or evictable) at once. Returns double_release, stale_handle,
  /// reference_underflow or not_found.
  Status release(HolderId holder, std::span<const BlockId> ids,
                 std::span<const Generation> generations);
  /// Does the same as release, but keeps each reference as fenced until retire(ticket), because
  /// work of `ticket` still uses the blocks. Also returns exhausted (fence_entry), and not_found
  /// for a ticket that was never opened here or has retired.
  Status release_after(Ticket ticket, HolderId holder, std::span<const BlockId> ids,
                       std::span<const Generation> generations);
  /// Sets what is known of a held block's content. A `published` block becomes evictable instead of
  /// free when its last reference goes. An evictable block becomes free with `unwritten` and
  /// `failed`. Returns failed_precondition (block) for being_written of a published block,
  /// stale_handle, double_release, not_found (block), or invalid_argument (content). O(1).
  Status set_content(BlockId id, Generation generation, BlockContent content);
  /// Takes a block out of service: a free or evictable block at once, a held block when its last
  /// reference goes. Returns whether the block is offline now. Returns exhausted (reservation) when
  /// all available blocks are promised, failed_precondition (block) for one of a page that another
  /// group has, or not_found (block). Slow: O(num_blocks) for a free block.
  Result<bool> quarantine(BlockId id);
  /// Makes an offline block free again, or cancels a quarantine that still waits. Returns
  /// failed_precondition (block) when there is neither, or not_found (block).
  Status restore(BlockId id);

  /// Returns the index of the first demand that did not fit when the last allocate_each was refused
  /// for lack of pages, else -1.
  std::int64_t refused_demand() const noexcept;
  /// Returns the blocks that the last allocation evicted, of any group, in the order of eviction.
  /// Valid until the next allocation or release of one of them, even a refused one. O(1).
  std::span<const BlockId> evicted() const noexcept;

  // ---- eviction ------------------------------------------------------------------------------

  /// Says how long a published block should stay. An evictable block counts as one that becomes
  /// evictable now. The retention ends with the content. With groups it is the retention of the
  /// block's page, until that is free or evicted. Returns unsupported (eviction) unless the
  /// policy is EvictionPolicy::priority, invalid_argument (priority, expires_at),
  /// failed_precondition (block) when the content is not published, stale_handle or not_found
  /// (block). O(1), amortised.
  Status set_retention(BlockId id, Generation generation, const RetentionHint& retention);
  /// Sets the clock of retentions, which begins at 0. The blocks whose retention has ended get the
  /// usual priority, by the time of their end and then in the order in which they became evictable.
  /// Returns unsupported (eviction) unless the policy is EvictionPolicy::priority, or
  /// invalid_argument (clock) for a time before the present one and for kNever. O(1), amortised
  /// over the blocks.
  Status advance_clock(std::int64_t now);
  /// Returns the retention of a block that is in force; the default where there is none. Requires a
  /// valid id. O(1).
  RetentionHint retention(BlockId id) const noexcept;
  /// The time to which the clock was advanced; 0 without EvictionPolicy::priority. O(1).
  std::int64_t clock_time() const noexcept;
  /// BlockManagerOptions::eviction.
  EvictionPolicy eviction() const noexcept;

  // ---- tickets -------------------------------------------------------------------------------

  /// Opens a ticket for work that is about to be queued on another stream, or done elsewhere. No
  /// other manager of the process issues the same number. Returns exhausted (ticket) when
  /// max_open_tickets are open. O(1), amortised.
  Result<Ticket> open_ticket();
  /// Ends a ticket whose work has completed. The references fenced by it go, in the order in which
  /// they were released. Tickets may retire in any order and after any time; only this call retires
  /// them. Returns not_found (ticket). O(references).
  Status retire(Ticket ticket);

  // ---- questions -----------------------------------------------------------------------------

  /// BlockManagerOptions::name, as a C string.
  const char* name() const noexcept;
  /// Blocks in the pool: ids are 0 .. num_blocks() - 1. With groups, the ids of all groups.
  std::int64_t num_blocks() const noexcept;
  /// Pages in the pool. Without groups, blocks.
  std::int64_t num_pages() const noexcept;
  /// BlockManagerOptions::groups; empty without groups.
  std::span<const BlockGroup> groups() const noexcept;
  /// Returns where a block lies. Requires a valid id. O(1).
  BlockPlace place_of(BlockId id) const noexcept;
  /// Returns the counts of pages. Without groups, those of blocks. O(1).
  PageStats page_stats() const noexcept;
  /// Returns the counts of one group. Requires group < groups().size(). O(1).
  GroupStats group_stats(std::int32_t group) const noexcept;
  /// free + evictable: the blocks that allocations can use now, with the reservations of all
  /// holders.
  std::int64_t available_now() const noexcept;
  /// Returns available_now() plus the blocks that come back when every open ticket up to and
  /// including `ticket` has retired. O(fence entries of those tickets).
  std::int64_t available_after(Ticket ticket) const noexcept;
  /// Returns whether `count` blocks can be had for new work (admission) or a running sequence
  /// (growth).
  bool can_allocate(std::int64_t count, Urgency urgency) const noexcept;
  /// Returns whether the ticket is open: opened and not retired. O(1).
  bool is_open(Ticket ticket) const noexcept;
  /// The number of open tickets. O(1).
  std::int64_t num_open_tickets() const noexcept;
  /// The open ticket that was opened first, or kNoTicket. O(1).
  Ticket oldest_open_ticket() const noexcept;
  /// The ticket that was opened last, retired or not. kNoTicket before the first. O(1).
  Ticket newest_ticket() const noexcept;
  /// Returns a number that no other open ticket has: 0 .. 2 * max_open_tickets - 1. O(1).
  std::size_t place_of(Ticket ticket) const noexcept;
  /// BlockManagerOptions::max_open_tickets.
  std::int32_t max_open_tickets() const noexcept;
  /// BlockManagerOptions::max_holders.
  std::int32_t max_holders() const noexcept;
  /// The number of references that can still be fenced. O(1).
  std::int64_t fence_entries_available() const noexcept;
  /// Returns a holder's figures, or not_found. O(1).
  Result<HolderReport> holder(HolderId holder) const;
  /// Returns how often the block has been handed out, or has come back into service, before.
  /// Requires a valid id. O(1).
  Generation generation(BlockId id) const noexcept;
  /// Returns the references on a block that are not fenced. 0 when nobody holds it. Requires a
  /// valid id. O(1).
  std::uint32_t reference_count(BlockId id) const noexcept;
  /// Returns the number of claims on a block's bytes: one for each reference, one for all fenced
  /// references together, and one when the block is published. A holder may write in place only
  /// when the number is 1, its own. Requires a valid id. O(1).
  std::uint32_t claims(BlockId id) const noexcept;
  /// A number that rises with each call that may have added a claim to a held block. While it stays
  /// the same, a block with one claim still has one. O(1).
  std::uint64_t claim_serial() const noexcept;
  /// Returns what is known of a block's content; unwritten for a free or offline block. Requires a
  /// valid id.
  BlockContent content(BlockId id) const noexcept;
  /// Returns how many of the first handles can be found by others: their generation is current,
  /// their content is published, and they are not quarantined. Requires valid ids and spans of
  /// equal size. O(result).
  std::int64_t count_published(std::span<const BlockId> ids,
                               std::span<const Generation> generations) const noexcept;
  /// Returns the state of a block. Requires a valid id. O(1).
  BlockState state(BlockId id) const noexcept;
  /// Returns the counts by state, the reservations and the lifetime counters. O(1).
  BlockStats stats() const noexcept;
  /// Returns why `requested` more blocks fit or do not fit, with the largest holders. No heap
  /// allocation. O(max_holders + fence entries).
  Explanation explain(std::int64_t requested, Urgency urgency = Urgency::growth) const noexcept;
  /// Returns why the call that gave the status `refused` did not fit; the status is exhausted
  /// (block, reservation). For the last such call, the accounts and the usable blocks are those of
  /// the refusal; holders and tickets are those of now. O(max_holders + fence entries).
  Explanation explain(const Status& refused) const noexcept;
  /// Returns all holders, by id. In an idle engine this is the leak report. Empty when there is no
  /// memory for the list; stats() has the number. O(max_holders).
  std::vector<HolderReport> holders() const noexcept;
  /// Writes the holders to memory of the caller, without heap allocation. Returns how many were
  /// written: all when there is room for stats().holders, otherwise as many as fit, in no defined
  /// choice.
  std::size_t holders(std::span<HolderReport> reports) const noexcept;

  /// Proves the accounts: every block has one state, the lists are whole, and the counts equal the
  /// holders' totals. Returns invariant_violated with the number of the invariant (see
  /// accounts.hpp). O(num_blocks).
  Status check_invariants() const;
  /// Checks what the running totals alone can prove. O(1).
  Status check_totals() const noexcept;
  /// Checks the blocks first .. first + count - 1 and those places of the free list, for proofs in
  /// bounded slices. It terminates with any corrupt data. O(count + fence entries of those blocks).
  Status check_blocks(std::int64_t first, std::int64_t count) const noexcept;

 private:
  friend class BlockContents;
  friend struct ReleaseProbe;
  friend struct OwnPages;
  struct Impl;
  explicit BlockManager(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvarena
