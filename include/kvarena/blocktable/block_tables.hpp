#pragma once

/// @file
/// `BlockTables`: sequences and the blocks each owns, in order. Knows no requests, schedulers,
/// models or bytes. A sequence's table is a list of pages of entries from a pool sized at create;
/// each entry is a block id (the device's int32) and, in parallel, its generation.
///
/// Calls take all or nothing and change nothing on failure. Blocks come from the BlockManager,
/// which must outlive this object at its address (do not move it meanwhile) and which no one else
/// may use for these sequences' holders. Others may retain, fence and publish blocks that hold
/// tokens: new tokens then go to a copy, so that the bytes of those blocks stay as they are. Ids of
/// sequences are never reused; an unknown or destroyed one is not_found, never a crash.
///
/// Work on another stream that reads a sequence protects what it reads by a ticket against which
/// the sequence is destroyed or cut. A sequence that is to grow meanwhile is forked first; the work
/// reads the fork.
///
/// One thread at a time. Move-only. No heap allocation after create.

#include "kvarena/allocator/block_manager.hpp"
#include "kvarena/base/export.hpp"
#include "kvarena/base/ids.hpp"
#include "kvarena/base/result.hpp"
#include "kvarena/base/views.hpp"

#include <cstdint>
#include <memory>
#include <span>

namespace kvarena {

/// Options of block tables.
struct BlockTablesOptions {
  std::int32_t block_size_tokens = 16;  ///< tokens a block, 1 .. 65536
  std::int32_t max_sequences = 1024;    ///< sequences at a time; each needs a holder of the manager
  std::int64_t max_table_pages = 0;  ///< pages of kPageEntries entries; 0: enough for every block
                                     ///< to be in BlockManager::kSharers tables
  std::int64_t max_append_tokens = 1
                                   << 20;  ///< new tokens in one append call, all demands together
  bool report_rows = false;  ///< AppendResult::rows is filled, for a mirror of the tables
  bool can_undo = false;     ///< undo_append works; blocks copied on write stay held until
                             ///< settle_append, the next append (refused or not), or the end of
                             ///< their sequence
};

/// What a new sequence is.
struct SequenceOptions {
  std::int64_t max_length_tokens = 0;  ///< 0: no maximum but the 2^31 - 1 of a length
  std::int64_t since_ns = 0;           ///< as HolderInfo::since_ns
  std::int64_t deadline_ns = 0;        ///< as HolderInfo::deadline_ns
  /// Whose content it is: the engine's own id of a request, a tenant. explain(), `/stats`, health
  /// and logs name it beside the sequence. 0: the sequence's own id, of a fork its parent's owner.
  /// Numbers below 2^24 are no sequence's id.
  std::uint64_t owner = 0;
};

/// How many tokens a sequence grows by.
struct AppendDemand {
  SequenceId sequence;          ///< existing; at most once in a call
  std::int32_t num_tokens = 1;  ///< >= 0
};

/// What a mirror of the tables must know of a demand's sequence.
struct AppendedRow {
  std::int32_t slot = 0;            ///< its place among the sequences, the same for its whole life
  std::int32_t length_tokens = 0;   ///< new tokens included
  std::int32_t num_new_tokens = 0;  ///< the last of them
  std::int32_t num_changed_blocks = 0;  ///< changed_blocks(slot)
};

/// What an append changed. Spans are valid until the next mutating call.
struct AppendResult {
  std::span<const std::int64_t> slots;  ///< [total tokens] slot of each new token, demand by
                                        ///< demand: block * block_size + offset
  std::span<const BlockCopy> copies;    ///< copy-on-write: what the device must copy before writing
  std::int64_t new_blocks = 0;          ///< blocks taken, copies' targets included
  std::span<const AppendedRow> rows;    ///< demand by demand; empty without report_rows
};

/// Figures over all tables.
struct TableStats {
  std::int64_t sequences = 0;     ///< existing
  std::int64_t tokens = 0;        ///< sum of lengths
  std::int64_t entries = 0;       ///< block references in tables (a shared block counts each time)
  std::int64_t waste_tokens = 0;  ///< slots in tables past their sequence's length
  std::int64_t pages_used = 0;    ///< pages of entries in use
  std::int64_t pages_total = 0;   ///< pages of entries there are
  std::uint64_t sequences_ever = 0;   ///< created since the start
  std::uint64_t copies_on_write = 0;  ///< since the start
};

/// One sequence's figures.
struct SequenceInfo {
  std::int64_t length_tokens = 0;      ///< tokens
  std::int64_t num_blocks = 0;         ///< entries in its table, reserved capacity included
  std::int64_t max_length_tokens = 0;  ///< 0: none
  std::int64_t waste_tokens = 0;       ///< num_blocks * block_size - length
  HolderId holder;                     ///< whose references they are
  std::uint64_t owner = 0;             ///< whose content it is, never 0
};

/// Sequences and their block tables.
class KVARENA_EXPORT BlockTables {
 public:
  static constexpr std::int32_t kPageEntries = 128;  ///< entries a page

  /// Allocates all tables. Returns invalid_argument naming the option, its value and its range.
  static Result<BlockTables> create(BlockManager& manager, const BlockTablesOptions& options);
  /// Host memory of the tables for a pool of so many blocks with options that create has not
  /// refused: at most, since the system commits it when it is first used.
  static std::int64_t host_bytes(std::int64_t num_blocks,
                                 const BlockTablesOptions& options) noexcept;
  /// Releases every sequence that is left.
  ~BlockTables();
  BlockTables(BlockTables&&) noexcept;
  BlockTables& operator=(BlockTables&&) noexcept;

  // ---- life of a sequence --------------------------------------------------------------------

  /// An empty sequence. Returns exhausted (sequence), invalid_argument (max_length_tokens). O(1).
  Result<SequenceId> create_sequence(const SequenceOptions& options = {});
  /// A sequence that shares the first `length_tokens` tokens of `parent`: the same blocks with one
  /// more reference each; a partly shared last block is copied by whoever appends to it first.
  /// Returns invalid_argument (sequence_length) past the parent's length, exhausted (sequence,
  /// table_page), not_found. O(blocks).
  Result<SequenceId> fork(SequenceId parent, std::int64_t length_tokens,
                          const SequenceOptions& options = {});
  /// Ends a sequence and releases its blocks, last first; against `ticket` when queued work on
  /// another stream still reads them. O(blocks).
  Status destroy(SequenceId sequence, Ticket ticket = kNoTicket);
  /// Ends many, in the order given, all or nothing: abort, time-out and preemption of a whole set.
  /// The first unknown or repeated sequence is named. O(blocks).
  Status destroy_many(std::span<const SequenceId> sequences, Ticket ticket = kNoTicket);

  // ---- growth --------------------------------------------------------------------------------

  /// Grows many sequences in one all-or-nothing call: one decode step, or prefill chunks. A
  /// sequence whose next token falls into a block on which others have claims
  /// (BlockManager::claims) gets a copy of it: sharers copy in demand order until only one claim is
  /// left. Blocks are handed to the demands in order, a copy's target
  /// first. On failure `failed_demand()` is the index of the first demand at fault (for exhausted:
  /// the first that did not fit) and the status names its sequence. Returns exhausted (block,
  /// table_page), context_length_exceeded, not_found, duplicate_argument, invalid_argument
  /// (num_tokens). O(1) a demand and O(1) a block.
  Result<AppendResult> append(std::span<const AppendDemand> demands,
                              Urgency urgency = Urgency::growth);
  /// One token for each sequence: a decode step.
  Result<AppendResult> append_one_each(std::span<const SequenceId> sequences);
  /// Index of the demand at which the last append failed, or -1.
  std::int64_t failed_demand() const noexcept;
  /// Takes back the last successful append, once: its sequences have the lengths, capacity and
  /// promises of before (those as far as blocks are left: a copy that is kept uses one), and their
  /// new blocks are released, last first. `copies_are_made` says
  /// whether AppendResult::copies were carried out, or will be in the order of the home stream: the
  /// copies are kept then; otherwise the blocks copied are put back. Calls made since keep their
  /// effect: a sequence that was destroyed stays so, one that was cut gets no longer, capacity
  /// reserved since is given back, as is capacity whose blocks others have retained or published
  /// since, and a fork has, in place of tokens that nobody wrote, what its blocks held before:
  /// destroy it. Returns
  /// failed_precondition (sequence) without can_undo or an append to take back. O(demands + new
  /// blocks).
  Status undo_append(bool copies_are_made);
  /// The last append stays: the blocks that it copied on write are given up. O(copies).
  void settle_append() noexcept;
  /// Takes blocks so that `capacity_tokens` fit without another allocation (but for the copy of a
  /// last block on which others have claims); the length stays. Returns what append returns.
  Status reserve_capacity(SequenceId sequence, std::int64_t capacity_tokens,
                          Urgency urgency = Urgency::admission);
  /// Promises blocks (a count, BlockManager::reserve) so that `capacity_tokens` will fit, without
  /// the one that a copy on write of the last block would take.
  Status promise_capacity(SequenceId sequence, std::int64_t capacity_tokens);
  /// Cuts to `length_tokens` and releases the blocks past it (reserved capacity too). Against a
  /// ticket, the tokens cut from the block that is kept are protected as well: new ones go to a
  /// copy until the ticket retires. Rolling back tokens within the last block without a ticket is
  /// O(1). Returns invalid_argument (sequence_length) past the length, not_found (ticket),
  /// exhausted (fence_entry).
  Status truncate(SequenceId sequence, std::int64_t length_tokens, Ticket ticket = kNoTicket);

  // ---- a mirror of the tables, such as a device's ----------------------------------------------
  // Of the blocks that hold a sequence's tokens, a mirror has the first ones right and lacks the
  // last ones, changed since they were mirrored: all of a new sequence, those past a cut or a copy
  // on write. `slot` is an AppendedRow's; one where no sequence is has no blocks. O(1) but for the
  // copying. These invalidate no span.

  /// How many blocks the mirror lacks.
  std::int32_t changed_blocks(std::int32_t slot) const noexcept;
  /// Copies what the mirror lacks to `out` and counts it as mirrored. Returns how many blocks, or 0
  /// with nothing changed when `out` is not that large.
  std::int32_t mirror_changes(std::int32_t slot, std::span<BlockId> out) noexcept;
  /// The mirror lost what it got: it has the first `blocks` blocks at the most.
  void unmirror(std::int32_t slot, std::int32_t blocks) noexcept;

  // ---- questions -----------------------------------------------------------------------------

  /// Length, blocks, maximum, waste, holder. Returns not_found. O(1).
  Result<SequenceInfo> info(SequenceId sequence) const;
  /// Block `index` of a sequence. Returns not_found, or invalid_argument (block_index). O(1).
  Result<BlockId> lookup(SequenceId sequence, std::int64_t index) const;
  /// Slot of token `index`: block * block_size + offset. Returns invalid_argument (token_index).
  Result<std::int64_t> slot_of(SequenceId sequence, std::int64_t index) const;
  /// Copies the ids of a sequence's blocks to `out` and returns how many there are. Returns
  /// invalid_argument (span_size) when they do not fit. O(blocks).
  Result<std::int64_t> blocks_of(SequenceId sequence, std::span<BlockId> out) const;
  /// Tables, lengths and counts of a batch; rows in the order given, a sequence at most once. Valid
  /// until the next mutating call or the next view. O(rows + pages).
  Result<BatchView> view(std::span<const SequenceId> sequences);
  /// Figures over all sequences. O(1).
  TableStats stats() const noexcept;
  /// BlockManager::explain, and `returning` of the largest holders, as far as they are sequences of
  /// these tables. Takes nothing from the heap. O(max_holders + fence entries + their blocks).
  Explanation explain(std::int64_t requested, Urgency urgency = Urgency::growth) const noexcept;
  /// The same for a refused call: BlockManager::explain(refused).
  Explanation explain(const Status& refused) const noexcept;
  /// Every existing sequence, in order of creation slot. Empty where there is no memory for the
  /// list; stats() has their number. O(max_sequences).
  std::vector<SequenceId> sequences() const noexcept;

  /// Proves the tables against the manager: each entry is held at its generation, entries equal the
  /// holder's references, pages belong to one owner. O(entries + max_sequences).
  /// invariant_violated.
  Status check_invariants() const;

 private:
  struct Impl;
  explicit BlockTables(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvarena
