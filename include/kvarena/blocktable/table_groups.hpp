#pragma once

/// @file
/// Groups of layers in block tables. With groups every sequence has a table for each of them, and
/// one holder for the blocks of all. The tables of a group keep the blocks of the tokens that later
/// tokens of the sequence still read (`retained` in choose_pages.hpp). Entries in front of these
/// are kNoBlock. Plain values.

#include "kvarena/base/choose_pages.hpp"
#include "kvarena/base/ids.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvarena {

/// One group of layers: one table of every sequence. A group that is cut into parts
/// (PagedBlocks::num_parts) is that many groups here.
struct TableGroup {
  PagedKind kind = PagedKind::full;     ///< the data that its layers keep; not `state`
  std::int32_t block_size_tokens = 16;  ///< tokens in a block, 1 .. 65536
  std::int64_t limit_tokens = 0;        ///< as PagedGroup::limit_tokens
  std::int32_t rollback_tokens = 0;     ///< window: tokens that can be taken back, 0 .. 65536
  /// The ids in tables and slots, by which kernels find bytes (PagedBlocks::ids_per_page): from the
  /// first block of a page to that of the next. 0: the manager's ids.
  std::int64_t ids_per_page = 0;
  std::int64_t ids_per_block = 0;  ///< from a block to the next

  /// What its layers keep, as the functions of choose_pages.hpp take it.
  constexpr PagedGroup retention() const noexcept {
    return {.kind = kind,
            .num_layers = 1,
            .layer_bytes = 1,
            .block_size_tokens = block_size_tokens,
            .limit_tokens = limit_tokens,
            .rollback_tokens = rollback_tokens};
  }
};

/// One table of a sequence, and what a mirror of it lacks.
struct TableChanges {
  std::int32_t num_tokens = 0;     ///< of the sequence; in a cross group of its encoder
  std::int32_t num_blocks = 0;     ///< that hold the tokens, with those that are not kept any more
  std::int32_t first_changed = 0;  ///< the mirror lacks the blocks from here on; num_blocks: none
};

/// Consecutive blocks of one group's table, which somebody holds or which are cached.
struct GroupBlocks {
  std::int64_t first_block = 0;             ///< index in the table
  std::span<const BlockId> ids;             ///< of the manager
  std::span<const Generation> generations;  ///< as many
};

}  // namespace kvarena
