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
/// tokens. New tokens then go to a copy, so the bytes of those blocks stay as they are. An unknown
/// or destroyed sequence is not_found, never a crash.
///
/// Sequence ids count within their tables and are never reused by them. Tables to which the same
/// calls were made, for example on every rank of a group, have issued the same ids. Two tables can
/// therefore have equal ids: tell them apart by their tables, and by SequenceOptions::owner.
///
/// Work on another stream that reads a sequence needs a ticket: the sequence is destroyed or cut
/// against that ticket. To let a sequence grow meanwhile, fork it first and let the work read the
/// fork.
///
/// With groups (table_groups.hpp) a sequence has a table for each group of the manager and one
/// holder. append takes the blocks of all groups. settle_append releases those that no later token
/// reads; their entries become kNoBlock. A sequence is cut and forked where its blocks are held.
/// In a group of states it has the state at its length, those of the rollback_tokens before it, and
/// checkpoints: states that stay cached, published, until their pages are needed.
///
/// One thread at a time. Move-only. No heap allocation after create.

#include "kvarena/allocator/block_manager.hpp"
#include "kvarena/base/export.hpp"
#include "kvarena/base/ids.hpp"
#include "kvarena/base/result.hpp"
#include "kvarena/base/views.hpp"
#include "kvarena/blocktable/prefix_figures.hpp"
#include "kvarena/blocktable/salt_limits.hpp"
#include "kvarena/blocktable/sequences.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace kvarena {

/// Sequences and their block tables.
class KVARENA_EXPORT BlockTables {
 public:
  static constexpr std::int32_t kPageEntries = 128;  ///< entries in a page

  /// Allocates all tables. Returns invalid_argument with the option, its value and its range;
  /// (num_groups) unless there are as many groups as the manager has; or unsupported (kind).
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

  /// Creates a sequence. It is empty, unless there is a prefix cache and the options have tokens:
  /// then it begins with their longest published prefix, and prefix_of says what was covered.
  /// Returns exhausted (sequence), invalid_argument (max_length_tokens), or what adopt returns.
  /// O(1) without tokens.
  Result<SequenceId> create_sequence(const SequenceOptions& options = {});
  /// Creates a sequence that shares the first `length_tokens` tokens of `parent`: it has the same
  /// blocks, each with one more reference. The first sequence that appends to a partly shared last
  /// block copies it. Returns invalid_argument (sequence_length) past the parent's length,
  /// failed_precondition (sequence_length) where blocks are missing, with restorable_length in
  /// `available`, exhausted (sequence, table_page), exhausted (page) for a checkpoint whose pages
  /// are promised to others, or not_found. O(blocks).
  Result<SequenceId> fork(SequenceId parent, std::int64_t length_tokens,
                          const SequenceOptions& options = {});
  /// With groups: creates a sequence from blocks that somebody holds or that are cached, and takes
  /// a reference on each. In each group they end with the last token and begin at the latest with
  /// that of oldest_needed; those in front of `retained` are not taken, and those of an encoder may
  /// be left out. The caller knows what they hold: a holder that cuts its sequence can write other
  /// tokens into a block, under the same generation. Returns what create_sequence and
  /// BlockManager::retain return, exhausted (table_page), failed_precondition (block) for a block
  /// of an import that is not published or has failed, unsupported (num_groups) without groups, or
  /// invalid_argument (num_groups, block_index, num_blocks, span_size; option groups: a block of
  /// another group; with a prefix cache salt, extra_keys, first_token: of another salt or other
  /// extra keys). O(blocks).
  Result<SequenceId> create_sequence_from(std::int64_t length_tokens,
                                          std::span<const GroupBlocks> groups,
                                          const SequenceOptions& options = {});
  /// Returns the longest length <= `length_tokens` at which the sequence can be cut or forked: it
  /// has the blocks that the next token reads, and the states. An import must be published first,
  /// which this does not ask. Returns not_found, or
  /// invalid_argument (sequence_length) below 0 and above 2^31 - 1. O(groups), and with states
  /// O(checkpoints of the sequence x parts).
  Result<std::int64_t> restorable_length(SequenceId sequence, std::int64_t length_tokens) const;
  // ---- states; without a group of states each call is unsupported (num_groups)

