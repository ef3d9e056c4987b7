#include "cache/tokens_in_flight.hpp"

#include "blocktable/sequence_table.hpp"

#include <algorithm>

namespace kvarena {

TokensInFlight::TokensInFlight(std::int32_t max_sequences, std::int32_t steps_in_flight)
    : steps_in_flight_(static_cast<std::size_t>(steps_in_flight)),
      sequences_(static_cast<std::size_t>(max_sequences)),
      marks_(sequences_.size() * steps_in_flight_) {}

TokensInFlight::Mark* TokensInFlight::take_slot(SequenceId id) noexcept {
  const auto slot = static_cast<std::size_t>(SequenceTable::slot_of(id));
  Mark* const marks = marks_of(slot);
  if (sequences_[slot] != id) std::fill_n(marks, steps_in_flight_, Mark{});
  sequences_[slot] = id;
  return marks;
}

void TokensInFlight::note(SequenceId id, std::int64_t first_token, std::uint64_t step) noexcept {
  Mark& mark = take_slot(id)[step % steps_in_flight_];
  const bool is_of_this_step = mark.next_step == step + 1;
  mark = {step + 1, is_of_this_step ? std::min(mark.first_token, first_token) : first_token};
}

void TokensInFlight::note_fork(SequenceId parent, SequenceId child) noexcept {
  std::copy_n(take_slot(parent), steps_in_flight_, take_slot(child));
}

/// Marks of sequences that have ended, or behind the end of one that was cut, name nothing.
void TokensInFlight::distrust(BlockTables& tables, std::uint64_t first) const noexcept {
  for (std::size_t i = 0; i < marks_.size(); ++i) {
    if (marks_[i].next_step <= first) continue;
    static_cast<void>(
        tables.distrust_tokens(sequences_[i / steps_in_flight_], marks_[i].first_token));
  }
}

}  // namespace kvarena
