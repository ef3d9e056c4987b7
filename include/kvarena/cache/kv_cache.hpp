#pragma once

/// @file
/// `KvCache`: the one object an engine holds: arena, block manager, block tables, attention, and
/// one home stream of the device on which all of its work is queued in order.
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
/// Pointers given to write_kv and attend are memory of the cache's device: host memory on the host,
/// device memory on CUDA. Work is asynchronous: they must stay valid until the work has completed
/// (synchronize(), or `steps_in_flight` steps later). Blocks released by destroy and
/// truncate are reused in the order of the home stream, so no wait is needed; work on other streams
/// is fenced by a ticket (fence(), open_ticket()). A failed append changes nothing: preempt and
/// call it again in the same step. A step that cannot be finished is given up with abort_step.
///
/// On CUDA attend may read K and V of tokens older than the step's while the kernel in front of it
/// on the home stream ends. Whoever writes those with kernels of their own queues them before
/// append.
///
/// On CUDA a decode step can be recorded in a graph once and replayed while sequences grow, join
/// and leave: begin_recording. The host then queues nothing a layer.
///
/// One thread at a time, but snapshot() and the publisher's readers from any. Move-only. The device
/// must outlive it. No heap allocation and no device allocation after create.

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

/// Arena, manager, tables and attention behind one object.
class KVARENA_EXPORT KvCache {
 public:
  /// Allocates everything: the arena (one allocation, KVCache); attention workspaces and on CUDA
  /// block tables (IntermediateBuffers); cache_footprint.hpp tells how much. On a CudaDevice a
  /// layout without a tile order becomes chunked where that fits. Returns invalid_argument naming
  /// the option, insufficient_vram, unsupported, exhausted (host_memory, thread, stream); nothing
  /// is left behind then.
  static Result<KvCache> create(Device& device, const KvCacheOptions& options);
  /// Waits for the work under way, that of open tickets with a stream included, then frees
  /// everything. A ticket that is open without a stream is logged as a warning.
  ~KvCache();
  KvCache(KvCache&&) noexcept;
  KvCache& operator=(KvCache&&) noexcept;

  // ---- sequences: as in BlockTables; max_sequence_tokens is the largest maximum ---------------

  /// BlockTables::create_sequence.
  Result<SequenceId> create_sequence(const SequenceOptions& options = {});
  /// BlockTables::fork.
  Result<SequenceId> fork(SequenceId parent, std::int64_t length_tokens,
                          const SequenceOptions& options = {});
  /// BlockTables::destroy.
  Status destroy(SequenceId sequence, Ticket ticket = kNoTicket);
  /// BlockTables::destroy_many: abort, time-out, preemption of a whole set.
  Status destroy_many(std::span<const SequenceId> sequences, Ticket ticket = kNoTicket);
  /// BlockTables::truncate.
  Status truncate(SequenceId sequence, std::int64_t length_tokens, Ticket ticket = kNoTicket);
  /// BlockTables::reserve_capacity.
  Status reserve_capacity(SequenceId sequence, std::int64_t capacity_tokens,
                          Urgency urgency = Urgency::admission);
  /// BlockTables::promise_capacity.
  Status promise_capacity(SequenceId sequence, std::int64_t capacity_tokens);

  // ---- a step --------------------------------------------------------------------------------

  /// Waits for step n - steps_in_flight and retires the fences of that step and older ones. Returns
  /// failed_precondition (step) inside a step, and once device_error (step) when the device did not
  /// take that step, with the first and the last step lost in `subject` and `required`: it then has
  /// waited for the home stream, the sequences of these steps have tokens that nobody wrote, and
  /// the next begin_step goes on. (The failure of earlier work comes from synchronize.)
  Status begin_step();
  /// Grows the sequences of the step, queues copies on write, and plans attention: rows are the
  /// demands, query tokens their new tokens. Once a step (again after a failure). Returns what
  /// BlockTables::append returns, limit_exceeded past max_step_tokens, max_batch_rows or
  /// max_batch_blocks (a smaller step fits, preempting does not help), failed_precondition (step)
  /// outside a step or after a successful append, and what the device says when it does not take
  /// the work (device_error; exhausted (stream)). Nothing has changed then.
  Result<StepBatch> append(std::span<const AppendDemand> demands,
                           Urgency urgency = Urgency::growth);
  /// Index of the demand at which append failed, or -1.
  std::int64_t failed_demand() const noexcept;
  /// Queues writing K and V of the step's new tokens. Returns invalid_argument (layer, pointer,
  /// ...), unsupported (dtype), on the host limit_exceeded (step) past 4 calls a layer (attend's
  /// count too) in a step, failed_precondition (step) without an append.
  Status write_kv(const WriteKvArgs& args);
  /// Queues attention of the step's new tokens over all tokens so far. Returns what write_kv
  /// returns, and failed_precondition (layer) when their K and V of that layer have not been
  /// written in this step, unless args.kv_is_written.
  Status attend(const AttendArgs& args);
  /// Marks the end of the step's work and publishes. Does not wait. Returns failed_precondition
  /// (step) outside a step, or what Device::record returns: the step goes on then.
  Status end_step();
  /// Gives the step up, whatever has been queued of it: takes its append back
  /// (BlockTables::undo_append), so that its sequences have the tokens of before, then marks the
  /// end and publishes as end_step. For a launch that failed, a graph that was not launched, a
  /// request that was withdrawn. After append_recorded it waits for the home stream, to learn
  /// whether the graph ran. Returns as end_step.
  Status abort_step();
  /// Publishes between steps: an engine that goes idle wants what it has done since to be seen, and
  /// its fences retired, which no further step would do: waits for their work. Returns
  /// failed_precondition (step) inside a step or a recording.
  Status publish();
  /// Waits for all work queued so far; returns its first failure, once, or as begin_step when the
  /// device did not take a step that has ended.
  Status synchronize();