  /// Keeps the states of a sequence at its present length as a checkpoint: the sequence can be cut
  /// and forked there while the blocks stay cached, also when its later states have taken other
  /// blocks. Nobody holds a checkpoint, so its pages can be had by others. When there are as many
  /// checkpoints as the pool has states, the oldest is forgotten; so are those behind a cut and
  /// those of a sequence that ends, whose blocks stay cached. An empty sequence has nothing to
  /// keep. Returns not_found, or failed_precondition (sequence) for an unpublished import and
  /// before the append that can be undone is settled, (sequence_length) when the state is lost.
  /// O(parts).
  Status checkpoint(SequenceId sequence);
  /// Copies the lengths of the checkpoints that can be had to `lengths`, ascending, and returns
  /// their number. Returns not_found, or invalid_argument (span_size).
  Result<std::int64_t> checkpoints_of(SequenceId sequence, std::span<std::int64_t> lengths) const;
  /// Copies the blocks of the state at exactly `length_tokens`, held or a checkpoint, and their
  /// generations, as create_sequence_from takes them. Returns their number, num_parts. Returns
  /// not_found, failed_precondition (sequence_length), or invalid_argument (num_groups) for a group
  /// that is not of states, (span_size).
  Result<std::int64_t> state_blocks(SequenceId sequence, std::int64_t length_tokens,
                                    std::int32_t group, std::span<BlockId> ids,
                                    std::span<Generation> generations) const;

  /// Says that nobody wrote the states of a sequence behind `length_tokens`: they and checkpoints
  /// there are lost. append refuses its tokens until it is cut to a length that can be had.
  /// Settles the last append. Returns not_found. O(states of the sequence x parts).
  Status lose_states(SequenceId sequence, std::int64_t length_tokens);

  /// Ends a sequence and releases its blocks, last first. Pass a ticket when queued work on another
  /// stream still reads the blocks. O(blocks).
  Status destroy(SequenceId sequence, Ticket ticket = kNoTicket);
  /// Ends many sequences in the order given, all or nothing: for abort, time-out and preemption of
  /// a whole set. The status names the first unknown or repeated sequence. O(blocks).
  Status destroy_many(std::span<const SequenceId> sequences, Ticket ticket = kNoTicket);

  /// Changes when a sequence should end, as SequenceOptions::deadline_ns; 0: no deadline. Returns
  /// not_found. O(1).
  Status set_deadline(SequenceId sequence, std::int64_t deadline_ns);

  // ---- growth --------------------------------------------------------------------------------

