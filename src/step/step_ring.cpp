#include "step/step_ring.hpp"

#include "step/event_wait.hpp"

#include <algorithm>
#include <new>
#include <utility>

namespace kvarena {
namespace {

StepSlot make_slot(const StepLimits& limits) {
  const auto rows = static_cast<std::size_t>(limits.max_rows);
  StepSlot slot;
  slot.sequences = LazyArray<SequenceId>(rows);
  slot.entries = LazyArray<BlockId>(static_cast<std::size_t>(limits.max_blocks));
  slot.row_offsets = LazyArray<std::int64_t>(rows);
  slot.seq_lens = LazyArray<std::int32_t>(rows);
  slot.num_blocks = LazyArray<std::int32_t>(rows);
  slot.q_offsets = LazyArray<std::int64_t>(rows + 1);
  slot.slots = LazyArray<std::int64_t>(static_cast<std::size_t>(limits.max_tokens));
  slot.copies = LazyArray<BlockCopy>(rows);
  return slot;
}

}  // namespace

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

Result<StepRing> StepRing::create(Device& device, const StepLimits& limits) {
  StepRing ring(device, limits);
  try {
    ring.slots_.reserve(static_cast<std::size_t>(limits.steps_in_flight));
    for (std::int32_t i = 0; i < limits.steps_in_flight; ++i) {
      ring.slots_.push_back(make_slot(limits));
      const Result<EventId> event = device.create_event();
      if (!event) return event.status();
      ring.slots_.back().done = *event;
    }
  } catch (const std::bad_alloc&) {
    return exhausted(Resource::host_memory, static_cast<std::uint64_t>(limits.max_blocks), 0);
  }
  return ring;
}

StepRing::StepRing(StepRing&& other) noexcept
    : device_(other.device_), limits_(other.limits_), slots_(std::move(other.slots_)) {
  other.slots_.clear();
}

StepRing::~StepRing() {
  for (const StepSlot& slot : slots_) {
    if (slot.done != EventId{}) static_cast<void>(device_->destroy_event(slot.done));
  }
}

Status StepRing::wait(std::size_t index) { return wait_until_over(*device_, slots_[index].done); }

Status StepRing::mark(std::size_t index, StreamId stream) {
  return device_->record(slots_[index].done, stream);
}

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
