#pragma once

/// @file
/// `StagingRing`: writes steps into the slots of a staging ring as staged_step.h lays them out.
/// Knows no device: memory is the caller's, and who reads it and when is the caller's to order.
/// One thread at a time; allocates at construction only.
///
/// What block tables count as mirrored is what has been staged. A step that is staged again before
/// it was launched has not reached the device, so its changes are staged again too.

#include "base/lazy_array.hpp"
#include "kernels/scatter_step/staged_step.h"
#include "kvarena/base/result.hpp"
#include "kvarena/blocktable/block_tables.hpp"

#include <cstddef>
#include <cstdint>

namespace kvarena {

/// k slots used in turn.
class StagingRing {
 public:
  /// `memory` holds steps_in_flight * slot_bytes zero bytes, 16-byte aligned, and outlives this.
  /// Throws std::bad_alloc.
  StagingRing(std::byte* memory, const kernels::StepShape& shape);

  /// As DeviceTables::stage.
  Status stage(BlockTables& tables, const AppendResult& appended);
  /// The staged step has been launched; without one: nothing.
  void advance() noexcept;

 private:
  /// A row with changed entries.
  struct Change {
    std::int32_t row = 0;
    std::int32_t slot = 0;
    std::int32_t first_block = 0;
    std::int32_t count = 0;
  };
  void withdraw(BlockTables& tables) noexcept;
  Status collect_changes(const BlockTables& tables, const AppendResult& appended);
  Status collect_change(const AppendedRow& row, std::int32_t index, std::int32_t changed);
  void write(BlockTables& tables, const AppendResult& appended) noexcept;

  std::byte* memory_;
  kernels::StepShape shape_;
  LazyArray<Change> changes_;  // of the step staged last
  std::size_t num_changes_ = 0;
  std::int64_t num_changed_blocks_ = 0;
  std::int32_t slot_ = 0;              // of the next step to launch
  std::uint64_t serial_ = 0;           // given last
  std::uint64_t launched_serial_ = 0;  // of the last step launched
  bool is_staged_ = false;             // that slot holds a step
};

}  // namespace kvarena
