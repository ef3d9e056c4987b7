#include "step/step_slot.hpp"

#include <algorithm>
#include <limits>

namespace kvarena {

namespace {

constexpr std::int64_t kMostSlots = std::numeric_limits<std::int32_t>::max();

}  // namespace

StepSlot::StepSlot(const StepLimits& limits, std::int64_t lead)
    : sequences(static_cast<std::size_t>(limits.max_rows)),
      entries(static_cast<std::size_t>(lead + limits.max_blocks)),
      row_offsets(static_cast<std::size_t>(limits.max_rows)),
      row_slots(static_cast<std::size_t>(limits.max_rows)),
      seq_lens(static_cast<std::size_t>(limits.max_rows)),
      num_blocks(static_cast<std::size_t>(limits.max_rows)),
      q_offsets(static_cast<std::size_t>(limits.max_rows) + 1),
      slots(static_cast<std::size_t>(limits.max_tokens)),
      copies(static_cast<std::size_t>(limits.max_rows)) {}

BatchView StepSlot::batch() const noexcept {
  return {.tables = {.entries = entries.data(),
                     .pages = nullptr,
                     .row_offsets = row_offsets.data(),
                     .page_shift = 0,
                     .num_rows = num_rows},
          .seq_lens = seq_lens.data(),
          .num_blocks = num_blocks.data(),
          .num_rows = num_rows};
}

/// Copies the entries of each row page by page into one contiguous row.
Status capture_step(StepSlot& slot, BlockTables& tables, std::span<const AppendDemand> demands,
                    const AppendResult& appended) {
  slot.num_rows = static_cast<std::int32_t>(demands.size());
  slot.num_tokens = static_cast<std::int64_t>(appended.slots.size());
  slot.num_copies = appended.copies.size();
  std::copy(appended.slots.begin(), appended.slots.end(), slot.slots.begin());
  std::copy(appended.copies.begin(), appended.copies.end(), slot.copies.begin());
  slot.q_offsets[0] = 0;
  for (std::size_t row = 0; row < demands.size(); ++row) {
    slot.sequences[row] = demands[row].sequence;
    slot.q_offsets[row + 1] = slot.q_offsets[row] + demands[row].num_tokens;
  }
  const Result<BatchView> view = tables.view(std::span(slot.sequences.data(), demands.size()));
  if (!view) return view.status();
  std::int64_t next = 0;
  for (std::int32_t row = 0; row < slot.num_rows; ++row) {
    const auto r = static_cast<std::size_t>(row);
    const std::int32_t blocks = view->num_blocks[row];
    slot.row_offsets[r] = next;
    slot.row_slots[r] = next > kMostSlots ? -1 : static_cast<std::int32_t>(next);
    slot.seq_lens[r] = view->seq_lens[row];
    slot.num_blocks[r] = blocks;
    const std::int32_t page_entries = 1 << view->tables.page_shift;
    for (std::int32_t first = 0; first < blocks; first += page_entries) {
      const std::int64_t page =
          view->tables.pages[view->tables.row_offsets[row] + (first >> view->tables.page_shift)];
      std::copy_n(view->tables.entries + (page << view->tables.page_shift),
                  std::min(page_entries, blocks - first), slot.entries.data() + next + first);
    }
    next += blocks;
  }
  return {};
}

}  // namespace kvarena
