#pragma once

/// @file
/// `KvCache`: the one object that an engine holds. It contains the arena, the block manager, the
/// block tables and the attention. The work of a step is queued on the step's stream
/// (`StepOptions`), at first the home stream of its options. A step on another stream waits, by an
/// event, for all work that is on the last step's stream when it begins. The steps of a cache
/// therefore run in one order, on however many streams.
///
/// A step:
///
///     cache.begin_step();
///     auto batch = cache.append(demands);                  // blocks, slots, copies on write
///     for (layer ...) {
///       cache.write_kv({.layer = layer, .key = k, .value = v});
///       cache.attend({.layer = layer, .q = q, .out = out});
///     }
///     cache.end_step();                                    // returns while the work is under way
///
/// The pointers given to write_kv and attend are memory of the cache's device: host memory on the
/// host, device memory on CUDA. Work is asynchronous. The memory must stay valid until the work has
/// completed: after synchronize(), or `steps_in_flight` steps later. Blocks released by destroy and
/// truncate are reused in this order, so no wait is needed for work on the stream of the present or
/// last step. A ticket fences work on other streams (fence(), open_ticket()). A failed append
/// changes nothing: preempt a sequence and call append again in the same step. Give up a step that
/// cannot be finished with abort_step.
///
/// On CUDA, attend may read K and V of tokens older than the step's while the kernel in front of it
/// on the stream ends. Kernels of the caller that write such tokens must be queued before
/// append.
///
/// On CUDA, a decode step can be recorded in a graph once and replayed while sequences grow, join
/// and leave: see begin_recording. The host then queues no work for single layers.
///
/// One thread at a time, but any thread may call snapshot() and the publisher's readers. Move-only.
/// The device must outlive it. No heap allocation and no device allocation after create.

#include "kvarena/allocator/arena.hpp"
#include "kvarena/allocator/block_manager.hpp"
#include "kvarena/base/export.hpp"
#include "kvarena/base/result.hpp"
#include "kvarena/blocktable/block_tables.hpp"
#include "kvarena/cache/kv_cache_options.hpp"
#include "kvarena/cache/kv_cache_step.hpp"
#include "kvarena/device/device.hpp"
#include "kvarena/step/step_publisher.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace kvarena {

/// Arena, block manager, block tables and attention in one object.
class KVARENA_EXPORT KvCache {
 public:
  /// Allocates everything: the arena in one allocation (KVCache), the attention workspaces, and on
  /// CUDA the block tables (IntermediateBuffers). cache_footprint.hpp computes how much. On a
  /// CudaDevice a layout without a tile order becomes chunked where the layout permits it. Returns
  /// invalid_argument with the option, insufficient_vram, unsupported, or exhausted (host_memory,
  /// thread, stream). No memory is kept then.
  static Result<KvCache> create(Device& device, const KvCacheOptions& options);
  /// Waits for all work under way, including that of open tickets with a stream, then frees
  /// everything. An open ticket without a stream is logged as a warning.
  ~KvCache();
  KvCache(KvCache&&) noexcept;
  KvCache& operator=(KvCache&&) noexcept;

  // ---- sequences: as in BlockTables; max_sequence_tokens is the largest maximum ---------------

