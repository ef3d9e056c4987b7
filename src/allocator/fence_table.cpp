#include "allocator/fence_table.hpp"

namespace kvarena {

FenceTable::FenceTable(std::int32_t max_open_tickets, std::int64_t max_entries,
                       std::uint64_t id_space)
    : places_(2 * static_cast<std::size_t>(max_open_tickets)),
      entries_(static_cast<std::size_t>(max_entries)),
      max_entries_(max_entries),
      last_number_(id_space) {}

/// Skips the numbers whose place an older open ticket has.
Ticket FenceTable::open() noexcept {
  if (num_open_ == max_open_tickets()) return kNoTicket;
  do {
    ++last_number_;
  } while (place(Ticket(last_number_)).ticket != kNoTicket);
  newest_ = Ticket(last_number_);
  const auto index = static_cast<std::uint32_t>(place_of(newest_));
  places_[index] = Place{.ticket = newest_, .older = latest_};
  (latest_ == kNone ? oldest_ : places_[latest_].newer) = index;
  latest_ = index;
  ++num_open_;
  return newest_;
}

/// Unlinks the ticket from the list of open tickets and frees its place.
void FenceTable::close(std::size_t place_index) noexcept {
  const Place closed = places_[place_index];
  (closed.older == kNone ? oldest_ : places_[closed.older].newer) = closed.newer;
  (closed.newer == kNone ? latest_ : places_[closed.newer].older) = closed.older;
  places_[place_index] = Place{};
  --num_open_;
}

/// Takes a recycled entry if there is one, else the next untouched one.
void FenceTable::add(Ticket ticket, BlockId block, std::uint32_t& head) noexcept {
  std::uint32_t index = first_free_;
  if (index != kNone) {
    first_free_ = entry(index).next_of_ticket;
  } else {
    index = untouched_++;
  }
  at(index) = Entry{ticket, block, kNone, head, kNone};
  if (head != kNone) at(head).previous_of_block = index;
  head = index;
  Place& p = place(ticket);
  (p.last == kNone ? p.first : at(p.last).next_of_ticket) = index;
  p.last = index;
  ++num_entries_;
}

void FenceTable::unlink_from_block(std::uint32_t index, std::uint32_t& head) noexcept {
  const Entry e = entry(index);
  (head == index ? head : at(e.previous_of_block).next_of_block) = e.next_of_block;
  if (e.next_of_block != kNone) at(e.next_of_block).previous_of_block = e.previous_of_block;
}

/// Puts an entry on the list of free entries.
void FenceTable::recycle(std::uint32_t index) noexcept {
  at(index).next_of_ticket = first_free_;
  first_free_ = index;
  --num_entries_;
}

}  // namespace kvarena
