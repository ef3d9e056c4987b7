#pragma once

/// @file
/// `FenceTable`: the open tickets, and the block references that wait for each ticket. A reference
/// is an entry in two chains. The ticket's chain is in the order of release. The block's chain has
/// the newest entry first and is linked both ways, so that an entry leaves it in O(1).
///
/// Ticket numbers only rise. The place of a ticket is its number modulo the number of places. A
/// number whose place belongs to an older open ticket is skipped. There are twice as many places as
/// tickets that may be open, so a ticket that stays open for long does not slow the others. Open
/// tickets are linked in the order of opening.

#include "base/id_space.hpp"
#include "base/lazy_array.hpp"
#include "kvarena/base/ids.hpp"

#include <cstdint>
#include <vector>

namespace kvarena {

/// Fixed-size tables of tickets and fenced references.
class FenceTable {
 public:
  static constexpr std::uint32_t kNone = ~0U;

  /// One fenced reference.
  struct Entry {
    Ticket ticket;
    BlockId block;
    std::uint32_t next_of_ticket;
    std::uint32_t next_of_block;
    std::uint32_t previous_of_block;
  };

  /// Makes the tables. The tickets are the numbers after `id_space` (take_id_space).
  FenceTable(std::int32_t max_open_tickets, std::int64_t max_entries, std::uint64_t id_space);

  /// Returns the bytes of such a table.
  static std::int64_t bytes(std::int64_t max_open_tickets, std::int64_t max_entries) noexcept {
    return 2 * max_open_tickets * static_cast<std::int64_t>(sizeof(Place)) +
           max_entries * static_cast<std::int64_t>(sizeof(Entry));
  }

  /// Opens the next ticket. Returns kNoTicket when the maximum number of tickets is open.
  Ticket open() noexcept;
  bool is_open(Ticket ticket) const noexcept {
    return ticket != kNoTicket && place(ticket).ticket == ticket;
  }
  /// The ticket that was opened last, or kNoTicket.
  Ticket newest() const noexcept { return newest_; }
  /// The oldest open ticket, or kNoTicket. O(1).
  Ticket oldest_open() const noexcept {
    return oldest_ == kNone ? kNoTicket : places_[oldest_].ticket;
  }
  /// Returns the count of an id within this table. 0: this table has not issued it.
  std::uint64_t number_of(Ticket ticket) const noexcept {
    const bool is_issued =
        (ticket.value ^ last_number_) >> kIdCountBits == 0 && ticket.value <= last_number_;
    return is_issued ? ticket.value & kIdCountMask : 0;
  }
  std::int64_t num_open() const noexcept { return num_open_; }
  std::int64_t max_open_tickets() const noexcept {
    return static_cast<std::int64_t>(places_.size() / 2);
  }
  /// The number of places, and the place of an open ticket.
  std::size_t num_places() const noexcept { return places_.size(); }
  std::size_t place_of(Ticket ticket) const noexcept { return ticket.value % places_.size(); }

  std::int64_t num_entries() const noexcept { return num_entries_; }
  std::int64_t entries_left() const noexcept { return max_entries_ - num_entries_; }
  std::int64_t capacity() const noexcept { return max_entries_; }
  const Entry& entry(std::uint32_t index) const noexcept {
    ++entries_visited_;
    return entries_[index];
  }
  /// The number of times that an entry has been looked at. This is the cost of calls, independent
  /// of the machine.
  std::uint64_t entries_visited() const noexcept { return entries_visited_; }

  /// Adds a reference on `block` to an open ticket, and to the block's chain at `head`. Requires
  /// entries_left() > 0. O(1).
  void add(Ticket ticket, BlockId block, std::uint32_t& head) noexcept;
  /// Returns the last entry of an open ticket's chain, for `undo_adds`.
  std::uint32_t last_entry(Ticket ticket) const noexcept { return place(ticket).last; }
  /// Undoes every add to an open ticket since its last entry was `last`. `head_of(BlockId)` returns
  /// the head of a block's chain. O(1) an add.
  template <class HeadOf>
  void undo_adds(Ticket ticket, std::uint32_t last, HeadOf head_of) noexcept {
    Place& p = place(ticket);
    std::uint32_t index = last == kNone ? p.first : entry(last).next_of_ticket;
    (last == kNone ? p.first : at(last).next_of_ticket) = kNone;
    p.last = last;
    while (index != kNone) {
      const std::uint32_t next = entry(index).next_of_ticket;
      unlink_from_block(index, head_of(entry(index).block));
      recycle(index);
      index = next;
    }
  }
  /// Closes a ticket: unlinks its entries in the order of release and calls `visit(BlockId)` after
  /// each. `head_of(BlockId)` returns the head of a block's chain. O(1) an entry.
  template <class HeadOf, class Visit>
  void retire(Ticket ticket, HeadOf head_of, Visit visit) noexcept {
    for (std::uint32_t index = place(ticket).first; index != kNone;) {
      const std::uint32_t next = entry(index).next_of_ticket;
      const BlockId block = entry(index).block;
      unlink_from_block(index, head_of(block));
      recycle(index);
      visit(block);
      index = next;
    }
    close(place_of(ticket));
  }
  /// Calls visit(index) for each entry of an open ticket.
  template <class Visit>
  void for_each_entry(Ticket ticket, Visit visit) const {
    for (std::uint32_t i = place(ticket).first; i != kNone; i = entry(i).next_of_ticket) visit(i);
  }
  /// Calls visit(ticket) for each open ticket up to and including `last`, oldest first.
  template <class Visit>
  void for_each_open(Ticket last, Visit visit) const {
    for (std::size_t i = oldest_; i != kNone && places_[i].ticket <= last; i = places_[i].newer) {
      visit(places_[i].ticket);
    }
  }

 private:
  struct Place {
    Ticket ticket;
    std::uint32_t first = kNone;  // entries
    std::uint32_t last = kNone;
    std::uint32_t older = kNone;  // places of the open tickets opened before and after it
    std::uint32_t newer = kNone;
  };
  Place& place(Ticket ticket) noexcept { return places_[place_of(ticket)]; }
  const Place& place(Ticket ticket) const noexcept { return places_[place_of(ticket)]; }
  Entry& at(std::uint32_t index) noexcept {
    ++entries_visited_;
    return entries_[index];
  }
  void unlink_from_block(std::uint32_t index, std::uint32_t& head) noexcept;
  void recycle(std::uint32_t index) noexcept;
  void close(std::size_t place_index) noexcept;

  std::vector<Place> places_;
  LazyArray<Entry> entries_;  // touched only when used
  std::int64_t max_entries_;
  std::int64_t num_entries_ = 0;
  std::int64_t num_open_ = 0;
  std::uint32_t untouched_ = 0;       // entries from here on were never used
  std::uint32_t first_free_ = kNone;  // recycled entries, through next_of_ticket
  std::uint64_t last_number_;         // issued or skipped last
  Ticket newest_ = kNoTicket;
  std::uint32_t oldest_ = kNone;  // places of the first and the last open ticket
  std::uint32_t latest_ = kNone;
  mutable std::uint64_t entries_visited_ = 0;
};

}  // namespace kvarena