  /// Grows many sequences in one all-or-nothing call: a decode step, or prefill chunks. When the
  /// next token of a sequence falls into a block on which others have claims
  /// (BlockManager::claims), the sequence gets a copy of the block. Sharers copy in demand order
  /// until only one claim is left. Demands get their blocks in order, a copy's target first.
  /// Demands may have urgencies of their own, such as prompts (admission) and decoding sequences
  /// (growth) in one step: growth is then served first (BlockManager::allocate_each). On
  /// failure `failed_demand()` is the index of the first demand at fault (for exhausted: the first
  /// that did not fit), and the status names its sequence, or for exhausted (page) the group that
  /// did not fit. Returns exhausted (block, page, table_page), failed_precondition
  /// (sequence_length) for a sequence whose state is lost, context_length_exceeded, not_found,
  /// duplicate_argument, or invalid_argument (num_tokens). O(1) a demand and O(1) a block.
  Result<AppendResult> append(std::span<const AppendDemand> demands,
                              Urgency urgency = Urgency::growth);
  /// Appends one token to each sequence: a decode step.
  Result<AppendResult> append_one_each(std::span<const SequenceId> sequences);
  /// The same with the new tokens, one for each sequence, for the prefix cache. Also returns
  /// invalid_argument (span_size).
  Result<AppendResult> append_one_each(std::span<const SequenceId> sequences,
                                       std::span<const std::int32_t> tokens);
  /// Returns the index of the demand at which the last append failed, or -1.
  std::int64_t failed_demand() const noexcept;
  /// Takes back the last successful append, once. Its sequences get back their lengths, their
  /// capacity and their promises; promises only as far as blocks are left, since a kept copy uses
  /// one. New blocks are released, last first. Set `copies_are_made` when AppendResult::copies were
  /// made, or will be in the order of the home stream: the copies are then kept. Otherwise the
  /// copied blocks are put back. Later calls keep their effect: a destroyed sequence stays
  /// destroyed, and a cut sequence gets no longer. Capacity reserved since the append is given
  /// back, and so is capacity whose blocks others have retained or published since. A fork made
  /// since has the old bytes of its blocks in place of tokens that nobody wrote, and where a copy
  /// was not made, of all tokens in the copy: destroy it, or fork before the append. A state that
  /// a cut since the append has given up does not come back.
  /// With copies_are_made, states that the step may have written over (TableGroup::keeps_for_undo)
  /// are lost. Returns failed_precondition (sequence) without can_undo or without an append to take
  /// back. O(demands + new blocks).
  Status undo_append(bool copies_are_made);
  /// Ends the possibility to undo the last append: releases the blocks that it copied on write, and
  /// with groups those that no later token reads; states at multiples of checkpoint_every_tokens
  /// become checkpoints. O(copies + blocks).
  void settle_append() noexcept;
  /// Takes blocks so that `capacity_tokens` fit without another allocation, except for the copy of
  /// a last block on which others have claims. The length stays. Returns what append returns.
  Status reserve_capacity(SequenceId sequence, std::int64_t capacity_tokens,
                          Urgency urgency = Urgency::admission);
  /// Promises a number of blocks (BlockManager::reserve) so that `capacity_tokens` will fit,
  /// without the block that a copy on write of the last block takes. With groups it promises the
  /// pages that the sequence lacks, and others take no single blocks of its pages. It is then not
  /// refused in steps that begin one block of a window or a chunk at most. Blocks that others
  /// share, fenced ones, and those out of service do not come back to the promise. O(pages of the
  /// sequence) for its first promise, else O(groups).
  Status promise_capacity(SequenceId sequence, std::int64_t capacity_tokens);
  /// Cuts a sequence to `length_tokens` and releases the blocks behind them, reserved capacity too.
  /// With a ticket, the cut tokens of the last kept block are protected too: new tokens go to a
  /// copy until the ticket retires. Cutting within the last block without a ticket is O(1). Returns
  /// invalid_argument (sequence_length) past the length, failed_precondition (sequence_length) as
  /// fork, not_found (ticket), or exhausted (fence_entry; page and table_page as fork).
  Status truncate(SequenceId sequence, std::int64_t length_tokens, Ticket ticket = kNoTicket);

  // ---- prefix cache ----------------------------------------------------------------------------
  // With BlockTablesOptions::prefix_cache. Without one each of these calls returns
  // failed_precondition, except that prefix_stats are zero. Nobody but these tables may then set
  // the content of blocks to published. A block that is allocated anew, set to another content or
  // quarantined by others is found lost in time, and never matched.
  //
  // The life of a block: the tokens of a sequence that fill it are told (AppendDemand::tokens or
  // register_tokens), and it is registered as `being_written`. publish says that what fills it has
  // been queued on the home stream, or is complete: from now on it is matched, and evictable when
  // nobody holds it. An undo, a cut or the end of its sequence before that unregisters it.

