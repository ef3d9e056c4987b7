#pragma once

/// @file
/// `PrefixHistory`: the newest `capacity` notes about hashes, found by hash in O(1). An older note
/// is overwritten. Which notes are left depends on their number alone, on no key and no address. It
/// explains misses; no hit depends on it.

#include "base/lazy_array.hpp"
#include "blocktable/prefix_hash.hpp"

#include <cstdint>

namespace kvarena {

/// A ring of notes with a table of their hashes.
class PrefixHistory {
 public:
  struct Note {
    std::uint64_t hash = 0;
    std::uint64_t fact = 0;        ///< the caller's
    std::uint32_t next_older = 0;  ///< with this place in the table; 0: none
    std::uint32_t next_newer = 0;  ///< the same
  };

  /// Requires capacity >= 1.
  explicit PrefixHistory(std::int64_t capacity);
  static std::int64_t bytes(std::int64_t capacity) noexcept;

  void add(std::uint64_t hash, std::uint64_t fact) noexcept;
  /// Returns the newest note about a hash, or nullptr.
  const Note* find(std::uint64_t hash) const noexcept;

 private:
  std::size_t place_of(std::uint64_t hash) const noexcept { return hash & (heads_.size() - 1); }

  LazyArray<Note> notes_;           // from 1 on
  LazyArray<std::uint32_t> heads_;  // the newest note at each place; 0: none
  std::uint32_t oldest_ = 1;        // overwritten next
  bool is_full_ = false;
};

/// The oldest note of all is the last of its chain: the link to it is in the note before it, or at
/// its place in the table. Which one it is looks random to a processor, and so does whether a place
/// has a note already. So both are written, without a branch: note 0 is there for what is not
/// meant.
inline void PrefixHistory::add(std::uint64_t hash, std::uint64_t fact) noexcept {
  const std::uint32_t number = oldest_;
  Note& note = notes_[number];
  if (is_full_) {
    std::uint32_t& place = heads_[place_of(note.hash)];
    notes_[note.next_newer].next_older = 0;
    place = note.next_newer == 0 ? 0 : place;
  }
  std::uint32_t& head = heads_[place_of(hash)];
  note = {hash, fact, head, 0};
  notes_[head].next_newer = number;
  head = number;
  if (++oldest_ < notes_.size()) return;
  oldest_ = 1;
  is_full_ = true;
}

/// The fact of a note about a registration: enough to tell salts and extra keys apart in a report.
struct RegistrationFact {
  std::uint32_t salt = 0;  ///< of the hash of the salt
  std::uint32_t root = 0;  ///< of the root, which depends on salt and extra keys

  RegistrationFact(std::uint64_t salt_tag, const Hash128& root_hash) noexcept
      : salt(static_cast<std::uint32_t>(salt_tag)),
        root(static_cast<std::uint32_t>(root_hash.high)) {}
  explicit RegistrationFact(std::uint64_t fact) noexcept
      : salt(static_cast<std::uint32_t>(fact >> 32U)), root(static_cast<std::uint32_t>(fact)) {}
  std::uint64_t packed() const noexcept { return static_cast<std::uint64_t>(salt) << 32U | root; }
};

}  // namespace kvarena
