#pragma once

/// @file
/// `TokensInFlight`: from which token on each sequence depends on one of the last steps. When a
/// step is lost, the tokens of its sequences from there on may be unwritten. All memory is
/// allocated at construction. One thread at a time.

#include "kvarena/blocktable/block_tables.hpp"

#include <cstdint>
#include <vector>

namespace kvarena {

/// The marks of the last steps in flight, by sequence.
class TokensInFlight {
 public:
  /// Makes marks for this many sequences at a time and steps in flight. Throws std::bad_alloc.
  TokensInFlight(std::int32_t max_sequences, std::int32_t steps_in_flight);

  /// Notes that step `step` is to write tokens of a sequence, or has published blocks that it
  /// begins with: `first_token` is the first of them. O(1); O(steps in flight) for a new sequence.
  void note(SequenceId id, std::int64_t first_token, std::uint64_t step) noexcept;
  /// Notes that a sequence is a fork: it depends on what its parent depends on. O(steps in flight).
  void note_fork(SequenceId parent, SequenceId child) noexcept;
  /// Tells the tables which tokens depend on step `first` or a later one. O(max_sequences x steps
  /// in flight).
  void distrust(BlockTables& tables, std::uint64_t first) const noexcept;

 private:
  struct Mark {
    std::uint64_t next_step = 0;  // the number of the step, plus 1; 0: no mark
    std::int64_t first_token = 0;
  };
  Mark* marks_of(std::size_t slot) noexcept { return marks_.data() + slot * steps_in_flight_; }
  /// Clears the marks of a slot whose sequence has ended.
  Mark* take_slot(SequenceId id) noexcept;

  std::size_t steps_in_flight_;
  std::vector<SequenceId> sequences_;  // by slot: whose marks they are
  std::vector<Mark> marks_;            // [slots, steps_in_flight] by step
};

}  // namespace kvarena
