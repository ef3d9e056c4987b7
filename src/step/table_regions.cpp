#include "step/table_regions.hpp"

#include <algorithm>
#include <bit>

namespace kvarena {
namespace {

using kernels::StepShape;

constexpr std::int64_t kGranule = StepShape::kGranule;

constexpr std::int64_t rounded_up(std::int64_t entries) noexcept {
  return (entries + kGranule - 1) / kGranule * kGranule;
}

/// Entries of the region for a table of `blocks` blocks. The region has room for at least one more
/// entry, so that a prompt that fills a power of two does not move at once. It has at most twice
/// the table's entries, or one granule.
std::int64_t region_entries(std::int64_t blocks, std::int64_t longest) noexcept {
  const auto above =
      static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(blocks) + 1));
  return std::min(std::max(above, kGranule), longest);
}

/// Entries of a pool in which every sequence has room for the longest table.
std::int64_t fixed_entries(const StepShape& shape) noexcept {
  return shape.max_sequences * rounded_up(shape.max_blocks_a_row);
}

}  // namespace

// A step within its limits always fits into a pool whose regions were all dropped. The region of a
// table of b blocks has at most max(32, 2 b) entries, because the power of two above b is at most 2
// b. The rows of a step are different sequences, so their regions have at most
//
//     sum of max(32, 2 b)  <=  2 * max_changes + 32 * max_sequences
//
// entries together: half of the pool.
//
// The cost of sending tables again is amortised, as long as all tables in use have max_changes
// blocks together. After a restart, a table of b blocks takes at most 3 b + 32 entries, even if it
// moves once: it moves when it has outgrown c <= 2 b entries, to at most 2 c entries, plus what was
// appended. That leaves max_changes + 32 * max_sequences entries. Before a table moves on to a
// region of c entries, or a new sequence needs such a region, at least c / 8 entries have been
// appended. A restart sends at most max_changes entries again, which is therefore a constant times
// the entries appended since the last restart.
std::int64_t TableRegions::entries_for(const StepShape& shape) noexcept {
  const std::int64_t of_a_step =
      2 * std::int64_t{shape.max_changes} + kGranule * shape.max_sequences;
  return std::min(fixed_entries(shape), rounded_up(2 * of_a_step));
}

TableRegions::TableRegions(const StepShape& shape)
    : entries_(shape.table_entries),
      longest_(rounded_up(shape.max_blocks_a_row)),
      is_fixed_(entries_ >= fixed_entries(shape)),
      regions_(static_cast<std::size_t>(shape.max_sequences)) {}

/// With room for all tables at their longest, each slot has a fixed region and nothing moves.
void TableRegions::place(std::int32_t slot, std::int32_t blocks) noexcept {
  const std::int64_t size = is_fixed_ ? longest_ : region_entries(blocks, longest_);
  std::int64_t first = is_fixed_ ? slot * longest_ : next_;
  if (!is_fixed_ && first + size > entries_) {
    std::fill(regions_.begin(), regions_.end(), Region{});
    ++num_restarts_;
    first = 0;
  }
  next_ = first + size;
  regions_[static_cast<std::size_t>(slot)] = {static_cast<std::int32_t>(first / kGranule),
                                              static_cast<std::int32_t>(size)};
}

}  // namespace kvarena
