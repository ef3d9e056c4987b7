#pragma once

/// @file
/// `BlockTables`: sequences and the blocks that each sequence owns, in order. It knows no requests,
/// schedulers, models or bytes. The table of a sequence is a list of pages of entries. The pages
/// come from a pool whose size is fixed at create. Each entry is a block id (the device's int32); a
/// parallel array has its generation.
///
/// A call takes all or nothing and changes nothing on failure. Blocks come from the BlockManager.
/// The manager must outlive this object and must not be moved meanwhile, and no one else may use it
/// for the holders of these sequences. Others may retain, fence and publish blocks that hold
/// tokens. New tokens then go to a copy, so the bytes of those blocks stay as they are. Sequence
/// ids are never reused. An unknown or destroyed sequence is not_found, never a crash.
///
/// Work on another stream that reads a sequence needs a ticket: the sequence is destroyed or cut
/// against that ticket. To let a sequence grow meanwhile, fork it first and let the work read the
/// fork.
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
  std::int32_t block_size_tokens = 16;  ///< tokens in a block, 1 .. 65536
  std::int32_t max_sequences = 1024;    ///< sequences at a time; each needs a holder of the manager
  std::int64_t max_table_pages = 0;  ///< pages of kPageEntries entries; 0: enough for every block
                                     ///< to be in BlockManager::kSharers tables
  std::int64_t max_append_tokens = 1 << 20;  ///< new tokens in one append call, over all demands
  bool report_rows = false;  ///< whether append fills AppendResult::rows, for a mirror of the
                             ///< tables
  bool can_undo = false;     ///< whether undo_append works; then blocks copied on write stay held
                             ///< until settle_append, the next append (refused or not), or the end
                             ///< of their sequence
};

/// Options of a new sequence.
struct SequenceOptions {
  std::int64_t max_length_tokens = 0;  ///< 0: no maximum below the 2^31 - 1 of any length
  std::int64_t since_ns = 0;           ///< as HolderInfo::since_ns
  std::int64_t deadline_ns = 0;        ///< as HolderInfo::deadline_ns
  /// The owner of the content: the engine's own id of a request or a tenant. explain(), `/stats`,
  /// health and logs show it beside the sequence. 0: the owner is the sequence's own id, or for a
  /// fork the owner of its parent. Sequence ids start at 2^24, so smaller numbers never equal one.
  std::uint64_t owner = 0;
};

/// The growth of one sequence, in tokens.
struct AppendDemand {
  SequenceId sequence;          ///< an existing sequence, at most once in a call
  std::int32_t num_tokens = 1;  ///< >= 0
};

/// The facts about the sequence of a demand that a mirror of the tables needs.
struct AppendedRow {
  std::int32_t slot = 0;  ///< the sequence's place among the sequences, the same for its whole life
  std::int32_t length_tokens = 0;       ///< tokens, with the new ones
  std::int32_t num_new_tokens = 0;      ///< how many of the last tokens are new
  std::int32_t num_changed_blocks = 0;  ///< the result of changed_blocks(slot)
};

/// The changes of an append. The spans are valid until the next mutating call.
struct AppendResult {
  std::span<const std::int64_t> slots;  ///< [total tokens] slot of each new token, demand by
                                        ///< demand: block * block_size + offset
  std::span<const BlockCopy> copies;    ///< block copies that the device must make before it writes
  std::int64_t new_blocks = 0;          ///< blocks taken, with the targets of copies
  std::span<const AppendedRow> rows;    ///< demand by demand; empty unless report_rows is set
};

/// Figures over all tables.
struct TableStats {
  std::int64_t sequences = 0;     ///< existing sequences
  std::int64_t tokens = 0;        ///< sum of the lengths
  std::int64_t entries = 0;       ///< block references in tables; a shared block counts each time
  std::int64_t waste_tokens = 0;  ///< slots in tables behind the end of their sequence
  std::int64_t pages_used = 0;    ///< pages of entries in use
  std::int64_t pages_total = 0;   ///< pages of entries there are
  std::uint64_t sequences_ever = 0;   ///< created since the start
  std::uint64_t copies_on_write = 0;  ///< since the start
};

