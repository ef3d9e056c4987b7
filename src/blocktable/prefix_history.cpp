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

/// The oldest note of all is the last of its chain.
void PrefixHistory::add(std::uint64_t hash, std::uint64_t fact) noexcept {
  const auto number = static_cast<std::uint32_t>(oldest_ + 1);
  Note& note = notes_[oldest_];
  if (is_full_) {
    std::uint32_t& link =
        note.next_newer != 0 ? notes_[note.next_newer - 1].next_older : heads_[place_of(note.hash)];
    link = 0;
  }
  std::uint32_t& head = heads_[place_of(hash)];
  note = {hash, fact, head, 0};
  if (head != 0) notes_[head - 1].next_newer = number;
  head = number;
  if (++oldest_ < notes_.size()) return;
  oldest_ = 0;
  is_full_ = true;
}

const PrefixHistory::Note* PrefixHistory::find(std::uint64_t hash) const noexcept {
  for (std::uint32_t link = heads_[place_of(hash)]; link != 0; link = notes_[link - 1].next_older) {
    if (notes_[link - 1].hash == hash) return &notes_[link - 1];
  }
  return nullptr;
}

}  // namespace kvarena
