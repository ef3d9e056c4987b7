#include "cache/scrub_planner.hpp"

#include <algorithm>
#include <bit>

namespace kvarena {

using kernels::BlockScrub;

ScrubPlanner::ScrubPlanner(Scrub mode, std::int64_t num_blocks, std::int32_t block_size_tokens,
                           const StepLimits& limits)
    : mode_(mode),
      block_size_(block_size_tokens),
      shift_(std::countr_zero(static_cast<std::uint32_t>(block_size_tokens))),
      is_power_of_two_(std::has_single_bit(static_cast<std::uint32_t>(block_size_tokens))),
      writers_(static_cast<std::size_t>(num_blocks)),
      foreign_tokens_(static_cast<std::size_t>(num_blocks)),
      copies_(static_cast<std::size_t>(limits.max_rows)),
      clears_(static_cast<std::size_t>(max_clears(block_size_tokens, limits))) {}

std::int64_t ScrubPlanner::host_bytes(std::int64_t num_blocks, std::int32_t block_size_tokens,
                                      const StepLimits& limits) noexcept {
  constexpr auto kWriterBytes =
      static_cast<std::int64_t>(sizeof(std::uint64_t) + sizeof(std::uint16_t));
  constexpr auto kEntryBytes = static_cast<std::int64_t>(sizeof(BlockScrub));
  return num_blocks * kWriterBytes +
         (limits.max_rows + max_clears(block_size_tokens, limits)) * kEntryBytes;
}

std::int64_t ScrubPlanner::max_clears(std::int32_t block_size_tokens,
                                      const StepLimits& limits) noexcept {
  // A row's old last block, and the blocks that its tokens enter; the last of these may be filled
  // only in part.
  return limits.max_tokens / block_size_tokens + 2 * std::int64_t{limits.max_rows};
}

void ScrubPlanner::note_fork(const SequenceInfo& parent, const SequenceInfo& child) noexcept {
  if (mode_ == Scrub::always || parent.owner != child.owner) has_inherited_tails_ = true;
}

void ScrubPlanner::note_import(const BlockTables& tables, SequenceId sequence) noexcept {
  has_inherited_tails_ = true;
  const std::int64_t num_blocks = tables.info(sequence)->num_blocks;
  for (std::int64_t i = 0; i < num_blocks; ++i) writer_of(*tables.lookup(sequence, i)) = 0;
}

/// Returns whose content a row's tokens are. In mode `always` every sequence counts as its own
/// owner.
std::uint64_t ScrubPlanner::owner_of(const BlockTables& tables, Row& row) const noexcept {
  if (mode_ == Scrub::always) return row.sequence.value;
  if (row.owner == 0) row.owner = tables.info(row.sequence)->owner;
  return row.owner;
}

/// Adds a clear behind `kept_tokens` and notes the new writer.
void ScrubPlanner::clear(BlockId block, std::int32_t kept_tokens, std::uint64_t owner) noexcept {
  clears_[num_clears_++] = {block, block, kept_tokens};
  foreign_of(block) = static_cast<std::uint16_t>(kept_tokens);
  writer_of(block) = owner;
}

ScrubPlan ScrubPlanner::planned() const noexcept {
  return {std::span(copies_.data(), num_copies_), std::span(clears_.data(), num_clears_)};
}

/// Plans the row's old last block, which keeps `kept` tokens. The sequence continues in a copy or
/// in place.
void ScrubPlanner::plan_tail(const BlockTables& tables, Row& row, BlockId block, std::int32_t kept,
                             std::span<const BlockCopy> copies) noexcept {
  // The copies are in the order of the demands.
  if (num_copies_ < copies.size() && copies[num_copies_].target == block) {
    copies_[num_copies_] = {copies[num_copies_].source, block, kept};
    const BlockId source = copies[num_copies_++].source;
    const std::uint64_t owner = owner_of(tables, row);
    foreign_of(block) = writer_of(source) != owner
                            ? static_cast<std::uint16_t>(kept)
                            : std::min(foreign_of(source), static_cast<std::uint16_t>(kept));
    writer_of(block) = owner;
    return;
  }
  const std::uint64_t owner = owner_of(tables, row);
  if (writer_of(block) != owner || foreign_of(block) > kept) clear(block, kept, owner);
}

/// A row has an old last block, which plan_tail handles, and blocks that its tokens enter.
ScrubPlan ScrubPlanner::plan(const BlockTables& tables, std::span<const AppendDemand> demands,
                             const AppendResult& appended) noexcept {
  num_copies_ = num_clears_ = 0;
  const std::int64_t* slots = appended.slots.data();
  const auto block_at = [&](std::int64_t i) {
    return BlockId(
        static_cast<std::int32_t>(is_power_of_two_ ? slots[i] >> shift_ : slots[i] / block_size_));
  };
  for (std::size_t i = 0; i < demands.size(); ++i) {
    const std::int32_t num_new = demands[i].num_tokens;
    const std::int32_t before = appended.rows[i].length_tokens - num_new;
    const std::int32_t kept = is_power_of_two_ ? before & (block_size_ - 1) : before % block_size_;
    Row row{demands[i].sequence, 0};
    std::int32_t token = 0;
    if (kept != 0) {
      const bool may_matter = has_inherited_tails_ || num_copies_ < appended.copies.size();
      if (may_matter && num_new > 0) plan_tail(tables, row, block_at(0), kept, appended.copies);
      token = block_size_ - kept;
    }
    for (; token < num_new; token += block_size_) {
      const BlockId entered = block_at(token);
      const std::uint64_t owner = owner_of(tables, row);
      if (mode_ == Scrub::always || writer_of(entered) != owner || foreign_of(entered) > 0) {
        clear(entered, 0, owner);
      }
    }
    slots += num_new;
  }
  return planned();
}

/// Blocks without a known writer are cleared when a token enters them.
void ScrubPlanner::forget() noexcept {
  for (const std::span<const BlockScrub> list : {planned().copies, planned().clears}) {
    for (const BlockScrub& scrub : list) writer_of(scrub.target) = 0;
  }
  has_inherited_tails_ = true;  // because a sequence may continue in a block that it wrote itself
}

kernels::ScrubParams scrub_params(const Arena& arena) noexcept {
  const KvLayout& layout = arena.layout();
  const std::int64_t layer_bytes = layout.block_bytes() / layout.num_layers();
  const std::int64_t times = arena.order() == BlockOrder::block_major ? 1 : arena.num_blocks();
  return {.kv = *arena.layer_view(0),
          .key_bytes = layout.plane_bytes(layout.plane_of(0, PlaneKind::key)),
          .value_bytes = layout.plane_bytes(layout.plane_of(0, PlaneKind::value)),
          .num_layers = layout.num_layers(),
          .layer_stride = layer_bytes * times,
          .scrubs = nullptr,
          .num_scrubs = 0};
}

}  // namespace kvarena
