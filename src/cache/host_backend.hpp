#pragma once

/// @file
/// `HostBackend`: runs a step's copies, KV writes and attention on the host device's home stream.
/// Arguments of queued work live in the operation slots of their step until the step has completed.

#include "base/lazy_array.hpp"
#include "kvarena/allocator/arena.hpp"
#include "kvarena/attention/attention.hpp"
#include "kvarena/attention/kv_write.hpp"
#include "kvarena/device/device.hpp"
#include "step/step_ring.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace kvarena {

/// What a host backend is created for.
struct HostBackendOptions {
  std::int32_t num_q_heads = 0;
  std::int32_t window_tokens = 0;
  std::int32_t num_threads = 0;  ///< 0: one a core
  StepLimits limits;
};

/// The CPU's side of a KvCache. Owns workspaces (IntermediateBuffers) and worker threads.
class HostBackend {
 public:
  static constexpr std::int32_t kCallsPerLayer = 4;  ///< write_kv and attend calls a layer and step

  static Result<HostBackend> create(Device& device, const Arena& arena,
                                    const HostBackendOptions& options);
  ~HostBackend();
  HostBackend(HostBackend&& other) noexcept;
  HostBackend& operator=(HostBackend&&) = delete;

  /// Queues the step's copies on write and plans its attention.
  Status begin(std::size_t index, const StepSlot& slot, StreamId stream);
  /// Queues one layer's KV write; the arguments have been checked.
  Status write_kv(std::size_t index, const AppendArgs& args, StreamId stream);
  /// Queues one layer's attention. Validates.
  Status attend(std::size_t index, const AttentionArgs& args, StreamId stream);

 private:
  /// One queued call.
  struct Operation {
    HostBackend* backend = nullptr;
    const AttentionPlan* plan = nullptr;
    AppendArgs append;
    AttentionArgs attention;
    std::span<const BlockCopy> copies;
  };
  /// A step's plans and calls.
  struct Step {
    std::byte* workspace[2] = {nullptr, nullptr};  ///< full, windowed
    AttentionPlan plan[2];
    std::vector<Operation> operations;  ///< sized at create; the first is the copies'
    std::size_t num_operations = 0;     ///< used, that of the copies included
  };

  HostBackend(Device& device, const Arena& arena, CpuWorkers workers)
      : device_(&device), workers_(std::move(workers)), num_blocks_(arena.num_blocks()) {}
  Status allocate_steps(const Arena& arena, const HostBackendOptions& options);
  Result<Operation*> next_operation(std::size_t index);
  static Status run_copies(void* operation);
  static Status run_append(void* operation);
  static Status run_attention(void* operation);

  Device* device_;
  CpuWorkers workers_;
  AttentionLimits limits_;
  KvLayerView planned_view_;  // any layer: planning looks at shapes alone
  std::int32_t window_tokens_ = 0;
  std::int64_t workspace_bytes_ = 0;
  std::int64_t num_blocks_;
  std::vector<BlockRegion> regions_;  // what a block copy copies
  std::vector<Step> steps_;           // one for each slot of the ring
};

}  // namespace kvarena
