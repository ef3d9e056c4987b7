#pragma once

/// @file
/// Device tables of groups: their options, and the places of their arrays in two allocations. Pure
/// functions of the options, without a device.

#include "kernels/params.h"
#include "kernels/scatter_step/staged_states.h"
#include "kvarena/base/result.hpp"
#include "kvarena/blocktable/table_groups.hpp"
#include "step/step_ring.hpp"
#include "step/table_regions.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvarena {

/// One table of every sequence.
struct GroupTablePart {
  TableGroup table;        ///< what its layers keep
  std::int32_t group = 0;  ///< parts of one group follow each other and have the same rows
};

/// One group of states. Its table comes behind those of the parts and of the groups before it.
struct GroupTableStates {
  std::int32_t num_parts = 1;   ///< blocks of a state, 1 .. 4096
  std::int64_t max_extras = 0;  ///< of a step (state_extras.hpp)
};

/// Options of device tables of groups.
struct GroupTablesOptions {
  StepLimits limits;                     ///< ring slots, rows, new tokens, blocks of a step
  std::int32_t max_sequences = 0;        ///< sequences at a time
  std::int64_t max_sequence_tokens = 0;  ///< of the longest sequence
  std::vector<GroupTablePart> parts;     ///< in the order of the tables
  std::vector<GroupTableStates> states;  ///< the same
};

/// The places of one part's arrays: offsets in bytes.
struct GroupPartMemory {
  kernels::StepShape shape;  ///< rows are those of the kernels (group_rows.hpp)
  std::int64_t block_tables = 0;
  std::int64_t row_slots = 0;
  std::int64_t slots = 0;
  std::int64_t copies = 0;
  std::int64_t row_offsets = 0;
  std::int64_t seq_lens = 0;
  std::int64_t num_blocks = 0;
  std::int64_t q_offsets = 0;
  std::int64_t state = 0;
  std::int64_t report = 0;  ///< in staging memory
  std::int64_t ring = 0;    ///< in staging memory
};

/// The places of the arrays of a group of states.
struct GroupStatesMemory {
  kernels::StateShape shape;
  std::int64_t read = 0;
  std::int64_t write = 0;
  std::int64_t extra_tokens = 0;
  std::int64_t extra_slots = 0;
  std::int64_t copies = 0;
  std::int64_t extra_offsets = 0;
  std::int64_t state = 0;
  std::int64_t report = 0;  ///< in staging memory
  std::int64_t ring = 0;    ///< in staging memory
};

/// The places of all arrays. Those whose empty value is -1 come first; those whose empty value is 0
/// come after `zeros`.
struct GroupTablesMemory {
  std::vector<GroupPartMemory> parts;
  std::vector<GroupStatesMemory> states;
  std::int64_t cross_slots = 0;  ///< one encoder's slots, for write_cross
  std::int64_t zeros = 0;
  std::int64_t expected_word = 0;
  std::int64_t device_bytes = 0;
  std::int64_t staging_bytes = 0;
};

/// Returns ok, or invalid_argument with the option.
Status check_options(const GroupTablesOptions& options) noexcept;
/// Plans the memory for valid options. Throws std::bad_alloc.
GroupTablesMemory plan_memory(const GroupTablesOptions& options);
/// Returns the plan of one part as pointers into memory, for a launch that expects the step named
/// by the device's word. The part of a cross group has no slots.
kernels::ScatterStepParams place_arrays(const GroupTablesMemory& plan, std::size_t part,
                                        bool has_slots, std::byte* device,
                                        std::byte* staging) noexcept;
/// Does the same for a group of states.
kernels::ScatterStatesParams place_states(const GroupTablesMemory& plan, std::size_t index,
                                          std::byte* device, std::byte* staging) noexcept;
/// Returns whether blocks leave the front of its tables.
TableFront front_of(const TableGroup& table) noexcept;
/// Returns the entries of a chunk in a table that begins anew with each chunk: its blocks, rounded
/// up to whole granules. 0: the table does not.
std::int64_t padded_chunk_blocks(const TableGroup& table) noexcept;

}  // namespace kvarena
