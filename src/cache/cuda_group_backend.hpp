#pragma once

/// @file
/// `CudaGroupBackend`: the work of a step of a cache with groups on a GPU. Each part of a group has
/// tables and slots of its own on the device; each group has a schedule of its own. Where the
/// layers of a group see neither all earlier tokens nor the last ones, its rows are those of
/// group_rows.hpp, and attention over each of them is plain causal attention.

#include "base/lazy_array.hpp"
#include "cache/backend.hpp"
#include "cache/cuda_states.hpp"
#include "cache/gpu_launch.hpp"
#include "cache/group_row_counts.hpp"
#include "kernels/params.h"
#include "kvarena/allocator/arena.hpp"
#include "kvarena/attention/cuda_attention.hpp"
#include "kvarena/device/cuda_device.hpp"
#include "step/group_device_tables.hpp"

#include <cstdint>
#include <vector>

namespace kvarena {

/// The device's part of a KvCache with groups on a GPU.
class CudaGroupBackend final : public Backend {
 public:
  CudaGroupBackend(CudaDevice& device, StreamId stream, GroupDeviceTables tables,
                   Workspaces workspaces, const Arena& arena, const BackendOptions& options);
  Status create_groups(const Arena& arena, const BackendOptions& options);

  Result<StepBatch> begin(const StepGrowth& growth, BlockTables& tables) override;
  Status write_kv(const KvLayerView& kv, const WriteKvArgs& args) override;
  Status write_index(const IndexView& index, const WriteIndexArgs& args) override;
  Status write_cross(const KvLayerView& kv, const WriteCrossArgs& args) override;
  Status attend(const KvLayerView& kv, const AttendArgs& args) override;
  DeviceBatch device_batch() const noexcept override { return device_batch_of_part(0); }
  DeviceBatch device_batch_of_part(std::int32_t part) const noexcept override;
  Result<StepBatch> begin_recording(const RecordedStep& shape) override;
  void end_replay() noexcept override { tables_.advance(); }
  Result<bool> abort_replay(BlockTables& tables) override;
  std::uint64_t staged_serial() const noexcept override { return tables_.staged_serial(); }
  std::uint64_t taken_serial() const noexcept override { return tables_.taken_serial(); }
  std::uint64_t misses() const noexcept override { return tables_.misses(); }
  void resync(BlockTables& tables) noexcept override { tables_.resync(tables); }

 private:
  /// A group, and its part of the current step or recording.
  struct Group {
    TableGroup table;
    std::size_t first_part = 0;  ///< whose rows its schedule is made of
    cuda::AttentionShape shape;
    cuda::RowClasses classes;  ///< of `shape`; a step has those of its own
    std::int32_t window_tokens = 0;
    std::byte* workspace = nullptr;   ///< null: none is needed
    std::int32_t prepared_rows = 0;   ///< for which the counters of the workspace were prepared
    std::int32_t few_token_rows = 0;  ///< rows of the step that are no prompts, or an upper bound
    GroupRowCounts rows;              ///< of the kernels

    cuda::RowClasses step_classes() const noexcept {
      return cuda::row_classes(step_shape(shape, few_token_rows));
    }
  };
  /// The blocks of a part, and their copies on write.
  struct Part {
    std::size_t group = 0;
    kernels::CopyBlocksParams copies;  ///< without a number
    std::int64_t num_copies = 0;       ///< of the step, or an upper bound
  };

  StepBatch batch_of(const AppendResult& appended, std::int64_t num_tokens) const noexcept;
  void count_rows(const StepGrowth& growth) noexcept;
  void count_rows(const RecordedStep& shape) noexcept;
  cuda::AttentionStep step_for(const Group& group) const noexcept;
  AttentionArgs args_for(const Group& group, std::size_t part) const noexcept;
  Status reset_schedules(void* stream);
  Status launch_step(void* stream, bool is_recorded);
  template <class Launch>
  Status launch_layer(Launch launch) {
    const Status status = launch_on_gpu(device_, stream_, ordinal_, launch);
    layers_begun_ = layers_begun_ || status;
    return status;
  }
  std::size_t part_of(std::int32_t layer) const noexcept {
    return static_cast<std::size_t>(layout_.part_of(layer));
  }

  CudaDevice& device_;
  const std::int32_t ordinal_;
  GroupDeviceTables tables_;
  Workspaces workspaces_;
  GroupLayout layout_;
  std::vector<Group> groups_;
  std::vector<Part> parts_;
  /// Of the pages, then by part, without lists. They make the copies on write of K and V. None: no
  /// scrubs.
  std::vector<std::vector<kernels::ScrubParams>> scrubs_;
  CudaStates states_;
  LazyArray<SequenceId> sequences_;  // of the step's rows
  LazyArray<std::int32_t> slots_;    // the same
  std::size_t num_sequences_ = 0;    // none while a step is recorded
  std::int64_t num_tokens_ = 0;      // of the current step or recording
  bool layers_begun_ = false;        // a layer's kernel was queued behind those of launch_step
};

}  // namespace kvarena
