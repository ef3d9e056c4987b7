#include "cache/state_step.hpp"

#include "blocktable/state_extras.hpp"

#include <algorithm>
#include <cstring>

namespace kvarena {

StateStep::StateStep(const GroupLayout& layout, const StateStepLimits& limits)
    : first_table_(static_cast<std::int32_t>(layout.parts().size())) {
  for (const GroupLayout::States& states : layout.states()) {
    const auto rows = static_cast<std::size_t>(limits.max_rows);
    const auto parts = static_cast<std::size_t>(states.blocks.num_parts);
    const std::int64_t rollback =
        layout.groups()[static_cast<std::size_t>(states.group)].rollback_tokens;
    const auto extras = static_cast<std::size_t>(
        most_extras(rollback, limits.max_rows, limits.max_tokens, limits.checkpoint_every_tokens));
    memory_.push_back({.read = LazyArray<std::int32_t>(rows * parts),
                       .write = LazyArray<std::int32_t>(rows * parts),
                       .extra_offsets = LazyArray<std::int32_t>(rows + 1),
                       .extra_tokens = LazyArray<std::int32_t>(extras),
                       .extra_slots = LazyArray<std::int32_t>(extras * parts),
                       .copies = LazyArray<BlockCopy>(rows * parts)});
  }
  views_.resize(memory_.size());
  for (const GroupLayout::States& states : layout.states()) {
    const Memory& its = memory_[device_views_.size()];
    device_views_.push_back(
        {.group = first_table_ + static_cast<std::int32_t>(device_views_.size()),
         .num_parts = states.blocks.num_parts,
         .max_extras = static_cast<std::int64_t>(its.extra_tokens.size()),
         .read = its.read.data(),
         .write = its.write.data(),
         .extra_offsets = its.extra_offsets.data(),
         .extra_tokens = its.extra_tokens.data(),
         .extra_slots = its.extra_slots.data()});
  }
}

void StateStep::capture(const AppendResult& appended) {
  const auto keep = [](std::span<const std::int32_t> from, LazyArray<std::int32_t>& to) {
    std::ranges::copy(from, to.begin());
    return std::span<const std::int32_t>(to.data(), from.size());
  };
  for (std::size_t i = 0; i < memory_.size(); ++i) {
    const StateSlots& from = appended.states[i];
    Memory& to = memory_[i];
    views_[i] = {.group = from.group,
                 .num_parts = from.num_parts,
                 .read = keep(from.read, to.read),
                 .write = keep(from.write, to.write),
                 .extra_offsets = keep(from.extra_offsets, to.extra_offsets),
                 .extra_tokens = keep(from.extra_tokens, to.extra_tokens),
                 .extra_slots = keep(from.extra_slots, to.extra_slots)};
    to.num_copies = 0;
  }
  for (std::size_t i = 0; i < appended.copies.size() && !memory_.empty(); ++i) {
    const std::int32_t group = appended.copy_groups[i] - first_table_;
    if (group < 0) continue;
    Memory& to = memory_[static_cast<std::size_t>(group)];
    to.copies[to.num_copies++] = appended.copies[i];
  }
}

void StateStep::run_copies(const GroupLayout& layout, std::byte* base) const noexcept {
  for (std::size_t i = 0; i < memory_.size(); ++i) {
    const PagedBlocks& blocks = layout.states()[i].blocks;
    const auto bytes = static_cast<std::size_t>(blocks.block_bytes);
    for (std::size_t c = 0; c < memory_[i].num_copies; ++c) {
      const BlockCopy copy = memory_[i].copies[c];
      std::byte* const to = base + copy.target.value * blocks.id_stride_bytes;
      if (copy.source == kNoBlock) {
        std::memset(to, 0, bytes);
      } else {
        std::memcpy(to, base + copy.source.value * blocks.id_stride_bytes, bytes);
      }
    }
  }
}

}  // namespace kvarena
