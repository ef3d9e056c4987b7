#pragma once

/// @file
/// `PrefixHistory`: the newest `capacity` notes about hashes, found by hash in O(1). An older note
/// is overwritten. Which notes are left depends on their number alone, on no key and no address. It
/// explains misses; no hit depends on it.

#include "base/lazy_array.hpp"
#include "blocktable/prefix_hash.hpp"

#include <cstdint>

namespace kvarena {

/// A ring of notes with a table of their hashes. Notes have numbers, which count on. Notes with one
/// place in the table are linked, the newest first: a link to a note that has been overwritten ends
/// them, so that nothing is unlinked.
class PrefixHistory {
 public:
  struct Note {
    std::uint64_t hash = 0;
    std::uint64_t fact = 0;   ///< the caller's
    std::uint32_t older = 0;  ///< number of the note before it with this place in the table
  };

  /// Requires capacity >= 1.
  explicit PrefixHistory(std::int64_t capacity);
  static std::int64_t bytes(std::int64_t capacity) noexcept;

  void add(std::uint64_t hash, std::uint64_t fact) noexcept {
    std::uint32_t& head = heads_[place_of(hash)];
    notes_[next_] = {hash, fact, head};
    head = ++newest_;
    if (++next_ > kept_) kept_ = next_;
    if (next_ == notes_.size()) next_ = 0;
  }
  /// Returns the newest note about a hash, or nullptr.
  const Note* find(std::uint64_t hash) const noexcept;

 private:
  std::size_t place_of(std::uint64_t hash) const noexcept { return hash & (heads_.size() - 1); }

  LazyArray<Note> notes_;           // a ring
  LazyArray<std::uint32_t> heads_;  // number of the newest note at each place
  std::uint32_t newest_ = 0;        // its number, modulo 2^32. The first note has number 1
  std::uint32_t next_ = 0;          // where the next note goes
  std::uint32_t kept_ = 0;          // notes that are there
};

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
