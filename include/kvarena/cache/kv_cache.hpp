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
/// is fenced by a ticket (fence()). A failed append changes nothing: preempt and call it again in
/// the same step.
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
#include "kvarena/base/clock.hpp"
#include "kvarena/base/export.hpp"
#include "kvarena/base/layout.hpp"
#include "kvarena/base/result.hpp"
#include "kvarena/blocktable/block_tables.hpp"
#include "kvarena/device/device.hpp"
#include "kvarena/step/step_publisher.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace kvarena {

/// Options of a cache.
struct KvCacheOptions {
  UniformLayoutOptions layout{};               ///< planes and block size
  PoolSize size{};                             ///< how many blocks
  BlockOrder order = BlockOrder::block_major;  ///< which bytes lie together
  std::int32_t num_q_heads = 0;                ///< of attend; a multiple of the KV heads
  std::int32_t max_sequences = 1024;           ///< sequences at a time
  std::int64_t max_sequence_tokens = 0;        ///< of one sequence; 0: what the pool holds
  std::int32_t max_batch_rows = 0;             ///< sequences in a step; 0: max_sequences
  std::int64_t max_step_tokens = 8192;         ///< new tokens in a step
  std::int64_t max_batch_blocks = 0;           ///< table entries of a step's rows; 0: 4 x blocks
  std::int64_t watermark_blocks = 0;           ///< see BlockManagerOptions
  std::int32_t window_tokens = 0;              ///< sliding window of `windowed` layers; 0: none
  std::int32_t steps_in_flight = 2;            ///< k: step n waits for step n - k; 1 .. 16
  std::int32_t max_open_tickets = 64;          ///< fences not retired yet, 1 .. 65536
  bool eager_retire = false;           ///< retire fences as soon as they have completed; see fence
  std::int32_t num_threads = 0;        ///< host: attention threads; 0: one a core
  std::int32_t max_decode_tokens = 1;  ///< CUDA: new tokens a row up to which decode attention, not
                                       ///< prefill, serves it (speculation); 1 .. 8
  void* home_stream = nullptr;         ///< CUDA: cudaStream_t to work on; null: one of its own
  OperationLog* log = nullptr;         ///< see BlockManagerOptions
  std::int64_t audit_blocks_per_step = 64;  ///< see StepPublisherOptions; 0: no audit
  const Clock* clock = nullptr;             ///< of publications; borrowed; nullptr: steady_clock()
};

/// What a step's append gave: the batch in the order of the demands. Valid until end_step.
struct StepBatch {
  std::span<const std::int64_t> slots;  ///< [num_tokens] where each new token's K and V go
  /// The same in device memory, in the order of the home stream; on the host device as `slots`.
  const std::int64_t* device_slots = nullptr;
  std::int64_t num_tokens = 0;  ///< new tokens: rows of `key`, `value`, `q`, `out`
  std::int64_t num_copies = 0;  ///< copies on write that were queued
  std::int64_t new_blocks = 0;  ///< blocks taken
};

/// The shape of a recorded decode step.
struct RecordedStep {
  std::int32_t num_rows = 0;        ///< sequences at most, 1 .. max_batch_rows
  std::int32_t tokens_per_row = 1;  ///< new tokens of each, 1 .. max_decode_tokens
};

/// K and V of the step's new tokens for one layer.
struct WriteKvArgs {
  std::int32_t layer = 0;       ///< 0-based
  const void* key = nullptr;    ///< [num_tokens, num_kv_heads, head_dim_k]
  const void* value = nullptr;  ///< [num_tokens, num_kv_heads, head_dim_v]
  DType dtype = DType::f16;     ///< of key and value; converted to the layout's
  QuantScales scales = {};      ///< CUDA: of fp8 K and V, device memory; as given to attend
};

/// Attention of the step's new tokens over one layer.
struct AttendArgs {
  std::int32_t layer = 0;        ///< 0-based
  const void* q = nullptr;       ///< [num_tokens, num_q_heads, head_dim_k]
  DType q_dtype = DType::f16;    ///< of q
  void* out = nullptr;           ///< [num_tokens, num_q_heads, head_dim_v]
  DType out_dtype = DType::f16;  ///< of out
  float* lse = nullptr;          ///< [num_tokens, num_q_heads] log-sum-exp, or nullptr
  float scale = 0.0F;            ///< of the logits; 0: 1 / sqrt(head_dim_k)
  float soft_cap = 0.0F;         ///< of the logits; 0: none
  bool windowed = false;         ///< see only the last KvCacheOptions::window_tokens
  QuantScales scales = {};       ///< CUDA: of fp8 K and V, device memory
  const float* sinks = nullptr;  ///< [num_q_heads] logits of the attention sinks; or nullptr
};