  /// Returns the longest published prefix of the tokens, and why it is no longer. Changes nothing,
  /// figures neither. Returns invalid_argument (num_tokens) for more than 2^31 - 1 tokens,
  /// (extra_keys) for more than max_extra_keys, or (first_token) for a first token that is negative
  /// or smaller than the one before. O(blocks).
  Result<PrefixMatch> match(const PrefixQuery& query) const;
  /// Makes an empty sequence begin with the longest published prefix of the tokens, under the salt
  /// and the extra keys that it was created with. The rest of the tokens is not kept: tell it with
  /// the append that computes it. Returns what match returns, failed_precondition (sequence) for a
  /// sequence that has tokens or blocks, reserved or kept for an undo (settle_append gives up the
  /// latter), failed_precondition (content) for DuplicateRule::wait, context_length_exceeded past
  /// its maximum, exhausted (block, table_page), or not_found. O(blocks).
  Result<PrefixMatch> adopt(SequenceId sequence, std::span<const std::int32_t> tokens);
  /// Returns what the last adopt of a sequence, or its create, has found. not_found. O(1).
  Result<PrefixMatch> prefix_of(SequenceId sequence) const;
  /// Tells the next tokens of a sequence, behind SequenceInfo::known_tokens, and registers the
  /// blocks that they fill. Ignores tokens that distrust_tokens has named. Returns invalid_argument
  /// (num_tokens) for more than the sequence has, failed_precondition (sequence) for an import that
  /// is not published, or not_found. O(tokens).
  Status register_tokens(SequenceId sequence, std::span<const std::int32_t> tokens);
  /// Says that the first `length_tokens` tokens of a sequence, -1 for all, have been written or
  /// will be in the order of the home stream. Publishes the blocks that the sequence has registered
  /// and that lie within. Returns invalid_argument (sequence_length) or not_found. O(1) without
  /// such blocks.
  Status publish(SequenceId sequence, std::int64_t length_tokens = -1);
  /// Takes back what was told of a sequence behind its first `length_tokens` tokens, because these
  /// tokens have not been written. Unregisters those of its blocks that are not published. append
  /// registers no more blocks of the sequence until it is cut to `length_tokens`, or until
  /// register_tokens tells these tokens again, which says that they have been written since.
  /// Returns invalid_argument (sequence_length) or not_found. O(blocks behind).
  Status withdraw_tokens(SequenceId sequence, std::int64_t length_tokens);
  /// Says that the tokens of a sequence behind its first `length_tokens` tokens may be unwritten: a
  /// step was lost. Does what withdraw_tokens does. No block with one of these tokens is registered
  /// for the sequence, also when register_tokens tells them, until it is cut to `length_tokens`.
  /// The same holds for forks that are made of it from now on. Published blocks stay published: see
  /// forget_all. Returns invalid_argument (sequence_length) or not_found. O(blocks behind).
  Status distrust_tokens(SequenceId sequence, std::int64_t length_tokens);
  /// Unregisters the blocks that a sequence has registered or adopted, and all behind them, also
  /// those of others. Returns not_found. O(blocks).
  Status forget(SequenceId sequence);
  /// Unregisters all blocks of a salt. O(num_blocks).
  Status forget_salt(std::uint64_t salt);
  /// Unregisters all blocks. O(num_blocks).
  Status forget_all();
  bool has_prefix_cache() const noexcept;  ///< PrefixOptions::is_on
  /// Returns the figures of the prefix cache. O(1).
  PrefixStats prefix_stats() const noexcept;
  /// Returns how it is used: histograms, and what other sizes and policies would find. O(1).
  PrefixUse prefix_use() const noexcept;
  /// Bounds what the cache keeps for a salt. Opens an account if the salt has none; blocks
  /// and sequences that exist then are not of the account. A lower floor lets blocks go at once; a
  /// higher one keeps what is given up from then on. Returns invalid_argument (floor_blocks,
  /// cap_blocks), or exhausted (capacity, holder). O(1), and O(1) a block let go.
  Status set_salt_limits(std::uint64_t salt, const SaltLimits& limits);
  /// Ends the account of a salt that has no registered blocks (forget_salt) and no sequences.
  /// Returns not_found (holder), or failed_precondition (sequence; option salt). O(1).
  Status close_salt_account(std::uint64_t salt);
  /// Returns the account of a salt, or not_found (holder). O(1).
  Result<SaltFigures> salt_figures(std::uint64_t salt) const;

