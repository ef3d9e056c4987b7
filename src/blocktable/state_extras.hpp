#pragma once

/// @file
/// The states that a step writes beside those after its last tokens. A pure function.

#include <algorithm>
#include <cstdint>

namespace kvarena {

/// Returns the most extras (StateSlots) of a step of `rows` sequences with `tokens` new tokens
/// together: those that can be taken back, and checkpoints inside the step, of which each row can
/// have two for its prompt.
constexpr std::int64_t most_extras(std::int64_t rollback_tokens, std::int64_t rows,
                                   std::int64_t tokens, std::int64_t checkpoint_every) noexcept {
  const std::int64_t taken_back = std::min(tokens, rows * rollback_tokens);
  if (checkpoint_every == 0) return taken_back;
  return taken_back + tokens / checkpoint_every + rows + std::min(tokens, 2 * rows);
}

}  // namespace kvarena