  // ---- a recorded step (CUDA) ----------------------------------------------------------------

  /// Between steps, while the caller captures the home stream (CudaDevice::native_stream) into a
  /// graph: write_kv and attend then record the layers of a decode step of this shape, with q and
  /// out of num_rows * tokens_per_row tokens, until end_recording. A graph serves every later step
  /// of append_recorded with the same shape: its tables, lengths and slots are read on the device.
  /// Returns the padded batch (device_slots; -1 past a step's tokens). Returns unsupported (device)
  /// on the host; invalid_argument (num_sequences, num_tokens); failed_precondition (stream) when
  /// the home stream is not captured, (step) inside a step or a recording.
  Result<StepBatch> begin_recording(const RecordedStep& shape);
  /// The recording holds the whole step. Returns failed_precondition (step) outside of one.
  Status end_recording();
  /// As append for a step that a graph of `shape` runs: queues nothing but the step's number, and
  /// with `scrub` what clears and copies its blocks.
  /// Launch that graph on the home stream exactly once before end_step; when that fails, call
  /// abort_step. A launch runs the step it is for or skips every row, never another's: a step that
  /// ends without its launch is lost, and so are those behind it until begin_step or synchronize
  /// says so. The demands' rows come first, in order; outputs of rows past them mean nothing.
  /// Returns what append returns; invalid_argument (num_sequences, num_tokens) naming the demand
  /// that does not have the shape.
  Result<StepBatch> append_recorded(const RecordedStep& shape,
                                    std::span<const AppendDemand> demands,
                                    Urgency urgency = Urgency::growth);

  // ---- other streams -------------------------------------------------------------------------

  // A ticket protects what is released against it (destroy, truncate) until it retires. Work that
  // reads a sequence which grows meanwhile reads a fork of it.

  /// A step's ticket, for the work queued on `other` so far, a stream of this device: short work.
  /// It is retired by begin_step `steps_in_flight` steps later, waiting for that work if need be;
  /// by publish, which waits too; with eager_retire by the first begin_step that finds it
  /// completed, which is logged. Returns exhausted (ticket) past max_open_tickets, not_found
  /// (stream).
  Result<Ticket> fence(StreamId other);
  /// An open ticket, for work that takes longer than a few steps: a transfer, a swap-out. No step
  /// waits for it: the engine retires it, or eager_retire when the work queued on `other` so far
  /// has completed. Returns as fence.
  Result<Ticket> open_ticket(StreamId other);
  /// The same for work that no stream of this device knows, such as a write by another machine:
  /// only the engine retires it.
  Result<Ticket> open_ticket();
  /// The work of an open ticket has ended: what was released against it returns. Returns
  /// not_found (ticket); failed_precondition (ticket) for a step's ticket, and while work is under
  /// way on the stream that the ticket was opened for. O(references + open tickets).
  Status retire(Ticket ticket);
  /// The stream on which all of the cache's work is queued.
  StreamId home_stream() const noexcept;

  // ---- questions -----------------------------------------------------------------------------

  /// Where the pool is.
  Device& device() const noexcept;
  /// The pool's bytes.
  const Arena& arena() const noexcept;
  /// Accounts, holders, explain().
  const BlockManager& manager() const noexcept;
  /// Sequences, lookups, figures.
  const BlockTables& tables() const noexcept;
  /// The figures of the last publication. Thread-safe.
  PoolSnapshot snapshot() const noexcept;
  /// What other threads see: its readers' functions. It stays where it is when the cache is moved.
  StepPublisher& publisher() noexcept;
  /// The same.
  const StepPublisher& publisher() const noexcept;
  /// describe(status), or more where the cache knows it: for exhausted blocks and reservations the
  /// manager's explanation of that refusal, for insufficient_vram the device's breakdown, for a
  /// call out of order which call comes next.
  std::string describe(const Status& status) const noexcept;
  /// Proves manager and tables. O(blocks + entries).
  Status check_invariants() const;

 private:
  struct Impl;
  explicit KvCache(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvarena
