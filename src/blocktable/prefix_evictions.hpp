#pragma once

/// @file
/// `PrefixEvictions`: which sequence's growth evicted registered blocks, and when: the newest notes
/// of a prefix cache, found by the serial of a removal in O(log notes). An older note is
/// overwritten. It explains misses; no hit depends on it.

#include "base/lazy_array.hpp"
#include "kvarena/base/ids.hpp"

#include <cstddef>
#include <cstdint>

namespace kvarena {

/// A sequence, and how many evictable blocks its growth took.
struct BlockTaker {
  SequenceId by;
  std::int64_t count = 0;
};

/// A ring of notes.
class PrefixEvictions {
 public:
  struct Note {
    std::uint64_t first = 0;  ///< serial of the first removal (PrefixStats::removals)
    std::uint64_t end = 0;    ///< and of the one behind the last
    SequenceId by;            ///< the sequence that took the blocks
    std::uint64_t salt = 0;   ///< of that sequence
    std::int64_t time = 0;    ///< BlockManager::clock_time
  };

  /// Requires capacity >= 1.
  explicit PrefixEvictions(std::int64_t capacity) : notes_(static_cast<std::size_t>(capacity)) {}
  static std::int64_t bytes(std::int64_t capacity) noexcept {
    return capacity * static_cast<std::int64_t>(sizeof(Note));
  }

  /// Adds a note whose serials are behind those of all others.
  void add(const Note& note) noexcept { notes_[added_++ % notes_.size()] = note; }
  /// Returns the note of a removal, or nullptr.
  const Note* find(std::uint64_t serial) const noexcept {
    std::uint64_t first = added_ > notes_.size() ? added_ - notes_.size() : 0;
    std::uint64_t end = added_;
    while (first < end) {
      const std::uint64_t middle = first + (end - first) / 2;
      const Note& note = notes_[middle % notes_.size()];
      if (serial < note.first) {
        end = middle;
      } else if (serial >= note.end) {
        first = middle + 1;
      } else {
        return &note;
      }
    }
    return nullptr;
  }

 private:
  LazyArray<Note> notes_;
  std::uint64_t added_ = 0;
};

}  // namespace kvarena
