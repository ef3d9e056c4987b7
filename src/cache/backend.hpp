#pragma once

/// @file
/// `Backend`: what a KvCache needs from its device in a step: scrubs, copies on write, KV writes
/// and attention, all queued on one stream, which a step or a recording chooses. One thread at a
/// time, as the cache. Implementations: HostBackend and CudaBackend.

#include "cache/scrub_planner.hpp"
#include "cache/workspaces.hpp"
#include "kvarena/base/views.hpp"
#include "kvarena/blocktable/block_tables.hpp"
#include "kvarena/cache/kv_cache.hpp"
#include "step/step_ring.hpp"

#include <cstdint>
#include <span>

namespace kvarena {

/// Options of a backend.
struct BackendOptions {
  std::int32_t num_q_heads = 0;
  std::int32_t window_tokens = 0;
  std::int32_t num_threads = 0;              ///< host: attention threads
  std::int32_t max_decode_tokens = 1;        ///< CUDA
  std::int64_t batch_invariant_tokens = 0;   ///< CUDA
  bool draft_trees = false;                  ///< CUDA
  std::int32_t max_shared_rows = 0;          ///< CUDA
  std::int32_t num_sms = 0;                  ///< CUDA: multiprocessors of the device
  std::int32_t block_size_tokens = 0;        ///< CUDA: tokens in a block
  std::int32_t max_sequences = 0;            ///< CUDA: sequences at a time
  std::int32_t max_sequence_blocks = 0;      ///< CUDA: entries of the longest table
  std::int64_t max_sequence_tokens = 0;      ///< CUDA, with groups: of the longest sequence
  std::int64_t checkpoint_every_tokens = 0;  ///< of states
  bool scrubs = false;  ///< whether StepGrowth::scrubs makes the copies on write of K and V
  StepLimits limits;
  WorkspacePlan workspaces;  ///< result of plan_workspaces for the other options
};

/// The growth of a step.
struct StepGrowth {
  std::size_t slot = 0;  ///< slot of the ring; the step that used it last has completed
  std::span<const AppendDemand> demands;
  const AppendResult& appended;  ///< the backend makes its copies
  /// Of the pool, or of the pages and then of each part of the groups, in the order in which they
  /// are made; empty: none. Valid during the call.
  std::span<const ScrubPlan> scrubs;
  const RecordedStep* recorded = nullptr;  ///< shape of the graph that runs the step; null: no
                                           ///< graph
};

/// The device's part of a KvCache. It owns its workspaces. It is destroyed after its work has
/// completed.
class Backend {
 public:
  explicit Backend(StreamId stream) noexcept : stream_(stream) {}
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  /// The stream on which work is queued.
  StreamId stream() const noexcept { return stream_; }
  /// Queues later work on `stream`, which waits for the work so far. Call it between steps.
  void use(StreamId stream) noexcept { stream_ = stream; }

  /// Copies the data that the step's work reads, queues its scrubs (also when a graph runs the
  /// step) and copies on write, and plans its attention. When it fails, the work already queued
  /// does not change the content of any existing sequence.
  virtual Result<StepBatch> begin(const StepGrowth& growth, BlockTables& tables) = 0;
  /// Whether the last begin, failed or not, queued the copies on write that belong to its scrubs.
  bool copies_are_queued() const noexcept { return copies_are_queued_; }
  /// Queues the KV write of one layer.
  virtual Status write_kv(const KvLayerView& kv, const WriteKvArgs& args) = 0;
  /// Queues the write of the index of one layer.
  virtual Status write_index(const IndexView&, const WriteIndexArgs& args) {
    return invalid_argument(Resource::layer, args.layer, 0, -1);
  }
  /// Queues the write of K and V of an encoder, for a layer of a cross group.
  virtual Status write_cross(const KvLayerView&, const WriteCrossArgs& args) {
    return invalid_argument(Resource::layer, args.layer, 0, -1);
  }
  /// Queues the attention of one layer. `args.scale` is set.
  virtual Status attend(const KvLayerView& kv, const AttendArgs& args) = 0;

  /// Returns the pointers of the batch that was begun or is recorded last, without its numbers.
  virtual DeviceBatch device_batch() const noexcept = 0;
  /// Does the same for one part of the groups. A part whose rows are not those of the batch has
  /// their number.
  virtual DeviceBatch device_batch_of_part(std::int32_t) const noexcept { return device_batch(); }

  /// Records the work in front of a step's layers. Only backends that can record steps support this
  /// function and the next two.
  virtual Result<StepBatch> begin_recording(const RecordedStep& shape) = 0;
  /// Says that the graph of the step begun with `recorded` has been launched.
  virtual void end_replay() noexcept = 0;
  /// Gives up the step begun with `recorded`. Waits for the stream and returns whether the
  /// step's graph has run.
  virtual Result<bool> abort_replay(BlockTables& tables) = 0;

  // For backends whose steps can be lost; as in DeviceTables.
  virtual std::uint64_t staged_serial() const noexcept { return 0; }
  virtual std::uint64_t taken_serial() const noexcept { return 0; }
  virtual std::uint64_t misses() const noexcept { return 0; }
  virtual void resync(BlockTables&) noexcept {}

 protected:
  StreamId stream_;
  bool copies_are_queued_ = false;
};

}  // namespace kvarena
