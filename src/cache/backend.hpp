#pragma once

/// @file
/// `Backend`: what a KvCache asks of its device in a step: copies on write, KV writes, attention,
/// all queued on the home stream. One thread at a time, as the cache. HostBackend and CudaBackend.

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
  std::int32_t max_sequences = 0;        ///< CUDA: table rows
  std::int32_t max_sequence_blocks = 0;  ///< CUDA: entries of a table row
  StepLimits limits;
  WorkspacePlan workspaces;  ///< plan_workspaces of all the others
};

/// What a step has grown by.
struct StepGrowth {
  std::size_t slot = 0;  ///< of the ring; what used it last has completed
  std::span<const AppendDemand> demands;
  const AppendResult& appended;
  const RecordedStep* recorded = nullptr;  ///< a graph of this shape runs the step; null: none
};

/// The device's side of a KvCache. Owns its workspaces. Destroyed when its work has completed.
class Backend {
 public:
  Backend() = default;
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  /// Takes over what the step's work reads, queues its copies on write and plans its attention.
  virtual Result<StepBatch> begin(const StepGrowth& growth, BlockTables& tables) = 0;
  /// Queues one layer's KV write.
  virtual Status write_kv(const KvLayerView& kv, const WriteKvArgs& args) = 0;
  /// Queues one layer's attention; `args.scale` is set.
  virtual Status attend(const KvLayerView& kv, const AttendArgs& args) = 0;

  /// Records what precedes the layers of a step. Only where steps can be recorded, as the next.
  virtual Result<StepBatch> begin_recording(const RecordedStep& shape) = 0;
  /// The graph of the step begun with `recorded` has been launched.
  virtual void end_replay() noexcept = 0;
};

}  // namespace kvarena
