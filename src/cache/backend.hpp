#pragma once

/// @file
/// `Backend`: what a KvCache asks of its device in a step: scrubs and copies on write, KV writes,
/// attention, all queued on the home stream. One thread at a time, as the cache. HostBackend and
/// CudaBackend.

#include "cache/scrub_planner.hpp"
#include "cache/workspaces.hpp"
#include "kvarena/base/views.hpp"
#include "kvarena/blocktable/block_tables.hpp"
#include "kvarena/cache/kv_cache.hpp"
#include "step/step_ring.hpp"

#include <cstdint>
#include <span>

namespace kvarena {

/// What a backend is created for.
struct BackendOptions {
  std::int32_t num_q_heads = 0;
  std::int32_t window_tokens = 0;
  std::int32_t num_threads = 0;          ///< host: attention threads
  std::int32_t max_decode_tokens = 1;    ///< CUDA
  std::int32_t num_sms = 0;              ///< CUDA: the device's
  std::int32_t block_size_tokens = 0;    ///< CUDA: of the tables
  std::int32_t max_sequences = 0;        ///< CUDA: sequences at a time
  std::int32_t max_sequence_blocks = 0;  ///< CUDA: entries of the longest table
  bool scrubs = false;                   ///< StepGrowth::scrubs makes the copies on write
  StepLimits limits;
  WorkspacePlan workspaces;  ///< plan_workspaces of all the others
};

/// What a step has grown by.
struct StepGrowth {
  std::size_t slot = 0;  ///< of the ring; what used it last has completed
  std::span<const AppendDemand> demands;
  const AppendResult& appended;            ///< its copies are the backend's to make
  ScrubPlan scrubs;                        ///< valid during the call
  const RecordedStep* recorded = nullptr;  ///< a graph of this shape runs the step; null: none
};

/// The device's side of a KvCache. Owns its workspaces. Destroyed when its work has completed.
class Backend {
 public:
  Backend() = default;
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  /// Takes over what the step's work reads, queues its scrubs (of a step that a graph runs, too)
  /// and copies on write, and plans its attention. When it fails, nothing that was queued changes
  /// what a sequence of before has.
  virtual Result<StepBatch> begin(const StepGrowth& growth, BlockTables& tables) = 0;
  /// Whether the last begin, failed or not, has queued the copies on write of its scrubs.
  bool copies_are_queued() const noexcept { return copies_are_queued_; }
  /// Queues one layer's KV write.
  virtual Status write_kv(const KvLayerView& kv, const WriteKvArgs& args) = 0;
  /// Queues one layer's attention; `args.scale` is set.
  virtual Status attend(const KvLayerView& kv, const AttendArgs& args) = 0;

  /// Records what precedes the layers of a step. Only where steps can be recorded, as the next.
  virtual Result<StepBatch> begin_recording(const RecordedStep& shape) = 0;
  /// The graph of the step begun with `recorded` has been launched.
  virtual void end_replay() noexcept = 0;
  /// The step begun with `recorded` is given up. Whether its graph has run; waits for the home
  /// stream.
  virtual Result<bool> abort_replay(BlockTables& tables) = 0;

  // Where a step can be lost; as in DeviceTables.
  virtual std::uint64_t staged_serial() const noexcept { return 0; }
  virtual std::uint64_t taken_serial() const noexcept { return 0; }
  virtual std::uint64_t misses() const noexcept { return 0; }
  virtual void resync(BlockTables&) noexcept {}

 protected:
  bool copies_are_queued_ = false;
};

}  // namespace kvarena
