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

/// Entries of the region for a table whose kept entries begin in its first granule and are `span`
/// with those in front of them. The region has room for half as many more, or for a granule.
std::int64_t moving_entries(std::int64_t span, std::int64_t longest) noexcept {
  return std::min(rounded_up(span + std::max(span / 2, kGranule)), longest);
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
//
// Where the front moves, b blocks are kept, and a region begins at most 31 entries in front of
// them: its span is at most b + 31. The region has at most b + 94 entries where the span is below
// 66, and 1.5 b + 78 elsewhere, so the regions of a step have at most
//
//     1.5 * max_changes + 96 * max_sequences
//
// entries. Before a table moves on from a region of c entries, at least c / 4 have been appended;
// what it needs then is at most c and those that were appended since. So at least a ninth of the
// entries of each new region have been appended before, as above.
std::int64_t TableRegions::entries_for(const StepShape& shape, TableFront front) noexcept {
  const std::int64_t changes = shape.max_changes;
  const std::int64_t sequences = shape.max_sequences;
  if (front == TableFront::stays) {
    return std::min(fixed_entries(shape), rounded_up(2 * (2 * changes + kGranule * sequences)));
  }
  const std::int64_t lead = rounded_up(shape.max_blocks_a_row);
  return std::min(fixed_entries(shape), lead + rounded_up(3 * changes + 6 * kGranule * sequences));
}

TableRegions::TableRegions(const StepShape& shape, TableFront front)
    : entries_(shape.table_entries),
      longest_(rounded_up(shape.max_blocks_a_row)),
      is_fixed_(entries_ >= fixed_entries(shape)),
      front_(front),
      lead_(is_fixed_ || front == TableFront::stays ? 0 : longest_),
      regions_(static_cast<std::size_t>(shape.max_sequences)),
      next_(lead_) {}

/// With room for all tables at their longest, each slot has a fixed region and nothing moves.
void TableRegions::place(std::int32_t slot, std::int32_t blocks, std::int32_t first) noexcept {
  const bool moves = front_ == TableFront::moves && !is_fixed_;
  const std::int64_t begin = moves ? first / kGranule * kGranule : 0;
  const std::int64_t size = is_fixed_ ? longest_
                            : moves   ? moving_entries(blocks - begin, longest_)
                                      : region_entries(blocks, longest_);
  std::int64_t place = is_fixed_ ? slot * longest_ : next_;
  if (!is_fixed_ && place + size > entries_) {
    std::fill(regions_.begin(), regions_.end(), Region{});
    ++num_restarts_;
    place = lead_;
  }
  next_ = place + size;
  regions_[static_cast<std::size_t>(slot)] = {
      .origin = static_cast<std::int32_t>((place - begin) / kGranule),
      .begin = static_cast<std::int32_t>(begin),
      .end = static_cast<std::int32_t>(begin + size)};
}

}  // namespace kvarena