  /// BlockTables::create_sequence. With a prefix cache and SequenceOptions::tokens it begins with
  /// the longest published prefix: tables().prefix_of says what was found, and why no more.
  Result<SequenceId> create_sequence(const SequenceOptions& options = {});
  /// BlockTables::fork.
  Result<SequenceId> fork(SequenceId parent, std::int64_t length_tokens,
                          const SequenceOptions& options = {});
  /// BlockTables::create_sequence_from.
  Result<SequenceId> create_sequence_from(std::int64_t length_tokens,
                                          std::span<const GroupBlocks> groups,
                                          const SequenceOptions& options = {});
  /// BlockTables::destroy.
  Status destroy(SequenceId sequence, Ticket ticket = kNoTicket);
  /// BlockTables::destroy_many: abort, time-out, preemption of a whole set.
  Status destroy_many(std::span<const SequenceId> sequences, Ticket ticket = kNoTicket);
  /// BlockTables::truncate.
  Status truncate(SequenceId sequence, std::int64_t length_tokens, Ticket ticket = kNoTicket);
  /// BlockTables::checkpoint, between steps.
  Status checkpoint(SequenceId sequence);
  /// BlockTables::reserve_capacity.
  Status reserve_capacity(SequenceId sequence, std::int64_t capacity_tokens,
                          Urgency urgency = Urgency::admission);
  /// BlockTables::promise_capacity.
  Status promise_capacity(SequenceId sequence, std::int64_t capacity_tokens);
  /// BlockTables::set_deadline. The next publication shows it.
  Status set_deadline(SequenceId sequence, std::int64_t deadline_ns);

  // ---- imports and pins: as in BlockTables -----------------------------------------------------

  /// BlockTables::import_sequence. Work that fills the blocks (tables().blocks_of, layer_view) must
  /// come behind the work queued so far on the stream of the cache: it waits for an event, or the
  /// caller for synchronize(). Returns failed_precondition (step) between append and the end of the
  /// step, whose writes are still to come. The options may have a salt and extra keys, for what
  /// register_tokens tells once the import is published.
  Result<SequenceId> import_sequence(std::int64_t num_tokens, const SequenceOptions& options = {},
                                     Urgency urgency = Urgency::admission);
  /// BlockTables::publish_import. Later work on the stream of the cache must come behind the
  /// writes.
  Status publish_import(SequenceId sequence);
  /// BlockTables::fail_import.
  Status fail_import(SequenceId sequence);
  /// BlockTables::pin.
  Result<HolderId> pin(SequenceId sequence, const PinOptions& options = {});
  /// BlockTables::unpin.
  Status unpin(HolderId pin, Ticket ticket = kNoTicket);

  // ---- prefix cache: with KvCacheOptions::prefix_cache, else failed_precondition, except that
  // set_retention and advance_clock ask for a policy, not for a prefix cache ---------------------
  // The tokens of a step are told by AppendDemand::tokens. end_step publishes the blocks that they
  // fill, because later steps of any stream run behind it. It publishes nothing when write_kv has
  // written some layers, or has failed, and others are left; a step without write_kv was written by
  // kernels of the engine. A sequence of which a token was not told registers no more blocks.
  // A fork that is made between append and the end of the step does not know the step's tokens.
  // Questions (match, prefix_of, prefix_stats) are calls of tables(). With DuplicateRule::share,
  // end_step may put other blocks into a table: look them up behind it.
  //
  // When work of a step fails, the cache forgets all blocks. It looks for failures in begin_step,
  // end_step, abort_step, publish, synchronize, adopt and register_tokens, and in create_sequence
  // with tokens; so it sees them when the step's work is over, whoever took them from the device.
  // No block is registered with a token that such a step, or a later one, was to write, also when
  // the sequence goes on, is forked, or tells it later: cut the sequence to its length before the
  // step. When the step copied the sequence's last block, cut it to the beginning of that block;
  // with DuplicateRule::share, when it filled a block, to the beginning of that one. Cut what began
  // with a cached prefix since the first of these steps to 0.

