#include "blocktable/prefix_history.hpp"

#include <bit>

namespace kvarena {

PrefixHistory::PrefixHistory(std::int64_t capacity)
    : notes_(static_cast<std::size_t>(capacity) + 1),
      heads_(std::bit_floor(static_cast<std::size_t>(capacity))) {}

std::int64_t PrefixHistory::bytes(std::int64_t capacity) noexcept {
  return (capacity + 1) * static_cast<std::int64_t>(sizeof(Note)) +
         static_cast<std::int64_t>(std::bit_floor(static_cast<std::size_t>(capacity)) *
                                   sizeof(std::uint32_t));
}

const PrefixHistory::Note* PrefixHistory::find(std::uint64_t hash) const noexcept {
  for (std::uint32_t link = heads_[place_of(hash)]; link != 0; link = notes_[link].next_older) {
    if (notes_[link].hash == hash) return &notes_[link];
  }
  return nullptr;
}

}  // namespace kvarena
