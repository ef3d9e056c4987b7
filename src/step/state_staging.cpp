#include "step/state_staging.hpp"

#include <algorithm>
#include <atomic>

namespace kvarena {

Status StateStaging::check(const StateSlots& slots) const noexcept {
  const std::size_t rows = slots.extra_offsets.size() - 1;
  if (rows > static_cast<std::size_t>(shape_.max_rows)) {
    return limit_exceeded(Resource::num_sequences, rows,
                          static_cast<std::uint64_t>(shape_.max_rows), Option::max_batch_rows);
  }
  const auto room = static_cast<std::uint64_t>(shape_.max_extras);
  if (slots.extra_tokens.size() <= room) return {};
  return limit_exceeded(Resource::num_tokens, slots.extra_tokens.size(), room,
                        Option::max_step_tokens);
}

void StateStaging::write(std::int32_t slot, const StateSlots& slots, const AppendResult& appended,
                         std::int32_t table, std::uint64_t serial, std::uint64_t follows) noexcept {
  std::byte* const staged = slot_of(slot);
  auto& header = *reinterpret_cast<kernels::StagedStates*>(staged);
  const std::atomic_ref<std::uint64_t> name(header.step.serial);
  // The slot has no step while it is being written. The exchange keeps the later writes behind it.
  name.exchange(0, std::memory_order_acq_rel);
  const auto list = [staged](std::span<const std::int32_t> from, std::int64_t offset) {
    std::ranges::copy(from, reinterpret_cast<std::int32_t*>(staged + offset));
  };
  list(slots.read, kernels::StateShape::kReadOffset);
  list(slots.write, shape_.write_offset());
  list(slots.extra_offsets, shape_.extra_offsets_offset());
  list(slots.extra_tokens, shape_.extra_tokens_offset());
  list(slots.extra_slots, shape_.extra_slots_offset());
  auto* const copies = reinterpret_cast<BlockCopy*>(staged + shape_.copies_offset());
  num_copies_ = 0;
  for (std::size_t i = 0; i < appended.copies.size(); ++i) {
    if (appended.copy_groups[i] == table) copies[num_copies_++] = appended.copies[i];
  }
  header.step.num_rows = static_cast<std::int32_t>(slots.extra_offsets.size()) - 1;
  header.step.num_copies = num_copies_;
  header.step.follows = follows;
  header.num_extras = std::ssize(slots.extra_tokens);
  name.store(serial, std::memory_order_release);
}

void StateStaging::withdraw(std::int32_t slot) noexcept {
  auto& header = *reinterpret_cast<kernels::StagedStates*>(slot_of(slot));
  std::atomic_ref(header.step.serial).exchange(0, std::memory_order_acq_rel);
}

}  // namespace kvarena
