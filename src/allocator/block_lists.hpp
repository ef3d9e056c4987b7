#pragma once

/// @file
/// `BlockLists`: doubly linked lists of blocks. A block is in at most one of them, and its links
/// lie in an array that is indexed by its id, with a word that is the caller's (12 bytes a block).
/// Every call is O(1), unless it says otherwise, and allocates nothing. Callers know in which list
/// a block is. Memory is committed when it is first used. Move-only; one thread at a time.

#include "base/lazy_array.hpp"

#include "kvarena/base/ids.hpp"

#include <cstddef>
#include <cstdint>

namespace kvarena {

/// Lists 0 .. num_lists - 1 of blocks 0 .. num_blocks - 1.
class BlockLists {
 public:
  /// Makes empty lists. Throws std::bad_alloc.
  BlockLists(std::size_t num_lists, std::size_t num_blocks)
      : lists_(num_lists), links_(num_blocks) {}

  static constexpr std::int64_t bytes(std::int64_t num_lists, std::int64_t num_blocks) noexcept {
    return static_cast<std::int64_t>(sizeof(Ends)) * num_lists +
           static_cast<std::int64_t>(sizeof(Links)) * num_blocks;
  }

  /// The first, the last and the following block; kNoBlock where there is none.
  BlockId front(std::size_t list) const noexcept { return named(lists_[list].first); }
  BlockId back(std::size_t list) const noexcept { return named(lists_[list].last); }
  BlockId after(BlockId id) const noexcept { return named(links_[index(id)].later); }
  bool is_empty(std::size_t list) const noexcept { return lists_[list].first == 0; }
  std::size_t num_blocks() const noexcept { return links_.size(); }
  /// The caller's word of a block, in a list or not. 0 at first.
  std::uint32_t& note(BlockId id) noexcept { return links_[index(id)].note; }
  std::uint32_t note(BlockId id) const noexcept { return links_[index(id)].note; }

  /// Puts a block that is in no list behind the last one.
  void append(std::size_t list, BlockId id) noexcept { insert_after(list, back(list), id); }
  /// Puts a block that is in no list behind `earlier`, or before all when that is kNoBlock.
  void insert_after(std::size_t list, BlockId earlier, BlockId id) noexcept {
    Ends& ends = lists_[list];
    std::uint32_t& forward = earlier == kNoBlock ? ends.first : links_[index(earlier)].later;
    const std::uint32_t later = forward;
    forward = name(id);
    (later == 0 ? ends.last : links_[later - 1].earlier) = name(id);
    links_[index(id)].earlier = name(earlier);
    links_[index(id)].later = later;
  }
  /// Takes a block out of its list.
  void remove(std::size_t list, BlockId id) noexcept {
    Ends& ends = lists_[list];
    const Links links = links_[index(id)];
    (links.earlier == 0 ? ends.first : links_[links.earlier - 1].later) = links.later;
    (links.later == 0 ? ends.last : links_[links.later - 1].earlier) = links.earlier;
  }

  /// Counts the blocks of a list. Returns -1 when its links disagree or it has more than `at_most`
  /// blocks. Calls visit(id) for each. O(at_most).
  template <class Visit>
  std::int64_t count(std::size_t list, std::int64_t at_most, Visit visit) const {
    std::int64_t seen = 0;
    std::uint32_t earlier = 0;
    for (std::uint32_t raw = lists_[list].first; raw != 0; raw = links_[raw - 1].later) {
      if (raw > links_.size() || links_[raw - 1].earlier != earlier || ++seen > at_most) return -1;
      visit(named(raw));
      earlier = raw;
    }
    return lists_[list].last == earlier ? seen : -1;
  }
  /// Whether the neighbours of a block of this list, or the ends of the list, name it.
  bool links_agree(std::size_t list, BlockId id) const noexcept {
    const auto [earlier, later, note] = links_[index(id)];
    if (earlier > links_.size() || later > links_.size()) return false;
    return (earlier == 0 ? lists_[list].first : links_[earlier - 1].later) == name(id) &&
           (later == 0 ? lists_[list].last : links_[later - 1].earlier) == name(id);
  }

 private:
  // An id plus 1; 0: no block. So the zeros of a fresh array are empty lists.
  struct Links {
    std::uint32_t earlier;
    std::uint32_t later;
    std::uint32_t note;
  };
  struct Ends {
    std::uint32_t first;
    std::uint32_t last;
  };
  static std::size_t index(BlockId id) noexcept { return static_cast<std::size_t>(id.value); }
  static std::uint32_t name(BlockId id) noexcept {
    return static_cast<std::uint32_t>(id.value + 1);
  }
  static BlockId named(std::uint32_t name) noexcept {
    return BlockId(static_cast<std::int32_t>(name) - 1);
  }

  LazyArray<Ends> lists_;
  LazyArray<Links> links_;
};

}  // namespace kvarena
