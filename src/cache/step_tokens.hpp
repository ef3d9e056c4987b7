#pragma once

/// @file
/// `StepTokens`: the rows of a step whose tokens the prefix cache was told. When the step ends,
/// their blocks are published, or taken back when K and V were not written. All memory is allocated
/// at construction. One thread at a time.

#include "kvarena/blocktable/block_tables.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace kvarena {

/// The told rows of the current step.
class StepTokens {
 public:
  /// Makes a list for at most `max_rows` rows. Throws std::bad_alloc.
  StepTokens(std::int32_t max_rows, std::int32_t block_size_tokens);

  /// Takes the rows of an append that succeeded. O(demands).
  void note(std::span<const AppendDemand> demands, const AppendResult& appended) noexcept;
  /// Publishes the blocks that the rows have filled. O(rows + blocks).
  void publish(BlockTables& tables) noexcept;
  /// Takes back what was told, because K and V were not written. O(rows + blocks).
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