  /// BlockTables::adopt, for a sequence that was cut to 0 tokens.
  Result<PrefixMatch> adopt(SequenceId sequence, std::span<const std::int32_t> tokens);
  /// Tells tokens that no step has told: of an import, or when a step ran before its tokens were
  /// known. They have been written, in the order of the steps. Registers the blocks that they fill
  /// and publishes them. Returns what BlockTables::register_tokens returns, and failed_precondition
  /// (step) between append and the end of the step. Ignores tokens of a step whose work has failed.
  Status register_tokens(SequenceId sequence, std::span<const std::int32_t> tokens);
  /// BlockTables::forget.
  Status forget(SequenceId sequence);
  /// BlockTables::forget_salt.
  Status forget_salt(std::uint64_t salt);
  /// BlockTables::forget_all.
  Status forget_all();
  /// Says how long the published blocks with a token of a range should stay. The range may begin
  /// and end inside a block. Blocks that the sequence has not filled are not published: they are
  /// left out. With groups it says so for the pages of the blocks that the sequence has in each
  /// group; states have the usual priority. Returns the number of the other blocks, what
  /// BlockManager::set_retention returns (among it unsupported (eviction)), not_found, or
  /// invalid_argument (token_index, num_tokens). O(blocks).
  Result<std::int64_t> set_retention(SequenceId sequence, std::int64_t first_token,
                                     std::int64_t num_tokens, const RetentionHint& hint);
  /// BlockManager::advance_clock. Returns unsupported (eviction) unless that is
  /// EvictionPolicy::priority.
  Status advance_clock(std::int64_t now);
  /// BlockTables::set_salt_limits. tables().salt_figures has the account.
  Status set_salt_limits(std::uint64_t salt, const SaltLimits& limits);
  /// BlockTables::close_salt_account.
  Status close_salt_account(std::uint64_t salt);

  // ---- a step --------------------------------------------------------------------------------

  /// Waits for step n - steps_in_flight, and retires the fences of that step and of older ones.
  /// Returns failed_precondition (step) inside a step. Returns device_error (step), once, when the
  /// device did not take that step; `subject` and `required` are the first and the last step lost.
  /// begin_step has then waited for the last step's stream, the sequences of these steps have
  /// tokens that nobody wrote (states of recurrent layers are lost: BlockTables::lose_states; a
  /// fork made since has theirs), and so may those that began with a cached prefix since the first
  /// of them. The prefix cache has forgotten all blocks, as after every device_error. The next
  /// begin_step goes on. Does not return the failure of earlier work: synchronize does. The prefix
  /// cache forgets all blocks here when work of a step has failed. For a stream other than
  /// the last step's, returns not_found (stream), failed_precondition (stream) while either of the
  /// two is captured, or what Device::wait returns; nothing has changed then. A failure on the last
  /// step's stream reaches the other one through the wait, and stays on each of them until that
  /// stream is synchronised.
  Status begin_step(const StepOptions& options = {});
  /// Grows the sequences of the step, queues copies on write, and plans attention. The rows are the
  /// demands, and the query tokens are their new tokens. Succeeds once in a step; after a failure
  /// it may be called again. Returns what BlockTables::append returns; limit_exceeded past
  /// max_step_tokens, max_batch_rows or max_batch_blocks (a smaller step fits, preempting does not
  /// help); failed_precondition (step) outside a step or after a successful append; and
  /// device_error or exhausted (stream) when the device does not take the work. Nothing has changed
  /// then.
  Result<StepBatch> append(std::span<const AppendDemand> demands,
                           Urgency urgency = Urgency::growth);
  /// Returns the index of the demand at which append failed, or -1.
  std::int64_t failed_demand() const noexcept;
  /// Returns what the step or the recording has on the device, for attention kernels of the caller.
  /// With groups they are those of one part of GroupLayout; a row has the entries of its kept
  /// blocks only. Returns failed_precondition (step) without a successful append in this step, or
  /// invalid_argument (num_groups).
  Result<DeviceBatch> device_batch(std::int32_t part = 0) const noexcept;
  /// Queues the write of K and V of the step's new tokens. Returns invalid_argument (layer,
  /// pointer, ...), unsupported (dtype), or failed_precondition (step) without an append. On the
  /// host, returns limit_exceeded (step) past 4 calls of write_kv, write_index and attend for each
  /// layer in a step.
  Status write_kv(const WriteKvArgs& args);
  /// Queues the write of the step's keys of a sparse-attention index for one layer. Each token's
  /// key becomes fp8_e4m3 with a scale of its own: the smallest power of two with which none of its
  /// finite elements is more than 448, at least 2^-100. Attention over the tokens that an index
  /// selects is the engine's. An index that kernels of the engine write needs no call: see
  /// index_view. With a prefix cache, a step that wrote the index of some layers but not of all
  /// publishes nothing. Returns what write_kv returns, and invalid_argument (layer) for a layer
  /// without an index of its own.
  Status write_index(const WriteIndexArgs& args);
  /// Queues the write of K and V of a sequence's encoder, for layers of a cross group: once, or
  /// again when they changed. Imports, sequences that were created from blocks of an encoder, and
  /// forks of a sequence that has them, have them already: the cache asks no more of these, so the
  /// encoder must have been written. A fork that was made before this call has not. When the step
  /// is aborted or lost, the encoders that it wrote to must be written again. Returns what write_kv
  /// returns, and not_found (sequence) for a sequence that is not in this step.
  Status write_cross(const WriteCrossArgs& args);
  /// Queues attention of the step's new tokens over all tokens so far. Returns what write_kv
  /// returns, and failed_precondition (layer) when this step has not written their K and V of that
  /// layer, or for a layer of a cross group, when the encoder of a sequence with new tokens has not
  /// been written there, unless args.kv_is_written is set. On CUDA, write_kv and attend launch
  /// programmatically: see `overlap` in cuda_attention.hpp for what that asks of the engine's own
  /// kernels.
  Status attend(const AttendArgs& args);
  /// Marks the end of the step's work and publishes. Does not wait. Returns failed_precondition
  /// (step) outside a step, or what Device::record returns; the step goes on then.
  Status end_step();
  /// Gives the step up, whatever part of it has been queued. Takes its append back
  /// (BlockTables::undo_append), so that its sequences have their old tokens, then marks the end
  /// and publishes as end_step does. It is for a launch that failed, a graph that was not launched,
  /// or a request that was withdrawn. After append_recorded it waits for the step's stream, to
  /// learn whether the graph ran. Returns what end_step returns.
  Status abort_step();
  /// Publishes between steps, for an engine that goes idle. Others then see what it has done since
  /// the last step. Retires the fences too, because no further step would, and waits for their
  /// work. Returns failed_precondition (step) inside a step or a recording.
  Status publish();
  /// Waits for all work queued so far and returns the first failure of the stream of the present or
  /// last step, once. Returns the error of
  /// begin_step when the device did not take a step that has ended.
  Status synchronize();

