#include "blocktable/prefix_history.hpp"

#include <bit>

namespace kvarena {

PrefixHistory::PrefixHistory(std::int64_t capacity)
    : notes_(static_cast<std::size_t>(capacity)),
      heads_(std::bit_floor(static_cast<std::size_t>(capacity))) {}

std::int64_t PrefixHistory::bytes(std::int64_t capacity) noexcept {
  return capacity * static_cast<std::int64_t>(sizeof(Note)) +
         static_cast<std::int64_t>(std::bit_floor(static_cast<std::size_t>(capacity)) *
                                   sizeof(std::uint32_t));
}

/// A number from 2^32 notes ago looks like one of a note that is there. Such a link leads to notes
/// of other hashes, and they end: each must be older than the one before it.
const PrefixHistory::Note* PrefixHistory::find(std::uint64_t hash) const noexcept {
  std::uint32_t number = heads_[place_of(hash)];
  std::uint32_t least_age = 0;
  while (true) {
    const std::uint32_t age = newest_ - number;
    if (age < least_age || age >= kept_) return nullptr;
    const Note& note = notes_[next_ > age ? next_ - 1 - age : next_ + kept_ - 1 - age];
    if (note.hash == hash) return &note;
    number = note.older;
    least_age = age + 1;
  }
}

}  // namespace kvarena