/// Arena, manager, tables and attention behind one object.
class KVARENA_EXPORT KvCache {
 public:
  /// Allocates everything: the arena (one allocation, KVCache); attention workspaces and on CUDA
  /// block tables (IntermediateBuffers); cache_footprint.hpp tells how much. On a CudaDevice a
  /// layout without a tile order becomes chunked where that fits. Returns invalid_argument naming
  /// the option, insufficient_vram, unsupported, exhausted (host_memory, thread, stream); nothing
  /// is left behind then.
  static Result<KvCache> create(Device& device, const KvCacheOptions& options);
  /// Waits for the work under way, that of open fences included, then frees everything.
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
  Status reserve_capacity(SequenceId sequence, std::int64_t capacity_tokens);
  /// BlockTables::promise_capacity.
  Status promise_capacity(SequenceId sequence, std::int64_t capacity_tokens);

  // ---- a step --------------------------------------------------------------------------------

  /// Waits for step n - steps_in_flight and retires the fences of that step and older ones. Returns
  /// failed_precondition (event) inside a step. (The failure of earlier work comes from
  /// synchronize.)
  Status begin_step();
  /// Grows the sequences of the step, queues copies on write, and plans attention: rows are the
  /// demands, query tokens their new tokens. Once a step (again after a failure). Returns what
  /// BlockTables::append returns, invalid_argument (num_tokens, num_sequences) past the options,
  /// exhausted (workspace) past max_batch_blocks (checked before anything changes),
  /// failed_precondition (event) outside a step or after a successful append. When the device does
  /// not take the work (device_error; exhausted (stream)) the sequences have grown by tokens that
  /// nobody wrote: destroy them; the step takes no further append.
  Result<StepBatch> append(std::span<const AppendDemand> demands,
                           Urgency urgency = Urgency::growth);
  /// Index of the demand at which append failed, or -1.
  std::int64_t failed_demand() const noexcept;
  /// Queues writing K and V of the step's new tokens. Returns invalid_argument (layer, pointer,
  /// ...), unsupported (dtype), on the host exhausted (workspace) past 4 calls a layer (attend's
  /// count too) in a step, failed_precondition (event) without an append.
  Status write_kv(const WriteKvArgs& args);
  /// Queues attention of the step's new tokens over all tokens so far. Returns what write_kv
  /// returns.
  Status attend(const AttendArgs& args);
  /// Marks the end of the step's work and publishes. Does not wait.
  Status end_step();
  /// Publishes between steps: an engine that goes idle wants what it has done since to be seen, and
  /// its fences retired, which no further step would do: waits for their work. Returns
  /// failed_precondition (event) inside a step or a recording.
  Status publish();
  /// Waits for all work queued so far; returns its first failure, once.
  Status synchronize();

  // ---- a recorded step (CUDA) ----------------------------------------------------------------

  /// Between steps, while the caller captures the home stream (CudaDevice::native_stream) into a
  /// graph: write_kv and attend then record the layers of a decode step of this shape, with q and
  /// out of num_rows * tokens_per_row tokens, until end_recording. A graph serves every later step
  /// of append_recorded with the same shape: its tables, lengths and slots are read on the device.
  /// Returns the padded batch (device_slots; -1 past a step's tokens). Returns unsupported (device)
  /// on the host; invalid_argument (num_sequences, num_tokens); failed_precondition (stream) when
  /// the home stream is not captured, (event) inside a step or a recording.
  Result<StepBatch> begin_recording(const RecordedStep& shape);
  /// The recording holds the whole step. Returns failed_precondition (event) outside of one.
  Status end_recording();
  /// As append for a step that a graph of `shape` runs: queues nothing. Launch that graph on the
  /// home stream exactly once before end_step. The demands' rows come first, in order; outputs of
  /// rows past them mean nothing. Returns what append returns; invalid_argument (num_sequences,
  /// num_tokens) naming the demand that does not have the shape.
  Result<StepBatch> append_recorded(const RecordedStep& shape,
                                    std::span<const AppendDemand> demands,
                                    Urgency urgency = Urgency::growth);

  // ---- other streams -------------------------------------------------------------------------

  /// A ticket for the work queued on `other` so far, to release blocks against that it still reads.
  /// It is retired by begin_step `steps_in_flight` steps later, waiting for that work if need be;
  /// by publish, which waits too; with eager_retire by the first begin_step that finds it
  /// completed, which is logged. Returns exhausted (ticket) past max_open_tickets.
  Result<Ticket> fence(StreamId other);
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
  /// describe(status), or more where the cache knows it: for exhausted blocks the manager's
  /// explanation, for insufficient_vram the device's breakdown.
  std::string describe(const Status& status) const;
  /// Proves manager and tables. O(blocks + entries).
  Status check_invariants() const;

 private:
  struct Impl;
  explicit KvCache(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvarena
