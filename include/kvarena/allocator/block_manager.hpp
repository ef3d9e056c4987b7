#pragma once

/// @file
/// `BlockManager`: who holds which block. Ids only, no bytes, no device. Every block is in exactly
/// one state, and `free + fenced + evictable + referenced + offline == num_blocks` at every
/// instant.
///
/// Bytes that somebody was promised are not rewritten: whoever writes into a block asks `claims`
/// first, and writes to a copy unless the only claim is its own.
///
/// Deterministic: the same calls give the same ids and fail at the same call; no clock, address,
/// hash or event decides anything. Free blocks are handed out last-released first; a fresh pool
/// hands out 0, 1, 2, ...; when none is free the evictable block that became so first is taken.
/// Blocks of one release call are freed in the order given.
///
/// Multi-block calls take all or nothing and change nothing on failure. Programmer errors (double
/// release, stale handle, a holder releasing more than it holds) are found in every build at O(1),
/// reported to the violation handler, and refused. Memory is taken at create only: 16 bytes a
/// block, plus the tables of holders, tickets and fence entries; `host_bytes` tells how much.
///
/// One thread at a time. Move-only.

#include "kvarena/allocator/accounts.hpp"
#include "kvarena/base/export.hpp"
#include "kvarena/base/ids.hpp"
#include "kvarena/base/result.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace kvarena {

class OperationLog;

/// Options of a block manager.
struct BlockManagerOptions {
  std::int64_t num_blocks = 0;         ///< 1 .. KvLayout::kMaxBlocks
  std::int64_t watermark_blocks = 0;   ///< admission leaves at least this many available
  std::int32_t max_holders = 4096;     ///< holders at a time, 1 .. 2^24
  std::int32_t max_open_tickets = 64;  ///< tickets at a time, 1 .. 2^30
  std::int64_t max_fence_entries = 0;  ///< references pending on tickets; 0: kSharers x num_blocks
  OperationLog* log = nullptr;  ///< borrowed; receives every mutating call, see operation_log.hpp
};

/// How many blocks a holder wants in a call for many.
struct HolderDemand {
  HolderId holder;          ///< registered
  std::uint32_t count = 0;  ///< blocks
};

/// Who a holder is. The manager only reports times; its readers take them for steady_clock()'s.
struct HolderInfo {
  std::uint64_t number = 0;      ///< the caller's number of it, e.g. a sequence id
  std::uint64_t owner = 0;       ///< for whom it holds, e.g. the engine's request id; 0: not told
  const char* purpose = "";      ///< static string, e.g. "sequence"
  std::int64_t since_ns = 0;     ///< when it began to hold; 0: not told
  std::int64_t deadline_ns = 0;  ///< when it should be gone; 0: none
};

/// The free list, reference counts, tickets and accounts of a pool.
class KVARENA_EXPORT BlockManager {
 public:
  /// How many holders share each block at most on average, where a table is sized by default.
  static constexpr std::int64_t kSharers = 64;

  /// Allocates all tables. Returns invalid_argument naming the option, its value and its range.
  static Result<BlockManager> create(const BlockManagerOptions& options);
  /// Host memory of the tables that create allocates with these options, which it has not refused:
  /// at most, since the system commits that of fence entries when they are first used.
  static std::int64_t host_bytes(const BlockManagerOptions& options) noexcept;
  ~BlockManager();
  BlockManager(BlockManager&&) noexcept;
  BlockManager& operator=(BlockManager&&) noexcept;

  // ---- holders -------------------------------------------------------------------------------

  /// Registers a holder. Returns exhausted (holder). O(1).
  Result<HolderId> register_holder(const HolderInfo& info);
  /// Ends a holder, reservation included. Returns not_found, or failed_precondition (holder) with
  /// the number of references it still has. O(1).
  Status unregister_holder(HolderId holder);
  /// Promises `count` available blocks to `holder` in place of what was promised before: its next
  /// allocations use them, nobody else's can. `urgency` says what an increase may use up.
  /// Returns exhausted (reservation), not_found (holder), invalid_argument (reservation) when
  /// negative. O(1).
  Status reserve(HolderId holder, std::int64_t count, Urgency urgency = Urgency::admission);

  // ---- blocks --------------------------------------------------------------------------------

  /// Takes ids.size() blocks with one reference each for `holder`, writing ids and generations
  /// (spans of equal size). The last `evicted` ids (the value returned) were evictable until now:
  /// the caller forgets what it cached in them. Returns exhausted (block) whose `subject` is the
  /// first holder that did not fit, not_found (holder), invalid_argument (span_size). O(1) a block.
  Result<std::int64_t> allocate(HolderId holder, std::span<BlockId> ids,
                                std::span<Generation> generations,
                                Urgency urgency = Urgency::growth);
  /// The same for many holders in one all-or-nothing call; blocks are written holder by holder. A
  /// holder may appear once; duplicate_argument (holder) otherwise.
  Result<std::int64_t> allocate_each(std::span<const HolderDemand> demands, std::span<BlockId> ids,
                                     std::span<Generation> generations,
                                     Urgency urgency = Urgency::growth);
  /// One more reference on each block for `holder`; revives evictable blocks, and published ones
  /// that are fenced. Returns stale_handle (block) for a handle whose generation is over or a block
  /// that nobody holds, exhausted (block) when the revived ones are promised to others, not_found
  /// (holder).
  Status retain(HolderId holder, std::span<const BlockId> ids,
                std::span<const Generation> generations);
  /// Gives up one reference of `holder` on each block, in the order of the home stream: a block
  /// whose last reference goes is free (or evictable) at once. Returns double_release,
  /// stale_handle, reference_underflow, not_found.
  Status release(HolderId holder, std::span<const BlockId> ids,
                 std::span<const Generation> generations);
  /// As release, but work of `ticket` still uses the blocks: each reference stays, as fenced, until
  /// retire(ticket). Also returns exhausted (fence_entry) and not_found (ticket: never opened here,
  /// or retired).
  Status release_after(Ticket ticket, HolderId holder, std::span<const BlockId> ids,
                       std::span<const Generation> generations);
  /// Says what is known of a held block's content. `published` keeps it when the last reference
  /// goes: the block is then evictable instead of free. Of an evictable block, `unwritten` and
  /// `failed` make it free. Returns failed_precondition (block) for being_written of a published
  /// block, stale_handle, double_release, not_found (block), invalid_argument (content). O(1).
  Status set_content(BlockId id, Generation generation, BlockContent content);
  /// Takes a block out of service: a free or evictable one at once, a held one when its last
  /// reference goes. Returns whether it is offline now, exhausted (reservation) when all that is
  /// available is promised, not_found (block). Cold: O(num_blocks) for a free block.
  Result<bool> quarantine(BlockId id);
  /// Puts an offline block back to the free ones, or calls off a quarantine that still waits.
  /// Returns failed_precondition (block) when there is neither, not_found (block).
  Status restore(BlockId id);

  // ---- tickets -------------------------------------------------------------------------------

  /// A ticket for work that is about to be queued on another stream, or done elsewhere. No other
  /// manager of the process issues its number. Returns exhausted (ticket) when max_open_tickets are
  /// open. O(1), amortised.
  Result<Ticket> open_ticket();
  /// The ticket's work has completed: the references it fenced go, in the order they were released.
  /// Tickets may retire in any order, however long they were open; the caller decides when, nothing
  /// else does. Returns not_found (ticket). O(references).
  Status retire(Ticket ticket);

  // ---- questions -----------------------------------------------------------------------------

  /// Blocks in the pool.
  std::int64_t num_blocks() const noexcept;
  /// free + evictable: what allocations can use now, reservations of all holders included.
  std::int64_t available_now() const noexcept;
  /// available_now() plus the blocks that come back when every open ticket up to and including
  /// `ticket` has retired. O(fence entries of those tickets).
  std::int64_t available_after(Ticket ticket) const noexcept;
  /// Whether `count` blocks could be had for new work (admission) or a running sequence (growth).
  bool can_allocate(std::int64_t count, Urgency urgency) const noexcept;
  /// Whether the ticket has been opened and not retired. O(1).
  bool is_open(Ticket ticket) const noexcept;
  /// Tickets opened and not retired. O(1).
  std::int64_t num_open_tickets() const noexcept;
  /// The first of them, or kNoTicket. O(1).
  Ticket oldest_open_ticket() const noexcept;
  /// The ticket opened last, retired or not; kNoTicket before the first. O(1).
  Ticket newest_ticket() const noexcept;
  /// A number that no other open ticket has: 0 .. 2 * max_open_tickets - 1. O(1).
  std::size_t place_of(Ticket ticket) const noexcept;
  /// As BlockManagerOptions.
  std::int32_t max_open_tickets() const noexcept;
  /// As BlockManagerOptions.
  std::int32_t max_holders() const noexcept;
  /// References that can still be fenced. O(1).
  std::int64_t fence_entries_available() const noexcept;
  /// A holder's figures, or not_found. O(1).
  Result<HolderReport> holder(HolderId holder) const;
  /// How often the block has been handed out before. Requires a valid id. O(1).
  Generation generation(BlockId id) const noexcept;
  /// References on a block that are not fenced; 0 when it is not held. Requires a valid id. O(1).
  std::uint32_t reference_count(BlockId id) const noexcept;
  /// How many were promised the block's bytes: each reference, the fenced ones together as one, and
  /// one for whoever may find it when it is published. A holder may write in place only what nobody
  /// else has a claim on: 1. Requires a valid id. O(1).
  std::uint32_t claims(BlockId id) const noexcept;
  /// Rises with each call that may have given somebody a claim on a held block. While it stays the
  /// same, a block with one claim has no more. O(1).
  std::uint64_t claim_serial() const noexcept;
  /// What is known of a block's content; of a free or offline one: unwritten. Requires a valid id.
  BlockContent content(BlockId id) const noexcept;
  /// State of a block. Requires a valid id. O(1).
  BlockState state(BlockId id) const noexcept;
  /// Counts by state, reservations and lifetime counters. O(1).
  BlockStats stats() const noexcept;
  /// Why `requested` more blocks do or do not fit, with the largest holders. Takes nothing from the
  /// heap. O(max_holders + fence entries).
  Explanation explain(std::int64_t requested, Urgency urgency = Urgency::growth) const noexcept;
  /// Why the call was refused that returned this status, exhausted (block, reservation). Of the
  /// last such call the accounts and what could be used are those of that moment; holders and
  /// tickets are today's. O(max_holders + fence entries).
  Explanation explain(const Status& refused) const noexcept;
  /// Holders, by id: the leak report when the engine is idle. Empty where there is no memory for
  /// the list; stats() has their number. O(max_holders).
  std::vector<HolderReport> holders() const noexcept;
  /// The same into memory of the caller, nothing from the heap. Returns how many were written: all
  /// when there is room for stats().holders, otherwise as many as fit, of no particular choice.
  std::size_t holders(std::span<HolderReport> reports) const noexcept;

  /// Proves the accounts: every block in one state, lists whole, counts equal to the holders'
  /// totals. O(num_blocks). Returns invariant_violated with the number of the invariant (see
  /// accounts.hpp).
  Status check_invariants() const;
  /// The part of the proof that the running totals alone allow. O(1).
  Status check_totals() const noexcept;
  /// The part that concerns blocks first .. first + count - 1 and those places of the free list;
  /// for bounded slices. Ends whatever is corrupt. O(count + fence entries of those blocks).
  Status check_blocks(std::int64_t first, std::int64_t count) const noexcept;

 private:
  friend struct ReleaseProbe;
  struct Impl;
  explicit BlockManager(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvarena
