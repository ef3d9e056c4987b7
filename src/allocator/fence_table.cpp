#include "allocator/fence_table.hpp"

namespace kvarena {

FenceTable::FenceTable(std::int32_t max_open_tickets, std::int64_t max_entries)
    : places_(static_cast<std::size_t>(max_open_tickets)),
      entries_(static_cast<std::size_t>(max_entries)),
      max_entries_(max_entries) {}

Ticket FenceTable::open() noexcept {
  Place& p = place(Ticket(next_));
  if (p.ticket != kNoTicket) return kNoTicket;
  p.ticket = Ticket(next_++);
  ++num_open_;
  return p.ticket;
}

void FenceTable::add(Ticket ticket, BlockId block, std::uint32_t& head) noexcept {
  std::uint32_t index = first_free_;
  if (index != kNone) {
    first_free_ = entries_[index].next_of_ticket;
  } else {
    index = untouched_++;
  }
  entries_[index] = Entry{ticket, block, kNone, head};
  head = index;
  Place& p = place(ticket);
  (p.last == kNone ? p.first : entries_[p.last].next_of_ticket) = index;
  p.last = index;
  ++num_entries_;
}

void FenceTable::undo_add(Ticket ticket, std::uint32_t& head) noexcept {
  Place& p = place(ticket);
  const std::uint32_t index = p.last;
  head = entries_[index].next_of_block;
  if (p.first == index) {
    p.first = p.last = kNone;
  } else {
    std::uint32_t before = p.first;
    while (entries_[before].next_of_ticket != index) before = entries_[before].next_of_ticket;
    entries_[before].next_of_ticket = kNone;
    p.last = before;
  }
  recycle(index);
}

void FenceTable::unlink_from_block(std::uint32_t index, std::uint32_t& head) noexcept {
  if (head == index) {
    head = entries_[index].next_of_block;
    return;
  }
  std::uint32_t before = head;
  while (entries_[before].next_of_block != index) before = entries_[before].next_of_block;
  entries_[before].next_of_block = entries_[index].next_of_block;
}

void FenceTable::recycle(std::uint32_t index) noexcept {
  entries_[index].next_of_ticket = first_free_;
  first_free_ = index;
  --num_entries_;
}

}  // namespace kvarena
