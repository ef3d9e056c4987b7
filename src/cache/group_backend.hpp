#pragma once

/// @file
/// `GroupBackend`: the work of a step of a cache with groups on the host device. Each part of a
/// group has tables and slots of its own; each group has a schedule of its own.

#include "cache/backend.hpp"
#include "cache/state_step.hpp"
#include "cache/step_scrubs.hpp"
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

/// The CPU's part of a KvCache with groups. It owns workspaces (IntermediateBuffers) and worker
/// threads.
class GroupBackend final : public Backend {
 public:
  /// As HostBackend::create, for an arena of pages.
  static Result<std::unique_ptr<Backend>> create(Device& device, const Arena& arena,
                                                 StreamId stream, const BackendOptions& options);

  Result<StepBatch> begin(const StepGrowth& growth, BlockTables& tables) override;
  Status write_kv(const KvLayerView& kv, const WriteKvArgs& args) override;
  Status write_index(const IndexView& index, const WriteIndexArgs& args) override;
  Status write_cross(const KvLayerView& kv, const WriteCrossArgs& args) override;
  Status attend(const KvLayerView& kv, const AttendArgs& args) override;
  DeviceBatch device_batch() const noexcept override { return device_batch_of_part(0); }
  DeviceBatch device_batch_of_part(std::int32_t part) const noexcept override;
  Result<StepBatch> begin_recording(const RecordedStep&) override {
    return unsupported(Resource::device);
  }
  void end_replay() noexcept override {}
  Result<bool> abort_replay(BlockTables&) override { return unsupported(Resource::device); }

 private:
  struct Step;
  /// One queued call.
  struct Operation {
    GroupBackend* backend = nullptr;
    Step* step = nullptr;
    const AttentionPlan* plan = nullptr;
    std::size_t part = 0;
    std::int32_t row = 0;  ///< of write_cross
    AppendArgs append;
    AttentionArgs attention;
  };
  /// The tables, plans and calls of a step.
  struct Step {
    std::vector<StepSlot> parts;  ///< without slots
    StepScrubs scrubs;
    std::vector<StateStep> states;      ///< one
    LazyArray<std::int64_t> slots;      ///< [parts, num_tokens]
    std::vector<std::byte*> workspace;  ///< by group; borrowed
    std::vector<AttentionPlan> plans;   ///< by group
    std::vector<Operation> operations;  ///< sized at create; the first is for copies
    std::size_t num_operations = 0;
    std::int64_t num_tokens = 0;
  };

  GroupBackend(Device& device, const Arena& arena, StreamId stream, CpuWorkers workers,
               Workspaces workspaces)
      : Backend(stream),
        device_(device),
        workers_(std::move(workers)),
        workspaces_(std::move(workspaces)),
        base_(arena.base()),
        layout_(*arena.groups()) {}
  Status create_groups(const Arena& arena, const BackendOptions& options);
  void create_steps(const Arena& arena, const BackendOptions& options);
  Status capture(Step& step, BlockTables& tables, const StepGrowth& growth);
  Status plan(Step& step);
  std::size_t part_of(std::int32_t layer) const noexcept {
    return static_cast<std::size_t>(layout_.part_of(layer));
  }
  std::size_t group_of(std::size_t part) const noexcept {
    return static_cast<std::size_t>(layout_.parts()[part].group);
  }
  const std::int64_t* slots_of(const Step& step, std::size_t part) const noexcept {
    return step.slots.data() + static_cast<std::int64_t>(part) * step.num_tokens;
  }
  Result<Operation*> next_operation();
  Status queue(HostFunction function, Operation* operation);
  Status queue_append(HostFunction function, const KvLayerView& kv, const WriteKvArgs& args);
  static Status run_copies(void* operation);
  static Status run_append(void* operation);
  static Status run_index(void* operation);
  static Status run_cross(void* operation);
  static Status run_attention(void* operation);

  Device& device_;
  CpuWorkers workers_;
  Workspaces workspaces_;
  std::byte* base_;
  GroupLayout layout_;
  std::vector<AttentionLimits> limits_;   // by group
  std::vector<KvLayerView> views_;        // by group, of any of its layers
  std::vector<std::size_t> first_parts_;  // by group
  std::vector<Step> steps_;               // one for each slot of the ring
  Step* step_ = nullptr;                  // the current step
};

}  // namespace kvarena
