#pragma once

/// @file
/// `StagingRing`: writes steps into the slots of a staging ring, as staged_step.h defines them. It
/// knows no device: the memory is the caller's, and the caller orders the reads. One thread at a
/// time. It allocates only at construction.
///
/// Block tables count a change as mirrored when it is staged. When a step is staged again before
/// its launch, or withdrawn, the device did not get its changes, so they are staged again.

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
  /// Makes a ring in `memory`, which has steps_in_flight * slot_bytes zero bytes, is 16-byte
  /// aligned and outlives the ring. Throws std::bad_alloc.
  StagingRing(std::byte* memory, const kernels::StepShape& shape);

  /// Does what DeviceTables::stage does.
  Status stage(BlockTables& tables, const AppendResult& appended);
  /// Returns the word that a launch of the staged step expects. 0 without a staged step.
  kernels::StepWord expected() const noexcept;
  /// Does what DeviceTables::advance does.
  void advance() noexcept;
  /// Does what DeviceTables::withdraw does.
  void withdraw(BlockTables& tables) noexcept;
  /// Does what DeviceTables::resync does. The device took the step `taken_serial` last.
  void resync(BlockTables& tables, std::uint64_t taken_serial) noexcept;
  /// The regions of the tables.
  const TableRegions& regions() const noexcept { return regions_; }
  /// DeviceTables::staged_serial.
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
  TableRegions regions_;       // the places of all mirrored entries
  LazyArray<Change> changes_;  // of the step staged last
  std::size_t num_changes_ = 0;
  std::int64_t num_changed_blocks_ = 0;
  std::int32_t slot_ = 0;              // of the next step to launch
  std::uint64_t serial_ = 0;           // issued last
  std::uint64_t launched_serial_ = 0;  // of the last launched step
  bool is_staged_ = false;             // whether the slot holds a step
  bool lacks_more_ = false;  // whether the mirror may lack more than the last append reported
};

}  // namespace kvarena
