#pragma once

/// @file
/// `GroupFacts`: what the tables of a pool with groups know of one group. Plain values.

#include "blocktable/sequence_table.hpp"
#include "kvarena/base/choose_pages.hpp"
#include "kvarena/blocktable/table_groups.hpp"

#include <cstdint>

namespace kvarena {

struct GroupFacts {
  TableGroup spec;
  PagedGroup retention;
  std::int64_t block_size = 0;
  std::int64_t blocks_per_page = 0;
  bool is_cross = false;
  bool is_state = false;
  /// Whether its tables grow with the tokens of a sequence.
  bool grows() const noexcept { return !is_cross && !is_state; }
  /// The index of the block of a token. Dividing takes longer than what is around it, so the usual
  /// block size has a shift.
  std::int64_t block_of(std::int64_t position) const noexcept {
    return block_size == kUsualBlockSize ? position / kUsualBlockSize : position / block_size;
  }
  /// The first block that a sequence of `length` tokens keeps. Requires grows().
  std::int64_t first_kept(std::int64_t length) const noexcept {
    return block_of(oldest_retained(retention, length));
  }
};

}  // namespace kvarena
