#pragma once

/// @file
/// `DeviceBatch` from what a backend keeps of a step: its pointers, without the numbers.

#include "kvarena/cache/kv_cache_step.hpp"
#include "step/device_tables.hpp"
#include "step/step_slot.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace kvarena {

/// The arrays of a GPU.
inline DeviceBatch device_batch_of(const DeviceStepView& view) noexcept {
  return {.block_tables = view.block_tables,
          .num_table_entries = view.num_table_entries,
          .table_stride = view.table_stride,
          .row_slots = view.row_slots,
          .row_offsets = view.row_offsets,
          .lengths = view.seq_lens,
          .num_blocks = view.num_blocks,
          .q_offsets = view.q_offsets,
          .slots = view.slots};
}

/// The arrays of the host, where rows lie one behind another: a stride of one entry reaches each.
inline DeviceBatch device_batch_of(const StepSlot& slot) noexcept {
  std::int64_t num_entries = 0;
  for (std::size_t row = 0; row < static_cast<std::size_t>(slot.num_rows); ++row) {
    num_entries = std::max(num_entries, slot.row_offsets[row] + slot.num_blocks[row]);
  }
  return {.block_tables = slot.entries.data(),
          .num_table_entries = num_entries,
          .table_stride = 1,
          .row_slots = slot.row_slots.data(),
          .row_offsets = slot.row_offsets.data(),
          .lengths = slot.seq_lens.data(),
          .num_blocks = slot.num_blocks.data(),
          .q_offsets = slot.q_offsets.data(),
          .slots = slot.slots.data()};
}

}  // namespace kvarena
