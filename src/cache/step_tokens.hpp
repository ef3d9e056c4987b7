#pragma once

/// @file
/// `StepTokens`: the rows of a step, for the prefix cache. When the step ends, the blocks of tokens
/// that were told are published. When K and V were not written, they are taken back, and nobody can
/// tell them later. All memory is allocated at construction. One thread at a time.

#include "kvarena/blocktable/block_tables.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace kvarena {

/// The rows of the current step.
class StepTokens {
 public:
  /// Makes a list for at most `max_rows` rows. Throws std::bad_alloc.
  StepTokens(std::int32_t max_rows, std::int32_t block_size_tokens);

  /// Takes the rows of an append that succeeded. O(demands).
  void note(std::span<const AppendDemand> demands, const AppendResult& appended) noexcept;
  /// Publishes the blocks that the rows have filled. O(rows + blocks).
  void publish(BlockTables& tables) noexcept;
  /// Distrusts the tokens of the rows, because K and V were not written. O(rows + blocks).
  void withdraw(BlockTables& tables) noexcept;
  /// Forgets the rows: the append was undone.
  void clear() noexcept { rows_.clear(); }

 private:
  struct Row {
    SequenceId sequence;
    std::int32_t before;  // tokens before the step
    std::int32_t after;   // tokens with the step's
  };

  std::int32_t block_size_;
  std::vector<Row> rows_;
};

}  // namespace kvarena