  // ---- a recorded step (CUDA) ----------------------------------------------------------------

  /// Begins a recording. Call it between steps, while the caller captures the recording's stream
  /// (CudaDevice::native_stream) into a graph. A recording waits for no step, and is none: the next
  /// step's stream does not depend on it, and the graph may be launched on any stream. Until
  /// end_recording, write_kv and attend record the layers of a decode step of this shape, with q
  /// and out of num_rows * tokens_per_row tokens. The graph serves every later append_recorded of
  /// the same shape, because tables, lengths and slots, those of states too, are read on the
  /// device. Returns the padded batch (device_slots; -1 past a step's tokens). Returns unsupported
  /// (device) on the host; invalid_argument (num_sequences, num_tokens); not_found (stream);
  /// failed_precondition (stream) when the stream is not captured, or (step) inside a step or a
  /// recording.
  Result<StepBatch> begin_recording(const RecordedStep& shape, const StepOptions& options = {});
  /// Ends the recording, which holds the whole step. Returns failed_precondition (step) outside a
  /// recording.
  Status end_recording();
  /// Does what append does, for a step that a graph of `shape` runs. It queues only the step's
  /// number, and with `scrub` the clearing and copying of its blocks. Launch the graph on the
  /// step's stream exactly once before end_step; when the launch fails, call abort_step. A launch
  /// runs the step it is for, or skips every row; it never runs another step. A step that ends
  /// without its launch is lost, and so are the steps behind it, until begin_step or synchronize
  /// reports the loss. The demands' rows come first, in order; the outputs of later rows have no
  /// meaning. Returns what append returns, and invalid_argument (num_sequences, num_tokens) with
  /// the demand that does not have the shape.
  Result<StepBatch> append_recorded(const RecordedStep& shape,
                                    std::span<const AppendDemand> demands,
                                    Urgency urgency = Urgency::growth);

