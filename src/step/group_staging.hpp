#pragma once

/// @file
/// `GroupStaging`: writes steps into staging rings, one for each part of the groups and each group
/// of states, as `StagingRing` does for a cache whose layers are alike. All rings have the same
/// step at the same place: a word names it in all of them, and a launch takes it from all of them
/// or from none. It knows no device: the memory is the caller's, and the caller orders the reads.
/// One thread at a time. It allocates only at construction.
///
/// Blocks that a sequence does not keep any more are not sent. The parts of a group have the same
/// rows: their tables begin at the same granules.

#include "base/lazy_array.hpp"
#include "kernels/scatter_step/staged_step.h"
#include "kvarena/base/result.hpp"
#include "kvarena/blocktable/block_tables.hpp"
#include "step/group_tables_memory.hpp"
#include "step/state_staging.hpp"
#include "step/table_regions.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvarena {

/// k slots used in turn, for every part.
class GroupStaging {
 public:
  /// Makes the rings in `memory`: plan.staging_bytes zero bytes, 16-byte aligned, which outlive
  /// this. Throws std::bad_alloc.
  GroupStaging(const GroupTablesOptions& options, const GroupTablesMemory& plan, std::byte* memory);

  /// Does what DeviceTables::stage does, for all tables. On failure nothing is staged.
  Status stage(BlockTables& tables, const AppendResult& appended);
  /// Returns the word that a launch of the staged step expects. 0 without a staged step.
  kernels::StepWord expected() const noexcept;
  /// Does what DeviceTables::advance does.
  void advance() noexcept;
  /// Does what DeviceTables::withdraw does.
  void withdraw(BlockTables& tables) noexcept;
  /// Does what DeviceTables::resync does. The device took the step `taken_serial` last.
  void resync(BlockTables& tables, std::uint64_t taken_serial) noexcept;
  /// DeviceTables::staged_serial.
  std::uint64_t staged_serial() const noexcept { return is_staged_ ? serial_ : launched_serial_; }

  /// The rows of the kernels in the step that was staged last.
  std::int32_t num_rows(std::size_t part) const noexcept { return parts_[part].num_rows; }
  /// The copies on write of that step in a part.
  std::int32_t num_copies(std::size_t part) const noexcept { return parts_[part].num_copies; }
  /// The copies of that step in a group of states.
  std::int32_t num_state_copies(std::size_t index) const noexcept {
    return states_[index].num_copies();
  }
  /// The number of times that all regions of the part's group were dropped.
  std::uint64_t num_restarts(std::size_t part) const noexcept {
    return regions_[group_of(part)].num_restarts();
  }
  /// The tokens of row `row` of that step's batch in a part: in a cross group the encoder's.
  std::int32_t num_tokens(std::size_t part, std::size_t row) const noexcept {
    return parts_[part].lengths[row];
  }
  /// The granule at which the table of a sequence slot begins that came up in that step. Entries of
  /// blocks that are not kept have no meaning.
  std::int32_t first_granule(std::size_t part, std::int32_t slot) const noexcept {
    return regions_[group_of(part)].first_granule(slot);
  }

 private:
  using StagedHeader = kernels::StagedHeader;
  /// A row of the kernels with changed entries.
  struct Change {
    std::int32_t row = 0;
    std::int32_t slot = 0;
    std::int32_t first_block = 0;  ///< of the sequence
    std::int32_t count = 0;
  };
  /// A table whose changes are staged.
  struct Sent {
    std::int32_t slot = 0;
    std::int32_t first_block = 0;  ///< the mirror had the blocks in front of it
  };
  struct Part {
    TableGroup table;
    std::int32_t group = 0;
    kernels::StepShape shape;
    std::byte* ring = nullptr;
    LazyArray<Change> changes;
    LazyArray<Sent> sent;
    LazyArray<std::int32_t> lengths;  ///< by row of the batch
    std::size_t num_changes = 0;
    std::size_t num_sent = 0;
    std::int64_t num_changed_blocks = 0;
    std::int32_t num_rows = 0;
    std::int32_t num_copies = 0;
  };

  std::size_t group_of(std::size_t part) const noexcept {
    return static_cast<std::size_t>(parts_[part].group);
  }
  std::byte* slot_of(const Part& part) const noexcept {
    return part.ring + slot_ * part.shape.slot_bytes();
  }
  Status check_counts(const AppendResult& appended) const noexcept;
  static std::int32_t entry_of(const Part& part, std::int32_t block) noexcept;
  Status collect_group(BlockTables& tables, std::span<const AppendedRow> rows, std::size_t first);
  Status collect_rows(BlockTables& tables, std::span<const AppendedRow> rows, std::size_t first);
  Status collect_row(BlockTables& tables, const AppendedRow& row, std::size_t index,
                     std::size_t first, std::size_t end);
  Status collect_table(const TableChanges& changes, const AppendedRow& row, std::size_t index,
                       std::size_t part);
  void pass_table(const BlockTables& tables, const AppendedRow& row, std::size_t index,
                  std::size_t part) noexcept;
  void write(BlockTables& tables, const AppendResult& appended, std::size_t part) noexcept;
  void unmirror_sent(BlockTables& tables) noexcept;

  StepLimits limits_;
  std::int32_t max_sequences_;
  std::vector<Part> parts_;
  std::vector<StateStaging> states_;
  std::vector<TableRegions> regions_;  // by group
  std::int32_t slot_ = 0;              // of the next step to launch
  std::uint64_t serial_ = 0;           // issued last
  std::uint64_t launched_serial_ = 0;  // of the last launched step
  bool is_staged_ = false;             // whether the slot holds a step
  bool lacks_more_ = false;  // whether the mirror may lack more than the last append reported
};

}  // namespace kvarena
