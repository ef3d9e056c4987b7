#pragma once

/// @file
/// `StagingRing`: writes steps into the slots of a staging ring as staged_step.h lays them out.
/// Knows no device: memory is the caller's, and who reads it and when is the caller's to order.
/// One thread at a time; allocates at construction only.
///
/// What block tables count as mirrored is what has been staged. A step that is staged again before
/// it was launched, or withdrawn, has not reached the device, so its changes are staged again too.

#include "base/lazy_array.hpp"
#include "kernels/scatter_step/staged_step.h"
#include "kvarena/base/result.hpp"
#include "kvarena/blocktable/block_tables.hpp"
#include "step/table_regions.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvarena {

/// k slots used in turn.
class StagingRing {
 public:
  /// `memory` holds steps_in_flight * slot_bytes zero bytes, 16-byte aligned, and outlives this.
  /// Throws std::bad_alloc.
  StagingRing(std::byte* memory, const kernels::StepShape& shape);

  /// As DeviceTables::stage.
  Status stage(BlockTables& tables, const AppendResult& appended);
  /// What a launch of the staged step expects; 0 without one.
  kernels::StepWord expected() const noexcept;
  /// As DeviceTables::advance.
  void advance() noexcept;
  /// As DeviceTables::withdraw.
  void withdraw(BlockTables& tables) noexcept;
  /// As DeviceTables::resync; the device took the step `taken_serial` last.
  void resync(BlockTables& tables, std::uint64_t taken_serial) noexcept;
  /// Where the tables lie.
  const TableRegions& regions() const noexcept { return regions_; }
  /// As DeviceTables::staged_serial.
  std::uint64_t staged_serial() const noexcept { return is_staged_ ? serial_ : launched_serial_; }

 private:
  using StagedHeader = kernels::StagedHeader;
  /// A row with changed entries.
  struct Change {
    std::int32_t row = 0;
    std::int32_t slot = 0;
    std::int32_t first_block = 0;
    std::int32_t count = 0;
  };
  void unmirror_changes(BlockTables& tables) noexcept;
  StagedHeader& header() noexcept;
  Status check_counts(const AppendResult& appended) const noexcept;
  Status collect_changes(BlockTables& tables, std::span<const AppendedRow> rows);
  Status collect_rows(BlockTables& tables, std::span<const AppendedRow> rows);
  Status collect_row(BlockTables& tables, const AppendedRow& row, std::int32_t index);
  void write(BlockTables& tables, const AppendResult& appended) noexcept;

  std::byte* memory_;
  kernels::StepShape shape_;
  TableRegions regions_;       // what counts as mirrored lies there
  LazyArray<Change> changes_;  // of the step staged last
  std::size_t num_changes_ = 0;
  std::int64_t num_changed_blocks_ = 0;
  std::int32_t slot_ = 0;              // of the next step to launch
  std::uint64_t serial_ = 0;           // given last
  std::uint64_t launched_serial_ = 0;  // of the last step launched
  bool is_staged_ = false;             // that slot holds a step
  bool lacks_more_ = false;            // the tables may, than their last append has reported
};

}  // namespace kvarena
