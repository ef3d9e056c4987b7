#include "step/ticket_events.hpp"

#include "base/log_internal.hpp"
#include "step/event_wait.hpp"

#include <utility>

namespace kvarena {

Result<TicketEvents> TicketEvents::create(Device& device, std::int32_t max_open) {
  TicketEvents events(device);
  const auto count = static_cast<std::size_t>(max_open);
  events.free_events_.reserve(count);
  events.fences_.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const Result<EventId> event = device.create_event();
    if (!event) return event.status();
    events.free_events_.push_back(*event);
  }
  return events;
}

TicketEvents::TicketEvents(TicketEvents&& other) noexcept
    : device_(other.device_),
      free_events_(std::move(other.free_events_)),
      fences_(std::move(other.fences_)) {
  other.free_events_.clear();
  other.fences_.clear();
}

TicketEvents::~TicketEvents() {
  for (const EventId event : free_events_) static_cast<void>(device_->destroy_event(event));
  for (const Fence& fence : fences_) static_cast<void>(device_->destroy_event(fence.event));
}

Result<Ticket> TicketEvents::fence(BlockManager& manager, StreamId stream, std::uint64_t step) {
  if (free_events_.empty()) return exhausted(Resource::ticket, 1, 0);
  const EventId event = free_events_.back();
  if (Status status = device_->record(event, stream); !status) return status;
  Result<Ticket> ticket = manager.open_ticket();
  if (!ticket) return ticket;
  free_events_.pop_back();
  fences_.push_back({*ticket, event, step});
  return ticket;
}

Status TicketEvents::retire_at(BlockManager& manager, std::size_t index) {
  const Fence fence = fences_[index];
  if (Status status = manager.retire(fence.ticket); !status) return status;
  fences_.erase(fences_.begin() + static_cast<std::ptrdiff_t>(index));
  free_events_.push_back(fence.event);
  return {};
}

Status TicketEvents::retire_through(BlockManager& manager, std::uint64_t last_step) {
  while (!fences_.empty() && fences_.front().step <= last_step) {
    if (Status status = wait_until_over(*device_, fences_.front().event); !status) return status;
    if (Status status = retire_at(manager, 0); !status) return status;
  }
  return {};
}

void TicketEvents::wait_for_all() {
  for (const Fence& fence : fences_) static_cast<void>(device_->synchronize(fence.event));
}

Status TicketEvents::retire_completed(BlockManager& manager) {
  for (std::size_t i = 0; i < fences_.size();) {
    const Result<bool> over = is_over(*device_, fences_[i].event);
    if (!over) return over.status();
    if (!*over) {
      ++i;
      continue;
    }
    log_line(LogLevel::info, "eager: retired ticket {}", fences_[i].ticket.value);
    if (Status status = retire_at(manager, i); !status) return status;
  }
  return {};
}

}  // namespace kvarena
