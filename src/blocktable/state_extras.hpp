#pragma once

/// @file
/// The states that a step writes beside those after its last tokens, and what options of states are
/// checked for. Pure functions.

#include "kvarena/base/status.hpp"
#include "kvarena/blocktable/table_groups.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvarena {

inline constexpr std::size_t kMaxStateParts = 4096;  ///< blocks of one state

/// Returns the most extras (StateSlots) of a step of `rows` sequences with `tokens` new tokens
/// together: those that can be taken back, and checkpoints inside the step, of which each row can
/// have two for its prompt.
constexpr std::int64_t most_extras(std::int64_t rollback_tokens, std::int64_t rows,
                                   std::int64_t tokens, std::int64_t checkpoint_every) noexcept {
  const std::int64_t taken_back = std::min(tokens, rows * rollback_tokens);
  if (checkpoint_every == 0) return taken_back;
  return taken_back + tokens / checkpoint_every + rows + std::min(tokens, 2 * rows);
}

/// Checks the groups of states, and that checkpoints lie at the ends of the blocks of all other
/// groups. Does nothing without groups of states. Returns invalid_argument
/// (checkpoint_every_tokens, num_parts, mode).
Status check_states(std::span<const TableGroup> groups, std::int64_t checkpoint_every) noexcept;

}  // namespace kvarena
