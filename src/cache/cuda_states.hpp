#pragma once

/// @file
/// `CudaStates`: the recurrent layers of a step on a GPU: the device arrays with their slots, and
/// the copies that stand in front of the layers. The tables make the arrays; they outlive this.

#include "kernels/copy_states/copy_states.h"
#include "kvarena/allocator/arena.hpp"
#include "kvarena/cache/kv_cache_step.hpp"
#include "step/group_device_tables.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <vector>

namespace kvarena {

/// The groups of states of a cache on a GPU.
class CudaStates {
 public:
  /// Throws std::bad_alloc.
  CudaStates(const Arena& arena, const GroupDeviceTables& tables, std::int32_t num_sms);

  std::size_t size() const noexcept { return slots_.size(); }
  /// The slots of each group. The addresses stay the same.
  std::span<const DeviceStateSlots> slots() const noexcept { return slots_; }
  /// Notes the copies of the step that was staged.
  void count_copies(const GroupDeviceTables& tables) noexcept;
  /// Notes the copies that steps of a recording can have.
  void count_copies(const RecordedStep& shape) noexcept;
  /// Queues the copies. Returns what launch_copy_states returns.
  Status launch(cudaStream_t stream) const noexcept;

 private:
  std::vector<kernels::CopyStatesParams> copies_;  // by group; max_copies is that of the step
  std::vector<DeviceStateSlots> slots_;            // the same
};

}  // namespace kvarena
