#pragma once

/// @file
/// `FenceTable`: open tickets and the block references that wait for each. A reference is an entry
/// in two chains: its ticket's, in the order of release, and its block's, newest first.

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
  };

  FenceTable(std::int32_t max_open_tickets, std::int64_t max_entries);

  /// The next ticket, or kNoTicket when the place it needs is still taken by an older open one.
  Ticket open() noexcept;
  bool is_open(Ticket ticket) const noexcept {
    return ticket != kNoTicket && place(ticket).ticket == ticket;
  }
  Ticket newest() const noexcept { return Ticket(next_ - 1); }
  /// The oldest open ticket, or kNoTicket. O(1).
  Ticket oldest_open() const noexcept { return oldest_ < next_ ? Ticket(oldest_) : kNoTicket; }
  std::int64_t num_open() const noexcept { return num_open_; }

  std::int64_t num_entries() const noexcept { return num_entries_; }
  std::int64_t entries_left() const noexcept { return max_entries_ - num_entries_; }
  std::int64_t capacity() const noexcept { return max_entries_; }
  std::int64_t max_open_tickets() const noexcept {
    return static_cast<std::int64_t>(places_.size());
  }
  const Entry& entry(std::uint32_t index) const noexcept { return entries_[index]; }

  /// Adds a reference of `block` to an open ticket and to the block's chain at `head`. Requires
  /// entries_left() > 0.
  void add(Ticket ticket, BlockId block, std::uint32_t& head) noexcept;
  /// Undoes the newest add of that ticket. O(entries of the ticket).
  void undo_add(Ticket ticket, std::uint32_t& head) noexcept;
  /// Closes a ticket: unlinks its entries in order of release and calls `visit(BlockId)` after
  /// each; `head_of(BlockId)` is the block's chain. O(entries x references of a block pending at
  /// once), and over all calls O(1) a ticket.
  template <class HeadOf, class Visit>
  void retire(Ticket ticket, HeadOf head_of, Visit visit) {
    Place& p = place(ticket);
    for (std::uint32_t index = p.first; index != kNone;) {
      const Entry& e = entries_[index];
      const std::uint32_t next = e.next_of_ticket;
      const BlockId block = e.block;
      unlink_from_block(index, head_of(block));
      recycle(index);
      visit(block);
      index = next;
    }
    p = Place{};
    --num_open_;
    while (oldest_ < next_ && !is_open(Ticket(oldest_))) ++oldest_;
  }
  /// Calls visit(index) for each entry of an open ticket.
  template <class Visit>
  void for_each_entry(Ticket ticket, Visit visit) const {
    for (std::uint32_t i = place(ticket).first; i != kNone; i = entries_[i].next_of_ticket)
      visit(i);
  }
  /// Calls visit(ticket) for each open ticket up to and including `last`, oldest first.
  template <class Visit>
  void for_each_open(Ticket last, Visit visit) const {
    const std::uint64_t end = last.value < next_ ? last.value + 1 : next_;
    const std::uint64_t span = places_.size();
    for (std::uint64_t t = end > span ? end - span : 1; t < end; ++t) {
      if (is_open(Ticket(t))) visit(Ticket(t));
    }
  }

 private:
  struct Place {
    Ticket ticket;
    std::uint32_t first = kNone;
    std::uint32_t last = kNone;
  };
  Place& place(Ticket ticket) noexcept { return places_[ticket.value % places_.size()]; }
  const Place& place(Ticket ticket) const noexcept {
    return places_[ticket.value % places_.size()];
  }
  void unlink_from_block(std::uint32_t index, std::uint32_t& head) noexcept;
  void recycle(std::uint32_t index) noexcept;

  std::vector<Place> places_;
  LazyArray<Entry> entries_;  // touched only when used
  std::int64_t max_entries_;
  std::int64_t num_entries_ = 0;
  std::int64_t num_open_ = 0;
  std::uint32_t untouched_ = 0;       // entries from here on were never used
  std::uint32_t first_free_ = kNone;  // recycled entries, through next_of_ticket
  std::uint64_t next_ = 1;
  std::uint64_t oldest_ = 1;  // no older ticket is open; next_ when none is
};

}  // namespace kvarena