  // ---- imports: tokens that others write -------------------------------------------------------

  /// Creates a sequence of `num_tokens` tokens whose blocks others fill: a transfer from another
  /// machine, a load from storage. Its blocks are `being_written` (BlockContent). Until
  /// publish_import the sequence can be looked up and destroyed, but not appended to, forked, cut
  /// or pinned: failed_precondition (sequence). The blocks may have been released in the order of
  /// the home stream a moment ago, so work that fills them must wait for the work queued on it so
  /// far. Returns exhausted (sequence, holder, block, table_page), context_length_exceeded past the
  /// options' maximum, or invalid_argument (num_tokens, max_length_tokens, cross_tokens, urgency).
  /// With a prefix cache the options may have a salt and extra keys: what register_tokens tells
  /// once the import is published is theirs. Then also returns invalid_argument (tokens) for
  /// tokens, (extra_keys) and (first_token) as match. O(blocks).
  Result<SequenceId> import_sequence(std::int64_t num_tokens, const SequenceOptions& options = {},
                                     Urgency urgency = Urgency::admission);
  /// Says that the tokens of an import have been written: from now on it is a sequence like any
  /// other. Returns failed_precondition (sequence) without an import that waits, or (block) when
  /// the content of a block with its tokens was set to failed; then nothing has changed. O(blocks).
  Status publish_import(SequenceId sequence);
  /// Says that the tokens of an import will not come. Its blocks are `failed`, nobody can read
  /// them, and only destroy is left; pass a ticket there while writes may still arrive. Returns
  /// failed_precondition (sequence). O(blocks).
  Status fail_import(SequenceId sequence);

  // ---- pins ------------------------------------------------------------------------------------

  /// Holds blocks of a sequence that hold tokens, for a holder of its own: the blocks stay, with
  /// their bytes, when the sequence is cut or destroyed or grows. The pin counts as a holder in
  /// explain() and in reports, with its owner, purpose and times. Returns invalid_argument
  /// (block_index, num_blocks) for blocks that hold no tokens, exhausted (holder, table_page),
  /// not_found, or failed_precondition (sequence) for an unpublished import. O(blocks).
  Result<HolderId> pin(SequenceId sequence, const PinOptions& options = {});
  /// Releases what a pin holds, last block first, and ends its holder. Pass a ticket when queued
  /// work on another stream still reads the blocks. Returns not_found (holder, ticket) or exhausted
  /// (fence_entry). O(blocks).
  Status unpin(HolderId pin, Ticket ticket = kNoTicket);

  // ---- a mirror of the tables, such as a device's ----------------------------------------------
  // A mirror, such as the tables of a device, has the first blocks of a sequence right. It lacks
  // the last ones, which changed since they were mirrored: all blocks of a new sequence, and those
  // behind a cut or a copy on write. `slot` is AppendedRow::slot; a slot without a sequence, and
  // any slot with groups, has no blocks. The calls are O(1) apart from the copying and invalidate
  // no span.

  /// Returns how many blocks the mirror lacks.
  std::int32_t changed_blocks(std::int32_t slot) const noexcept;
  /// Copies the blocks that the mirror lacks to `out` and counts them as mirrored. Returns their
  /// number, or 0 with nothing changed when `out` is too small.
  std::int32_t mirror_changes(std::int32_t slot, std::span<BlockId> out) noexcept;
  /// Says that the mirror lost blocks: it has at most the first `blocks` blocks of the slot.
  void unmirror(std::int32_t slot, std::int32_t blocks) noexcept;

  // With groups. `group` is below their number; a slot without a sequence has no blocks.

