#pragma once

/// @file
/// Groups of layers in block tables. With groups every sequence has a table for each of them, and
/// one holder for the blocks of all. The tables of a group keep the blocks of the tokens that later
/// tokens of the sequence still read (`retained` in choose_pages.hpp). Entries in front of these
/// are kNoBlock. A group of states has whole states in place of blocks of tokens: the blocks of a
/// state are its parts. Plain values.

#include "kvarena/base/choose_pages.hpp"
#include "kvarena/base/ids.hpp"
#include "kvarena/base/state_layout.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvarena {

/// One group of layers: one table of every sequence. A group that is cut into parts
/// (PagedBlocks::num_parts) is that many groups here, except that a group of states is one, with
/// num_parts.
struct TableGroup {
  PagedKind kind = PagedKind::full;     ///< the data that its layers keep
  std::int32_t block_size_tokens = 16;  ///< tokens in a block, 1 .. 65536
  std::int64_t limit_tokens = 0;        ///< as PagedGroup::limit_tokens
  std::int32_t rollback_tokens = 0;  ///< window, state: tokens that can be taken back, 0 .. 65536
  /// The ids in tables and slots, by which kernels find bytes (PagedBlocks::ids_per_page): from the
  /// first block of a page to that of the next. 0: the manager's ids.
  std::int64_t ids_per_page = 0;
  std::int64_t ids_per_block = 0;        ///< from a block to the next
  std::int32_t num_parts = 1;            ///< state: the blocks of one state, 1 .. 4096
  StateMode mode = StateMode::in_place;  ///< state: how its kernel works
  /// State, with BlockTablesOptions::can_undo. true: a step does not write to the slots of the
  /// states before it, so that an undo has them back. Each row of a step then takes one more state,
  /// and rollback_tokens more at most, until the append is settled; in_place kernels need a copy of
  /// the state in every step. false: a step writes over a state that nobody else needs. An undo of
  /// a step that may have run then loses it, and the sequence goes on at a checkpoint.
  bool keeps_for_undo = true;

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
  std::int32_t first_kept = 0;     ///< blocks in front of this one are not kept any more
};

/// The slots of a group of states in a step. Rows are the demands of the append, in their order.
/// Slots have the ids of TableGroup. `read[r, p]` is the slot of part p of the state before the
/// step, or -1: a state of zeros (read_write alone). `write[r, p]` is the slot of the state after
/// the row's last new token, or -1 in a row without new tokens, whose state nothing changes. With
/// StateMode::in_place `read` equals `write` in a row with new tokens.
///
/// A row can have more states to write: those after the last tokens before its last one, which
/// rollback_tokens takes back to, and checkpoints. Row r has extras extra_offsets[r] ..
/// extra_offsets[r + 1] - 1, by rising token. Extra e is the state after the row's new token
/// extra_tokens[e], counted from 0. The kernel must write all of them.
struct StateSlots {
  std::int32_t group = 0;                       ///< of the tables
  std::int32_t num_parts = 1;                   ///< blocks of a state
  std::span<const std::int32_t> read;           ///< [rows, num_parts]
  std::span<const std::int32_t> write;          ///< [rows, num_parts]
  std::span<const std::int32_t> extra_offsets;  ///< [rows + 1]
  std::span<const std::int32_t> extra_tokens;   ///< [extras]
  std::span<const std::int32_t> extra_slots;    ///< [extras, num_parts]
};

/// Consecutive blocks of one group's table, which somebody holds or which are cached. Those of a
/// group of states are the num_parts blocks of the state at the length.
struct GroupBlocks {
  std::int64_t first_block = 0;             ///< index in the table; of a state 0
  std::span<const BlockId> ids;             ///< of the manager
  std::span<const Generation> generations;  ///< as many
};

}  // namespace kvarena
