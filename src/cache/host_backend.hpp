#pragma once

/// @file
/// `HostBackend`: runs the copies, scrubs, KV writes and attention of a step on a stream of the
/// host device. The arguments of queued work stay in the operation slots of their step until
/// the step has completed.

#include "cache/backend.hpp"
#include "cache/device_batch.hpp"
#include "cache/scrub_params.hpp"
#include "kvarena/allocator/arena.hpp"
#include "kvarena/attention/attention.hpp"
#include "kvarena/attention/kv_write.hpp"
#include "kvarena/device/device.hpp"
#include "step/step_slot.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace kvarena {

/// The CPU's part of a KvCache. It owns workspaces (IntermediateBuffers) and worker threads.
class HostBackend final : public Backend {
 public:
  static constexpr std::int32_t kCallsPerLayer = 4;  ///< calls of write_kv and attend for each
                                                     ///< layer and step

  /// Makes a host backend. Returns what CpuWorkers::create and Device::allocate return.
  static Result<std::unique_ptr<Backend>> create(Device& device, const Arena& arena,
                                                 StreamId stream, const BackendOptions& options);

  Result<StepBatch> begin(const StepGrowth& growth, BlockTables& tables) override;
  Status write_kv(const KvLayerView& kv, const WriteKvArgs& args) override;
  Status attend(const KvLayerView& kv, const AttendArgs& args) override;
  DeviceBatch device_batch() const noexcept override { return device_batch_of(step_->slot); }
  Result<StepBatch> begin_recording(const RecordedStep&) override {
    return unsupported(Resource::device);
  }
  void end_replay() noexcept override {}
  Result<bool> abort_replay(BlockTables&) override { return unsupported(Resource::device); }

 private:
  /// One queued call.
  struct Operation {
    HostBackend* backend = nullptr;
    const AttentionPlan* plan = nullptr;
    AppendArgs append;
    AttentionArgs attention;
    std::span<const BlockCopy> copies;
    std::span<const kernels::BlockScrub> scrubs;
  };
  /// The tables, plans and calls of a step.
  struct Step {
    explicit Step(const StepLimits& limits) : slot(limits) {}
    StepSlot slot;
    LazyArray<kernels::BlockScrub> scrubs;         ///< copies on write come before the others
    std::byte* workspace[2] = {nullptr, nullptr};  ///< without a window, with a window; borrowed
    AttentionPlan plan[2];
    std::vector<Operation> operations;  ///< sized at create; the first is for copies and scrubs
    std::size_t num_operations = 0;     ///< number in use, with the first
  };

  HostBackend(Device& device, const Arena& arena, StreamId stream, CpuWorkers workers,
              Workspaces workspaces)
      : Backend(stream),
        device_(device),
        workers_(std::move(workers)),
        workspaces_(std::move(workspaces)),
        num_blocks_(arena.num_blocks()),
        scrub_(scrub_params(arena)) {}
  void create_steps(const Arena& arena, const BackendOptions& options);
  Status plan(Step& step);
  Status queue_copies(Step& step, std::span<const ScrubPlan> plans);
  Result<Operation*> next_operation();
  Status queue(HostFunction function, Operation* operation);
  static Status run_copies(void* operation);
  static Status run_scrubs(void* operation);
  static Status run_append(void* operation);
  static Status run_attention(void* operation);

  Device& device_;
  CpuWorkers workers_;
  Workspaces workspaces_;
  AttentionLimits limits_;
  KvLayerView planned_view_;  // any layer: planning uses only the shapes
  std::int32_t window_tokens_ = 0;
  std::int64_t num_blocks_;
  std::vector<BlockRegion> regions_;  // the bytes that a block copy copies
  kernels::ScrubParams scrub_;        // without a list
  std::vector<Step> steps_;           // one for each slot of the ring
  Step* step_ = nullptr;              // the current step
};

}  // namespace kvarena