  /// Returns the blocks of one table, and those of them that the mirror lacks. O(1).
  TableChanges table_changes(std::int32_t slot, std::int32_t group) const noexcept;
  /// Counts the kept blocks with tokens of one table, with `num_new` more. Returns not_found. O(1).
  Result<std::int64_t> kept_after(SequenceId sequence, std::int32_t group,
                                  std::int64_t num_new) const noexcept;
  /// Copies the kept entries from `first` on, with the ids of TableGroup. The table has as many.
  void copy_entries(std::int32_t slot, std::int32_t group, std::int32_t first,
                    std::span<BlockId> out) const noexcept;
  /// Says that the mirror has the kept ones of the first `blocks` blocks, and no others.
  void set_mirrored(std::int32_t slot, std::int32_t group, std::int32_t blocks) noexcept;
  /// Says that the mirror of one table lost blocks: it has at most the first `blocks` of them.
  void unmirror(std::int32_t slot, std::int32_t group, std::int32_t blocks) noexcept;

  /// Returns how many of the rows of an append have the same block at index `index` of their
  /// tables, for the block that most of them have: the sequences with a common beginning. 0 when no
  /// two have. O(rows), and O(1) while no block of the pool has two references.
  std::int32_t most_sharers(std::span<const AppendedRow> rows, std::int32_t index) noexcept;

  // ---- questions -----------------------------------------------------------------------------

  /// Returns length, blocks, maximum, waste, holder and owner. Returns not_found. O(1).
  Result<SequenceInfo> info(SequenceId sequence) const;
  // `group` is 0 without groups; another one is invalid_argument (num_groups). Rows, views and
  // slots have the ids of TableGroup, other calls the manager's. The blocks of a sequence in a
  // group of states are the parts of one state after the other; it has no slots of tokens, and its
  // rows and views have the present state alone.

  /// Returns block `index` of a sequence, or kNoBlock where it is not kept; not_found, or
  /// invalid_argument (block_index). O(1).
  Result<BlockId> lookup(SequenceId sequence, std::int64_t index, std::int32_t group = 0) const;
  /// Returns the slot of token `index`: block * block_size + offset, or -1 where it is not kept.
  /// Returns not_found or invalid_argument (token_index).
  Result<std::int64_t> slot_of(SequenceId sequence, std::int64_t index,
                               std::int32_t group = 0) const;
  /// Copies the ids of a sequence's blocks to `out`, kNoBlock for those that are not kept, and
  /// returns their number. Returns not_found, or invalid_argument (span_size). O(blocks).
  Result<std::int64_t> blocks_of(SequenceId sequence, std::span<BlockId> out,
                                 std::int32_t group = 0) const;
  /// The same for a pin. Returns not_found (holder) for a holder that is no pin of these tables.
  Result<std::int64_t> blocks_of(HolderId pin, std::span<BlockId> out,
                                 std::int32_t group = 0) const;
  /// Copies the tables of sequences to `entries` [sequences, stride], for kernels and engines of
  /// others: row r begins at r * stride and has the ids of the blocks that hold tokens, then -1;
  /// and the lengths in tokens to `lengths` [sequences], unless it is empty. Returns not_found, or
  /// invalid_argument (span_size) for a stride below a row's blocks or a span that is too small;
  /// then nothing has been written. O(sequences * stride).
  Status copy_rows(std::span<const SequenceId> sequences, std::span<std::int32_t> entries,
                   std::int64_t stride, std::span<std::int32_t> lengths,
                   std::int32_t group = 0) const;
  /// Returns the tables, lengths and block counts of a batch. Rows are in the order given, and a
  /// sequence occurs at most once. Entries that are not kept must not be read. Valid until the next
  /// mutating call or the next view. O(rows + pages); with groups O(blocks).
  Result<BatchView> view(std::span<const SequenceId> sequences, std::int32_t group = 0);
  /// Returns the figures over all sequences. O(1).
  TableStats stats() const noexcept;
  /// Returns BlockManager::explain, with `returning` filled for the largest holders that are
  /// sequences of these tables, and from which salts eviction would take. No heap allocation.
  /// O(max_holders + fence entries + their blocks), with a prefix cache O(num_blocks). Without
  /// `scans`, a cache without accounts is not searched for salts.
  Explanation explain(std::int64_t requested, Urgency urgency = Urgency::growth,
                      bool scans = true) const noexcept;
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
