#include "step/device_tables_memory.hpp"

#include "base/range_checks.hpp"
#include "blocktable/sequence_table.hpp"
#include "step/step_memory.hpp"
#include "step/table_regions.hpp"

namespace kvarena {
namespace {

/// The kernel counts in 32 bits, and may count past the end by as many items as it takes at once.
constexpr std::int64_t kMaxCount = std::int64_t{1} << 30;
constexpr std::int64_t kMaxSequences = SequenceTable::kMaxSlots;
constexpr std::int64_t kMaxStepsInFlight = 64;
static_assert(kMaxStepsInFlight <= kernels::kMaxRingSlots);
constexpr std::int64_t kMaxBlockSize = 65536;

}  // namespace

Status check_options(const DeviceTablesOptions& o) noexcept {
  return check_each({
      {Option::steps_in_flight, o.limits.steps_in_flight, 1, kMaxStepsInFlight},
      {Option::max_batch_rows, o.limits.max_rows, 1, kMaxSequences},
      {Option::max_step_tokens, o.limits.max_tokens, 1, kMaxCount},
      {Option::max_batch_blocks, o.limits.max_blocks, 1, kMaxCount},
      {Option::max_sequences, o.max_sequences, 1, kMaxSequences},
      {Option::max_sequence_tokens, o.max_sequence_blocks, 1, kMaxCount},
      {Option::block_size_tokens, o.block_size_tokens, 1, kMaxBlockSize},
  });
}

/// Arrays that are cleared to ones come first, those that are cleared to zeros after them.
DeviceTablesMemory plan_memory(const DeviceTablesOptions& o) noexcept {
  DeviceTablesMemory plan;
  plan.shape = {.steps_in_flight = o.limits.steps_in_flight,
                .max_rows = o.limits.max_rows,
                .max_tokens = static_cast<std::int32_t>(o.limits.max_tokens),
                .max_changes = static_cast<std::int32_t>(o.limits.max_blocks),
                .max_sequences = o.max_sequences,
                .max_blocks_a_row = o.max_sequence_blocks,
                .block_size = o.block_size_tokens};
  plan.shape.table_entries = TableRegions::entries_for(plan.shape);
  const std::int64_t rows = o.limits.max_rows;
  Places device;
  plan.block_tables = device.take<BlockId>(plan.shape.table_entries);
  plan.row_slots = device.take<std::int32_t>(rows);
  plan.slots = device.take<std::int64_t>(o.limits.max_tokens);
  plan.copies = device.take<BlockCopy>(rows);
  plan.zeros = device.end();
  plan.row_offsets = device.take<std::int64_t>(rows);
  plan.seq_lens = device.take<std::int32_t>(rows);
  plan.num_blocks = device.take<std::int32_t>(rows);
  plan.q_offsets = device.take<std::int64_t>(rows + 1);
  plan.state = device.take<std::byte>(sizeof(kernels::ScatterState) + sizeof(kernels::StepWord));
  plan.expected_word = plan.state + std::int64_t{sizeof(kernels::ScatterState)};
  plan.device_bytes = device.end();
  Places staging;
  staging.take<kernels::ScatterReport>(1);
  plan.ring = staging.take<std::byte>(plan.shape.steps_in_flight * plan.shape.slot_bytes());
  plan.staging_bytes = staging.end();
  return plan;
}

kernels::ScatterStepParams place_arrays(const DeviceTablesMemory& plan, std::byte* device,
                                        std::byte* staging) noexcept {
  return {.shape = plan.shape,
          .ring = staging + plan.ring,
          .expected_word = reinterpret_cast<kernels::StepWord*>(device + plan.expected_word),
          .expected = 0,
          .state = reinterpret_cast<kernels::ScatterState*>(device + plan.state),
          .report = reinterpret_cast<kernels::ScatterReport*>(staging),
          .block_tables = reinterpret_cast<BlockId*>(device + plan.block_tables),
          .row_slots = reinterpret_cast<std::int32_t*>(device + plan.row_slots),
          .row_offsets = reinterpret_cast<std::int64_t*>(device + plan.row_offsets),
          .seq_lens = reinterpret_cast<std::int32_t*>(device + plan.seq_lens),
          .num_blocks = reinterpret_cast<std::int32_t*>(device + plan.num_blocks),
          .q_offsets = reinterpret_cast<std::int64_t*>(device + plan.q_offsets),
          .slots = reinterpret_cast<std::int64_t*>(device + plan.slots),
          .copies = reinterpret_cast<BlockCopy*>(device + plan.copies)};
}

std::uint64_t DeviceTables::device_bytes(const DeviceTablesOptions& options) noexcept {
  return check_options(options) ? static_cast<std::uint64_t>(plan_memory(options).device_bytes) : 0;
}

std::uint64_t DeviceTables::staging_bytes(const DeviceTablesOptions& options) noexcept {
  return check_options(options) ? static_cast<std::uint64_t>(plan_memory(options).staging_bytes)
                                : 0;
}

}  // namespace kvarena