  // ---- other streams -------------------------------------------------------------------------

  // A ticket protects blocks that are released against it (destroy, truncate) until the ticket
  // retires. Work that reads a sequence which grows meanwhile must read a fork of it.

  /// Opens a step's ticket for the work queued so far on `other`, a stream of this device. It is
  /// for short work. begin_step retires it `steps_in_flight` steps later and waits for the work if
  /// it has to. publish retires it too, and waits too. With eager_retire the first begin_step that
  /// finds the work completed retires it and logs that. Returns exhausted (ticket) past
  /// max_open_tickets, or not_found (stream).
  Result<Ticket> fence(StreamId other);
  /// Opens an open ticket, for work that takes longer than a few steps: a transfer, a swap-out. No
  /// step waits for it. The engine retires it, or eager_retire does when the work queued on `other`
  /// so far has completed. Returns what fence returns.
  Result<Ticket> open_ticket(StreamId other);
  /// Opens an open ticket for work that no stream of this device knows, such as a write by another
  /// machine. Only the engine retires it.
  Result<Ticket> open_ticket();
  /// Retires an open ticket whose work has ended: the blocks released against it return. Returns
  /// not_found (ticket). Returns failed_precondition (ticket) for a step's ticket, and while work
  /// is under way on the stream of the ticket. O(references + open tickets).
  Status retire(Ticket ticket);
  /// The stream of the present step or recording, between steps that of the last step.
  StreamId stream() const noexcept;

  // ---- questions -----------------------------------------------------------------------------

  /// KvCacheOptions::name, as a C string.
  const char* name() const noexcept;
  /// The device of the pool.
  Device& device() const noexcept;
  /// The bytes of the pool.
  const Arena& arena() const noexcept;
  /// Returns K and V of one layer of the pool, for kernels of the caller. Returns invalid_argument
  /// (layer) when the layer does not exist.
  Result<KvLayerView> layer_view(std::int32_t layer) const noexcept;
  /// Returns the sparse-attention index of one layer of the pool, for kernels of the caller.
  /// Returns invalid_argument (layer) for a layer without an index of its own.
  Result<IndexView> index_view(std::int32_t layer) const noexcept;
  /// Returns the states of a recurrent layer of the pool, for kernels of the caller: their bytes
  /// are in memory of the device. StepBatch::device_states has the slots of a step. Returns
  /// invalid_argument (layer) for another layer.
  Result<StateView> state_view(std::int32_t layer) const noexcept;
  /// The block manager: accounts, holders, explain().
  const BlockManager& manager() const noexcept;
  /// The block tables: sequences, lookups, figures.
  const BlockTables& tables() const noexcept;
  /// Returns the figures of the last publication. Thread-safe.
  PoolSnapshot snapshot() const noexcept;
  /// The publisher, whose readers' functions other threads call. It keeps its address when the
  /// cache is moved.
  StepPublisher& publisher() noexcept;
  /// The publisher, for readers.
  const StepPublisher& publisher() const noexcept;
  /// Returns describe(status), with more text where the cache knows more: the manager's explanation
  /// of the refusal for exhausted blocks and reservations, the device's breakdown for
  /// insufficient_vram, and the next valid call for a call out of order.
  std::string describe(const Status& status) const noexcept;
  /// Proves the manager and the tables. O(blocks + entries).
  Status check_invariants() const;

 private:
  struct Impl;
  explicit KvCache(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvarena
