#include "kernels/reference/scatter_step.hpp"

#include <algorithm>

namespace kvarena::kernels::reference {
namespace {

template <class T>
const T* at(const std::byte* slot, std::int64_t offset) {
  return reinterpret_cast<const T*>(slot + offset);
}

/// As plan_of in scatter_step.cuh.
RowPlan plan_of(const ScatterStepParams& p, const StagedRow& row) {
  if (p.slots != nullptr) return plan_row(p.shape, row);
  StagedRow seen = row;
  seen.num_new = 0;
  RowPlan plan = plan_row(p.shape, seen);
  plan.num_new = std::max(row.num_new, 0);
  return plan;
}

}  // namespace

void scatter_step(const ScatterStepParams& p) {
  const StepShape& shape = p.shape;
  ScatterState& state = *p.state;
  const StepWord expected = p.expected_word != nullptr ? *p.expected_word : p.expected;
  const std::byte* slot = p.ring + slot_of(shape, expected) * shape.slot_bytes();
  const StagedHeader header = *at<StagedHeader>(slot, 0);
  const bool is_found = is_expected(expected, header, state);
  const std::int32_t num_rows = is_found ? std::clamp(header.num_rows, 0, shape.max_rows) : 0;
  const std::int32_t num_copies = is_found ? std::clamp(header.num_copies, 0, shape.max_rows) : 0;
  const auto* rows = at<StagedRow>(slot, StepShape::kRowsOffset);
  const auto* changes = at<BlockId>(slot, shape.changes_offset());
  std::int32_t num_tokens = 0;
  std::int32_t num_changes = 0;
  for (std::int32_t r = 0; r < shape.max_rows; ++r) {
    const RowPlan row = r < num_rows ? plan_of(p, rows[r]) : RowPlan{};
    p.row_slots[r] = row.granule;
    p.row_offsets[r] = row.granule < 0 ? 0 : row.granule * StepShape::kGranule;
    p.seq_lens[r] = row.seq_len;
    p.num_blocks[r] = row.num_blocks;
    p.q_offsets[r] = num_tokens;
    BlockId* table = p.block_tables + p.row_offsets[r];
    const std::int32_t changed = std::min(row.num_changed, shape.max_changes - num_changes);
    std::copy_n(changes + num_changes, changed, table + row.num_blocks - row.num_changed);
    num_changes += changed;
    const std::int32_t tokens = std::min(row.num_new, shape.max_tokens - num_tokens);
    for (std::int32_t i = 0; i < tokens; ++i, ++num_tokens) {
      if (p.slots == nullptr) continue;
      p.slots[num_tokens] = slot_of_token(shape, table, row.seq_len - row.num_new + i);
    }
  }
  p.q_offsets[shape.max_rows] = num_tokens;
  if (p.slots != nullptr) std::fill(p.slots + num_tokens, p.slots + shape.max_tokens, -1);
  std::copy_n(at<BlockCopy>(slot, shape.copies_offset()), num_copies, p.copies);
  std::fill(p.copies + num_copies, p.copies + shape.max_rows, BlockCopy{kNoBlock, kNoBlock});
  if (is_found) {
    p.report->taken = state.serial = header.serial;
  } else {
    p.report->misses = ++state.misses;
  }
  state.num_rows = num_rows;
  state.num_tokens = num_tokens;
  state.num_copies = num_copies;
}

void scatter_states(const ScatterStatesParams& p) {
  const StateShape& shape = p.shape;
  const StepWord expected = p.expected_word != nullptr ? *p.expected_word : p.expected;
  const auto named = static_cast<std::int32_t>(expected % kMaxRingSlots);
  const std::byte* slot = p.ring + (named < shape.steps_in_flight ? named : 0) * shape.slot_bytes();
  const StagedStates header = *at<StagedStates>(slot, 0);
  ScatterState& state = p.state->step;
  const bool is_found = is_expected(expected, header.step, state);
  const auto most_copies = static_cast<std::int32_t>(shape.num_slots());
  state.num_rows = is_found ? std::clamp(header.step.num_rows, 0, shape.max_rows) : 0;
  state.num_copies = is_found ? std::clamp(header.step.num_copies, 0, most_copies) : 0;
  const std::int64_t most_extras = shape.max_extras;
  const std::int64_t extras =
      is_found ? std::clamp(header.num_extras, std::int64_t{0}, most_extras) : 0;
  p.state->num_extras = extras;
  const auto list = [&](std::int64_t offset, std::int32_t* to, std::int64_t count,
                        std::int64_t room, std::int32_t behind) {
    std::copy_n(at<std::int32_t>(slot, offset), count, to);
    std::fill(to + count, to + room, behind);
  };
  const std::int64_t slots = std::int64_t{state.num_rows} * shape.num_parts;
  list(StateShape::kReadOffset, p.read, slots, shape.num_slots(), -1);
  list(shape.write_offset(), p.write, slots, shape.num_slots(), -1);
  list(shape.extra_offsets_offset(), p.extra_offsets, extras == 0 ? 0 : state.num_rows,
       shape.max_rows + 1, static_cast<std::int32_t>(extras));
  list(shape.extra_tokens_offset(), p.extra_tokens, extras, most_extras, -1);
  list(shape.extra_slots_offset(), p.extra_slots, extras * shape.num_parts,
       most_extras * shape.num_parts, -1);
  const auto* copies = at<BlockCopy>(slot, shape.copies_offset());
  std::copy_n(copies, state.num_copies, p.copies);
  std::fill(p.copies + state.num_copies, p.copies + most_copies, BlockCopy{kNoBlock, kNoBlock});
  if (is_found) {
    p.report->taken = state.serial = header.step.serial;
  } else {
    p.report->misses = ++state.misses;
  }
}

}  // namespace kvarena::kernels::reference