/// One sequence's figures.
struct SequenceInfo {
  std::int64_t length_tokens = 0;      ///< tokens
  std::int64_t num_blocks = 0;         ///< entries in its table, with reserved capacity
  std::int64_t max_length_tokens = 0;  ///< 0: none
  std::int64_t waste_tokens = 0;       ///< num_blocks * block_size - length
  HolderId holder;                     ///< the holder of its block references
  std::uint64_t owner = 0;             ///< whose content it is; never 0
};

/// Sequences and their block tables.
class KVARENA_EXPORT BlockTables {
 public:
  static constexpr std::int32_t kPageEntries = 128;  ///< entries in a page

  /// Allocates all tables. Returns invalid_argument with the option, its value and its range.
  static Result<BlockTables> create(BlockManager& manager, const BlockTablesOptions& options);
  /// Returns the host memory of the tables for a pool of `num_blocks` blocks with valid `options`.
  /// It is an upper bound, because the system commits memory when it is first used.
  static std::int64_t host_bytes(std::int64_t num_blocks,
                                 const BlockTablesOptions& options) noexcept;
  /// Releases every sequence that is left.
  ~BlockTables();
  BlockTables(BlockTables&&) noexcept;
  BlockTables& operator=(BlockTables&&) noexcept;

  // ---- life of a sequence --------------------------------------------------------------------

  /// Creates an empty sequence. Returns exhausted (sequence) or invalid_argument
  /// (max_length_tokens). O(1).
  Result<SequenceId> create_sequence(const SequenceOptions& options = {});
  /// Creates a sequence that shares the first `length_tokens` tokens of `parent`: it has the same
  /// blocks, each with one more reference. The first sequence that appends to a partly shared last
  /// block copies it. Returns invalid_argument (sequence_length) past the parent's length,
  /// exhausted (sequence, table_page), or not_found. O(blocks).
  Result<SequenceId> fork(SequenceId parent, std::int64_t length_tokens,
                          const SequenceOptions& options = {});
  /// Ends a sequence and releases its blocks, last first. Pass a ticket when queued work on another
  /// stream still reads the blocks. O(blocks).
  Status destroy(SequenceId sequence, Ticket ticket = kNoTicket);
  /// Ends many sequences in the order given, all or nothing: for abort, time-out and preemption of
  /// a whole set. The status names the first unknown or repeated sequence. O(blocks).
  Status destroy_many(std::span<const SequenceId> sequences, Ticket ticket = kNoTicket);

  // ---- growth --------------------------------------------------------------------------------

  /// Grows many sequences in one all-or-nothing call: a decode step, or prefill chunks. When the
  /// next token of a sequence falls into a block on which others have claims
  /// (BlockManager::claims), the sequence gets a copy of the block. Sharers copy in demand order
  /// until only one claim is left. Demands get their blocks in order, a copy's target first. On
  /// failure `failed_demand()` is the index of the first demand at fault (for exhausted: the first
  /// that did not fit), and the status names its sequence. Returns exhausted (block, table_page),
  /// context_length_exceeded, not_found, duplicate_argument, or invalid_argument (num_tokens). O(1)
  /// a demand and O(1) a block.
  Result<AppendResult> append(std::span<const AppendDemand> demands,
                              Urgency urgency = Urgency::growth);
  /// Appends one token to each sequence: a decode step.
  Result<AppendResult> append_one_each(std::span<const SequenceId> sequences);
  /// Returns the index of the demand at which the last append failed, or -1.
  std::int64_t failed_demand() const noexcept;
  /// Takes back the last successful append, once. Its sequences get back their lengths, their
  /// capacity and their promises; promises only as far as blocks are left, since a kept copy uses
  /// one. New blocks are released, last first. Set `copies_are_made` when AppendResult::copies were
  /// made, or will be in the order of the home stream: the copies are then kept. Otherwise the
  /// copied blocks are put back. Later calls keep their effect: a destroyed sequence stays
  /// destroyed, and a cut sequence gets no longer. Capacity reserved since the append is given
  /// back, and so is capacity whose blocks others have retained or published since. A fork made
  /// since has, in place of tokens that nobody wrote, the old bytes of its blocks: destroy it.
  /// Returns failed_precondition (sequence) without can_undo or without an append to take back.
  /// O(demands + new blocks).
  Status undo_append(bool copies_are_made);
  /// Ends the possibility to undo the last append: releases the blocks that it copied on write.
  /// O(copies).
  void settle_append() noexcept;
  /// Takes blocks so that `capacity_tokens` fit without another allocation, except for the copy of
  /// a last block on which others have claims. The length stays. Returns what append returns.
  Status reserve_capacity(SequenceId sequence, std::int64_t capacity_tokens,
                          Urgency urgency = Urgency::admission);
  /// Promises a number of blocks (BlockManager::reserve) so that `capacity_tokens` will fit. The
  /// number excludes the block that a copy on write of the last block would take.
  Status promise_capacity(SequenceId sequence, std::int64_t capacity_tokens);
  /// Cuts a sequence to `length_tokens` and releases the blocks behind them, reserved capacity too.
  /// With a ticket, the cut tokens of the last kept block are protected too: new tokens go to a
  /// copy until the ticket retires. Cutting within the last block without a ticket is O(1). Returns
  /// invalid_argument (sequence_length) past the length, not_found (ticket), or exhausted
  /// (fence_entry).
  Status truncate(SequenceId sequence, std::int64_t length_tokens, Ticket ticket = kNoTicket);

  // ---- a mirror of the tables, such as a device's ----------------------------------------------
  // A mirror, such as the tables of a device, has the first blocks of a sequence right. It lacks
  // the last ones, which changed since they were mirrored: all blocks of a new sequence, and those
  // behind a cut or a copy on write. `slot` is AppendedRow::slot; a slot without a sequence has no
  // blocks. These calls are O(1) apart from the copying, and invalidate no span.

  /// Returns how many blocks the mirror lacks.
  std::int32_t changed_blocks(std::int32_t slot) const noexcept;
  /// Copies the blocks that the mirror lacks to `out` and counts them as mirrored. Returns their
  /// number, or 0 with nothing changed when `out` is too small.
  std::int32_t mirror_changes(std::int32_t slot, std::span<BlockId> out) noexcept;
  /// Says that the mirror lost blocks: it has at most the first `blocks` blocks of the slot.
  void unmirror(std::int32_t slot, std::int32_t blocks) noexcept;

  /// Returns how many of the rows of an append have the same block at index `index` of their
  /// tables, for the block that most of them have: the sequences with a common beginning. 0 when no
  /// two have. O(rows), and O(1) while no block of the pool has two references.
  std::int32_t most_sharers(std::span<const AppendedRow> rows, std::int32_t index) noexcept;

  // ---- questions -----------------------------------------------------------------------------

  /// Returns length, blocks, maximum, waste, holder and owner. Returns not_found. O(1).
  Result<SequenceInfo> info(SequenceId sequence) const;
  /// Returns block `index` of a sequence, not_found, or invalid_argument (block_index). O(1).
  Result<BlockId> lookup(SequenceId sequence, std::int64_t index) const;
  /// Returns the slot of token `index`: block * block_size + offset. Returns not_found or
  /// invalid_argument (token_index).
  Result<std::int64_t> slot_of(SequenceId sequence, std::int64_t index) const;
  /// Copies the ids of a sequence's blocks to `out` and returns their number. Returns not_found, or
  /// invalid_argument (span_size) when they do not fit. O(blocks).
  Result<std::int64_t> blocks_of(SequenceId sequence, std::span<BlockId> out) const;
  /// Returns the tables, lengths and block counts of a batch. Rows are in the order given, and a
  /// sequence occurs at most once. Valid until the next mutating call or the next view. O(rows +
  /// pages).
  Result<BatchView> view(std::span<const SequenceId> sequences);
  /// Returns the figures over all sequences. O(1).
  TableStats stats() const noexcept;
  /// Returns BlockManager::explain, with `returning` filled for the largest holders that are
  /// sequences of these tables. No heap allocation. O(max_holders + fence entries + their blocks).
  Explanation explain(std::int64_t requested, Urgency urgency = Urgency::growth) const noexcept;
  /// Does the same for a refused call: BlockManager::explain(refused).
  Explanation explain(const Status& refused) const noexcept;
  /// Returns every existing sequence, in order of slots. Empty when there is no memory for the
  /// list; stats() has the number. O(max_sequences).
  std::vector<SequenceId> sequences() const noexcept;

  /// Proves the tables against the manager: each entry is held at its generation, entries equal the
  /// holder's references, and each page has one owner. Returns invariant_violated. O(entries +
  /// max_sequences).
  Status check_invariants() const;

 private:
  struct Impl;
  explicit BlockTables(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvarena
