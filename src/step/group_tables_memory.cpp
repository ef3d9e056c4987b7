#include "step/group_tables_memory.hpp"

#include "base/range_checks.hpp"
#include "blocktable/sequence_table.hpp"
#include "step/group_rows.hpp"
#include "step/step_memory.hpp"

#include <algorithm>

namespace kvarena {
namespace {

constexpr std::int64_t kMaxCount = std::int64_t{1} << 30;
constexpr std::int64_t kGranule = kernels::StepShape::kGranule;

std::int64_t blocks_of(const TableGroup& table, std::int64_t tokens) noexcept {
  return (tokens + table.block_size_tokens - 1) / table.block_size_tokens;
}

/// Entries of the longest table of a part.
std::int64_t most_entries(const TableGroup& table, std::int64_t max_tokens) noexcept {
  if (table.kind == PagedKind::cross) return blocks_of(table, table.limit_tokens);
  const std::int64_t of_chunk = padded_chunk_blocks(table);
  if (of_chunk == 0) return blocks_of(table, max_tokens);
  return (max_tokens + table.limit_tokens - 1) / table.limit_tokens * of_chunk;
}

kernels::StepShape shape_of(const GroupTablesOptions& o, const TableGroup& table) noexcept {
  const auto narrow = [](std::int64_t value) {
    return static_cast<std::int32_t>(std::min(value, kMaxCount));
  };
  kernels::StepShape shape{
      .steps_in_flight = o.limits.steps_in_flight,
      .max_rows = narrow(most_rows(table, o.limits.max_rows, o.limits.max_tokens)),
      .max_tokens = narrow(o.limits.max_tokens),
      .max_changes = narrow(o.limits.max_blocks),
      .max_sequences = o.max_sequences,
      .max_blocks_a_row = narrow(most_entries(table, o.max_sequence_tokens)),
      .block_size = table.block_size_tokens};
  kernels::StepShape in_regions = shape;
  if (const std::int64_t padded = padded_chunk_blocks(table); padded > 0) {
    const std::int64_t of_chunk = blocks_of(table, table.limit_tokens);
    const std::int64_t ends = o.limits.max_blocks / of_chunk + o.limits.max_rows;
    in_regions.max_changes = narrow(o.limits.max_blocks + ends * (padded - of_chunk));
  }
  shape.table_entries = TableRegions::entries_for(in_regions, front_of(table));
  return shape;
}

}  // namespace

TableFront front_of(const TableGroup& table) noexcept {
  const bool moves = table.kind == PagedKind::window || table.kind == PagedKind::chunk;
  return moves ? TableFront::moves : TableFront::stays;
}

std::int64_t padded_chunk_blocks(const TableGroup& table) noexcept {
  if (table.kind != PagedKind::chunk) return 0;
  return rounded_up(blocks_of(table, table.limit_tokens), kGranule);
}

/// The tables were checked when they were made. What they need must be counted in 32 bits.
Status check_options(const GroupTablesOptions& o) noexcept {
  if (Status s = check_each({
          {Option::steps_in_flight, o.limits.steps_in_flight, 1, 64},
          {Option::max_batch_rows, o.limits.max_rows, 1, SequenceTable::kMaxSlots},
          {Option::max_step_tokens, o.limits.max_tokens, 1, kMaxCount},
          {Option::max_batch_blocks, o.limits.max_blocks, 1, kMaxCount},
          {Option::max_sequences, o.max_sequences, 1, SequenceTable::kMaxSlots},
          {Option::max_sequence_tokens, o.max_sequence_tokens, 1, kMaxCount},
      });
      !s) {
    return s;
  }
  for (const GroupTablePart& part : o.parts) {
    const TableGroup& table = part.table;
    const std::int64_t entries = most_entries(table, o.max_sequence_tokens);
    if (table.kind == PagedKind::cross || table.kind == PagedKind::chunk) {
      if (Status s = check_option(Option::limit_tokens, table.limit_tokens, 1, kMaxCount); !s) {
        return s;
      }
    }
    if (Status s = check_option(Option::max_sequence_tokens, entries, 1, kMaxCount); !s) return s;
    const std::int64_t rows = most_rows(table, o.limits.max_rows, o.limits.max_tokens);
    if (Status s = check_option(Option::max_step_tokens, rows, 1, kMaxCount); !s) return s;
  }
  for (const GroupTableStates& states : o.states) {
    const std::int64_t most = std::max<std::int64_t>(o.limits.max_rows, states.max_extras);
    if (Status s = check_option(Option::max_step_tokens, most, 1, kMaxCount / states.num_parts);
        !s) {
      return s;
    }
  }
  return {};
}

/// Arrays that are cleared to ones come first, those that are cleared to zeros after them.
GroupTablesMemory plan_memory(const GroupTablesOptions& o) {
  GroupTablesMemory plan;
  Places device;
  Places staging;
  std::int64_t cross_tokens = 0;
  for (const GroupTablePart& part : o.parts) {
    GroupPartMemory& its = plan.parts.emplace_back();
    its.shape = shape_of(o, part.table);
    its.block_tables = device.take<BlockId>(its.shape.table_entries);
    its.row_slots = device.take<std::int32_t>(its.shape.max_rows);
    its.slots = device.take<std::int64_t>(o.limits.max_tokens);
    its.copies = device.take<BlockCopy>(its.shape.max_rows);
    if (part.table.kind != PagedKind::cross) continue;
    cross_tokens = std::max(cross_tokens, part.table.limit_tokens);
  }
  plan.cross_slots = device.take<std::int64_t>(cross_tokens);
  for (const GroupTableStates& states : o.states) {
    GroupStatesMemory& its = plan.states.emplace_back();
    its.shape = {.steps_in_flight = o.limits.steps_in_flight,
                 .max_rows = o.limits.max_rows,
                 .num_parts = states.num_parts,
                 .max_extras = static_cast<std::int32_t>(std::min(states.max_extras, kMaxCount))};
    its.read = device.take<std::int32_t>(its.shape.num_slots());
    its.write = device.take<std::int32_t>(its.shape.num_slots());
    its.extra_tokens = device.take<std::int32_t>(its.shape.max_extras);
    its.extra_slots =
        device.take<std::int32_t>(std::int64_t{its.shape.max_extras} * its.shape.num_parts);
    its.copies = device.take<BlockCopy>(its.shape.num_slots());
  }
  plan.zeros = device.end();
  for (GroupPartMemory& its : plan.parts) {
    its.row_offsets = device.take<std::int64_t>(its.shape.max_rows);
    its.seq_lens = device.take<std::int32_t>(its.shape.max_rows);
    its.num_blocks = device.take<std::int32_t>(its.shape.max_rows);
    its.q_offsets = device.take<std::int64_t>(its.shape.max_rows + std::int64_t{1});
    its.state = device.take<kernels::ScatterState>(1);
    its.report = staging.take<kernels::ScatterReport>(1);
    its.ring = staging.take<std::byte>(its.shape.steps_in_flight * its.shape.slot_bytes());
  }
  for (GroupStatesMemory& its : plan.states) {
    its.extra_offsets = device.take<std::int32_t>(its.shape.max_rows + std::int64_t{1});
    its.state = device.take<kernels::TakenStates>(1);
    its.report = staging.take<kernels::ScatterReport>(1);
    its.ring = staging.take<std::byte>(its.shape.steps_in_flight * its.shape.slot_bytes());
  }
  plan.expected_word = device.take<kernels::StepWord>(1);
  plan.device_bytes = device.end();
  plan.staging_bytes = staging.end();
  return plan;
}

kernels::ScatterStepParams place_arrays(const GroupTablesMemory& plan, std::size_t part,
                                        bool has_slots, std::byte* device,
                                        std::byte* staging) noexcept {
  const GroupPartMemory& its = plan.parts[part];
  return {.shape = its.shape,
          .ring = staging + its.ring,
          .expected_word = reinterpret_cast<kernels::StepWord*>(device + plan.expected_word),
          .expected = 0,
          .state = reinterpret_cast<kernels::ScatterState*>(device + its.state),
          .report = reinterpret_cast<kernels::ScatterReport*>(staging + its.report),
          .block_tables = reinterpret_cast<BlockId*>(device + its.block_tables),
          .row_slots = reinterpret_cast<std::int32_t*>(device + its.row_slots),
          .row_offsets = reinterpret_cast<std::int64_t*>(device + its.row_offsets),
          .seq_lens = reinterpret_cast<std::int32_t*>(device + its.seq_lens),
          .num_blocks = reinterpret_cast<std::int32_t*>(device + its.num_blocks),
          .q_offsets = reinterpret_cast<std::int64_t*>(device + its.q_offsets),
          .slots = has_slots ? reinterpret_cast<std::int64_t*>(device + its.slots) : nullptr,
          .copies = reinterpret_cast<BlockCopy*>(device + its.copies)};
}

kernels::ScatterStatesParams place_states(const GroupTablesMemory& plan, std::size_t index,
                                          std::byte* device, std::byte* staging) noexcept {
  const GroupStatesMemory& its = plan.states[index];
  const auto list = [device](std::int64_t place) {
    return reinterpret_cast<std::int32_t*>(device + place);
  };
  return {.shape = its.shape,
          .ring = staging + its.ring,
          .expected_word = reinterpret_cast<kernels::StepWord*>(device + plan.expected_word),
          .expected = 0,
          .state = reinterpret_cast<kernels::TakenStates*>(device + its.state),
          .report = reinterpret_cast<kernels::ScatterReport*>(staging + its.report),
          .read = list(its.read),
          .write = list(its.write),
          .extra_offsets = list(its.extra_offsets),
          .extra_tokens = list(its.extra_tokens),
          .extra_slots = list(its.extra_slots),
          .copies = reinterpret_cast<BlockCopy*>(device + its.copies)};
}

}  // namespace kvarena
