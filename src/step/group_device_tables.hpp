#pragma once

/// @file
/// `GroupDeviceTables`: block tables, lengths and slot mappings of a step on the GPU for a pool of
/// several groups, as `DeviceTables` has them for layers that are alike. Each part of the groups
/// has tables and arrays of its own, which keep their addresses, and so has each group of states.
/// One launch brings a step to the device for all of them, a thread block for each.
///
/// A step is staged, launched, recorded and lost as in DeviceTables. Rows are those of the kernels
/// (group_rows.hpp). One thread at a time. Owns its device memory (IntermediateBuffers) and its
/// staging memory. No allocation and no synchronisation after create. Move-only. The device must
/// outlive it.

#include "kvarena/base/result.hpp"
#include "kvarena/blocktable/block_tables.hpp"
#include "kvarena/device/cuda_device.hpp"
#include "step/device_tables.hpp"
#include "step/group_tables_memory.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>

namespace kvarena {

/// The mirror of the block tables of groups on a GPU.
class GroupDeviceTables {
 public:
  /// Allocates everything. Returns invalid_argument with the option, insufficient_vram, or
  /// exhausted (host_memory).
  static Result<GroupDeviceTables> create(CudaDevice& device, const GroupTablesOptions& options);
  ~GroupDeviceTables();
  GroupDeviceTables(GroupDeviceTables&& other) noexcept;
  GroupDeviceTables& operator=(GroupDeviceTables&&) = delete;

  /// The device pointers of a part. They stay the same. A cross group's slots are all -1.
  const DeviceStepView& view(std::size_t part) const noexcept;
  /// The rows of the kernels in the step that was staged last.
  std::int32_t num_rows(std::size_t part) const noexcept;
  /// The copies on write of that step in a part.
  std::int32_t num_copies(std::size_t part) const noexcept;
  /// The device arrays of a group of states, and the number of their copies. They stay the same.
  const kernels::ScatterStatesParams& states(std::size_t index) const noexcept;
  /// The copies of that step in a group of states.
  std::int32_t num_state_copies(std::size_t index) const noexcept;
  /// The table on the device of a sequence slot that came up in that step.
  const BlockId* table_of(std::size_t part, std::int32_t slot) const noexcept;
  /// The encoder's tokens of row `row` of that step's batch.
  std::int32_t num_cross_tokens(std::size_t part, std::ptrdiff_t row) const noexcept;
  /// Device memory for the slots of one encoder's tokens.
  std::int64_t* cross_slots() const noexcept;

  // As in DeviceTables.
  Status stage(BlockTables& tables, const AppendResult& appended);
  Status launch(StreamId stream);
  Status record(StreamId stream);
  Status expect(StreamId stream);
  void advance() noexcept;
  void withdraw(BlockTables& tables) noexcept;
  std::uint64_t staged_serial() const noexcept;
  std::uint64_t taken_serial() const noexcept;
  std::uint64_t misses() const noexcept;
  void resync(BlockTables& tables) noexcept;

 private:
  struct Impl;
  explicit GroupDeviceTables(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvarena
